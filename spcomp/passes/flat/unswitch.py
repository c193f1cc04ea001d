"""Under loop_kinds: a condition that is the same in all iterations is tested before the loop."""

from __future__ import annotations

from itertools import takewhile

from spcomp.ir.access import Load
from spcomp.ir.analysis.exprs import conjunction
from spcomp.ir.analysis.names import Names
from spcomp.ir.analysis.vectors import conditions_of, is_invariant
from spcomp.ir.arith.memory import read_by
from spcomp.ir.arith.simplify import prove
from spcomp.ir.expr import BinOp, Expr, Select
from spcomp.ir.node import Node
from spcomp.ir.rewrite import Rewriter
from spcomp.ir.stmt import For, If, Let, Stmt
from spcomp.ir.structural import fingerprint
from spcomp.ir.visitor import walk


def unswitch(loop: For) -> tuple[Expr | None, For]:
    """``for k: if a: if b(k): s  ->  if a: for k: if b(k): s``: the condition *a*, and the loop.

    None if the first condition in *loop* may change between iterations. If the condition reads
    memory, it first tests whether the loop runs at all.
    """
    terms, body = conditions_of(loop.body)
    if not terms:
        return None, loop
    hoisted = list(takewhile(lambda term: is_invariant(term, loop.var, body), terms))
    remaining = conjunction(terms[len(hoisted) :])
    runs = BinOp("<", loop.begin, loop.end)
    if any(read_by(*hoisted)) and not prove(runs, {}):
        hoisted.insert(0, runs)
    inner = body if remaining is None else If(remaining, body, span=loop.body.span)
    return conjunction(hoisted), loop.replace(body=inner)


class NamedReads(Rewriter):
    """Binds the reads in the condition of the select *value*, which its sides then reuse.

    In a side of a select of vectors each read would be masked, and a scalar read a branch.
    """

    def __init__(self, names: Names, value: Expr) -> None:
        # inner ones first
        nodes = list(walk(value.cond))[::-1] if isinstance(value, Select) else []
        lazy = any(isinstance(n, Select) or _is_lazy(n) for n in nodes)
        loads = {} if lazy else {fingerprint(n): n for n in nodes if isinstance(n, Load)}
        self.loads = {k: (names.var(f"{n.buffer.name}_read", n.dtype), n) for k, n in loads.items()}

    def visit_Load(self, load: Load) -> Node:
        """Return the variable for a read that is bound."""
        entry = self.loads.get(fingerprint(load))
        return self.visit_Node(load) if entry is None else entry[0]

    def name(self, stmt: Stmt) -> Stmt:
        """Return *stmt* inside the bindings of these reads."""
        body = self.rewrite(stmt)
        assert isinstance(body, Stmt)
        for var, load in reversed(self.loads.values()):  # indices of other reads go outside
            value = self.visit_Node(load)
            assert isinstance(value, Expr)
            body = Let(var, value, body)
        return body


def _is_lazy(node: Node) -> bool:
    return isinstance(node, BinOp) and node.op in ("and", "or")
