"""Before the route: rows in slices of a vector's lanes, by columns or in diagonal segments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from spcomp.dtypes import int64
from spcomp.errors import FormatError
from spcomp.formats.describe import (
    CSR,
    compressed,
    dense,
    description,
    length,
    pieces,
    remainder,
    require,
    stored,
)
from spcomp.formats.library import positive
from spcomp.formats.rules import ComposableFormat, FormatRewriteRule
from spcomp.ir.access import Load
from spcomp.ir.expr import Expr, cast

if TYPE_CHECKING:
    from spcomp.dtypes import DType
    from spcomp.ir.axis import SparseBuffer

SLICE_BYTES = 64  # a cache line of values
MAX_LANES = 64


def _usual_lanes(dtype: DType) -> int:
    """Return how many values of *dtype* fill a cache line."""
    return max(SLICE_BYTES // dtype.itemsize, 1)


@dataclass(frozen=True, slots=True)
class SlicedDiagonal(ComposableFormat):
    """The format of :func:`sliced_diagonal`; if *lanes* is None, the buffer's dtype decides it."""

    lanes: int | None = None
    min_fill: float = 0.25

    def lanes_of(self, dtype: DType) -> int:
        """Return the rows of a slice for values of *dtype*."""
        return self.lanes or _usual_lanes(dtype)

    def rules(self, buffer: SparseBuffer) -> tuple[FormatRewriteRule, ...]:
        """Return the rules ``diagonal``, over slices, segments and lanes, and ``rest``."""
        require(buffer, CSR, "in diagonal segments")
        return _segments(buffer, self.lanes_of(buffer.dtype)), remainder(buffer)


@dataclass(frozen=True, slots=True)
class Slices(ComposableFormat):
    """The format of :func:`sell`; if *lanes* is None, the buffer's dtype decides it."""

    lanes: int | None = None
    window: int | None = None

    def lanes_of(self, dtype: DType) -> int:
        """Return the rows of a slice for values of *dtype*."""
        return self.lanes or _usual_lanes(dtype)

    def rules(self, buffer: SparseBuffer) -> tuple[FormatRewriteRule, ...]:
        """Return the rules ``slices``, over slices, their steps and lanes, and ``rest``."""
        require(buffer, CSR, "in slices")
        lanes = self.lanes_of(buffer.dtype)
        return _slices(buffer, lanes, in_order=self.window == 1), remainder(buffer)


def sell(lanes: int | None = None, window: int | None = None) -> Slices:
    """Return a format of slices of *lanes* rows, stored column by column, for short rows.

    Rows are sorted by length, and cut into slices; each slice is padded to its longest row. Lane l
    of step k of slice s holds element k of the row ``rows[s, l]``, at the column
    ``columns[s, k, l]``: the sums of a slice are a vector, and nothing is added up across lanes.
    The last rows, if they do not fill a slice, and stored zeros are in a part of compressed rows
    (DCSR).

    Args:
        lanes: Rows of a slice, 1 to 64; by default as many values as fill 64 bytes.
        window: Rows are sorted within windows of so many; None: all together. 1: not at all, and
            no list of rows is stored, which suits rows of about the same length.

    Raises:
        FormatError: for arguments out of range.

    Source: SELL-C-sigma (Kreutzer, Hager, Wellein, Fehske, Bishop, SIAM J. Sci. Comput. 2014), C
    being *lanes* and sigma *window*; sliced ELLPACK (Monakov, Lokhmotov, Avetisyan, HiPEAC 2010).
    """
    check_lanes(lanes)
    return Slices(lanes, None if window is None else positive("window", window))


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
    check_lanes(lanes)
    if not 0 < min_fill <= 1:
        raise FormatError(f"min_fill is {min_fill!r}, expected a number above 0 up to 1")
    return SlicedDiagonal(lanes, min_fill)


def check_lanes(lanes: object) -> None:
    """Raise FormatError unless *lanes* is None or the number of rows of a slice."""
    if lanes is not None and (not isinstance(lanes, int) or not 1 <= lanes <= MAX_LANES):
        raise FormatError(f"lanes is {lanes!r}, expected an integer in 1..{MAX_LANES}")


def _slices(buffer: SparseBuffer, lanes: int, *, in_order: bool) -> FormatRewriteRule:
    rows, columns = buffer.axes
    slices = dense("S", length(rows) // lanes)
    steps, lane = pieces("K", slices, columns.idtype), dense("L", lanes)
    of_lane = stored("Rows", (slices, lane), columns.idtype, distinct=True)
    of_element = stored("Columns", (slices, steps, lane), columns.idtype)

    def coordinates(s: Expr, k: Expr, lane: Expr) -> tuple[Expr, Expr]:
        row = s * lanes + lane if in_order else cast(Load(of_lane, (s, lane)), int64)
        return row, cast(Load(of_element, (s, k, lane)), int64)

    held = (of_element,) if in_order else (of_lane, of_element)
    return FormatRewriteRule(
        "slices",
        description(buffer, (slices, steps, lane), *held),
        (buffer.name,),
        (rows.name, columns.name),
        ("S", "K", "L"),
        {rows.name: ("S", "L"), columns.name: ("S", "K", "L")},
        None,
        coordinates,
        padded=True,
    )


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
