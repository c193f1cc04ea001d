"""Before the route: diagonal segments of sliced rows, a format for stencils and banded matrices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from spcomp.dtypes import handle, int64
from spcomp.errors import FormatError
from spcomp.formats.rules import Format, FormatRewriteRule
from spcomp.ir.axis import Axis, SparseBuffer
from spcomp.ir.coordinate import CoordFunc
from spcomp.ir.expr import Expr, Var, cast, const
from spcomp.ir.stmt import Seq

if TYPE_CHECKING:
    from spcomp.dtypes import DType

SLICE_BYTES = 64  # a cache line of values
MAX_LANES = 64


@dataclass(frozen=True, slots=True)
class SlicedDiagonal(Format):
    """What :func:`sliced_diagonal` describes; *lanes* None is chosen by the buffer's dtype."""

    lanes: int | None = None
    min_fill: float = 0.25

    def lanes_of(self, dtype: DType) -> int:
        """Return the rows of a slice for values of *dtype*."""
        return self.lanes or max(SLICE_BYTES // dtype.itemsize, 1)

    def rules(self, buffer: SparseBuffer) -> tuple[FormatRewriteRule, ...]:
        """Return the rules ``diagonal``, over slices, segments and lanes, and ``rest``."""
        kinds = tuple(axis.kind for axis in buffer.axes)
        if kinds != ("dense_fixed", "sparse_variable") or buffer.extra_storage:
            raise FormatError(
                f"{buffer.name} cannot be stored in diagonal segments, its axes are"
                f" {', '.join(kinds)}",
                buffer.span,
                hint="the format is for buffers along dense_fixed and sparse_variable axes (CSR)",
            )
        return _segments(buffer, self.lanes_of(buffer.dtype)), _remainder(buffer)


def sliced_diagonal(lanes: int | None = None, min_fill: float = 0.25) -> SlicedDiagonal:
    """Return a format that stores one column index for *lanes* values: for stencils and bands.

    Rows are cut into slices of *lanes*; of a slice, values on one diagonal form a segment, lane l
    standing for row ``s * lanes + l`` and column ``p + l``, where p is the index kept. Vectors of
    the dense operand are then loaded, not gathered. Elements of segments that hold less than
    ``min_fill * lanes`` or reach over the edge, of the last rows if they do not fill a slice, and
    stored zeros lie apart in compressed rows (DCSR).

    Args:
        lanes: Rows of a slice, 1 to 64; by default as many values as fill 64 bytes.
        min_fill: From which fraction of its lanes on a segment is worth keeping, above 0 up to 1.

    Raises:
        FormatError: for arguments out of range.

    Source: the slices of sliced ELLPACK (Monakov, Lokhmotov, Avetisyan, HiPEAC 2010), the row
    segments with diagonals of CRSD (Sun et al., ICPP 2011), with a position for each segment.
    """
    if lanes is not None and (not isinstance(lanes, int) or not 1 <= lanes <= MAX_LANES):
        raise FormatError(f"lanes is {lanes!r}, expected an integer in 1..{MAX_LANES}")
    if not 0 < min_fill <= 1:
        raise FormatError(f"min_fill is {min_fill!r}, expected a number above 0 up to 1")
    return SlicedDiagonal(lanes, min_fill)


def _segments(buffer: SparseBuffer, lanes: int) -> FormatRewriteRule:
    rows, columns = buffer.axes
    m, n = _length(rows), _length(columns)
    slices = Axis("S", "dense_fixed", m // lanes)
    starts = _compressed("P", slices, n - (lanes - 1), columns.idtype)
    lane = Axis("L", "dense_fixed", const(lanes))
    return FormatRewriteRule(
        "diagonal",
        _description(buffer, (slices, starts, lane)),
        (buffer.name,),
        (rows.name, columns.name),
        ("S", "P", "L"),
        {rows.name: ("S", "L"), columns.name: ("P", "L")},
        lambda i, j: (i // lanes, j - i % lanes, i % lanes),
        lambda s, p, lane: (s * lanes + lane, p + lane),
        padded=True,
    )


def _remainder(buffer: SparseBuffer) -> FormatRewriteRule:
    rows, columns = buffer.axes
    root = Axis("O", "dense_fixed", const(1))
    some = _compressed("R", root, rows.length, columns.idtype)
    stored = _compressed("J", some, columns.length, columns.idtype)
    return FormatRewriteRule(
        "rest",
        _description(buffer, (root, some, stored)),
        (buffer.name,),
        (rows.name, columns.name),
        ("O", "R", "J"),
        {rows.name: ("O", "R"), columns.name: ("J",)},
        lambda i, j: (0, i, j),
        lambda o, r, j: (r, j),  # noqa: ARG005
    )


def _length(axis: Axis) -> Expr:
    return cast(axis.length, int64)


def _compressed(name: str, parent: Axis, length: Expr, idtype: DType) -> Axis:
    arrays = Var(f"{name}_indptr", handle), Var(f"{name}_indices", handle)
    count = Var(f"{name}_count", int64)
    return Axis(name, "sparse_variable", length, parent, count, None, *arrays, idtype)


def _description(buffer: SparseBuffer, axes: tuple[Axis, ...]) -> CoordFunc:
    data = Var((buffer.data or buffer).name, handle)
    new = SparseBuffer(buffer.name, data, axes, buffer.dtype)
    own = [data]
    for axis in axes:
        own += [x for x in (axis.indptr, axis.indices, axis.nnz) if isinstance(x, Var)]
    return CoordFunc(f"{buffer.name}_format", tuple(own), axes, (new,), Seq(()))
