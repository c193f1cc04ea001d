"""For every level: expressions that read buffers: a value, whether it is stored, where it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spcomp.dtypes import DType, bool_, int64
from spcomp.ir.expr import Expr, SearchKind
from spcomp.ir.node import attr, node

if TYPE_CHECKING:
    from spcomp.ir.axis import AnyBuffer


@node
class Load(Expr):
    """``buffer[indices]``; the level decides what an index means.

    Coordinate level: coordinates, one per axis; one that is not stored reads as the fill value.
    Position level: positions, one per axis; the ancestors of an axis indexed by absolute position
    have None (``A.at(p)``). Flat level: one offset, a scalar or a vector; a lane whose *mask* is
    false is not read and gives zero.
    """

    buffer: AnyBuffer = attr()
    indices: tuple[Expr | None, ...]
    mask: Expr | None = None

    @property
    def dtype(self) -> DType:
        """The buffer's type, with the lanes of a vector index."""
        last = self.indices[-1] if self.indices else None
        lanes = 1 if last is None else last.dtype.lanes
        return self.buffer.dtype.with_lanes(lanes) if lanes > 1 else self.buffer.dtype


@node
class Stored(Expr):
    """Whether the element that the Load *element* reads is stored; if not, it reads as the fill.

    Coordinate level only: lowering knows the answer, or searches for it.
    """

    element: Expr

    @property
    def dtype(self) -> DType:
        """Always bool."""
        return bool_


@node
class Search(Expr):
    """The absolute position of *key* in ``buffer[begin:end]``, an int64 in ``begin..end``.

    ``lower``: the first position whose value is not below *key*; ``upper``: the first whose value
    is above *key* (both need ascending values); ``gallop``: as ``lower``, fast if it is near
    *begin* (Bentley, Yao: an almost optimal algorithm for unbounded searching, 1976); ``linear``:
    the first whose value equals *key*; ``run``: the first from *begin* on whose value does not
    equal *key*; ``probe``: that of *key* in a hash table of ``end - begin`` slots (see
    ``ir.axis.home``). If there is none, *end*.
    Buffer positions are absolute at every level. With a *slope*, the value at position p is
    ``buffer[p] + slope * p``, an int64 like *key*: so an indptr is cut by rows and elements.
    """

    kind: SearchKind = attr()
    buffer: AnyBuffer = attr()
    begin: Expr
    end: Expr
    key: Expr
    slope: int = attr(default=0)

    @property
    def dtype(self) -> DType:
        """Always int64."""
        return int64
