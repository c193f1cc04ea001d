"""Before code for a GPU: what is the same for all lanes of a warp, and where they are together."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from math import prod
from typing import TYPE_CHECKING

from spcomp.ir import stmt as st
from spcomp.ir.access import Load, Search
from spcomp.ir.analysis.exprs import variables
from spcomp.ir.analysis.fragments import LANES
from spcomp.ir.analysis.grid import BLOCKS, THREADS
from spcomp.ir.arith.memory import read_by, writes_of
from spcomp.ir.axis import memory_of
from spcomp.ir.expr import BinOp, Const, Var, binary
from spcomp.ir.visitor import statements, walk

if TYPE_CHECKING:
    from spcomp.ir.analysis.grid import Grid
    from spcomp.ir.expr import Expr
    from spcomp.ir.program import FlatFunc


class Lanes:
    """The lanes of a warp at a statement of *func*; *together*: whether all of them run it.

    They then need not ask which of them exchange values with each other.
    """

    def __init__(self, func: FlatFunc, grid: Grid) -> None:
        nodes = list(statements(func.body))
        some_end = any(isinstance(node, st.Fail) for node in nodes)
        may_alias = func.attr("tir.noalias", default=True) is False
        whole = prod(grid.threads) % LANES == 0  # warps
        self.together = whole and not some_end and not may_alias
        self.threads = grid.threads
        self.fixed: set[Var] = set(func.params)  # variables that a thread does not change
        self.same: set[Var] = set(func.params)  # variables that do not differ between lanes
        self.written = writes_of(func.body)

    def agree(self, *values: Expr) -> bool:
        """Whether each of *values* is the same for all lanes."""
        return all(map(self._agree, values))

    def _agree(self, value: Expr) -> bool:
        for node in walk(value):
            if isinstance(node, Search) or (isinstance(node, Var) and node not in self.same):
                return False
            if isinstance(node, Load):
                changes = memory_of(node.buffer) in self.written
                if changes or node.buffer.scope != "global":
                    return False
        return True

    @contextmanager
    def inside(self, *values: Expr) -> Iterator[None]:
        """Be at a statement that lanes run as *values* say."""
        before, self.together = self.together, self.together and self.agree(*values)
        try:
            yield
        finally:
            self.together = before

    def bind(self, loop: st.For) -> None:
        """Note what is known of the variable of *loop*."""
        if loop.kind == "bound":
            self.fixed.add(loop.var)
        if loop.thread in THREADS:  # rows of threads that are whole warps
            same = prod(self.threads[: THREADS.index(loop.thread)]) % LANES == 0
        else:
            same = loop.thread in BLOCKS or (self.together and self.agree(loop.end))
        if same and self.agree(loop.begin):
            self.same.add(loop.var)


def fixed_part(value: Expr, fixed: AbstractSet[Var]) -> tuple[Expr | None, Expr | None]:
    """Return the terms of the sum *value* in which nothing but *fixed* variables is, and others."""
    used = variables(value)
    if used and used <= fixed and not any(read_by(value)):
        return value, None
    match value:
        case BinOp(op="+", lhs=lhs, rhs=rhs):
            (a, b), (c, d) = fixed_part(lhs, fixed), fixed_part(rhs, fixed)
            return _sum(a, c), _sum(b, d)
        case BinOp(op="*", lhs=lhs, rhs=Const() as factor):
            own, rest = fixed_part(lhs, fixed)
            if own is not None and rest is not None:
                return binary("*", own, factor), binary("*", rest, factor)
    return None, value


def _sum(a: Expr | None, b: Expr | None) -> Expr | None:
    """Return the sum of those that are there."""
    if a is None or b is None:
        return b if a is None else a
    return binary("+", a, b)
