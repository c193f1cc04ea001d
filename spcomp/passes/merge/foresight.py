"""Beside the route, for merges: whether a processor will foresee what a loop does."""

from __future__ import annotations

from dataclasses import dataclass

from spcomp.dtypes import int64
from spcomp.ir.access import Load
from spcomp.ir.analysis.exprs import ZERO
from spcomp.ir.analysis.names import Names
from spcomp.ir.axis import Buffer
from spcomp.ir.expr import BinOp, Expr, Select, binary, const
from spcomp.ir.stmt import Alloc, If, Stmt, Store, seq

LIMIT = 8  # surprises, more than repetitions, from which on branches are avoided


@dataclass(frozen=True, slots=True)
class Foresight:
    """What is kept from fiber to fiber: what the last steps did, and how often that was new.

    Where fibers follow one pattern, as in stencils, or hold the same coordinates, branches are
    foreseen, and a loop that branches runs ahead of its loads. Where they do not, it waits for most
    of them twice; one without branches waits for its loads only.
    """

    path: Buffer
    before: Buffer
    surprises: Buffer
    ways: int

    @classmethod
    def of(cls, names: Names, wish: str, ways: int) -> Foresight:
        """Return one with new names after *wish*; *ways*: what a step may do, at most."""
        made = (names.unique(f"{wish}_{what}") for what in ("path", "before", "surprises"))
        path, before, surprises = (Buffer(n, None, (const(1),), int64, "local") for n in made)
        return cls(path, before, surprises, ways)

    def around(self, loop: Stmt) -> Stmt:
        """Return *loop*, over fibers, with what is kept."""
        stmt = seq(_set(self.before, ZERO), _set(self.surprises, ZERO), loop)
        for buffer in (self.path, self.before, self.surprises):
            stmt = Alloc(buffer, stmt)
        return stmt

    def note(self, way: int) -> Stmt:
        """Return what remembers that a step went the *way* of that number."""
        return _set(self.path, binary("+", binary("*", _get(self.path), self.ways), way))

    def choice(self, steered: Stmt, free: Stmt) -> Stmt:
        """Return *steered*, a loop over a fiber that branches, or *free*, which does the same."""
        same = BinOp("==", _get(self.path), _get(self.before))
        told = Select(BinOp("!=", _get(self.path), ZERO), const(-1), ZERO)  # or had nothing to do
        more = binary("+", _get(self.surprises), Select(same, told, const(1)))
        judge = _set(self.surprises, BinOp("max", more, ZERO))
        keep = _set(self.before, _get(self.path))
        usual = BinOp("<", _get(self.surprises), const(LIMIT))
        return If(usual, seq(_set(self.path, ZERO), steered, judge, keep), free)


def _get(buffer: Buffer) -> Expr:
    return Load(buffer, (ZERO,))


def _set(buffer: Buffer, value: Expr) -> Stmt:
    return Store(buffer, (ZERO,), value)
