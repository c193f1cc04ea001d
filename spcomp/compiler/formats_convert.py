"""At the call, formats: a tensor as the parts that rules describe, by programs made from them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from spcomp.compiler.bind import as_index
from spcomp.compiler.formats_fill import (
    Builder,
    Elements,
    Fibers,
    PartData,
    Program,
    lengths_of,
    positions,
)
from spcomp.compiler.formats_sort import bounds, sorted_by, starts
from spcomp.compiler.tensor import Tensor
from spcomp.errors import ArgumentError
from spcomp.passes.convert_format import Placement, place_source, placement

if TYPE_CHECKING:
    from spcomp.compiler.convert import Storage
    from spcomp.compiler.signature import BufferPlan
    from spcomp.formats.rules import FormatRewriteRule
    from spcomp.ir.axis import SparseBuffer

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
KEYS = 1 << 62  # how many different ones there can be


def convert_by_rules(
    rules: Sequence[FormatRewriteRule], buffer: SparseBuffer, elements: Elements
) -> dict[str, PartData]:
    """Return what each rule's part of *buffer* holds of *elements*.

    An element goes to the first part that can hold it: its coordinates lie on the axes and where
    the rule says, and it is not zero if the part is padded. Of a part of fibers of one width, a
    padded one takes fibers that are not longer (the last of several such parts takes longer ones,
    too, if it can have several fibers of a coordinate); one that is not padded takes what fills
    its fibers. Time is linear in elements, parts, and digits of their keys.

    Raises:
        FormatError: for axes that elements cannot be put along.
        ArgumentError: if an element lies in no part.
    """
    made = [placement(rule, buffer) for rule in rules]
    left: Array | None = None  # all
    found: dict[str, PartData] = {}
    for family in _families(made):
        fibers, others = _fibers(family[0], elements, left)
        for one in family:
            taken = one.taken(fibers.count, last=one is family[-1])
            found[one.rule.name] = Builder(one, elements, fibers.head(taken)).build()
            fibers = fibers.tail(taken)
        again = fibers.elements().astype(elements.number, copy=False)
        left = np.sort(np.concatenate([others, again])) if len(again) else others
    _covered(made, elements, left)
    return found


def _families(made: Sequence[Placement]) -> Iterator[list[Placement]]:
    """Yield the placements that follow each other and differ in their width only."""
    family: list[Placement] = []
    for one in made:
        if family and (family[0].key != one.key):
            yield family
            family = []
        family.append(one)
    if family:
        yield family


def _covered(made: Sequence[Placement], elements: Elements, left: Array | None) -> None:
    if left is None or not len(left):
        return
    buffer, at = made[0].buffer, tuple(int(x[left[0]]) for x in elements.coordinates)
    raise ArgumentError(
        f"argument {buffer.name}: {len(left)} elements lie in no part of the format, such as"
        f" the one at {at}",
        hint="add a rule that holds what is left, such as one for compressed rows",
    )


def _fibers(made: Placement, elements: Elements, some: Array | None) -> tuple[Fibers, Array | None]:
    """Return the fibers of the elements that the part can hold, of *some*, and the others."""
    count = len(elements.values) if some is None else len(some)
    lengths = lengths_of(made, elements)
    if np.prod([float(max(n, 1)) for n in lengths]) >= KEYS:
        raise ArgumentError(f"argument {made.buffer.name}: its axes are too long to be converted")
    keys, mine = np.empty(count, np.int64), np.ones(count, np.bool_)
    if count:
        _place(made, elements, some, keys, mine.view(np.uint8))
    ids, others = some, np.empty(0, elements.number)
    if not mine.all():
        own = np.flatnonzero(mine).astype(elements.number)
        rest = np.flatnonzero(~mine).astype(elements.number)
        keys = keys[mine]
        ids, others = (own, rest) if some is None else (some[own], some[rest])
    outer = next((k for k, n in enumerate(lengths) if n > 1), 0)
    keys, ids = sorted_by(keys, ids, elements.number, math.prod(lengths[outer + 1 :]))
    return _grouped(made, keys, ids, lengths), others


def _place(
    made: Placement, elements: Elements, some: Array | None, keys: Array, mine: Array
) -> None:
    """Fill the *keys* of elements, and which the part can hold."""
    program = Program.of(place_source(made, elements.types, some=some is not None))
    arrays = {"stored": elements.values, "ids": some, "keys": keys, "mine": mine}
    lengths = enumerate(lengths_of(made, elements))
    scalars = {"count": len(keys)} | {f"length{k}": n for k, n in lengths}
    program.run({**elements.arrays, **arrays}, elements.named(made) | scalars)


def _grouped(made: Placement, keys: Array, ids: Array | None, lengths: tuple[int, ...]) -> Fibers:
    """Return the fibers of elements in order of their *keys*."""
    if len(made.chain) == 1:
        begins, of_fibers = np.zeros(min(len(keys), 1), np.int64), np.zeros(1, np.int64)
    else:
        begins = starts(keys, lengths[-1])
        of_fibers = keys[begins] // lengths[-1]
    entries = bounds(keys, 1) if made.beside else None
    if entries is not None:
        begins = np.searchsorted(entries, begins)
    ends = np.append(begins[1:], len(keys) if entries is None else len(entries) - 1)
    return Fibers(of_fibers[: len(begins)], begins, ends - begins, entries, keys, ids, lengths)


def coordinates(name: str, storage: Storage, plan: BufferPlan) -> tuple[Array, ...]:
    """Return the coordinate of each element of the argument *name* on each axis.

    Their type is that of the index arrays of the program. Raises ArgumentError for one that does
    not hold them.
    """
    assert storage.levels is not None
    assert storage.shape is not None
    idtype = np.result_type(*(axis.idtype for axis in plan.axes if axis.arrays))
    found: list[Array] = []
    count = 1
    for extent, level in zip(storage.shape, storage.levels, strict=True):
        held: Any = extent
        if level is None or level.indices is None:
            if level is not None and level.indptr is not None:
                held = np.diff(level.indptr)
            own = positions(np.zeros(count, idtype), np.broadcast_to(held, count))
        else:
            held = level.indices.shape[-1] if level.indptr is None else np.diff(level.indptr)
            own = as_index(f"{name}.indices", level.indices, idtype).reshape(-1)
        found = [np.repeat(above, held) for above in found] + [own]
        count = len(own)
    return tuple(np.ascontiguousarray(x, idtype) for x in found)


def refuse_repeated(name: str, given: Any, storage: Storage) -> None:
    """Raise ArgumentError if the argument *name* has two elements at one place.

    What scipy has was summed; of a Tensor whose coordinates do not ascend it is not known.
    """
    if not isinstance(given, Tensor) or storage.levels is None:
        return
    if all(given.ascending(axis, unique=True) for axis in range(given.ndim)):
        return
    every = np.stack(given.coordinates())
    every = every[:, np.lexsort(every)]
    same = (every[:, 1:] == every[:, :-1]).all(axis=0)
    if same.any():
        at = tuple(map(int, every[:, 1:][:, same][:, 0]))
        raise ArgumentError(
            f"argument {name}: has an element twice, at {at}", hint="add them up first"
        )
