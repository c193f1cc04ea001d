"""Under the tuner: formats of the library as text, and those that may suit a matrix."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from spcomp.errors import ArgumentError, FormatError
from spcomp.formats.hyb import Hyb, hyb
from spcomp.formats.library import (
    Blocks,
    Diagonals,
    ListedRows,
    PaddedRows,
    Pieces,
    Relations,
    Tiles,
    bsr,
    dbsr,
    dcsr,
    dia,
    ell,
    ell3d,
    padding,
    sr_bcrs,
)
from spcomp.formats.rules import ComposableFormat, Kept
from spcomp.formats.sliced import SlicedDiagonal, Slices, sell, sliced_diagonal

if TYPE_CHECKING:
    from spcomp.tune.statistics import MatrixStatistics

MOST_STORED = 2.0  # values for each element: with more, reading the padding costs too much
SIZES = (2, 4, 8, 16, 32)  # of blocks, those of MatrixStatistics.block_fill
MOST_SORTED = 1.5  # values for each element: with more, sorting more rows together pays
MOST_EVEN = 1.25  # the same of rows that are not sorted
LONG = 64  # elements of a diagonal, on average, that make segments
MOST_LOOSE = 0.2  # of the elements, in no segment: a second pass reads them, and costs more
WIDE = 1 << 15  # columns whose rows of a dense operand leave the nearer caches

_PLAIN: dict[type[ComposableFormat], str] = {
    Kept: "csr",
    Diagonals: "dia()",
    ListedRows: "dcsr()",
}
_MAKERS: dict[str, Callable[..., ComposableFormat]] = {
    "bsr": bsr,
    "dbsr": dbsr,
    "dcsr": dcsr,
    "dia": dia,
    "ell": ell,
    "ell3d": ell3d,
    "hyb": hyb,
    "padding": padding,
    "sell": sell,
    "sliced_diagonal": sliced_diagonal,
    "sr_bcrs": sr_bcrs,
}


def format_text(layout: ComposableFormat) -> str:
    """Return the call of ``spcomp.formats`` that makes *layout*; empty for rules of the user's."""
    if (plain := _PLAIN.get(type(layout))) is not None:
        return plain
    match layout:
        case Blocks(rows, columns, listed):
            return f"{'dbsr' if listed else 'bsr'}(({rows}, {columns}))"
        case PaddedRows(width):
            return f"ell({'' if width is None else width})"
        case Pieces(size):
            return f"padding({size})"
        case Tiles(tile, group):
            return f"sr_bcrs({tile}, {group})"
        case Relations(buckets):
            return f"ell3d({list(buckets)})"
        case Hyb(parts, buckets, padded):
            widths = None if buckets is None else list(buckets)
            return f"hyb({parts}, {widths}{', padded=True' if padded else ''})"
        case SlicedDiagonal(lanes, fill):
            return f"sliced_diagonal({lanes}, {fill})"
        case Slices(lanes, window):
            return f"sell({lanes}, {window})"
    return ""


def format_of(text: str) -> ComposableFormat:
    """Return the format that *text*, as ``format_text`` returns it, stands for.

    Raises ArgumentError if it is no call of a function of ``spcomp.formats`` with numbers.
    """
    if text == "csr":
        return Kept()
    try:
        call: Any = ast.parse(text, mode="eval").body
        args = [ast.literal_eval(arg) for arg in call.args]
        named = {str(word.arg): ast.literal_eval(word.value) for word in call.keywords}
        return _MAKERS[call.func.id](*args, **named)
    except (
        *(SyntaxError, ValueError, KeyError, TypeError, AttributeError),
        *(RecursionError, FormatError),
    ) as error:
        raise ArgumentError(
            f"no format: {text[:100]!r}", hint=f"formats are csr, {', '.join(_MAKERS)}"
        ) from error


def formats_for(matrix: MatrixStatistics) -> Iterator[str]:
    """Yield the formats that may suit a matrix like this one, in which padding is bounded.

    CSR, which always does, is not among them.
    """
    if not matrix.nnz:
        return
    yield from _diagonals_for(matrix)
    if matrix.ell <= MOST_STORED:
        yield "ell()"
    yield from _slices_for(matrix)
    if listed := matrix.empty > matrix.rows // 2:
        yield "dcsr()"
    for size, stored in zip(SIZES, matrix.bsr, strict=True):
        if stored <= MOST_STORED and size <= 16:
            yield f"{'dbsr' if listed else 'bsr'}(({size}, {size}))"
    if matrix.bsr[0] <= MOST_STORED:
        yield "sr_bcrs(4, 8)"
    yield f"hyb(1, {_widths(matrix.mean)})"
    if matrix.hyb <= MOST_STORED:
        yield f"hyb(1, {_widths(2 * matrix.mean)}, padded=True)"
    if matrix.columns >= WIDE:
        yield from (f"hyb({parts}, {_widths(matrix.mean / parts)})" for parts in (2, 4))


def _diagonals_for(matrix: MatrixStatistics) -> Iterator[str]:
    fits = matrix.sliced <= MOST_STORED and matrix.loose <= MOST_LOOSE
    if fits and matrix.nnz >= LONG * matrix.diagonals:
        yield "sliced_diagonal(None, 0.25)"
    if matrix.dia <= MOST_STORED:
        yield "dia()"


def _slices_for(matrix: MatrixStatistics) -> Iterator[str]:
    if matrix.sell <= MOST_STORED:
        yield "sell(None, None)"
    if matrix.windows <= MOST_SORTED:
        yield "sell(None, 512)"
    if matrix.slices <= MOST_EVEN:
        yield "sell(None, 1)"


def stored_per_element(text: str, matrix: MatrixStatistics) -> float:
    """Return how many values the format *text* stores for each element of *matrix*, about."""
    layout = format_of(text)
    match layout:
        case Blocks(rows, columns) if rows == columns and rows in SIZES:
            return matrix.bsr[SIZES.index(rows)]
        case PaddedRows(width=None):
            return matrix.ell
        case Diagonals():
            return matrix.dia
        case Hyb(padded=True):
            return matrix.hyb
        case SlicedDiagonal():
            return matrix.sliced
        case Slices(window=None):
            return matrix.sell
        case Slices(window=1):
            return matrix.slices
        case Slices():
            return matrix.windows
    return 1.0


def _widths(mean: float) -> list[int]:
    """Return widths of buckets, 1, 2, 4, ... up to the power of two below *mean*, at most 32."""
    return [1 << k for k in range(6) if k == 0 or 1 << k <= mean]
