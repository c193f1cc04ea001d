"""At the call of an index notation kernel: what an argument is, and how it is handed on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from spcomp.compiler.convert import put_together
from spcomp.compiler.tensor import Level, Tensor, _expand
from spcomp.dtypes import DType, bool_, float64, int32, int64
from spcomp.dtypes import dtype as dtype_of
from spcomp.errors import ArgumentError
from spcomp.notation.layout import Layout, Operand, dense
from spcomp.notation.nodes import Window

Adapt: TypeAlias = Callable[[Any], Any]
Windows: TypeAlias = tuple[Window | int | None, ...]
_ROW_MAJOR = Layout(("dense", "compressed"), (0, 1))


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument as the planner sees it, and what turns one like it into the kernel's."""

    operand: Operand
    adapt: Adapt


def kind_of(arg: Any) -> object:
    """Return what a compiled version depends on: arguments of one kind share it."""
    if isinstance(arg, np.ndarray):
        flags = arg.flags
        return "array", arg.dtype, arg.ndim, flags.f_contiguous and not flags.c_contiguous
    if isinstance(arg, Tensor):
        ids = {
            a.dtype
            for level in arg.levels
            if level
            for a in (level.indptr, level.indices)
            if a is not None
        }
        return "tensor", arg.format, arg.dtype, tuple(sorted(map(str, ids)))
    if hasattr(arg, "format") and hasattr(arg, "nnz"):
        index = getattr(arg, "indices", None)
        return type(arg), arg.dtype, arg.ndim, None if index is None else index.dtype
    return type(arg)


def describe(name: str, arg: Any, rank: int, windows: Windows, wanted: Layout | None) -> Argument:
    """Return how *arg*, or the *windows* of it, is used as a tensor of *rank* indices.

    *wanted*: the layout it is to be converted to. Raises ArgumentError.
    """
    look: Adapt = _identity
    if windows:
        arg, look = _look(name, arg, windows)
    if rank == 0:
        return _scalar(name, arg)
    if isinstance(arg, (list, tuple)):
        raise ArgumentError(
            f"argument {name}: got {type(arg).__name__}, expected an array",
            hint="make one with np.asarray(...)",
        )
    found = _tensor(name, arg, wanted)
    shape = getattr(arg, "shape", ())
    if len(shape) != rank:
        raise ArgumentError(
            f"argument {name}: got {len(shape)} dimensions, but {rank} indices stand at it"
        )
    return found if look is _identity else replace(found, adapt=_then(look, found.adapt))


def _identity(arg: Any) -> Any:
    return arg


def _then(first: Adapt, second: Adapt) -> Adapt:
    return lambda arg: second(first(arg))


def _values(name: str, numpy_type: Any) -> DType:
    known = numpy_type.name
    try:
        return dtype_of(known)
    except ValueError:
        raise ArgumentError(
            f"argument {name}: got dtype {known}",
            hint="convert it to an integer or floating type with .astype(...)",
        ) from None


def _scalar(name: str, arg: Any) -> Argument:
    if isinstance(arg, np.ndarray) and arg.ndim == 0:
        return Argument(Operand(dense(0), _values(name, arg.dtype)), lambda a: a[()])
    if isinstance(arg, np.generic):
        return Argument(Operand(dense(0), _values(name, arg.dtype)), _identity)
    for python, found in ((bool, bool_), (int, int64), (float, float64)):
        if isinstance(arg, python):
            return Argument(Operand(dense(0), found, weak=True), _identity)
    raise ArgumentError(f"argument {name}: got {type(arg).__name__}, expected a number")


def _tensor(name: str, arg: Any, wanted: Layout | None) -> Argument:
    if isinstance(arg, np.ndarray):
        return _array(name, arg, wanted)
    if isinstance(arg, Tensor):
        return _levels(name, arg, wanted)
    import scipy.sparse as sps

    if sps.issparse(arg):
        return _matrix(name, arg, wanted)
    if hasattr(arg, "__array__") and not np.isscalar(arg):
        inner = _array(name, np.asarray(arg), wanted)
        return replace(inner, adapt=_then(np.asarray, inner.adapt))
    raise ArgumentError(
        f"argument {name}: got {type(arg).__name__}, expected an array",
        hint="give a numpy or scipy.sparse array, or a spcomp.Tensor",
    )


def _array(name: str, arg: Any, wanted: Layout | None) -> Argument:
    dtype = _values(name, arg.dtype)
    if wanted is not None and not wanted.is_dense:
        coords = _then(_coo_of_array, lambda given: stored(given, wanted))
        return Argument(Operand(wanted, dtype), coords)
    if arg.flags.f_contiguous and not arg.flags.c_contiguous:
        order = tuple(reversed(range(arg.ndim)))
        return Argument(Operand(Layout(("dense",) * arg.ndim, order), dtype), np.transpose)
    return Argument(Operand(dense(arg.ndim), dtype), _identity)


def _matrix(name: str, arg: Any, wanted: Layout | None) -> Argument:
    dtype = _values(name, arg.dtype)
    if arg.ndim > 2 or (wanted is not None and wanted.is_dense):
        return _stored(arg, dtype, wanted or _csf(arg.ndim))
    if arg.ndim == 1:
        return _stored(arg, dtype, wanted or _csf(1))
    known = {"csc": (1, 0)}.get(arg.format, (0, 1))
    layout = replace(_ROW_MAJOR, order=known) if wanted is None else wanted
    if layout.levels != _ROW_MAJOR.levels:
        return _stored(arg, dtype, layout)
    index = getattr(arg, "indices", None)
    wide = index is not None and index.dtype.itemsize > 4
    layout = replace(layout, idtype=int64 if wide else int32)
    if layout.order == (0, 1):
        adapt: Adapt = _identity if arg.format == "csr" else _as_csr
    else:
        adapt = turned if arg.format == "csc" else _then(_as_csc, turned)
    return Argument(Operand(layout, dtype), adapt)


def _as_csr(arg: Any) -> Any:
    return arg.tocsr()


def _as_csc(arg: Any) -> Any:
    return arg.tocsc()


def turned(arg: Any) -> Any:
    """A csc array as the csr array of its transpose, over the same memory."""
    import scipy.sparse as sps

    make = sps.csr_array if isinstance(arg, sps.sparray) else sps.csr_matrix
    return put_together(make, arg.shape[::-1], arg.data, arg.indices, arg.indptr)


def _csf(rank: int) -> Layout:
    return Layout(("compressed",) * rank, tuple(range(rank)))


def _levels(name: str, arg: Tensor, wanted: Layout | None) -> Argument:
    if wanted is not None:
        raise ArgumentError(
            f"argument {name}: is a Tensor of levels {arg.format}, expected {wanted}",
            hint="it is not converted; give a scipy.sparse array, or a Tensor of these levels",
        )
    kinds = tuple("dense" if level is None else level.kind for level in arg.levels)
    arrays = [a for level in arg.levels if level for a in (level.indptr, level.indices)]
    wide = any(a is not None and a.dtype.itemsize > 4 for a in arrays)
    layout = Layout(kinds, tuple(range(arg.ndim)), int64 if wide else int32)
    layout.check(name)
    adapt = _identity if layout.is_rooted else rooted
    return Argument(Operand(layout, _values(name, arg.dtype)), adapt)


def rooted(tensor: Tensor) -> Tensor:
    """Return *tensor* with a dense level of one coordinate in front."""
    return _made((1, *tensor.shape), (None, *tensor.levels), tensor.values)


def unrooted(tensor: Tensor) -> Tensor:
    """Return *tensor* without its first level, which has one coordinate."""
    return _made(tensor.shape[1:], tensor.levels[1:], tensor.values)


def _made(shape: tuple[int, ...], levels: tuple[Level | None, ...], values: Any) -> Tensor:
    """A Tensor of index arrays that were checked before."""
    made = Tensor.__new__(Tensor)
    made._shape, made._levels, made._ascending = shape, levels, {}  # noqa: SLF001
    made.values = values
    return made


# -- conversion ----------------------------------------------------------------------------------


def _coo_of_array(arg: Any) -> Any:
    import scipy.sparse as sps

    return sps.coo_array(arg)


def _stored(arg: Any, dtype: DType, layout: Layout) -> Argument:
    wide = max(arg.shape, default=0) > np.iinfo(np.int32).max
    layout = replace(layout, idtype=int64 if wide else int32)
    return Argument(Operand(layout, dtype), lambda given: stored(given, layout))


def stored(given: Any, layout: Layout) -> Any:
    """Return a scipy array of any rank in *layout*: dense, or compressed from some level on."""
    if layout.is_dense:
        return np.ascontiguousarray(given.toarray())
    coo = given.tocoo()
    shape = tuple(coo.shape[dim] for dim in layout.order)
    coords = [np.asarray(coo.coords[dim], np.int64) for dim in layout.order]
    return fibers(shape, coords, np.asarray(coo.data), layout)


def fibers(shape: tuple[int, ...], coords: list[Any], values: Any, layout: Layout) -> Tensor:
    """Return a Tensor, rooted, of the elements at *coords*, sorted, repeated ones summed."""
    idtype = layout.idtype.numpy_name
    order = np.lexsort(coords[::-1])
    coords, values = [c[order] for c in coords], values[order]
    count = len(values)
    new = np.zeros(count, bool)
    levels: list[Level | None] = []
    above, parents = np.zeros(count, np.int64), 1
    for kind, extent, own in zip(layout.levels, shape, coords, strict=True):
        if kind == "dense":
            above, parents = above * extent + own, parents * extent
            levels.append(None)
            continue
        new = np.ones(count, bool)
        new[1:] = (above[1:] != above[:-1]) | (own[1:] != own[:-1])
        first = np.flatnonzero(new)
        counts = np.bincount(above[first], minlength=parents)
        indptr = np.concatenate(([0], np.cumsum(counts)))
        levels.append(Level("compressed", indptr.astype(idtype), own[first].astype(idtype)))
        above, parents = np.cumsum(new) - 1, len(first)
    total = np.zeros(parents, values.dtype)
    np.add.at(total, above, values)
    root = () if layout.is_rooted else (1,)
    return _made((*root, *shape), (*(None for _ in root), *levels), total)


def reordered(tensor: Tensor, layout: Layout) -> Tensor:
    """Return *tensor*, whose levels store the dimensions in the order of *layout*, in theirs."""
    shape = tuple(tensor.shape[layout.order.index(dim)] for dim in range(tensor.ndim))
    stored_as = coordinates(tensor)
    coords = [stored_as[layout.order.index(dim)] for dim in range(tensor.ndim)]
    levels = ("compressed",) * tensor.ndim
    wanted = Layout(levels, tuple(range(tensor.ndim)), layout.idtype)
    return unrooted(fibers(shape, coords, np.asarray(tensor.values).reshape(-1), wanted))


def coordinates(tensor: Tensor) -> list[Any]:
    """Return the coordinates of the values of *tensor*, an array per dimension."""
    count, steps = 1, []
    for level, extent in zip(tensor.levels, tensor.shape, strict=True):
        steps.append(_expand(level, extent, count))
        count = len(steps[-1][1])
    at, found = np.arange(count), []
    for fiber, own in reversed(steps):
        found.append(own[at])
        at = fiber[at]
    return found[::-1]


# -- windows -------------------------------------------------------------------------------------


def _look(name: str, arg: Any, windows: Windows) -> tuple[Any, Adapt]:
    """Return the *windows* of *arg*, and what takes them of another argument."""

    def look(given: Any) -> Any:
        if isinstance(given, Tensor) or not hasattr(given, "shape"):
            raise ArgumentError(
                f"argument {name}: got {type(given).__name__}, which has no windows",
                hint="give a numpy or scipy.sparse array",
            )
        if len(windows) != len(given.shape):
            raise ArgumentError(
                f"argument {name}: got {len(given.shape)} dimensions, expected {len(windows)}"
            )
        for dim, (window, extent) in enumerate(zip(windows, given.shape, strict=True)):
            if isinstance(window, int) and not -extent <= window < extent:
                raise ArgumentError(
                    f"argument {name}: has no coordinate {window}, dimension {dim} is {extent}"
                )
        return _cut(given, windows)

    return look(arg), look


def _cut(given: Any, windows: Windows) -> Any:
    key = tuple(slice(None) if w is None else w if isinstance(w, int) else w.slice for w in windows)
    if isinstance(given, np.ndarray):
        part = given[key]
        return part if part.ndim == 0 or part.flags.c_contiguous else np.ascontiguousarray(part)
    matrix = given if given.format in ("csr", "csc") else given.tocsr()
    wide = tuple(slice(k, k + 1 or None) if isinstance(k, int) else k for k in key)
    part = matrix[wide]
    kept = tuple(n for n, k in zip(part.shape, key, strict=True) if not isinstance(k, int))
    if len(kept) == 2:
        return part
    import scipy.sparse as sps

    coo = sps.coo_array(part)
    if not kept:
        return np.asarray(coo.sum(), coo.dtype)
    own = next(dim for dim, k in enumerate(key) if not isinstance(k, int))
    return sps.coo_array((coo.data, (coo.coords[own],)), shape=kept)
