"""Beside the route, for merges: whether fibers have a coordinate in common, asked by vectors."""

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

LIMIT = 8  # fibers that meet, more than do not, from which on nobody asks
FEW = 64  # coordinates of the shorter fiber, at most: each is compared with all of the other
MANY = 1 << 12  # of the longer one, at most


@dataclass(frozen=True, slots=True)
class Fiber:
    """The coordinates that *indices* holds from position *first* on, before *end*."""

    indices: AnyBuffer
    first: Expr
    end: Var


@dataclass(frozen=True, slots=True)
class Meetings:
    """What is kept from fiber to fiber: how often two met, more than they did not.

    Where few pairs of fibers have a coordinate in common, all of one against all of the other, a
    vector at a time, says so sooner than going through both, which waits for each step. Source:
    Schlegel, Willhalm, Lehner: fast sorted-set intersection using SIMD instructions (ADMS 2011).
    """

    count: Buffer

    @classmethod
    def of(cls, names: Names, wish: str) -> Meetings:
        """Return one with a new name after *wish*."""
        return cls(Buffer(names.unique(f"{wish}_meetings"), None, (const(1),), int64, "local"))

    def around(self, loop: Stmt) -> Stmt:
        """Return *loop*, over fibers, with what is kept."""
        return Alloc(self.count, seq(Store(self.count, (ZERO,), ZERO), loop))

    def asked(self, names: Names, fibers: tuple[Fiber, Fiber], merged: Stmt) -> Stmt:
        """Return *merged*, but for *fibers*, of which none is empty, that are found not to meet."""
        one, other = fibers
        dtype = promote(one.indices.dtype, other.indices.dtype)
        apart = Buffer(names.unique("apart"), None, (const(1),), dtype, "local")
        meet = BinOp("==", Load(apart, (ZERO,)), const(0, dtype))
        more = binary("+", Load(self.count, (ZERO,)), Select(meet, const(1), const(-1)))
        note = Store(self.count, (ZERO,), BinOp("max", more, ZERO))
        compare = If(self._worth(fibers), seq(self._compare(names, fibers, apart), note))
        unknown = Store(apart, (ZERO,), const(0, dtype))
        return Alloc(apart, seq(unknown, compare, If(meet, merged)))

    def _worth(self, fibers: Sequence[Fiber]) -> Expr:
        sizes = [binary("-", fiber.end, fiber.first) for fiber in fibers]
        asked = (
            BinOp("<", Load(self.count, (ZERO,)), const(LIMIT)),
            BinOp("<=", BinOp("min", *sizes), const(FEW)),
            BinOp("<=", BinOp("max", *sizes), const(MANY)),
        )
        return functools.reduce(lambda a, b: BinOp("and", a, b), asked)

    def _compare(self, names: Names, fibers: Sequence[Fiber], apart: Buffer) -> Stmt:
        """Return what makes *apart* 0 if the fibers meet: the least xor of two coordinates."""
        at = [names.var("meeting") for _ in fibers]
        begin = [names.var("meeting_from") for _ in fibers]
        found = [
            cast(Load(f.indices, absolute(f.indices, p)), apart.dtype)
            for f, p in zip(fibers, at, strict=True)
        ]
        least = BinOp("min", Load(apart, (ZERO,)), BinOp("^", *found))
        stmt: Stmt = Store(apart, (ZERO,), least)
        stmt = For(at[0], begin[0], fibers[0].end, stmt)
        stmt = For(at[1], begin[1], fibers[1].end, stmt, "vectorized")
        for fiber, var in zip(fibers, begin, strict=True):
            stmt = Let(var, fiber.first, stmt)
        return seq(Store(apart, (ZERO,), identity("min", apart.dtype)), stmt)
