"""For every level: axes of four kinds, iteration domains over them, buffers laid along them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

from spcomp.dtypes import DType, int32
from spcomp.ir.expr import Expr, Var
from spcomp.ir.node import Node, attr, node

# The scope of a buffer that starts as zeros. Its users promise to leave it in a state that serves
# the next iteration as well as a new buffer would.
WORKSPACE = "workspace"
WARP = "warp"  # the scope of a buffer of which each lane of a warp holds one element
HASH = 0x9E3779B97F4A7C15  # 2**64 / golden ratio (Knuth, The Art of Computer Programming, 6.4)
AxisKind: TypeAlias = Literal["dense_fixed", "dense_variable", "sparse_fixed", "sparse_variable"]


@node
class Axis(Node):
    """One dimension of iteration and storage.

    ``sparse`` kinds have *indices* (coordinates that are stored), ``variable`` kinds have *indptr*
    (a fiber per position of the parent). *length* bounds the coordinates; *nnz* counts the
    positions over all fibers; *nnz_cols* is the fiber size of sparse_fixed. A sparse_variable
    axis without arrays is *assembled*: its arrays are a result (nnz is then None).
    ``sorted``: coordinates ascend within a fiber; ``unique``: none occurs twice in it. ``padded``:
    a position whose entry in *indices* is negative holds no coordinate, and iterations skip it.
    ``shifted``: a padded sparse_fixed axis below a root, with one fiber of *indices* for all; a
    coordinate is that of the root plus the entry, and a position where that is out of range holds
    none. ``hashed``: a padded sparse_variable axis whose fibers are hash tables, see :func:`home`.
    """

    name: str = attr()
    kind: AxisKind = attr()
    length: Expr = attr()
    parent: Axis | None = attr(default=None)
    nnz: Expr | None = attr(default=None)
    nnz_cols: Expr | None = attr(default=None)
    indptr: Var | None = attr(default=None)
    indices: Var | None = attr(default=None)
    idtype: DType = attr(default=int32)
    sorted: bool = attr(default=True)
    unique: bool = attr(default=True)
    padded: bool = attr(default=False)
    shifted: bool = attr(default=False)
    hashed: bool = attr(default=False)

    @property
    def is_sparse(self) -> bool:
        """Whether coordinates are stored in indices."""
        return self.kind in ("sparse_fixed", "sparse_variable")

    @property
    def is_variable(self) -> bool:
        """Whether fibers differ in size, as indptr says."""
        return self.kind in ("dense_variable", "sparse_variable")

    @property
    def is_assembled(self) -> bool:
        """Whether the arrays of this axis are results of the program."""
        return self.kind == "sparse_variable" and self.indptr is None

    @property
    def width(self) -> Expr:
        """The largest number of positions in a fiber; if all fibers are of one size, that size."""
        return self.length if self.nnz_cols is None else self.nnz_cols

    @property
    def is_below_root(self) -> bool:
        """Whether the parent of this axis is a root."""
        return self.parent is not None and self.parent.parent is None

    def ancestors(self) -> Iterator[Axis]:
        """Yield the parent, its parent, up to the root."""
        axis = self.parent
        while axis is not None:
            yield axis
            axis = axis.parent

    def path(self) -> tuple[Axis, ...]:
        """The axes from the root down to this one."""
        return (*reversed(tuple(self.ancestors())), self)


def home(coordinate: int, slots: int) -> int:
    """Return the slot where the search for *coordinate* starts, in a table of *slots* (2**k).

    It lies there or in the next slot, cyclically, that was free; a negative entry is free.
    """
    bits = slots.bit_length() - 1
    return (coordinate * HASH & (1 << 64) - 1) >> (64 - bits) if bits else 0


@dataclass(frozen=True, slots=True, eq=False)
class Fuse:
    """One loop over the positions of the last axis; gives a coordinate for each of *axes*."""

    axes: tuple[Axis, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Attach:
    """The fiber of *axis* whose parent position is the coordinate that runs over *to*."""

    axis: Axis
    to: Axis


@dataclass(frozen=True, slots=True, eq=False)
class Flatten:
    """One loop over the positions of the last of *axes*; its coordinate is that position."""

    axes: tuple[Axis, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Union:
    """The coordinates stored in at least one of *parts*, ascending."""

    parts: tuple[Axis | Attach, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Intersect:
    """The coordinates stored in all of *parts*, ascending."""

    parts: tuple[Axis | Attach, ...]


Domain: TypeAlias = Axis | Fuse | Attach | Flatten | Union | Intersect


def memory_of(buffer: AnyBuffer) -> object:
    """Return the identity of the memory of *buffer*: its handle, or itself if it has none."""
    return buffer if buffer.data is None else buffer.data


def domain_axes(domain: Domain) -> tuple[Axis, ...]:
    """Return the axes of *domain*."""
    match domain:
        case Axis():
            return (domain,)
        case Attach(axis=axis):
            return (axis,)
        case Fuse(axes=axes) | Flatten(axes=axes):
            return axes
        case Union(parts=parts) | Intersect(parts=parts):
            return tuple([part.axis if isinstance(part, Attach) else part for part in parts])


def domain_width(domain: Domain) -> int:
    """Return how many loop variables *domain* binds."""
    return len(domain.axes) if isinstance(domain, Fuse) else 1


@node
class SparseBuffer(Node):
    """Values laid along *axes*, in memory at the handle *data* (None: allocated inside).

    One-dimensional in memory; a coordinate that is not stored reads as *fill*. *extra_storage*
    elements follow the last one (an indptr has one more than its axes say). *distinct*: no value
    occurs twice, a promise that a call checks; the program does not write the buffer.
    """

    name: str = attr()
    data: Var | None = attr()
    axes: tuple[Axis, ...] = attr()
    dtype: DType = attr()
    scope: str = attr(default="global")
    fill: int | float | bool = attr(default=0)
    extra_storage: int = attr(default=0)
    distinct: bool = attr(default=False)


@node
class Buffer(Node):
    """A dense array of *shape*, row-major, at the handle *data* (None: allocated by an Alloc).

    Flat level: one-dimensional. *strides* (elements) are for user-declared views. *distinct*: as of
    a SparseBuffer.
    """

    name: str = attr()
    data: Var | None = attr()
    shape: tuple[Expr, ...]
    dtype: DType = attr()
    scope: str = attr(default="global")
    strides: tuple[Expr, ...] | None = None
    distinct: bool = attr(default=False)


AnyBuffer: TypeAlias = SparseBuffer | Buffer


@dataclass(frozen=True, slots=True, eq=False)
class BufferDomain:
    """A promise that every value in *buffer* lies in ``low..high``, both included."""

    buffer: AnyBuffer
    low: Expr
    high: Expr


EMPTY = -1  # the coordinate of a position that holds no element
