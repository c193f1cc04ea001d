"""Beside the route: the formats of operands, and which of them loops can run over."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeAlias

from spcomp.dtypes import DType
from spcomp.errors import ArgumentError, FormatError, expect
from spcomp.formats.format import NAMED, Format

Layout: TypeAlias = Format
AXES = frozenset({"dense", "compressed", "fixed", "ragged"})  # levels that are axes as they are
LOOSE = frozenset({"fixed(unordered)", "hashed", "offset"})  # axes with padding, in no order


@dataclass(frozen=True, slots=True)
class Operand:
    """An argument as the planner sees it; a *weak* one is a Python number without a dtype.

    *given*: the format that it comes in, if it is iterated in another. *mask*: the name of the
    array that says which elements of a bitmap are stored.
    """

    layout: Layout
    dtype: DType
    weak: bool = False
    given: str = ""
    mask: str = ""


def dense(rank: int) -> Layout:
    """Return the layout of a numpy array."""
    return Layout(("dense",) * rank)


def parse_layout(given: str | Format, rank: int) -> Layout:
    """Return the format *given*, a Format or a name, of *rank* dimensions; raises ArgumentError."""
    expect("formats", given, (str, Format), "a name or a Format for each")
    try:
        layout = Format.parse(given, rank) if isinstance(given, str) else given
    except FormatError as error:
        hint = error.hint or f"formats: {', '.join(NAMED)}, or levels: dense,compressed"
        message = error.message.replace("is no level", f"is no format of {rank} dimensions")
        raise ArgumentError(f"argument formats: {message}", hint=hint) from None
    if layout.rank != rank:
        raise ArgumentError(f"argument formats: {layout} is no format of {rank} dimensions")
    return layout


def is_list(stored: Format) -> bool:
    """Whether *stored* is a list of elements by their coordinates, as ``coo`` is."""
    first, rest = stored.levels[:1], stored.levels[1:]
    return first == ("compressed(nonunique)",) and set(rest) == {"singleton"}


def is_bitmap(stored: Format) -> bool:
    """Whether *stored* has a place for every element, and a mask of those that are stored."""
    kinds = {kind.name for kind in stored.kinds}
    return "bitmap" in kinds and kinds <= {"bitmap", "dense"} and not stored.is_split


def is_located(stored: Format) -> bool:
    """Whether a coordinate of *stored* is found without a search, and may be absent."""
    return {*stored.levels} <= {"dense", "hashed", "bitmap"} and not stored.is_dense


def has_slots(stored: Format) -> bool:
    """Whether *stored* has unordered levels with empty slots, which are axes all the same."""
    if stored.is_split or not LOOSE & {*stored.levels}:
        return False
    if "offset" in stored.levels and stored.levels[:2] != ("dense", "offset"):
        return False
    plain = tuple("compressed" if text in LOOSE else text for text in stored.levels)
    return iterable_layout(replace(stored, levels=plain)).levels == plain


def iterable_layout(stored: Format, *, padded: bool = False) -> Layout:
    """Return the format nearest to *stored* that loops can run over.

    Its levels are dense, compressed, ragged or fixed and in order; one dense level may come first,
    others last. Another level, and all sparse levels below it, become compressed, which holds the
    same elements; the first level of a matrix becomes dense. *padded*: fixed levels have padding.
    """
    if stored.is_split:
        order = tuple(dict.fromkeys(dim for dim in stored.order if dim >= 0))
        rest = "dense" if stored.is_dense else "compressed"
        first = "dense" if stored.kinds[0].full or len(order) == 2 else "compressed"
        return Format((first, *(rest,) * (len(order) - 1)), order, stored.idtype)
    levels: list[str] = []
    for at, kind in enumerate(stored.kinds):
        text = str(kind)
        kept = text in AXES and not (text == "fixed" and padded)
        kept = kept and (text != "dense" or at in (0, *range(stored.depth, len(stored.order))))
        unchanged = levels == list(stored.levels[:at])
        levels.append(text if kept and (unchanged or text == "dense") else "compressed")
    if stored.rank == 2 and levels[0] != stored.levels[0]:
        levels = ["dense", "compressed" if levels[1] == "dense" else levels[1]]
    return replace(stored, levels=tuple(levels))
