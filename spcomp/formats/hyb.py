"""Before the route: the format hyb, column parts with their rows in buckets by length."""

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
WIDEST = 32  # the widest bucket that is chosen: the longest loop that is unrolled
MOST_PARTS = 8  # the most column parts that are chosen
PIECE = 16  # elements of a row in a part that pay for reading and writing the result again
_NAME = re.compile(r"\s*hyb\s*(?:\(\s*(\d+)\s*\))?\s*")
WIDE = 1 << 15  # with so many columns, rows of the dense operand do not stay in the cache


@dataclass(frozen=True, slots=True)
class Hyb(ComposableFormat):
    """The format of :func:`hyb`; a field that is None is chosen by the matrix."""

    col_parts: int | None
    buckets: tuple[int, ...] | None
    padded: bool = False

    @property
    def is_open(self) -> bool:
        """Whether the matrix decides about parts or buckets."""
        return self.col_parts is None or self.buckets is None

    def chosen(self, lengths: Any, columns: int) -> ComposableFormat:
        """Return the format for a matrix of *columns* columns with rows of *lengths*, an array.

        :func:`hyb` has the rule.
        """
        if self.col_parts is None and self.buckets is None:
            return Kept()
        sizes = lengths[lengths > 0].astype("float64")  # as their squares are summed
        mean = float(sizes.mean()) if len(sizes) else 0.0
        parts, buckets = self.col_parts, self.buckets
        if parts is None:
            parts = 1
            while columns >= WIDE and parts < MOST_PARTS and mean >= 2 * parts * PIECE:
                parts *= 2
        if buckets is None:
            typical = (
                float((sizes * sizes).sum()) / float(sizes.sum()) / parts if len(sizes) else 1.0
            )
            widths = [1]
            while widths[-1] < WIDEST and 2 * widths[-1] <= typical:
                widths.append(2 * widths[-1])
            buckets = tuple(widths)
        return replace(self, col_parts=parts, buckets=buckets)

    def filled(self) -> Hyb:
        """Return the format with one part, or a bucket of 1, where the matrix decides."""
        return replace(self, col_parts=self.col_parts or 1, buckets=self.buckets or (1,))

    def rules(self, buffer: SparseBuffer) -> tuple[FormatRewriteRule, ...]:
        """Return a rule ``part_bucket`` for each part and bucket, and ``rest`` if necessary.

        Without padding, wide buckets come first: the remainder of a row goes to narrower ones.
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
    """Return a format of rows in buckets; a bucket is a list of pieces of rows of constant width.

    Columns are cut into *col_parts* parts of equal width, so that the rows of the dense operand
    that a part reads stay in cache. In each part, a row is cut into pieces that fill buckets: of 13
    elements, 8 are in the bucket of 8, 4 in that of 4 and 1 in that of 1. Without a bucket of 1,
    the remaining elements are in a part of compressed rows (DCSR).

    If neither parts nor buckets are given, the matrix stays in CSR, and the program is the one
    without the format: each piece reads and writes its row of the result again, which on CPUs costs
    more than constant trip counts and columns in cache save. If only one of them is given, the row
    lengths decide the other.

    Args:
        col_parts: The number of parts, 1 to 64. By default 1, doubled (up to 8) while the matrix
            has at least 32768 columns and the rows that are not empty would still have 16 or more
            elements on average in each part.
        buckets: The widths of the buckets, ascending. By default 1, 2, 4, ... (up to 32), as long
            as the average element lies in a row with at least that many elements in its part.
        padded: Pad each row to fill the first bucket that is wide enough, and put longer rows in
            pieces into the last, as SparseTIR does. Stored zeros are in a part of their own.

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


def composable(value: Any) -> ComposableFormat | None:
    """Return the format of several parts that *value* is or names, or None.

    ``hyb`` has one column part, ``hyb(4)`` four; the matrix decides about the buckets.
    """
    if isinstance(value, ComposableFormat):
        return value
    match = _NAME.fullmatch(value) if isinstance(value, str) else None
    return None if match is None else hyb(int(match[1] or 1))
