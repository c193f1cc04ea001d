"""At the call, formats: a tensor split into the parts of rules, by programs built from them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from spcomp.arrays import Array
from spcomp.errors import ArgumentError
from spcomp.runtime.recycle import empty
from spcomp.tensors.conversions.order import keys_in_order
from spcomp.tensors.conversions.runs import bounds
from spcomp.tensors.parts.fill import (
    Builder,
    Fibers,
    PartData,
    ProgramElements,
    lengths_of,
)
from spcomp.tensors.parts.placement import Placement, place, placement
from spcomp.tensors.tensor import Tensor

if TYPE_CHECKING:
    from spcomp.formats.rules import FormatRewriteRule
    from spcomp.ir.axis import SparseBuffer
    from spcomp.tensors.storage import Storage

KEYS = 1 << 62  # most different keys


def convert_by_rules(
    rules: Sequence[FormatRewriteRule], buffer: SparseBuffer, elements: ProgramElements
) -> dict[str, PartData]:
    """Return the part of *buffer* that each rule makes of *elements*, by name of the rule.

    An element goes to the first part that can hold it: its coordinates lie on the axes, the
    conditions of the rule hold, and it is not zero if the part is padded. If the fibers of a part
    have one width, a padded part takes fibers that are not longer (and the last of several such
    parts longer ones too, if a coordinate can have several fibers); a part without padding takes
    what fills its fibers. Time is linear in elements, parts, and digits of the keys.

    Raises:
        FormatError: If the axes cannot hold elements.
        ArgumentError: If an element fits no part.
    """
    placements = [placement(rule, buffer) for rule in rules]
    rest: Array | None = None  # all
    parts: dict[str, PartData] = {}
    for family in _families(placements):
        fibers, others = _fibers(family[0], elements, rest)
        for part in family:
            taken = part.taken(fibers.count, last=part is family[-1])
            parts[part.rule.name] = Builder(part, elements, fibers.head(taken)).build()
            fibers = fibers.tail(taken)
        again = fibers.elements().astype(elements.number, copy=False)
        rest = np.sort(np.concatenate([others, again])) if len(again) else others
    _refuse_rest(placements, elements, rest)
    return parts


def _families(placements: Sequence[Placement]) -> Iterator[list[Placement]]:
    """Yield the runs of placements that differ only in their width."""
    family: list[Placement] = []
    for part in placements:
        if family and (family[0].key != part.key):
            yield family
            family = []
        family.append(part)
    if family:
        yield family


def _refuse_rest(
    placements: Sequence[Placement], elements: ProgramElements, rest: Array | None
) -> None:
    if rest is None or not len(rest):
        return
    buffer, at = placements[0].buffer, tuple(int(x[rest[0]]) for x in elements.coordinates)
    raise ArgumentError(
        f"argument {buffer.name}: {len(rest)} elements lie in no part of the format, such as"
        f" the one at {at}",
        hint="add a rule that holds what is left, such as one for compressed rows",
    )


def _fibers(
    part: Placement, elements: ProgramElements, chosen: Array | None
) -> tuple[Fibers, Array | None]:
    """Return the fibers of the *chosen* elements that the part can hold, and the others."""
    count = len(elements.values) if chosen is None else len(chosen)
    lengths = lengths_of(part, elements)
    if np.prod([float(max(n, 1)) for n in lengths]) >= KEYS:
        raise ArgumentError(f"argument {part.buffer.name}: its axes are too long to be converted")
    keys, mine = empty(count, np.int64), np.ones(count, np.bool_)
    if count:
        _place(part, elements, chosen, keys, mine.view(np.uint8))
    ids, others = chosen, np.empty(0, elements.number)
    if not mine.all():
        inside = np.flatnonzero(mine).astype(elements.number)
        rest = np.flatnonzero(~mine).astype(elements.number)
        keys = keys[mine]
        ids, others = (inside, rest) if chosen is None else (chosen[inside], chosen[rest])
    outer = next((k for k, n in enumerate(lengths) if n > 1), 0)
    keys, ids = keys_in_order(keys, ids, math.prod(lengths[outer + 1 :]))
    return _grouped(part, keys, ids, lengths), others


def _place(
    part: Placement, elements: ProgramElements, chosen: Array | None, keys: Array, mine: Array
) -> None:
    """Compute the *keys* of elements, and whether each is *mine*: the part can hold it."""
    program = place(part, elements.types, chosen is not None)
    arrays = {"stored": elements.values, "ids": chosen, "keys": keys, "mine": mine}
    lengths = enumerate(lengths_of(part, elements))
    scalars = {"count": len(keys)} | {f"length{k}": n for k, n in lengths}
    program.run({**elements.arrays, **arrays, **elements.named(part), **scalars})


def _grouped(part: Placement, keys: Array, ids: Array | None, lengths: tuple[int, ...]) -> Fibers:
    """Return the fibers of elements in order of their *keys*."""
    if len(part.chain) == 1:
        begins, of_fibers = np.zeros(min(len(keys), 1), np.int64), np.zeros(1, np.int64)
    else:
        begins = bounds(keys, lengths[-1])[:-1]
        of_fibers = keys[begins] // lengths[-1]
    entries = bounds(keys, 1) if part.beside else None
    if entries is not None:
        begins = np.searchsorted(entries, begins)
    ends = np.append(begins[1:], len(keys) if entries is None else len(entries) - 1)
    return Fibers(of_fibers[: len(begins)], begins, ends - begins, entries, keys, ids, lengths)


def refuse_repeated(name: str, x: Any, storage: Storage) -> None:
    """Raise ArgumentError if the argument *name* has two elements at one place.

    Arrays of scipy were summed before; only a Tensor with unsorted coordinates needs a check.
    """
    if not isinstance(x, Tensor) or storage.levels is None:
        return
    if all(x.ascending(axis, unique=True) for axis in range(x.ndim)):
        return
    coordinates = np.stack(x.coordinates())
    coordinates = coordinates[:, np.lexsort(coordinates)]
    same = (coordinates[:, 1:] == coordinates[:, :-1]).all(axis=0)
    if same.any():
        at = tuple(map(int, coordinates[:, 1:][:, same][:, 0]))
        raise ArgumentError(
            f"argument {name}: has an element twice, at {at}", hint="add them up first"
        )
