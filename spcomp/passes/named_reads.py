"""Under loop_kinds: what a condition reads is read once, for the lanes it chooses too."""

from __future__ import annotations

from spcomp.ir.access import Load
from spcomp.ir.expr import BinOp, Expr, Select
from spcomp.ir.node import Node
from spcomp.ir.rewrite import Rewriter
from spcomp.ir.stmt import Let, Stmt
from spcomp.ir.visitor import walk
from spcomp.passes.names import Names
from spcomp.passes.scope import fingerprint


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
