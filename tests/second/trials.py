"""A random program, the storage of its operands, the data of a call, and what it should give."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import numpy as np

from spcomp.errors import SpcompError
from tests.second import grammar, operands, oracle
from tests.second import terms as t
from tests.second.comparison import filled, neutrals
from tests.second.operands import Storage
from tests.second.values import Array, Meaningless, Value, cast, eps, exact, merged

CALLS = 16  # eight for each of two ways to store the operands
MOST = 300_000  # coordinates that the oracle looks at; of two indices more
LARGE = {1: (5_000, 70_000), 2: (300, 1_500)}  # lengths at times, by how many indices there are
PLAIN = (int, float, bool)  # Python numbers, whose types give way
Sizes = Mapping[str, int]


class Refusal(Exception):
    """An SpcompError, which is an answer, too."""


@dataclass
class Trial:
    """A program, how its operands are stored in either variant, and how it is called."""

    program: grammar.Program
    storages: tuple[dict[str, Storage], dict[str, Storage]]
    seed: int
    calls: int = CALLS
    most: int = 70_000  # no dimension is longer
    counts: dict[str, int] = field(default_factory=lambda: {"calls": 0, "versions": 0})


def used(program: grammar.Program) -> set[str]:
    """Return the tensors that *program* reads."""
    terms = [term for statement in program.statements for term in statement.value.walk()]
    targets = {statement.target.name for statement in program.statements}
    given = targets & set(program.operands)
    return {term.name for term in terms if isinstance(term, t.Ref)} | given


def _constants(program: grammar.Program, rng: Random) -> None:
    """Make constants of numbers of *program*, at times."""
    for name, one in list(program.operands.items()):
        if not one.extents and rng.random() < 0.2:
            del program.operands[name]
            program.constants[name] = rng.choice((0, 1, 2, 3, 0.5, -1.5))


def trial(seed: int) -> Trial:
    """Return the trial that *seed* stands for."""
    rng = Random(seed)
    program = grammar.program(rng)
    names = used(program)
    program.operands = {name: one for name, one in program.operands.items() if name in names}
    _constants(program, rng)
    both: tuple[dict[str, Storage], dict[str, Storage]] = ({}, {})
    for name, one in program.operands.items():
        known = operands.storages(len(one.extents), one.dtype, sparse=one.sparse)
        weights = [operands.WEIGHTS.get(storage.name, 1.0) for storage in known]
        chosen = rng.choices(known, weights, k=2) if name != "C" else [known[0]] * 2
        if not one.extents and "python" in [storage.name for storage in chosen]:
            chosen[1] = chosen[0]
        for variant, storage in zip(both, chosen, strict=True):
            variant[name] = storage
    return Trial(program, both, seed)


@dataclass
class Data:
    """What a call is given, apart from how it is stored."""

    sizes: Sizes
    numbers: dict[str, Array]
    masks: dict[str, Array]


def random_sizes(program: grammar.Program, rng: Random, most: int) -> dict[str, int]:
    """Return a length for each label, such that the program is not too much work."""
    extents = {extent for one in program.operands.values() for extent in one.extents}
    labels = sorted(extent for extent in extents if isinstance(extent, str))
    sizes = {label: rng.choice((0, 1, 1, 2, 3, 4, 5, 6, 8, 9)) for label in labels}
    deep = max(_depth(statement) for statement in program.statements)
    if labels and rng.random() < 0.35:
        sizes[rng.choice(labels)] = rng.choice((16, 17, 33, 64, 65, 130))
    if labels and rng.random() < 0.02:  # threads, chunks, rows that are cut
        sizes[rng.choice(labels)] = rng.randrange(*LARGE.get(deep, (1, 2)))
    most_work = MOST if deep > 2 else 8 * MOST
    while labels and max(sizes.values()) ** deep > most_work:
        sizes[max(sizes, key=sizes.__getitem__)] = rng.choice((1, 2, 3, 5, 9, 17))
    return {label: min(size, most) for label, size in sizes.items()}


def _depth(statement: t.Statement) -> int:
    names = set(statement.target.free())
    over = 0
    for term in statement.value.walk():
        names |= {
            place.name for place in getattr(term, "places", ()) if not isinstance(place, t.Fixed)
        }
        over += len(term.over) if isinstance(term, t.Reduce) else 0
    return min(len(names) + over // 2, oracle.RANK)


def random_data(case: Trial, sizes: Sizes, rng: Random, before: Data | None) -> Data:
    """Return numbers and masks for a call; at times the masks of the call *before*."""
    numbers: dict[str, Array] = {}
    masks: dict[str, Array] = {}
    keep = before is not None and before.sizes == sizes and rng.random() < 0.3
    for name, one in case.program.operands.items():
        shape = tuple(
            sizes[extent] if isinstance(extent, str) else extent for extent in one.extents
        )
        chosen = [variant[name] for variant in case.storages]
        if not one.sparse:
            masks[name] = np.ones(shape, bool)
        elif keep and before is not None:
            masks[name] = before.masks[name]
        else:
            mask = operands.random_mask(shape, rng)
            before_closing: Array | None = None
            while before_closing is None or not np.array_equal(mask, before_closing):
                before_closing = mask
                for storage in chosen:
                    mask = storage.close(mask)
            masks[name] = mask
        zeros = not one.sparse or (all(storage.zeros for storage in chosen) and rng.random() < 0.3)
        numbers[name] = operands.random_numbers(shape, one.dtype, rng, zeros=zeros)
        if not all(storage.fits(shape) for storage in chosen):
            raise Refusal("the shape does not fit the storage")
    return Data(sizes, numbers, masks)


def arguments(case: Trial, variant: int, data: Data, rng: Random) -> dict[str, Any]:
    """Return the arguments of a call."""
    out: dict[str, Any] = {}
    for name, storage in case.storages[variant].items():
        try:
            out[name] = storage.make(data.numbers[name], data.masks[name], rng)
        except SpcompError as error:
            raise Refusal(f"{storage.name}: {error}") from error
    alike = [
        (one, two)
        for one in out
        for two in out
        if one < two
        and case.program.operands[one] == case.program.operands[two]
        and case.storages[variant][one] is case.storages[variant][two]
        and case.program.operands[one].extents
        and "C" not in (one, two)
    ]
    if alike and rng.random() < 0.1:  # the same object twice
        one, two = rng.choice(alike)
        out[two] = out[one]
        data.numbers[two], data.masks[two] = data.numbers[one], data.masks[one]
    return out


def expected(case: Trial, data: Data, given: Mapping[str, Any]) -> dict[str, Value]:
    """Return what the program returns: what it assigns and does not read again."""
    tensors: dict[str, oracle.Operand] = {}
    for name, plain in case.program.constants.items():
        tensors[name] = oracle.Operand(exact(plain, weak=plain))
    for name, one in case.program.operands.items():
        number = np.where(data.masks[name], data.numbers[name], np.zeros((), one.dtype))
        weak = given[name] if type(given[name]) in PLAIN else None
        number = number if weak is None else np.asarray(weak)
        tensors[name] = oracle.Operand(exact(number, data.masks[name], weak), one.sparse)
    results: dict[str, Value] = {}
    read = used(case.program) - set(case.program.operands) - set(case.program.constants)
    for statement in case.program.statements:
        name = statement.target.name
        value = oracle.assigned(statement, tensors, case.program.ring())
        if name in tensors:
            value = _written(statement, value, tensors, case.program.ring())
        tensors[name] = oracle.Operand(filled(statement, value, case.program.ring()))
        if name not in read:
            results[name] = value
    return results


def _written(
    statement: t.Statement,
    value: Value,
    tensors: Mapping[str, oracle.Operand],
    ring: tuple[str, str],
) -> Value:
    """Return the target of *statement*, which is given, with *value* written to a part of it."""
    before = tensors[statement.target.name].value
    picked: list[Any] = []
    for place, size in zip(statement.target.places, before.number.shape, strict=True):
        every = place.coordinates if isinstance(place, t.Window) else range(size)
        picked.append([place.at] if isinstance(place, t.Fixed) else np.array([*every], dtype=int))
    grid = np.ix_(*picked)
    parts = [
        np.broadcast_to(x, before.number.shape)
        for x in (before.number, before.present, before.error)
    ]
    part = Value(*(x[grid].reshape(value.number.shape) for x in parts))
    if statement.sign == "=":
        written = cast(filled(statement, value, ring), before.dtype)
        if len({*neutrals(statement, ring, value.dtype)}) > 1:  # which one is not said
            error = np.where(value.present, written.error, np.inf)
            written = replace(written, error=error)
    else:
        others = {**tensors, statement.target.name: oracle.Operand(part)}
        written = _added(statement, value, others, ring)
    whole = [x.copy() for x in parts]
    for array, new in zip(whole, (written.number, written.present, written.error), strict=True):
        array[grid] = np.broadcast_to(new, value.number.shape).reshape(array[grid].shape)
    return Value(*whole)


def _added(
    statement: t.Statement,
    value: Value,
    tensors: Mapping[str, oracle.Operand],
    ring: tuple[str, str],
) -> Value:
    """Return the target of *statement* with *value* added, term by term, in its type."""
    before = tensors[statement.target.name].value
    out = cast(value, before.dtype)
    if out.dtype.kind == "f":  # integers in it are rounded, too
        floats = {
            name: replace(one, value=cast(one.value, "float64")) for name, one in tensors.items()
        }
        try:
            value = oracle.assigned(statement, floats, ring)
        except Meaningless:  # of floats
            value = replace(value, error=np.full(value.number.shape, np.inf))
    if eps(value.dtype) and eps(out.dtype):
        narrowing = max(1.0, eps(out.dtype) / eps(value.dtype))
        out = replace(out, error=np.maximum(out.error, value.error * narrowing))
    return merged(ring[0] if statement.sign == "+=" else "-", before, out)
