"""Before the route: diagonal segments of sliced rows, a format for stencils and banded matrices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from spcomp.errors import FormatError
from spcomp.formats.describe import (
    CSR,
    compressed,
    dense,
    description,
    length,
    remainder,
    require,
)
from spcomp.formats.rules import ComposableFormat, FormatRewriteRule

if TYPE_CHECKING:
    from spcomp.dtypes import DType
    from spcomp.ir.axis import SparseBuffer

SLICE_BYTES = 64  # a cache line of values
MAX_LANES = 64


@dataclass(frozen=True, slots=True)
class SlicedDiagonal(ComposableFormat):
    """The format of :func:`sliced_diagonal`; if *lanes* is None, the buffer's dtype decides it."""

    lanes: int | None = None
    min_fill: float = 0.25

    def lanes_of(self, dtype: DType) -> int:
        """Return the rows of a slice for values of *dtype*."""
        return self.lanes or max(SLICE_BYTES // dtype.itemsize, 1)

    def rules(self, buffer: SparseBuffer) -> tuple[FormatRewriteRule, ...]:
        """Return the rules ``diagonal``, over slices, segments and lanes, and ``rest``."""
        require(buffer, CSR, "in diagonal segments")
        return _segments(buffer, self.lanes_of(buffer.dtype)), remainder(buffer)


def sliced_diagonal(lanes: int | None = None, min_fill: float = 0.25) -> SlicedDiagonal:
    """Return a format for stencils and bands that stores one column index for *lanes* values.

    Rows are cut into slices of *lanes* rows. In slice s, the values on one diagonal form a segment:
    lane l is the element at row ``s * lanes + l`` and column ``p + l``, where p is the stored
    index. Vectors of the dense operand are then loaded, not gathered. A part of compressed rows
    (DCSR) has the rest: the elements of segments with fewer than ``min_fill * lanes`` elements or
    beyond the edge, the last rows if they do not fill a slice, and stored zeros.

    Args:
        lanes: Rows of a slice, 1 to 64; by default as many values as fill 64 bytes.
        min_fill: The least fraction of its lanes that a segment must fill, above 0 up to 1.

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
    m, n = length(rows), length(columns)
    slices = dense("S", m // lanes)
    starts = compressed("P", slices, n - (lanes - 1), columns.idtype)
    lane = dense("L", lanes)
    return FormatRewriteRule(
        "diagonal",
        description(buffer, (slices, starts, lane)),
        (buffer.name,),
        (rows.name, columns.name),
        ("S", "P", "L"),
        {rows.name: ("S", "L"), columns.name: ("P", "L")},
        lambda i, j: (i // lanes, j - i % lanes, i % lanes),
        lambda s, p, lane: (s * lanes + lane, p + lane),
        padded=True,
    )
