"""Random tensors, and the ways to store them that docs/formats.md and docs/notation.md name."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np
import scipy.sparse as sps

import spcomp
from tests.second.values import Array

Shape = Sequence[int]
Close = Callable[[Array], Array]


def _open(mask: Array) -> Array:
    return mask


@dataclass(frozen=True)
class Storage:
    """A way to store numbers where a mask says; what else it stores is what *close* adds."""

    name: str
    make: Callable[[Array, Array, Random], Any]
    rank: int | None = None
    close: Close = _open
    zeros: bool = True  # whether zeros that are elements stay so
    types: str = "fiub"  # kinds of dtypes
    half: bool = False  # whether float16 can be stored: scipy has none
    fits: Callable[[Shape], bool] = lambda shape: True


def _swapped(x: Array, mask: Array, rng: Random) -> Array:
    return x.astype(x.dtype.newbyteorder(">"))


def _misaligned(x: Array, mask: Array, rng: Random) -> Array:
    memory = np.zeros(x.nbytes + 1, "uint8")[1:]
    out = memory.view(x.dtype).reshape(x.shape) if x.nbytes else np.empty_like(x)
    out[...] = x
    return out


def _strided(x: Array, mask: Array, rng: Random) -> Array:
    steps = [rng.choice((1, 2, 3, -1, -2)) for _ in x.shape]
    shape = [max(1, abs(step) * size) for step, size in zip(steps, x.shape, strict=True)]
    memory = np.zeros(shape, x.dtype)
    out = memory[tuple(slice(None, None, step) for step in steps)]
    out = out[tuple(slice(0, size) for size in x.shape)]
    out[...] = x
    return out


def _turned(x: Array, mask: Array, rng: Random) -> Array:
    order = rng.sample(range(x.ndim), x.ndim)
    return np.ascontiguousarray(x.transpose(order)).transpose(np.argsort(order))


def _readonly(x: Array, mask: Array, rng: Random) -> Array:
    out = x.copy()
    out.flags.writeable = False
    return out


def _torch(x: Array, mask: Array, rng: Random) -> Any:
    import torch

    return torch.from_numpy(x.copy())


def _broadcast(x: Array, mask: Array, rng: Random) -> Array:
    """Return it with a stride of 0 where it repeats anyway."""
    if x.ndim and x.shape[0] and (x == x[:1]).all():
        return np.broadcast_to(x[0].copy(), x.shape)
    return x.copy()


DENSE = [
    Storage("C", lambda x, mask, rng: x.copy()),
    Storage("F", lambda x, mask, rng: np.asfortranarray(x)),
    Storage("turned", _turned),
    Storage("strided", _strided),
    Storage("readonly", _readonly),
    Storage("broadcast", _broadcast),
    Storage("swapped", _swapped),
    Storage("misaligned", _misaligned),
    Storage("torch", _torch, types="fib"),
    Storage("Tensor", lambda x, mask, rng: spcomp.Tensor(x.shape, [None] * x.ndim, x.copy())),
]
WEIGHTS = {"swapped": 0.2, "misaligned": 0.2, "torch": 0.3, "Tensor": 0.5}
SCALARS = [
    Storage("python", lambda x, mask, rng: x.item()),
    Storage("scalar", lambda x, mask, rng: x[()]),
    Storage("array", lambda x, mask, rng: x.copy()),
]


def _coordinates(x: Array, mask: Array) -> tuple[tuple[Array, ...], Array]:
    at = np.nonzero(mask)
    return at, x[at]


def _coo(x: Array, mask: Array, rng: Random) -> Any:
    at, values = _coordinates(x, mask)
    kind: Any = sps.coo_matrix if x.ndim == 2 and rng.random() < 0.2 else sps.coo_array
    return kind((values, at), shape=x.shape)


def _coo_mixed(x: Array, mask: Array, rng: Random) -> Any:
    """Return a list in no order, in which some elements are there twice, as x and 0."""
    at, values = _coordinates(x, mask)
    count = len(values)
    twice = [n for n in range(count) if rng.random() < 0.2]
    order = rng.sample(range(count + len(twice)), count + len(twice))
    which = np.array([*range(count), *twice], "int64")[order]
    parts = np.concatenate([values, np.zeros(len(twice), values.dtype)])[order]
    return sps.coo_array((parts, tuple(one[which] for one in at)), shape=x.shape)


def _csr_mixed(x: Array, mask: Array, rng: Random) -> Any:
    """Return csr whose rows are in no order and have elements twice."""
    out = _coo_mixed(x, mask, rng)
    rows = np.argsort(out.coords[0], kind="stable")
    indptr = np.concatenate([[0], np.cumsum(np.bincount(out.coords[0], minlength=x.shape[0]))])
    return sps.csr_array((out.data[rows], out.coords[1][rows], indptr), shape=x.shape)


def _scipy(name: str) -> Callable[[Array, Array, Random], Any]:
    def make(x: Array, mask: Array, rng: Random) -> Any:
        kind = rng.choice(("array", "array", "array", "matrix"))
        coo: Any = sps.coo_array(_coordinates(x, mask)[::-1], shape=x.shape)
        made = coo.tobsr(_block(x.shape)) if name == "bsr" else coo.asformat(name)
        return getattr(sps, f"{name}_{kind}")(made)

    return make


def _wide(x: Array, mask: Array, rng: Random) -> Any:
    out = sps.csr_array(sps.coo_array(_coordinates(x, mask)[::-1], shape=x.shape))
    out.indptr, out.indices = out.indptr.astype("int64"), out.indices.astype("int64")
    return out


def _index_swapped(x: Array, mask: Array, rng: Random) -> Any:
    out = sps.csr_array(sps.coo_array(_coordinates(x, mask)[::-1], shape=x.shape))
    out.indptr, out.indices = out.indptr.astype(">i4"), out.indices.astype(">i4")
    return out


def _block(shape: Shape) -> tuple[int, int]:
    return tuple(next(size for size in (3, 2, 1) if extent % size == 0) for extent in shape)  # type: ignore[return-value]


def blocks(block: tuple[int, int] | None) -> Close:
    """Return what closes a mask to whole blocks."""

    def close(mask: Array) -> Array:
        height, width = block or _block(mask.shape)
        rows, columns = mask.shape
        padded = np.pad(mask, ((0, -rows % height), (0, -columns % width)))
        shape = (padded.shape[0] // height, height, padded.shape[1] // width, width)
        held = padded.reshape(shape).any((1, 3))
        return held.repeat(height, 0).repeat(width, 1)[:rows, :columns]

    return close


def below(dimensions: Sequence[int]) -> Close:
    """Return what closes a mask along the dimensions of dense levels at the end."""

    def close(mask: Array) -> Array:
        if not dimensions:
            return mask
        return np.broadcast_to(mask.any(tuple(dimensions), keepdims=True), mask.shape).copy()

    return close


def diagonals(mask: Array) -> Array:
    """Return *mask* with whole diagonals, which is what an offset level stores."""
    rows, columns = np.nonzero(mask)
    return np.isin(np.subtract.outer(*map(np.arange, mask.shape)), rows - columns)


def _level(
    text: str, rank: int, *, order: Sequence[int] | None = None, wide: bool = False
) -> Storage:
    """Return the storage in a spcomp.Format of *rank* dimensions."""
    parsed = spcomp.Format.parse(text, rank)
    idtype = "int64" if wide else "int32"
    format = spcomp.Format(parsed.levels, order or parsed.order, idtype)
    ends: list[int] = []
    for level, dimension in zip(reversed(format.levels), reversed(format.order), strict=True):
        if level != "dense":
            break
        ends.append(dimension)

    def make(x: Array, mask: Array, rng: Random) -> Any:
        at, values = _coordinates(x, mask)
        return spcomp.Tensor.from_coo(at, values, x.shape, format)

    name = f"Format({text}, {format.order}, {idtype})"
    closed = below(ends) if "(" not in text else _open
    if "offset" in parsed.levels:
        closed = diagonals
    return Storage(name, make, rank, closed, half=True)


def _blocked(text: str, block: tuple[int, int]) -> Storage:
    def make(x: Array, mask: Array, rng: Random) -> Any:
        at, values = _coordinates(x, mask)
        return spcomp.Tensor.from_coo(at, values, x.shape, text)

    def even(shape: Shape) -> bool:
        return all(n % size == 0 for n, size in zip(shape, block, strict=True))

    return Storage(text, make, 2, blocks(block), fits=even, half=True)


def _parts(name: str, format: Any, **options: Any) -> Storage:
    def make(x: Array, mask: Array, rng: Random) -> Any:
        csr = sps.csr_array(sps.coo_array(_coordinates(x, mask)[::-1], shape=x.shape))
        return spcomp.convert(csr, format)

    return Storage(f"parts {name}", make, 2, **options)


def _torch_sparse(name: str) -> Callable[[Array, Array, Random], Any]:
    def make(x: Array, mask: Array, rng: Random) -> Any:
        at, values = _coordinates(x, mask)
        return spcomp.Tensor.from_coo(at, values, x.shape, name).to_torch()

    return make


def _pydata(x: Array, mask: Array, rng: Random) -> Any:
    import sparse  # type: ignore[import-untyped]

    at, values = _coordinates(x, mask)
    return sparse.COO(np.array(at), values, shape=x.shape)


def _sparse_storages() -> list[Storage]:
    f = spcomp.formats
    out = [Storage("coo_array", _coo), Storage("coo mixed", _coo_mixed, types="fiu")]
    out += [Storage("pydata", _pydata, zeros=False)]
    out += [Storage(name, _scipy(name), 2) for name in ("csr", "csr", "csr", "csc", "csc", "coo")]
    out += [Storage(name, _scipy(name), 2, zeros=False) for name in ("lil", "dok", "dia")]
    out += [Storage("bsr", _scipy("bsr"), 2, blocks(None), fits=lambda shape: 0 not in shape)]
    out += [Storage("csr wide", _wide, 2), Storage("csr swapped", _index_swapped, 2)]
    out += [Storage("csr mixed", _csr_mixed, 2, types="fiu")]
    out += [Storage(f"torch {name}", _torch_sparse(name), 2, types="fi") for name in ("csr", "coo")]
    out += [
        _blocked(f"{kind}({r},{c})", (r, c))
        for kind in ("bsr", "dbsr")
        for r, c in ((2, 2), (1, 3))
    ]
    out += [
        _parts("hyb", "hyb"),
        _parts("hyb(2)", "hyb(2)"),
        _parts("hyb(2, [1, 2, 4])", f.hyb(2, [1, 2, 4])),
        _parts("bsr(2)", f.bsr(2)),
        _parts("dbsr((2, 3))", f.dbsr((2, 3))),
        _parts("dcsr()", f.dcsr()),
        _parts("ell()", f.ell()),
        _parts("ell(2)", f.ell(2)),
        _parts("padding(4)", f.padding(4)),
        _parts("sr_bcrs(2, 2)", f.sr_bcrs(2, 2)),
        _parts("dia()", f.dia()),
        _parts("sell(2)", f.sell(2)),
        _parts("sell(4, 1)", f.sell(4, 1)),
        _parts("sliced_diagonal()", f.sliced_diagonal(4), types="f"),
    ]
    for rank in (1, 2, 3, 4):
        out += [_level(name, rank) for name in ("coo", "bitmap", "hash", "rle")]
        out += [_level(text, rank) for text in LEVELS[rank]]
        out += [_level(LEVELS[rank][0], rank, wide=True)]
        turned = tuple(reversed(range(rank)))
        out += [_level(text, rank, order=turned) for text in LEVELS[rank]]
    out += [
        _level("csf", 3),
        _level("csf", 3, order=(1, 2, 0)),
        _level("csf", 4, order=(2, 0, 3, 1)),
    ]
    out += [_level(text, 2) for text in ("csr", "csc", "dcsr", "dcsc", "ell", "dia", "sell(2)")]
    return out


LEVELS = {
    1: ["compressed", "hashed", "compressed(unordered)"],
    2: ["dense,compressed", "compressed,compressed", "hashed,compressed", "compressed,hashed",
        "dense,hashed", "hashed,hashed", "compressed,dense", "compressed,bitmap", "dense,fixed",
        "dense,compressed(unordered)", "compressed,singleton", "dense,offset"],
    3: ["dense,compressed,compressed", "compressed,compressed,compressed", "dense,dense,compressed",
        "dense,compressed,dense", "compressed,dense,dense", "compressed,dense,compressed",
        "dense,compressed,hashed", "dense,fixed,dense"],
    4: ["compressed,compressed,compressed,compressed", "dense,compressed,dense,dense",
        "dense,compressed,compressed,dense", "dense,dense,dense,compressed"],
}  # fmt: skip


def _available(storage: Storage) -> bool:
    """Return whether the package of another library's arrays is there."""
    package = {"torch": "torch", "pydata": "sparse"}.get(storage.name.partition(" ")[0])
    return package is None or importlib.util.find_spec(package) is not None


SPARSE = list(filter(_available, _sparse_storages()))
DENSE = list(filter(_available, DENSE))


def storages(rank: int, dtype: Any, *, sparse: bool) -> list[Storage]:
    """Return the ways to store a tensor of *rank* dimensions and *dtype*."""
    known = SPARSE if sparse else DENSE if rank else SCALARS
    kind = np.dtype(dtype).kind
    return [
        one
        for one in known
        if one.rank in (None, rank)
        and kind in one.types
        and (one.half or not sparse or dtype != "float16")
    ]


def random_mask(shape: Shape, rng: Random) -> Array:
    """Return where a sparse tensor of *shape* has elements."""
    noise = np.random.default_rng(rng.randrange(2**32))
    density = rng.choice((0.0, 0.05, 0.3, 0.3, 0.6, 0.9, 1.0))
    mask = noise.random(shape) < density
    if rng.random() < 0.3:  # empty rows, or all but one
        keep = noise.random(shape[0]) < rng.choice((0.1, 0.5))
        mask &= keep.reshape([-1] + [1] * (len(shape) - 1))
    if rng.random() < 0.1 and len(shape) == 2:
        mask = np.eye(shape[0], shape[1], k=rng.choice((0, 0, 1, -1)), dtype=bool)
    return mask


def random_numbers(shape: Shape, dtype: Any, rng: Random, *, zeros: bool) -> Array:
    """Return numbers of *dtype*: mostly small, at times odd; without *zeros* none is zero."""
    noise = np.random.default_rng(rng.randrange(2**32))
    dtype = np.dtype(dtype)
    size = math.prod(shape)
    out: Array
    if dtype.kind == "b":
        out = noise.random(size) < (0.6 if zeros else 1.0)
    elif dtype.kind == "f":
        out = noise.normal(size=size) if rng.random() < 0.5 else noise.integers(-16, 17, size) / 4
        if rng.random() < 0.06 and size:
            odd = [np.nan, np.inf, -np.inf, 1e4, 1e-4, 30.0]
            out[noise.integers(size, size=rng.randrange(1, 3))] = rng.choice(odd)
    else:
        out = noise.integers(-5 if dtype.kind == "i" else 0, 6, size)
        if rng.random() < 0.1 and size:
            limits = np.iinfo(dtype)
            edges = np.array([limits.max, limits.min, limits.max - 1], dtype)
            out = out.astype(dtype)
            out[noise.integers(size, size=2)] = edges[noise.integers(3, size=2)]
    out = np.asarray(out).astype(dtype).reshape(shape)
    return out if zeros else np.where(out == 0, np.ones((), dtype), out)
