"""Before the route: hyb, the rows of column parts in buckets by length, for scattered matrices."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from spcomp.errors import FormatError
from spcomp.formats.describe import CSR, length, remainder, require
from spcomp.formats.library import bucket, positive
from spcomp.formats.rules import ComposableFormat, FormatRewriteRule, Kept
from spcomp.ir.expr import BinOp, Expr

if TYPE_CHECKING:
    from spcomp.ir.axis import SparseBuffer

MAX_PARTS = 64
WIDEST = 32  # of the buckets that are chosen: what a loop that is written out may be
MOST_PARTS = 8  # of the column parts that are chosen
PIECE = 16  # elements of a row in a part that pay for reading and writing the result once more
_NAME = re.compile(r"\s*hyb\s*(?:\(\s*(\d+)\s*\))?\s*")
WIDE = 1 << 15  # columns from which on rows of the dense operand do not stay in the cache


@dataclass(frozen=True, slots=True)
class Hyb(ComposableFormat):
    """What :func:`hyb` describes; None where it is chosen when the matrix is known."""

    col_parts: int | None
    buckets: tuple[int, ...] | None
    padded: bool = False

    @property
    def is_open(self) -> bool:
        """Whether something is chosen by the matrix."""
        return self.col_parts is None or self.buckets is None

    def chosen(self, lengths: Any, columns: int) -> ComposableFormat:
        """Return the format for a matrix of *columns* columns, its rows of *lengths*, an array.

        The rule is in :func:`hyb`.
        """
        if self.col_parts is None and self.buckets is None:
            return Kept()
        held = lengths[lengths > 0].astype("float64")  # of which squares are added up
        mean = float(held.mean()) if len(held) else 0.0
        parts, buckets = self.col_parts, self.buckets
        if parts is None:
            parts = 1
            while columns >= WIDE and parts < MOST_PARTS and mean >= 2 * parts * PIECE:
                parts *= 2
        if buckets is None:
            typical = float((held * held).sum()) / float(held.sum()) / parts if len(held) else 1.0
            widths = [1]
            while widths[-1] < WIDEST and 2 * widths[-1] <= typical:
                widths.append(2 * widths[-1])
            buckets = tuple(widths)
        return replace(self, col_parts=parts, buckets=buckets)

    def filled(self) -> Hyb:
        """Return the format with one part, and a bucket of 1, in the place of what is open."""
        return replace(self, col_parts=self.col_parts or 1, buckets=self.buckets or (1,))

    def rules(self, buffer: SparseBuffer) -> tuple[FormatRewriteRule, ...]:
        """Return the rule ``part_bucket`` for each part and bucket, and ``rest`` if need be.

        Without padding, wide buckets come first: what they leave of a row goes to narrower ones.
        """
        if self.col_parts is None or self.buckets is None:
            raise FormatError(f"{self} is chosen by the matrix", hint="give parts and buckets")
        require(buffer, CSR, "in hyb")
        last = len(self.buckets) - 1
        numbered = list(enumerate(self.buckets))
        rules = [
            bucket(
                buffer,
                f"{part}_{at}",
                width,
                splits=not self.padded or at == last,
                pads=self.padded,
                where=self._where(buffer, part),
            )
            for part in range(self.col_parts)
            for at, width in (numbered if self.padded else reversed(numbered))
        ]
        complete = not self.padded and self.buckets[0] == 1
        return tuple(rules) if complete else (*rules, remainder(buffer))

    def _where(self, buffer: SparseBuffer, part: int) -> Callable[..., Expr] | None:
        if self.col_parts is None or self.col_parts == 1:
            return None
        size = (length(buffer.axes[1]) + (self.col_parts - 1)) // self.col_parts
        first, behind = size * part, size * (part + 1)

        def inside(i: Expr, j: Expr) -> Expr:  # noqa: ARG001
            return BinOp("and", BinOp("<=", first, j), BinOp("<", j, behind))

        return inside


def hyb(
    col_parts: int | None = None, buckets: Sequence[int] | None = None, *, padded: bool = False
) -> Hyb:
    """Return a format of rows in buckets, each a list of pieces of rows of one constant width.

    Columns are cut into *col_parts* parts of equal width, so that what a part reads of the dense
    operand stays in cache. In each, a row is cut into pieces that fill buckets: of 13 elements, 8
    lie in the bucket of 8, 4 in that of 4 and 1 in that of 1. What no piece holds, without a bucket
    of 1, lies apart in compressed rows (DCSR).

    With neither parts nor buckets given, the matrix stays in its rows, and the program is the one
    without the format: for each piece the row of the result is read and written once more, which
    on CPUs costs more than constant trip counts and columns in cache save. With one of them given,
    the other is chosen by the lengths of the rows.

    Args:
        col_parts: How many, 1 to 64. Chosen: 1, doubled while the matrix has 32768 columns or
            more and its rows, empty ones not counted, have at least 16 elements in each of twice
            as many parts, up to 8.
        buckets: Their widths, ascending. Chosen: 1, 2, 4, ..., as long as the average element
            lies in a row that has as many in a part, up to 32.
        padded: Each row lies in the first bucket that is wide enough, padded, and a longer one in
            pieces in the last: what SparseTIR does. Stored zeros lie apart.

    Raises:
        FormatError: for parts out of range, widths that do not ascend.

    Source: SparseTIR (ASPLOS 2023), section 4.2.1: ``column_part_hyb``, which pads.
    """
    if col_parts is not None and (col_parts := positive("col_parts", col_parts)) > MAX_PARTS:
        raise FormatError(f"col_parts is {col_parts}, expected an integer in 1..{MAX_PARTS}")
    if buckets is None:
        return Hyb(col_parts, None, bool(padded))
    if not isinstance(buckets, Iterable):
        raise FormatError(f"buckets is {buckets!r}, expected widths that ascend")
    widths = tuple(positive("buckets", width) for width in buckets)
    if not widths or list(widths) != sorted(set(widths)):
        raise FormatError(f"buckets is {buckets!r}, expected widths that ascend")
    return Hyb(col_parts, widths, bool(padded))


def composable(given: Any) -> ComposableFormat | None:
    """Return the format of several parts that *given* is or names; None: it is none.

    ``hyb`` has one column part, ``hyb(4)`` four, and the buckets that the matrix asks for.
    """
    if isinstance(given, ComposableFormat):
        return given
    found = _NAME.fullmatch(given) if isinstance(given, str) else None
    return None if found is None else hyb(int(found[1] or 1))
