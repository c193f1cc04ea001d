"""Beside the route, for merges: a vector test whether fibers have a common coordinate."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

from spcomp.dtypes import int64, promote
from spcomp.ir.access import Load
from spcomp.ir.analysis.exprs import ZERO, absolute
from spcomp.ir.analysis.names import Names
from spcomp.ir.analysis.reduction import identity
from spcomp.ir.axis import AnyBuffer, Buffer
from spcomp.ir.expr import BinOp, Expr, Select, Var, binary, cast, const
from spcomp.ir.stmt import Alloc, For, If, Let, Stmt, Store, seq
from spcomp.knobs import Knobs


@dataclass(frozen=True, slots=True)
class Fiber:
    """The coordinates that *indices* holds from position *first* on, before *end*."""

    indices: AnyBuffer
    first: Expr
    end: Var


@dataclass(frozen=True, slots=True)
class Meetings:
    """State kept from fiber to fiber: how many more pairs met than did not.

    Where few pairs of fibers have a common coordinate, comparing all of one with all of the other,
    a vector at a time, is faster than a merge, which waits for each step. Source: Schlegel,
    Willhalm, Lehner: fast sorted-set intersection using SIMD instructions (ADMS 2011).
    """

    count: Buffer
    knobs: Knobs

    @classmethod
    def of(cls, names: Names, wish: str, knobs: Knobs) -> Meetings:
        """Return one with a new name after *wish*."""
        count = Buffer(names.unique(f"{wish}_meetings"), None, (const(1),), int64, "local")
        return cls(count, knobs)

    def around(self, loop: Stmt) -> Stmt:
        """Return *loop*, over fibers, inside the buffer of the state."""
        return Alloc(self.count, seq(Store(self.count, (ZERO,), ZERO), loop))

    def skip_if_apart(self, names: Names, fibers: tuple[Fiber, Fiber], merge: Stmt) -> Stmt:
        """Return *merge*, skipped if *fibers*, neither of them empty, have no common coordinate."""
        first, second = fibers
        dtype = promote(first.indices.dtype, second.indices.dtype)
        apart = Buffer(names.unique("apart"), None, (const(1),), dtype, "local")
        meet = BinOp("==", Load(apart, (ZERO,)), const(0, dtype))
        more = binary("+", Load(self.count, (ZERO,)), Select(meet, const(1), const(-1)))
        note = Store(self.count, (ZERO,), BinOp("max", more, ZERO))
        compare = If(self._worth(fibers), seq(self._compare(names, fibers, apart), note))
        unknown = Store(apart, (ZERO,), const(0, dtype))
        return Alloc(apart, seq(unknown, compare, If(meet, merge)))

    def _worth(self, fibers: Sequence[Fiber]) -> Expr:
        sizes = [binary("-", fiber.end, fiber.first) for fiber in fibers]
        knobs = self.knobs
        conditions = (
            BinOp("<", Load(self.count, (ZERO,)), const(knobs.meeting_limit)),
            BinOp("<=", BinOp("min", *sizes), const(knobs.meeting_shorter)),
            BinOp("<=", BinOp("max", *sizes), const(knobs.meeting_longer)),
        )
        return functools.reduce(lambda a, b: BinOp("and", a, b), conditions)

    def _compare(self, names: Names, fibers: Sequence[Fiber], apart: Buffer) -> Stmt:
        """Return the statement that sets *apart* to the least xor of two coordinates."""
        at = [names.var("meeting") for _ in fibers]
        begin = [names.var("meeting_from") for _ in fibers]
        coordinates = [
            cast(Load(f.indices, absolute(f.indices, p)), apart.dtype)
            for f, p in zip(fibers, at, strict=True)
        ]
        least = BinOp("min", Load(apart, (ZERO,)), BinOp("^", *coordinates))
        stmt: Stmt = Store(apart, (ZERO,), least)
        stmt = For(at[0], begin[0], fibers[0].end, stmt)
        stmt = For(at[1], begin[1], fibers[1].end, stmt, "vectorized")
        for fiber, var in zip(fibers, begin, strict=True):
            stmt = Let(var, fiber.first, stmt)
        return seq(Store(apart, (ZERO,), identity("min", apart.dtype)), stmt)
