"""What a program of the script language means: an iteration is a mask over coordinates.

What is not stored reads as 0; an update runs over the coordinates where the mask holds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from random import Random

import numpy as np

from tests.second import oracle
from tests.second.scripts import Buffer, Nest, Script, dimension
from tests.second.values import Array, Value, cast, combined, eps, exact

UPDATES = {"+": "sum", "*": "prod", "max": "max", "min": "min"}


@dataclass
class Given:
    """Sizes, where the axes of trees have coordinates, and dense numbers of the inputs."""

    lengths: dict[str, int]
    masks: dict[str, Array]
    widths: dict[str, int]
    numbers: dict[str, Array]


def given(script: Script, rng: Random, most: int) -> Given:
    """Return random data for a call."""
    noise = np.random.default_rng(rng.randrange(2**32))
    names = script.variables()
    lengths = {variable: rng.choice((0, 1, 1, 2, 3, 5, 8, 9)) for variable in names}
    if rng.random() < 0.3:
        lengths[rng.choice(names)] = rng.choice((16, 17, 33, 64, 65))
    data = Given({name: min(length, most) for name, length in lengths.items()}, {}, {}, {})
    for axis, kind in script.kinds.items():
        above = data.masks["J"] if axis == "L" else np.ones(data.lengths["i"], bool)
        length = data.lengths[dimension(axis)]
        scores = noise.random((*above.shape, length))
        if kind == "sparse_fixed":
            data.widths[axis] = rng.randrange(min(length, 5) + 1)
            mask = np.argsort(np.argsort(scores, axis=-1), axis=-1) < data.widths[axis]
        elif kind == "dense_variable":
            mask = np.arange(length) < noise.integers(0, length + 1, (*above.shape, 1))
        else:
            mask = scores < rng.choice((0.0, 0.2, 0.5, 1.0))
        data.masks[axis] = mask & above[..., None]
    for name, buffer in script.inputs.items():
        stored = stored_of(buffer, data)
        values = noise.integers(-8, 9, stored.shape) / (1 if buffer.dtype == "int32" else 4)
        data.numbers[name] = np.where(stored, values, 0).astype(buffer.dtype)
    return data


def stored_of(buffer: Buffer, data: Given) -> Array:
    """Return where *buffer* has elements."""
    shape = tuple(data.lengths[variable] for variable in buffer.variables)
    if not buffer.deepest:
        return np.ones(shape, bool)
    mask = data.masks[buffer.deepest]
    return np.broadcast_to(mask.reshape(mask.shape + (1,) * (len(shape) - mask.ndim)), shape)


def expected(script: Script, data: Given) -> dict[str, Value]:
    """Return what the program computes, by buffer, what is not stored 0."""
    tensors = {name: exact(number) for name, number in data.numbers.items()}
    stored = {name: exact(stored_of(buffer, data)) for name, buffer in script.inputs.items()}
    for nest in script.nests:
        tensors[nest.target.name] = _nested(nest, data, tensors, stored)
        stored[nest.target.name] = exact(stored_of(nest.target, data))
    return tensors


def _nested(nest: Nest, data: Given, tensors: dict[str, Value], stored: dict[str, Value]) -> Value:
    """Return the target of *nest*."""
    names = [*nest.target.variables, *(v for v in nest.order if v not in nest.target.variables)]
    operands = {name: oracle.Operand(value) for name, value in tensors.items()}
    operands |= {f"stored {name}": oracle.Operand(value) for name, value in stored.items()}
    axes = {name: at for at, name in enumerate(names)}
    scope = oracle.Scope(operands, ("+", "*"), axes, dict(data.lengths))
    value = replace(oracle.evaluate(nest.value, scope), present=_iterated(nest, data, scope))
    full = [data.lengths[name] for name in names] + [1] * (oracle.RANK - len(names))
    if nest.update:
        value = _updated(nest, value, full)
    rank = len(nest.target.variables)
    shape = full[:rank]
    number, error = (
        np.broadcast_to(x, shape + [1] * (oracle.RANK - rank)).reshape(shape)
        for x in (value.number, value.error)
    )
    inside = stored_of(nest.target, data)
    kept = cast(Value(number, np.ones(shape, bool), error), nest.target.dtype)
    zero = np.zeros((), nest.target.dtype)
    return replace(
        kept, number=np.where(inside, kept.number, zero), error=np.where(inside, kept.error, 0.0)
    )


def _iterated(nest: Nest, data: Given, scope: oracle.Scope) -> Array:
    """Return over which coordinates *nest* runs."""
    inside = [variable for variable in ("i", "j", "l") if variable in nest.order]
    if nest.over == "dense" or len(inside) < 2:
        return np.ones((1,) * oracle.RANK, bool)
    mask = data.masks["L" if "l" in inside else "J"]
    if nest.over == "union":
        mask = mask | data.masks["JB"]
    if nest.over == "intersect":
        mask = mask & data.masks["JB"]
    return mask[tuple(scope.along(name, np.arange(data.lengths[name])) for name in inside)]


def _updated(nest: Nest, value: Value, full: list[int]) -> Value:
    """Return the start updated with *value*, in the type of the target."""
    rank = len(nest.target.variables)
    over = range(rank, rank + len(nest.order) - rank)
    wide = cast(value, nest.target.dtype)
    shown = (wide.number, wide.present, wide.error)
    every = Value(*(np.broadcast_to(x, np.broadcast_shapes(x.shape, full)) for x in shown))
    lengths = [full[at] for at in over]
    found = oracle.reduced(UPDATES[nest.update], every, over, lengths)
    start = exact(np.full((1,) * oracle.RANK, nest.start, nest.target.dtype))
    name = {"max": "maximum", "min": "minimum"}.get(nest.update, nest.update)
    out = combined(name, [replace(found, present=np.asarray(True)), start])
    slack = max(1, math.prod(lengths)) * eps(np.dtype(nest.target.dtype)) * abs(nest.start)
    return replace(out, error=out.error + slack)
