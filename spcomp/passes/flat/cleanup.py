"""III to III: removes what lowering left over: constants, empty loops, unused lets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from spcomp.ir.analysis.exprs import may_fail
from spcomp.ir.arith.simplify import simplify_stmt
from spcomp.ir.expr import Const, Var
from spcomp.ir.node import Node
from spcomp.ir.program import FlatFunc
from spcomp.ir.rewrite import Rewriter, substitute
from spcomp.ir.stmt import Alloc, Evaluate, For, If, Let, Seq, Stmt, is_empty
from spcomp.ir.visitor import statements, walk
from spcomp.passes.base import FuncPass, Stage


@dataclass(frozen=True, slots=True)
class Cleanup(FuncPass):
    """``x = 3; a[x + 0] = b  ->  a[3] = b``; values and effects stay."""

    name: ClassVar[str] = "cleanup"
    takes: ClassVar[Stage] = Stage.FLAT
    gives: ClassVar[Stage] = Stage.FLAT

    def run_func(self, func: FlatFunc) -> FlatFunc:
        """Return *func* simplified."""
        body = _Tidy().rewrite(simplify_stmt(func.body))
        return func if body is func.body else func.replace(body=body)


class _Tidy(Rewriter):
    def visit_Let(self, let: Let) -> Node:
        body = self.rewrite(let.body)
        if isinstance(let.value, (Const, Var)) and not _sizes(body, let.var):
            return substitute(body, {let.var: let.value})
        is_size = _sizes(body, let.var)
        if not (is_size or may_fail(let.value) or any(node is let.var for node in walk(body))):
            return body
        return let if body is let.body else Let(let.var, let.value, body, span=let.span)

    def visit_Evaluate(self, stmt: Evaluate) -> Node:
        new = self.visit_Node(stmt)
        assert isinstance(new, Evaluate)
        return new if may_fail(new.value) else Seq(())

    def visit_For(self, loop: For) -> Node:
        new = self.visit_Node(loop)
        assert isinstance(new, For)
        fails = may_fail(new.begin) or may_fail(new.end)
        return new.body if is_empty(new.body) and not fails else new

    def visit_If(self, stmt: If) -> Node:
        new = self.visit_Node(stmt)
        assert isinstance(new, If)
        if new.otherwise is not None and is_empty(new.otherwise):
            new = new.replace(otherwise=None)
        empty = new.otherwise is None and is_empty(new.then)
        return new.then if empty and not may_fail(new.cond) else new


def _sizes(body: Stmt, var: Var) -> bool:
    """Whether *var* occurs in the size of a buffer that *body* allocates."""
    buffers = [node.buffer for node in statements(body) if isinstance(node, Alloc)]
    sizes = [extent for buffer in buffers for extent in getattr(buffer, "shape", ())]
    return any(node is var for size in sizes for node in walk(size))
