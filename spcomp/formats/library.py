"""Before the route: blocks, padded rows, tiles and diagonals, each as rules for its parts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from numbers import Integral
from typing import TYPE_CHECKING

from spcomp.errors import FormatError
from spcomp.formats.describe import (
    CSF,
    CSR,
    compressed,
    dense,
    description,
    length,
    listed,
    padded,
    pieces,
    remainder,
    require,
)
from spcomp.formats.rules import ComposableFormat, FormatRewriteRule
from spcomp.ir.expr import Expr, binary

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from spcomp.ir.axis import Axis, SparseBuffer

MAX_BLOCK = 256


@dataclass(frozen=True, slots=True)
class Blocks(ComposableFormat):
    """The format of :func:`bsr`, or of :func:`dbsr` if *listed*: without empty rows of blocks."""

    rows: int
    columns: int
    listed: bool = False

    def rules(self, buffer: SparseBuffer) -> tuple[FormatRewriteRule, ...]:
        """Return the rules ``blocks`` and ``rest``."""
        require(buffer, CSR, "in blocks")
        (rows, columns), b, d = buffer.axes, self.rows, self.columns
        ids = columns.idtype
        across = length(columns) // d
        inner = dense("II", b), dense("JI", d)
        if self.listed:
            root, outer = listed("IO", length(rows) // b, ids)
            axes: tuple[Axis, ...] = (root, outer, compressed("JO", outer, across, ids), *inner)
            rule = FormatRewriteRule(
                "blocks",
                description(buffer, axes),
                (buffer.name,),
                (rows.name, columns.name),
                ("O", "IO", "JO", "II", "JI"),
                {rows.name: ("O", "IO", "II"), columns.name: ("JO", "JI")},
                lambda i, j: (0, i // b, j // d, i % b, j % d),
                lambda o, io, jo, ii, ji: (io * b + ii, jo * d + ji),  # noqa: ARG005
                padded=True,
            )
            return rule, remainder(buffer)
        outer = dense("IO", length(rows) // b)
        axes = (outer, compressed("JO", outer, across, ids), *inner)
        rule = FormatRewriteRule(
            "blocks",
            description(buffer, axes),
            (buffer.name,),
            (rows.name, columns.name),
            ("IO", "JO", "II", "JI"),
            {rows.name: ("IO", "II"), columns.name: ("JO", "JI")},
            lambda i, j: (i // b, j // d, i % b, j % d),
            lambda io, jo, ii, ji: (io * b + ii, jo * d + ji),
            padded=True,
        )
        return rule, remainder(buffer)


@dataclass(frozen=True, slots=True)
class ListedRows(ComposableFormat):
    """The format of :func:`dcsr`."""

    def rules(self, buffer: SparseBuffer) -> tuple[FormatRewriteRule, ...]:
        """Return the rule ``rows``."""
        require(buffer, CSR, "in a list of rows")
        return (replace(remainder(buffer), name="rows"),)


@dataclass(frozen=True, slots=True)
class PaddedRows(ComposableFormat):
    """The format of :func:`ell`."""

    width: int | None = None

    def rules(self, buffer: SparseBuffer) -> tuple[FormatRewriteRule, ...]:
        """Return the rules ``rows`` and ``rest``."""
        require(buffer, CSR, "in padded rows")
        return bucket(buffer, "rows", self.width), remainder(buffer)


@dataclass(frozen=True, slots=True)
class Pieces(ComposableFormat):
    """The format of :func:`padding`."""

    size: int

    def rules(self, buffer: SparseBuffer) -> tuple[FormatRewriteRule, ...]:
        """Return the rules ``pieces`` and ``rest``."""
        require(buffer, CSR, "in padded pieces of rows")
        rows, columns = buffer.axes
        cut = pieces("JO", root := dense("I", rows.length), columns.idtype)
        inner = padded("JI", cut, columns.length, self.size, columns.idtype)
        rule = FormatRewriteRule(
            "pieces",
            description(buffer, (root, cut, inner)),
            (buffer.name,),
            (rows.name, columns.name),
            ("I", "JO", "JI"),
            {rows.name: ("I",), columns.name: ("JO", "JI")},
            lambda i, j: (i, 0, j),
            lambda i, jo, ji: (i, ji),  # noqa: ARG005
            padded=True,
        )
        return rule, remainder(buffer)


@dataclass(frozen=True, slots=True)
class Tiles(ComposableFormat):
    """The format of :func:`sr_bcrs`."""

    tile: int
    group: int

    def rules(self, buffer: SparseBuffer) -> tuple[FormatRewriteRule, ...]:
        """Return the rules ``tiles`` and ``rest``."""
        require(buffer, CSR, "in tiles")
        (rows, columns), t = buffer.axes, self.tile
        cut = pieces("JO", root := dense("IO", length(rows) // t), columns.idtype)
        inner = padded("JI", cut, columns.length, self.group, columns.idtype)
        rule = FormatRewriteRule(
            "tiles",
            description(buffer, (root, cut, inner, dense("II", t))),
            (buffer.name,),
            (rows.name, columns.name),
            ("IO", "JO", "JI", "II"),
            {rows.name: ("IO", "II"), columns.name: ("JO", "JI")},
            lambda i, j: (i // t, 0, j, i % t),
            lambda io, jo, ji, ii: (io * t + ii, ji),  # noqa: ARG005
            padded=True,
        )
        return rule, remainder(buffer)


@dataclass(frozen=True, slots=True)
class Diagonals(ComposableFormat):
    """The format of :func:`dia`."""

    def rules(self, buffer: SparseBuffer) -> tuple[FormatRewriteRule, ...]:
        """Return the rules ``diagonals`` and ``rest``."""
        require(buffer, CSR, "in diagonals")
        rows, columns = buffer.axes
        below = length(rows) - 1
        most = binary("max", below + length(columns), 0)
        root, offsets = listed("D", most, columns.idtype)
        rule = FormatRewriteRule(
            "diagonals",
            description(buffer, (root, offsets, dense("I", rows.length))),
            (buffer.name,),
            (rows.name, columns.name),
            ("O", "D", "I"),
            {rows.name: ("I",), columns.name: ("D", "I")},
            lambda i, j: (0, j - i + below, i),
            lambda o, d, i: (i, d + i - below),  # noqa: ARG005
            padded=True,
        )
        return rule, remainder(buffer)


@dataclass(frozen=True, slots=True)
class Relations(ComposableFormat):
    """The format of :func:`ell3d`."""

    buckets: tuple[tuple[int, int], ...]

    def rules(self, buffer: SparseBuffer) -> tuple[FormatRewriteRule, ...]:
        """Return one rule per bucket, and ``rest``."""
        require(buffer, CSF, "in padded rows of relations")
        relations, rows, columns = buffer.axes
        ids = columns.idtype
        before = (relations.name, rows.name, columns.name)
        rules = []
        for at, (many, width) in enumerate(self.buckets):
            cut = pieces("IO", root := dense("R", relations.length), ids)
            inner = padded("II", cut, rows.length, many, ids)
            axes = (root, cut, inner, padded("J", inner, columns.length, width, ids))
            rule = FormatRewriteRule(
                str(at),
                description(buffer, axes),
                (buffer.name,),
                before,
                ("R", "IO", "II", "J"),
                dict(zip(before, (("R",), ("IO", "II"), ("J",)), strict=True)),
                lambda r, i, j: (r, 0, i, j),
                lambda r, io, ii, j: (r, ii, j),  # noqa: ARG005
                padded=True,
            )
            rules.append(rule)
        return (*rules, _fibers(buffer))


def _fibers(buffer: SparseBuffer) -> FormatRewriteRule:
    """Return the rule ``rest`` of a tensor: its levels stay as they were."""
    first, second, third = buffer.axes
    root = dense("R", first.length)
    middle = compressed("I", root, second.length, second.idtype)
    axes = root, middle, compressed("J", middle, third.length, third.idtype)
    names = first.name, second.name, third.name
    return FormatRewriteRule(
        "rest",
        description(buffer, axes),
        (buffer.name,),
        names,
        ("R", "I", "J"),
        dict(zip(names, (("R",), ("I",), ("J",)), strict=True)),
        lambda r, i, j: (r, i, j),
        lambda r, i, j: (r, i, j),
    )


def bucket(
    buffer: SparseBuffer,
    name: str,
    width: int | None,
    *,
    splits: bool = False,
    pads: bool = True,
    where: Callable[..., Expr] | None = None,
) -> FormatRewriteRule:
    """Return the rule for a list of rows of *width* elements; None: the length of the longest row.

    *splits*: a row may be in several pieces. *pads*: shorter rows are padded.
    """
    rows, columns = buffer.axes
    root, some = listed("R", rows.length, columns.idtype, unique=not splits)
    stored = padded("J", some, columns.length, width, columns.idtype, unique=not pads)
    return FormatRewriteRule(
        name,
        description(buffer, (root, some, stored)),
        (buffer.name,),
        (rows.name, columns.name),
        ("O", "R", "J"),
        {rows.name: ("O", "R"), columns.name: ("J",)},
        lambda i, j: (0, i, j),
        lambda o, r, j: (r, j),  # noqa: ARG005
        padded=pads,
        where=where,
    )


def bsr(block: int | Sequence[int]) -> Blocks:
    """Return a format of dense blocks, of *block* rows and columns, in compressed rows of blocks.

    Elements of the last rows and columns that do not make a whole block, and stored zeros, are in a
    part of compressed rows (DCSR). Raises FormatError for a block out of 1..256.
    """
    return Blocks(*_pair("block", block))


def dbsr(block: int | Sequence[int]) -> Blocks:
    """Return :func:`bsr` without empty rows of blocks, for pruned weights."""
    return Blocks(*_pair("block", block), listed=True)


def dcsr() -> ListedRows:
    """Return a format of compressed rows without empty ones, for matrices in which most are empty.

    Source: DCSR (Buluç and Gilbert, IPDPS 2008).
    """
    return ListedRows()


def ell(width: int | None = None) -> PaddedRows:
    """Return a format of a list of rows that hold *width* elements each, shorter ones padded.

    Longer rows and stored zeros are in a part of compressed rows (DCSR); empty rows take no memory.
    Without a width, it is the length of the longest row, a run-time size. Raises FormatError for a
    width below 1.
    """
    return PaddedRows(None if width is None else positive("width", width))


def padding(size: int) -> Pieces:
    """Return a format in which rows are cut into pieces of *size* elements, the last padded.

    Stored zeros are in a part of their own. Raises FormatError for a size below 1. Source:
    SparseTIR's ``padding``.
    """
    return Pieces(positive("size", size))


def sr_bcrs(tile: int, group: int) -> Tiles:
    """Return a format of tiles, in which *tile* rows share a list of the columns that any has.

    Lists are cut into groups of *group* columns, the last padded. The last rows, if they do not
    make a whole tile, and stored zeros are in a part of compressed rows (DCSR).

    Raises:
        FormatError: for sizes below 1.

    Source: SR-BCRS (Li, Osawa, Hoefler, SC 2022); ``condense`` in SparseTIR.
    """
    return Tiles(positive("tile", tile), positive("group", group))


def dia() -> Diagonals:
    """Return a format of whole diagonals: a value per row for each that has an element.

    Stored zeros are in a part of compressed rows (DCSR). The format is for matrices of few
    diagonals: a conversion that would store far more than the matrix has raises ArgumentError.
    """
    return Diagonals()


def ell3d(buckets: Sequence[Sequence[int]]) -> Relations:
    """Return a format for tensors of relations (R, I, J), the rows of each in buckets.

    Args:
        buckets: For each bucket the number of rows that are stored together, and the width of a
            row; widths ascend. A row is in the first bucket that it fits in, or, if it is longer,
            in pieces in the last.

    Raises:
        FormatError: for buckets out of order, or sizes below 1.

    Source: ``csf_to_ell3d`` in SparseTIR, the format of its RGCN.
    """
    pairs = tuple(_pair("buckets", pair) for pair in buckets)
    widths = [width for _, width in pairs]
    if not pairs or sorted(set(widths)) != widths:
        raise FormatError(f"buckets is {buckets!r}, expected (rows, width) with ascending widths")
    return Relations(pairs)


def positive(name: str, value: object) -> int:
    """Return *value*, the argument *name*; raises FormatError unless it is a positive integer."""
    whole = int(value) if isinstance(value, Integral) and not isinstance(value, bool) else 0
    if whole < 1:
        raise FormatError(f"{name} is {value!r}, expected a positive integer")
    return whole


def _pair(name: str, value: object) -> tuple[int, int]:
    pair = (value, value) if isinstance(value, int) else value
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        raise FormatError(f"{name} is {value!r}, expected an integer or two")
    first, second = (positive(name, size) for size in pair)
    if max(first, second) > MAX_BLOCK and name == "block":
        raise FormatError(f"{name} is {value!r}, expected sizes in 1..{MAX_BLOCK}")
    return first, second
