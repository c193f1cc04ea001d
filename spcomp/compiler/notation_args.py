"""At the call of an index notation kernel: what an argument is, and how it is handed on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from spcomp.compiler import convert, validate
from spcomp.compiler.bind import number_of
from spcomp.compiler.conversions_source import dense_array, elements_of, family_of
from spcomp.compiler.foreign import hint_about
from spcomp.compiler.notation_stored import (
    in_order,
    look_at,
    mask_of,
    rows,
    stored,
    values_of,
)
from spcomp.compiler.tensor import Tensor
from spcomp.dtypes import DType, bool_, float64, int32, int64
from spcomp.dtypes import dtype as dtype_of
from spcomp.errors import ArgumentError, OutOfMemoryError
from spcomp.notation.layout import Layout, Operand, dense, has_slots, is_bitmap, iterated, lists
from spcomp.notation.windows import Windows

Adapt: TypeAlias = Callable[[Any], Any]
Direct: TypeAlias = Callable[[Layout], bool]
COMPLEX = "there are no complex numbers here: compute with .real and .imag"
LONG = (1 << 31) - 1  # beyond it, 32 bits do not hold a coordinate or position
_ROW_MAJOR = Layout(("dense", "compressed"), (0, 1))


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument as the planner sees it, and what turns one like it into the kernel's."""

    operand: Operand
    adapt: Adapt

    def adapted(self, name: str, arg: Any) -> Any:
        """Return *arg*, the argument *name*, as the kernel takes it. Raises OutOfMemoryError."""
        try:
            return self.adapt(arg)
        except MemoryError as error:
            levels = self.operand.layout
            other = "dcsr" if levels.rank == 2 else "csf"
            hint = f'compressed levels have no empty rows: formats={{"{name}": "{other}"}}'
            if isinstance(arg, Tensor):  # it has its levels, but the result asks for these
                hint = "a result with the pattern of a mask needs no rows: (...) if M[i, j]"
            raise OutOfMemoryError(
                f"argument {name}: as {levels} it takes more memory than there is: {error}",
                hint=hint,
            ) from None


def kind_of(arg: Any) -> object:
    """Return what a compiled version depends on: arguments of one kind share it."""
    if isinstance(arg, np.ndarray):
        flags = arg.flags
        return "array", arg.dtype, arg.ndim, flags.f_contiguous and not flags.c_contiguous
    if isinstance(arg, Tensor):
        listed = lists(arg.layout) and arg.ascends
        known = _is_padded(arg), _is_long(arg), _loose(arg)
        return "tensor", arg.layout, arg.dtype, *known, listed
    if hasattr(arg, "format") and hasattr(type(arg), "nnz"):
        wide = getattr(getattr(arg, "indices", None), "dtype", None)
        dtype = getattr(arg, "dtype", None)
        return type(arg), arg.format, dtype, len(arg.shape), wide, _is_long(arg)
    if isinstance(arg, (int, float)):
        return type(arg)
    if convert.is_parts(arg):
        return "parts", arg.format, arg.dtype, len(arg.shape), arg.buffer.axes[-1].idtype
    more = (getattr(arg, what, None) for what in ("dtype", "layout", "format"))
    return type(arg), len(getattr(arg, "shape", ())), *map(str, more)


def as_number(name: str, argument: Argument, dtype: DType) -> Argument:
    """Return *argument*, the Python number *name*, as a parameter of *dtype* takes it."""
    return replace(argument, adapt=lambda arg: number_of(name, arg, dtype))


def nothing(_layout: Layout) -> bool:
    """Return that no layout is used as it is, if it is no nest of axes in order."""
    return False


def describe(
    name: str,
    arg: Any,
    rank: int,
    windows: Windows,
    wanted: Layout | None,
    direct: Direct,
) -> Argument:
    """Return how *arg*, or the *windows* of it, is used as a tensor of *rank* indices.

    *wanted*: the layout it is to be converted to. *direct*: whether one of this layout is used as
    it is, though it is no nest of axes in order. Raises ArgumentError.
    """
    look: Adapt = _identity
    if windows:
        arg, look = look_at(name, arg, windows)
    if rank == 0:
        number = _scalar(name, arg)
        return replace(number, adapt=_then(look, np.atleast_1d)) if windows else number
    if isinstance(arg, (list, tuple)):
        raise ArgumentError(
            f"argument {name}: got {type(arg).__name__}, expected an array",
            hint="make one with np.asarray(...)",
        )
    own = isinstance(arg, Tensor) and wanted in (None, arg.layout)
    found = _direct(name, arg) if own else None
    if found is None or not direct(found.operand.layout):
        found = _tensor(name, arg, wanted)
    shape = getattr(arg, "shape", ())
    if len(shape) != rank:
        stand = "1 index stands" if rank == 1 else f"{rank} indices stand"
        said = f"got {len(shape)} dimensions, but {stand} at it"
        raise ArgumentError(f"argument {name}: {said}", hint=_indexed(name, len(shape)))
    return found if look is _identity else replace(found, adapt=_then(look, found.adapt))


def _identity(arg: Any) -> Any:
    return arg


def _then(first: Adapt, second: Adapt) -> Adapt:
    return lambda arg: second(first(arg))


def _values(name: str, numpy_type: Any) -> DType:
    known = numpy_type.name
    try:
        if known != "bfloat16":  # its results would pass from step to step as bits, as integers
            return dtype_of(known)
    except ValueError:
        pass
    hint = 'convert it with .astype("float64"), or to another type of numbers'
    if known.startswith("complex"):
        hint = COMPLEX
    elif known.startswith("float"):
        hint = 'no type is wider than float64: .astype("float64") rounds it'
    raise ArgumentError(f"argument {name}: got dtype {known}", hint=hint)


def _scalar(name: str, arg: Any) -> Argument:
    if isinstance(arg, np.ndarray) and arg.ndim == 0:
        return Argument(Operand(dense(0), _values(name, arg.dtype)), lambda a: a[()])
    if isinstance(arg, np.generic):
        return Argument(Operand(dense(0), _values(name, arg.dtype)), _identity)
    for python, found in ((bool, bool_), (int, int64), (float, float64)):
        if isinstance(arg, python):
            return Argument(Operand(dense(0), found, weak=True), _identity)
    rank = len(getattr(arg, "shape", ()))
    raise ArgumentError(
        f"argument {name}: got {type(arg).__name__}, expected a number",
        hint=_indexed(name, rank) if rank else COMPLEX if isinstance(arg, complex) else "",
    )


def _indexed(name: str, rank: int) -> str:
    return f"write {name}[{', '.join('ijklmnop'[:rank])}], an index for each dimension"


def _tensor(name: str, arg: Any, wanted: Layout | None) -> Argument:
    if isinstance(arg, np.ndarray):
        return _array(name, arg, wanted)
    if isinstance(arg, Tensor):
        return _levels(name, arg, wanted)
    import scipy.sparse as sps

    if sps.issparse(arg):
        return _matrix(name, arg, wanted)
    if _is_elsewhere(arg):
        dtype, rank = _values(name, elements_of(arg).values.dtype), len(arg.shape)
        return _stored(name, arg, dtype, wanted or (_ROW_MAJOR if rank == 2 else _csf(rank)))
    if hasattr(arg, "__dlpack__") and not hasattr(arg, "__array__"):
        inner = _array(name, dense_array(arg), wanted)
        return replace(inner, adapt=_then(dense_array, inner.adapt))
    if hasattr(arg, "__array__") and not np.isscalar(arg):
        inner = _array(name, validate.as_array(name, arg), wanted)
        return replace(inner, adapt=_then(partial(validate.as_array, name), inner.adapt))
    raise ArgumentError(
        f"argument {name}: got {type(arg).__name__}, expected an array",
        hint=hint_about(arg, "give a numpy or scipy.sparse array, or a spcomp.Tensor"),
    )


def _is_elsewhere(arg: Any) -> bool:
    """Whether *arg* is a sparse tensor of torch or of pydata sparse."""
    try:
        family = family_of(arg)
    except ArgumentError:
        return False
    return family == "pydata" or (family == "torch" and str(arg.layout) != "torch.strided")


def _array(name: str, arg: Any, wanted: Layout | None) -> Argument:
    dtype = _values(name, arg.dtype)
    if wanted is not None and not wanted.is_dense:
        return _stored(name, arg, dtype, wanted, str(wanted))
    if arg.flags.f_contiguous and not arg.flags.c_contiguous:
        order = tuple(reversed(range(arg.ndim)))
        return Argument(Operand(Layout(("dense",) * arg.ndim, order), dtype), np.transpose)
    return Argument(Operand(dense(arg.ndim), dtype), _identity)


def _matrix(name: str, arg: Any, wanted: Layout | None) -> Argument:
    arg = convert.sound(arg, f"{name}.")
    dtype = _values(name, arg.dtype)
    if arg.ndim > 2 or (wanted is not None and wanted.is_dense):
        return _stored(name, arg, dtype, wanted or _csf(arg.ndim), str(wanted or arg.format))
    if arg.ndim == 1:
        return _stored(name, arg, dtype, wanted or _csf(1))
    known = {"csc": (1, 0)}.get(arg.format, (0, 1))
    layout = replace(_ROW_MAJOR, order=known) if wanted is None else iterated(wanted)
    shown = str(arg.format if wanted is None else wanted)
    if layout.levels != _ROW_MAJOR.levels:
        return _stored(name, arg, dtype, layout, shown)
    index = getattr(arg, "indices", None)
    wide = index is not None and index.dtype.itemsize > 4
    layout = replace(layout, idtype=int64 if wide else int32)
    kind = "csr" if layout.order == (0, 1) else "csc"
    adapt: Adapt = _identity
    if arg.format != kind:
        adapt = partial(rows, kind=kind, who=name)
    elif kind == "csc":
        adapt = partial(convert.sound, who=f"{name}.")
    adapt = adapt if kind == "csr" else _then(adapt, turned)
    return Argument(Operand(layout, dtype, given="" if shown == str(layout) else shown), adapt)


def turned(arg: Any) -> Any:
    """A csc array as the csr array of its transpose, over the same memory."""
    import scipy.sparse as sps

    make = sps.csr_array if isinstance(arg, sps.sparray) else sps.csr_matrix
    return convert.put_together(make, arg.shape[::-1], arg.data, arg.indices, arg.indptr)


def _csf(rank: int) -> Layout:
    return Layout(("compressed",) * rank, tuple(range(rank)))


def _direct(name: str, arg: Tensor) -> Argument | None:
    """Return *arg* as it is used if its levels are no axes; None: it has to be converted."""
    if lists(arg.layout) and arg.ascends:
        return Argument(Operand(arg.layout, _values(name, arg.dtype)), in_order)
    if is_bitmap(arg.layout):
        return Argument(Operand(arg.layout, _values(name, arg.dtype)), values_of)
    if has_slots(slots := _slots(arg)):
        return Argument(Operand(slots, _values(name, arg.dtype), given=str(arg.layout)), in_order)
    return None


def _slots(arg: Tensor) -> Layout:
    """Return the layout of *arg* where a fixed level that has padding is one without order."""
    pairs = zip(arg.layout.levels, _loose(arg), strict=True)
    texts = tuple("fixed(unordered)" if loose else text for text, loose in pairs)
    return replace(arg.layout, levels=texts)


def _loose(arg: Tensor) -> tuple[bool, ...]:
    """Which levels of *arg* are fixed ones with padding, or in no order, and repeat nothing."""
    return tuple(
        text.startswith("fixed") and (text != "fixed" or arg.padded(at)) and arg.distinct(at)
        for at, text in enumerate(arg.layout.levels)
    )


def with_mask(bitmap: Argument, name: str) -> tuple[Argument, Argument]:
    """Return *bitmap*, and what says which of its elements are there, called *name*."""
    held = Operand(dense(bitmap.operand.layout.rank), bool_)
    return replace(bitmap, operand=replace(bitmap.operand, mask=name)), Argument(held, mask_of)


def _levels(name: str, arg: Tensor, wanted: Layout | None) -> Argument:
    dtype = _values(name, arg.dtype)
    own = arg.layout
    layout = iterated(wanted or own, padded=_is_padded(arg))
    if (layout.levels, layout.order) != (own.levels, own.order) or own.is_dense:
        return _stored(name, arg, dtype, layout, str(wanted or own))
    shown = "" if wanted is None or str(wanted) == str(layout) else str(wanted)
    return Argument(Operand(layout, dtype, given=shown), in_order)


def _is_padded(tensor: Tensor) -> bool:
    return any(tensor.padded(at) for at in range(len(tensor.levels)))


def _is_long(arg: Any) -> bool:
    """Whether coordinates or positions of *arg* may need 64 bits."""
    count = arg.values.size if isinstance(arg, Tensor) else convert.stored_size(arg)
    return bool(max(count, *arg.shape) > LONG)


def _stored(name: str, arg: Any, dtype: DType, wanted: Layout, given: str = "") -> Argument:
    levels = ["dense" if level == "dense" else "compressed" for level in iterated(wanted).levels]
    layout = Layout(levels, iterated(wanted).order, int64 if _is_long(arg) else int32)
    shown = "" if given == str(layout) else given
    operand = Operand(layout, dtype, given=shown)
    return Argument(operand, lambda arg: stored(arg, layout, name))
