"""Beside the route, for merges: whether a processor will predict the branches of a loop."""

from __future__ import annotations

from dataclasses import dataclass

from spcomp.dtypes import int64
from spcomp.ir.access import Load
from spcomp.ir.analysis.exprs import ZERO
from spcomp.ir.analysis.names import Names
from spcomp.ir.axis import Buffer
from spcomp.ir.expr import BinOp, Expr, Select, binary, const
from spcomp.ir.stmt import Alloc, If, Stmt, Store, seq


@dataclass(frozen=True, slots=True)
class Foresight:
    """State kept from fiber to fiber: the branches of the last one, and how often they were new.

    Where fibers follow one pattern, as in stencils, or hold the same coordinates, branches are
    predicted, and a loop with branches runs ahead of its loads. Elsewhere it waits for most loads
    twice, and a loop without branches waits only once.
    """

    path: Buffer
    before: Buffer
    surprises: Buffer
    ways: int
    limit: int

    @classmethod
    def of(cls, names: Names, wish: str, ways: int, limit: int) -> Foresight:
        """Return one with new names after *wish*; *ways*: how many branches a step chooses from.

        *limit*: how many more surprises than repetitions are too many for branches.
        """
        buffer_names = (names.unique(f"{wish}_{role}") for role in ("path", "before", "surprises"))
        path, before, surprises = (
            Buffer(n, None, (const(1),), int64, "local") for n in buffer_names
        )
        return cls(path, before, surprises, ways, limit)

    def around(self, loop: Stmt) -> Stmt:
        """Return *loop*, over fibers, inside the buffers of the state."""
        stmt = seq(_set(self.before, ZERO), _set(self.surprises, ZERO), loop)
        for buffer in (self.path, self.before, self.surprises):
            stmt = Alloc(buffer, stmt)
        return stmt

    def note(self, way: int) -> Stmt:
        """Return the statement that records that a step took branch number *way*."""
        return _set(self.path, binary("+", binary("*", get(self.path), self.ways), way))

    def choice(self, branching: Stmt, branch_free: Stmt) -> Stmt:
        """Return the choice between two equivalent loops over a fiber, by the surprises so far."""
        same = BinOp("==", get(self.path), get(self.before))
        # a path of 0 had nothing to do
        repeated = Select(BinOp("!=", get(self.path), ZERO), const(-1), ZERO)
        more = binary("+", get(self.surprises), Select(same, repeated, const(1)))
        judge = _set(self.surprises, BinOp("max", more, ZERO))
        keep = _set(self.before, get(self.path))
        usual = BinOp("<", get(self.surprises), const(self.limit))
        return If(usual, seq(_set(self.path, ZERO), branching, judge, keep), branch_free)


def get(buffer: Buffer) -> Expr:
    """Return the load of the only element of *buffer*."""
    return Load(buffer, (ZERO,))


def _set(buffer: Buffer, value: Expr) -> Stmt:
    return Store(buffer, (ZERO,), value)
