"""Under loop_kinds: what all iterations of a loop ask first is asked once, before the loop."""

from __future__ import annotations

from functools import reduce
from itertools import takewhile

from spcomp.ir.access import Load
from spcomp.ir.analysis.exprs import both, fingerprint
from spcomp.ir.analysis.names import Names
from spcomp.ir.analysis.vectors import _reads, asked, is_same
from spcomp.ir.arith.simplify import prove
from spcomp.ir.expr import BinOp, Expr, Select
from spcomp.ir.node import Node
from spcomp.ir.rewrite import Rewriter
from spcomp.ir.stmt import For, If, Let, Stmt
from spcomp.ir.visitor import walk


def unswitched(loop: For) -> tuple[Expr | None, For]:
    """``for k: if a: if b(k): s  ->  if a: for k: if b(k): s``: the condition *a*, and the loop.

    None where the first thing that *loop* asks may differ from one iteration to the next. Where
    the condition reads memory, it asks first whether the loop runs at all.
    """
    terms, body = asked(loop.body)
    if not terms:
        return None, loop
    known = list(takewhile(lambda term: is_same(term, loop.var, body), terms))
    rest = reduce(both, terms[len(known) :], None)
    runs = BinOp("<", loop.begin, loop.end)
    if _reads(known) and not prove(runs, {}):
        known.insert(0, runs)
    inner = body if rest is None else If(rest, body, span=loop.body.span)
    return reduce(both, known, None), loop.replace(body=inner)


class NamedReads(Rewriter):
    """Names what the condition of *value* reads, whatever it says: the sides need not ask again.

    In the side of a select of vectors, each read is masked, and one for all lanes is a branch.
    """

    def __init__(self, names: Names, value: Expr) -> None:
        nodes = (
            list(walk(value.cond))[::-1] if isinstance(value, Select) else []
        )  # inner ones first
        lazy = any(isinstance(n, Select) or _is_lazy(n) for n in nodes)
        loads = {} if lazy else {fingerprint(n): n for n in nodes if isinstance(n, Load)}
        self.loads = {k: (names.var(f"{n.buffer.name}_read", n.dtype), n) for k, n in loads.items()}

    def visit_Load(self, load: Load) -> Node:
        """Return the name of what was read."""
        found = self.loads.get(fingerprint(load))
        return self.visit_Node(load) if found is None else found[0]

    def name(self, stmt: Stmt) -> Stmt:
        """Return *stmt* behind these reads."""
        body = self.rewrite(stmt)
        assert isinstance(body, Stmt)
        for var, load in reversed(self.loads.values()):  # what tells where others read, outside
            own = self.visit_Node(load)
            assert isinstance(own, Expr)
            body = Let(var, own, body)
        return body


def _is_lazy(node: Node) -> bool:
    return isinstance(node, BinOp) and node.op in ("and", "or")
