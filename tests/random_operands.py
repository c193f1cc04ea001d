"""Random operands of every format: the argument, and its values and where they are present."""

from __future__ import annotations

import random
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sps

import spcomp
from tests.level_tensors import tensor

DTYPES = (
    *("float64", "float64", "float64", "float32", "float32"),
    *("int64", "int64", "int32", "bool", "int8"),
)
SCIPY = ("csr", "csc", "csr", "csc", "coo", "lil", "dok", "bsr", "dia")
NAMED: dict[int, tuple[str, ...]] = {
    1: ("sparse", "coo", "bitmap", "hash", "rle"),
    2: (
        *("csr", "csc", "dcsr", "dcsc", "csf", "coo", "ell", "dia", "bitmap", "hash", "rle"),
        *("bsr(2)", "bsr(2, 3)", "dbsr(2)", "sell(2)"),
    ),
    3: ("csf", "coo3", "csf", "bitmap", "hash", "rle"),
    4: ("csf", "coo", "bitmap", "hash"),
}
LEVELS = ("dense", "compressed", "compressed", "hashed", "bitmap", "ragged", "fixed", "runs")


class Given(NamedTuple):
    """An operand: how it is written, given, and what it holds."""

    text: str
    arg: Any
    values: Any
    stored: Any
    sparse: bool
    format: str | None = None


def operand(
    pick: random.Random,
    arrays: np.random.Generator,
    name: str,
    indices: list[str],
    shape: tuple[int, ...],
) -> Given:
    """A random operand called *name*, of the extents *shape*."""
    whole, text, key = _part(pick, name, indices, shape)
    dtype = np.dtype(pick.choice(DTYPES))
    stored = arrays.random(whole) < pick.choice((0.5, 0.2, 0.8, 0.0))
    ends = (0, 2) if dtype.kind == "b" else (-3, 4)
    values = np.where(stored, arrays.integers(*ends, whole), 0).astype(dtype)
    if pick.random() < 0.25:
        return Given(text, _dense(pick, values), values, np.ones(whole, bool), False)
    if key is None and pick.random() < 0.25:
        arg = tensor(values, stored, layout(pick, len(shape)))
        held = np.zeros(shape, bool)
        held[arg.coordinates()] = True
        return Given(text, arg, values, held, not arg.layout.is_dense)
    arg = _scipy(pick, arrays, values, stored)
    if arg.format in ("bsr", "dia", "lil", "dok"):  # which zeros these store is scipy's affair
        stored = np.zeros(whole, bool)
        stored[arg.tocsr().tocoo().coords] = True
    named = pick.choice(NAMED[len(shape)]) if key is None and pick.random() < 0.3 else None
    return Given(text, arg, values, stored, True, named)


def layout(pick: random.Random, rank: int) -> spcomp.Format:
    """A format of *rank* dimensions: one with a name, or any nest of levels in any order."""
    if pick.random() < 0.5:
        return spcomp.Format.parse(pick.choice(NAMED[rank]), rank)
    return spcomp.Format([pick.choice(LEVELS) for _ in range(rank)], pick.sample(range(rank), rank))


def _part(
    pick: random.Random, name: str, indices: list[str], shape: tuple[int, ...]
) -> tuple[tuple[int, ...], str, Any]:
    """Extents of an argument of which *shape* is a part, seldom a proper one, and how to say it."""
    if pick.random() > 0.06 or not 0 < len(shape) < 3 or 0 in shape:
        return shape, f"{name}[{', '.join(indices)}]", None
    whole, shown = list(shape), list(indices)
    dim = pick.randrange(len(shape))
    start, step = pick.randint(0, 2), pick.randint(1, 2)
    stop = start + (shape[dim] - 1) * step + 1
    whole[dim] = stop + pick.randint(0, 2)
    shown[dim] = f"{indices[dim]}({start}, {stop}, {step})"
    if len(shape) == 1:
        whole.insert(0, 3)
        shown.insert(0, str(pick.randint(-1, 2)))
    return tuple(whole), f"{name}[{', '.join(shown)}]", dim


def _dense(pick: random.Random, values: Any) -> Any:
    kind = pick.randrange(4)
    if kind == 0:
        return np.asfortranarray(values)
    if kind == 1 and values.ndim:
        wide = np.zeros((*values.shape[:-1], 2 * values.shape[-1]), values.dtype)
        wide[..., ::2] = values
        return wide[..., ::2]
    return values.copy()


def _scipy(pick: random.Random, arrays: np.random.Generator, values: Any, stored: Any) -> Any:
    """A scipy array: of repeated or unsorted coordinates at times, with wide indices at times."""
    where = [np.asarray(axis) for axis in np.nonzero(stored)]
    data = values[stored]
    if data.size and data.dtype != bool and pick.random() < 0.2:
        again = arrays.integers(0, data.size, 2)
        more = np.ones(2, data.dtype)
        np.subtract.at(data, again, more)
        where = [np.concatenate([axis, axis[again]]) for axis in where]
        data = np.concatenate([data, more])
    if pick.random() < 0.3:
        order = arrays.permutation(data.size)
        where, data = [axis[order] for axis in where], data[order]
    idtype = np.int64 if pick.random() < 0.2 else np.int32
    coords = tuple(axis.astype(idtype) for axis in where)
    made: Any = sps.coo_array((data, coords), shape=values.shape)
    if values.ndim != 2:
        return made
    layout = pick.choice(SCIPY)
    if pick.random() < 0.1:
        made = sps.coo_matrix((data, coords), shape=values.shape)
    if layout in ("bsr", "dia") and 0 in values.shape:
        layout = "csr"
    made = made.asformat(layout)
    if layout in ("csr", "csc") and pick.random() < 0.2:
        made.indices, made.indptr = made.indices.astype(np.int64), made.indptr.astype(np.int64)
    return made
