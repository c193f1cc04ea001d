"""At the call of an index notation kernel: arguments, their kinds, and operands made of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from spcomp.dtypes import DType, bool_, float64, int32, int64
from spcomp.dtypes import dtype as dtype_of
from spcomp.errors import ArgumentError, OutOfMemoryError
from spcomp.kernels.frame import number_of
from spcomp.kernels.notation.stored import (
    in_order,
    look_at,
    mask_of,
    rows,
    stored,
    values_of,
)
from spcomp.kernels.protocol import as_it_is
from spcomp.notation.layout import (
    Layout,
    Operand,
    dense,
    has_slots,
    is_bitmap,
    is_list,
    iterable_layout,
)
from spcomp.notation.windows import Windows
from spcomp.runtime.cuda.arrays import described, is_sparse, lies_there, place_of
from spcomp.runtime.cuda.sparse import kind_of as sparse_kind
from spcomp.runtime.cuda.sparse import sparse_from, sparse_of
from spcomp.tensors import checks as validate
from spcomp.tensors.arguments import COMPLEX
from spcomp.tensors.conversions.elements import dense_array, elements_of, family_of
from spcomp.tensors.conversions.keys import INT32
from spcomp.tensors.convert import convert
from spcomp.tensors.device_tensor import DeviceTensor
from spcomp.tensors.libraries.foreign import hint_about
from spcomp.tensors.libraries.scipy import (
    class_like,
    is_scipy,
    native_scipy,
    scipy_of_arrays,
    stored_size,
)
from spcomp.tensors.storage import is_parts
from spcomp.tensors.tensor import Tensor

if TYPE_CHECKING:
    from spcomp.formats.rules import ComposableFormat

Adapt: TypeAlias = Callable[[Any], Any]
LONG = (1 << 31) - 1  # beyond it, 32 bits do not hold a coordinate or position
_ROW_MAJOR = Layout(("dense", "compressed"), (0, 1))
_BY_COLUMNS = ("dense", "compressed"), (1, 0)


class CallArgument(NamedTuple):
    """An argument of a call; the kinds of the arguments decide which version runs."""

    name: str
    kind: object
    value: Any

    @property
    def format(self) -> ComposableFormat | None:
        """The format of a matrix that is stored in parts, else None."""
        return self.value.format if is_parts(self.value) else None

    def __str__(self) -> str:
        facts = [getattr(self.value, what, None) for what in ("format", "dtype")]
        kind = type(self.value).__name__
        return " ".join([f"{self.name}: {kind}", *(str(fact) for fact in facts if fact)])

    @property
    def whole(self) -> Any:
        """The value; for a matrix in parts, the csr array or Tensor that it was made of."""
        return self.value.whole() if is_parts(self.value) else self.value


CallArguments: TypeAlias = Mapping[str, CallArgument]


def call_arguments(named: Mapping[str, Any]) -> dict[str, CallArgument]:
    """Return the arguments *named* with their kinds."""
    return {name: CallArgument(name, kind_of(arg), arg) for name, arg in named.items()}


def arguments_there(named: Mapping[str, Any]) -> dict[str, CallArgument]:
    """Return the arguments *named* of a call on a GPU; bare interfaces of arrays as arrays."""
    return call_arguments({name: described(name, arg) for name, arg in named.items()})


@dataclass(frozen=True, slots=True)
class Argument:
    """An operand as the planner sees it, and *adapt*, which makes it of the argument *source*.

    *windowed*: the operand is windows of the argument. *converts*: *adapt* makes other values.
    """

    operand: Operand
    adapt: Adapt
    source: str = ""
    windowed: bool = False
    converts: bool = False

    def adapted(self, arg: Any) -> Any:
        """Return *arg*, an argument like the one that was described, as the kernel takes it.

        Raises OutOfMemoryError.
        """
        try:
            return self.adapt(arg)
        except MemoryError as error:
            levels = self.operand.layout
            other = "dcsr" if levels.rank == 2 else "csf"
            hint = f'compressed levels have no empty rows: formats={{"{self.source}": "{other}"}}'
            if isinstance(arg, Tensor):  # the result asks for these levels
                hint = "a result with the pattern of a mask needs no rows: (...) if M[i, j]"
            raise OutOfMemoryError(
                f"argument {self.source}: as {levels} it takes more memory than there is: {error}",
                hint=hint,
            ) from None


@dataclass(frozen=True, slots=True)
class Source:
    """What an operand of *rank* indices is made of: *value*, the argument *name* or windows of it.

    *look*: the function that takes these windows of another argument.
    """

    name: str
    value: Any
    rank: int
    look: Adapt | None = None

    @classmethod
    def of(cls, name: str, arg: Any, rank: int, windows: Windows) -> Source:
        """Return the source that is *arg*, or the *windows* of it; raises ArgumentError."""
        if not windows:
            return cls(name, arg, rank)
        value, look = look_at(name, arg, windows)
        return cls(name, value, rank, look)

    def argument(self, wanted: Layout | None, *, direct: bool) -> Argument:
        """Return the Argument that makes an operand of it, of the layout *wanted* if there is one.

        *direct*: use it as it is where that is possible, even if loops cannot go through its levels
        in order. Raises ArgumentError.
        """
        name, arg, rank = self.name, self.value, self.rank
        if rank == 0:
            number = _scalar(name, arg)
            return self._with_windows(replace(number, adapt=np.atleast_1d) if self.look else number)
        has_no_shape = hasattr(arg, "__array__") and not hasattr(arg, "shape")
        if isinstance(arg, (list, tuple, type)) or has_no_shape:
            raise ArgumentError(
                f"argument {name}: got {type(arg).__name__}, expected an array",
                hint="make one with np.asarray(...)",
            )
        argument = None
        if direct and isinstance(arg, Tensor) and wanted in (None, arg.layout):
            argument = _direct(name, arg)
        if argument is None:
            argument = _tensor(name, arg, wanted)
        shape = getattr(arg, "shape", ())
        if len(shape) != rank:
            stand = "1 index stands" if rank == 1 else f"{rank} indices stand"
            said = f"got {len(shape)} dimensions, but {stand} at it"
            is_line = rank == 1 and len(shape) == 2 and 1 in shape
            hint = f"give {name}.ravel(), or " if is_line else ""
            raise ArgumentError(f"argument {name}: {said}", hint=hint + _indexed(name, len(shape)))
        return self._with_windows(argument)

    def _with_windows(self, argument: Argument) -> Argument:
        """Return *argument*, which makes an operand of the value, for the argument it is of."""
        if self.look is None:
            return replace(argument, source=self.name)
        adapt = _then(self.look, argument.adapt)
        return replace(argument, adapt=adapt, source=self.name, windowed=True)


def kind_of(arg: Any) -> object:
    """Return the kind of *arg*: arguments of one kind share a compiled version."""
    if isinstance(arg, DeviceTensor):
        return "there", arg.layout, arg.data.dtype, arg.padding, _is_long(arg)
    if isinstance(arg, np.ndarray):
        flags = arg.flags
        by_columns = flags.f_contiguous and not flags.c_contiguous
        return "array", arg.dtype, arg.ndim, by_columns, arg.size > LONG
    if isinstance(arg, Tensor):
        listed = is_list(arg.layout) and arg.ascends
        facts = _is_padded(arg), _is_long(arg), _loose(arg)
        return "tensor", arg.layout, arg.dtype, *facts, listed
    if hasattr(arg, "format") and hasattr(type(arg), "nnz"):
        wide = getattr(getattr(arg, "indices", None), "dtype", None)
        dtype = getattr(arg, "dtype", None)
        return type(arg), arg.format, dtype, len(arg.shape), wide, _is_long(arg)
    if isinstance(arg, (int, float)):
        return type(arg)
    if is_parts(arg):
        return "parts", arg.format, arg.dtype, len(arg.shape), arg.buffer.axes[-1].idtype
    if hasattr(arg, "__array__") and not hasattr(arg, "dtype"):  # a frame of pandas, say
        return type(arg), np.asarray(arg).dtype, np.ndim(arg)
    more = (getattr(arg, what, None) for what in ("dtype", "layout", "format"))
    shape = getattr(arg, "shape", ())
    return type(arg), len(shape) if isinstance(shape, tuple) else 0, *map(str, more)


def as_number(name: str, argument: Argument, dtype: DType) -> Argument:
    """Return *argument*, the Python number *name*, for a parameter of *dtype*."""
    return replace(argument, adapt=lambda arg: number_of(name, arg, dtype))


def _then(first: Adapt, second: Adapt) -> Adapt:
    return lambda arg: second(first(arg))


def type_of(name: str, numpy_type: Any) -> DType:
    """Return *numpy_type* as ours; raises ArgumentError, about the argument *name*, for others."""
    text = numpy_type.name
    try:
        if text != "bfloat16":  # its results would pass from step to step as bits, as integers
            return dtype_of(text)
    except ValueError:
        pass
    hint = 'convert it with .astype("float64"), or to another type of numbers'
    if text == "bfloat16":
        hint = (
            'convert it with .astype("float32"), which holds the same numbers; torch tensors of it'
        )
        hint += " are taken, and scripts take arrays"
    elif text.startswith("complex"):
        hint = COMPLEX
    elif text.startswith("float"):
        hint = 'no type is wider than float64: .astype("float64") rounds it'
    raise ArgumentError(f"argument {name}: got dtype {text}", hint=hint)


def _scalar(name: str, arg: Any) -> Argument:
    if isinstance(arg, np.ndarray) and arg.ndim == 0:
        return Argument(Operand(dense(0), type_of(name, arg.dtype)), lambda a: a[()])
    if isinstance(arg, np.generic):
        return Argument(Operand(dense(0), type_of(name, arg.dtype)), np.generic.item)
    for python, dtype in ((bool, bool_), (int, int64), (float, float64)):
        if isinstance(arg, python):
            return Argument(Operand(dense(0), dtype, weak=True), as_it_is)
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
        return _tensor_of_levels(name, arg, wanted)
    if is_scipy(arg):
        return _matrix(name, arg, wanted)
    if lies_there(arg):
        return _on_gpu(name, arg, wanted)
    if _is_foreign(arg):
        dtype, rank = type_of(name, elements_of(arg).values.dtype), len(arg.shape)
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


def _on_gpu(name: str, arg: Any, wanted: Layout | None) -> Argument:
    """Return the Argument that uses *arg*, an array or sparse matrix on a GPU, there.

    csc and coo matrices are converted to csr, and all to csc where that is *wanted*, in each call
    unless they are bound.
    """
    dtype = type_of(name, SimpleNamespace(name=str(arg.dtype).removeprefix("torch.")))
    layout: Layout = dense(len(arg.shape))
    make: Adapt = as_it_is
    converts = False
    if isinstance(arg, DeviceTensor):
        layout, make = _slots(arg), DeviceTensor.in_order
        if not has_slots(layout) and iterable_layout(layout).levels != layout.levels:
            raise ArgumentError(
                f"argument {name}: got {layout} on a GPU, which loops do not run over",
                hint="convert it on the host, or to csr",
            )
    elif is_sparse(arg):
        kind = sparse_kind(arg)
        if kind not in ("csr", "csc", "coo"):
            raise ArgumentError(
                f"argument {name}: got {kind}, expected csr, csc, coo or a dense array on a GPU",
                hint="convert it with .tocsr() of CuPy or .to_sparse_csr() of PyTorch",
            )
        by_columns = wanted is not None and (wanted.levels, wanted.order) == _BY_COLUMNS
        if kind == "csr" and not by_columns:
            indices = arg.col_indices() if hasattr(arg, "col_indices") else arg.indices
            wide = str(indices.dtype).endswith("int64")
        else:
            stored = arg._nnz() if hasattr(arg, "_nnz") else arg.nnz  # noqa: SLF001 (of PyTorch)
            wide = max(*arg.shape, stored) > INT32
            make = _columns_there if by_columns else partial(convert, format="csr")
        converts = kind != ("csc" if by_columns else "csr")
        order = (1, 0) if by_columns else (0, 1)
        layout = replace(_ROW_MAJOR, order=order, idtype=int64 if wide else int32)
    if wanted is not None and (wanted.levels, wanted.order) != (layout.levels, layout.order):
        raise ArgumentError(
            f"argument {name}: lies on a GPU as {layout}, and is not converted to {wanted} there",
            hint="give an array of the host",
        )
    return Argument(Operand(layout, dtype), make, converts=converts)


def _columns_there(arg: Any) -> Any:
    """Return a sparse matrix on a GPU as the csr matrix of its transpose."""
    stored = sparse_of(convert(arg, "csc"), place_of([arg]))
    assert stored.indptr is not None
    return sparse_from("csr", stored.indptr, stored.indices[0], stored.data, stored.shape[::-1])


def _is_foreign(arg: Any) -> bool:
    """Whether *arg* is a sparse tensor of torch or of pydata sparse."""
    try:
        family = family_of(arg)
    except ArgumentError:
        return False
    return family == "pydata" or (family == "torch" and str(arg.layout) != "torch.strided")


def _array(name: str, arg: Any, wanted: Layout | None) -> Argument:
    dtype = type_of(name, arg.dtype)
    if wanted is not None and not wanted.is_dense:
        return _stored(name, arg, dtype, wanted, str(wanted))
    if arg.flags.f_contiguous and not arg.flags.c_contiguous:
        order = tuple(reversed(range(arg.ndim)))
        return Argument(Operand(Layout(("dense",) * arg.ndim, order), dtype), np.transpose)
    return Argument(Operand(dense(arg.ndim), dtype), as_it_is)


def _matrix(name: str, arg: Any, wanted: Layout | None) -> Argument:
    arg = native_scipy(arg, f"{name}.")
    dtype = type_of(name, arg.dtype)
    if arg.ndim > 2 or (wanted is not None and wanted.is_dense):
        return _stored(name, arg, dtype, wanted or _csf(arg.ndim), str(wanted or arg.format))
    if arg.ndim == 1:
        return _stored(name, arg, dtype, wanted or _csf(1))
    order = {"csc": (1, 0)}.get(arg.format, (0, 1))
    layout = replace(_ROW_MAJOR, order=order) if wanted is None else iterable_layout(wanted)
    shown = str(arg.format if wanted is None else wanted)
    if layout.levels != _ROW_MAJOR.levels:
        return _stored(name, arg, dtype, layout, shown)
    index = getattr(arg, "indices", None)
    wide = index is not None and index.dtype.itemsize > 4
    layout = replace(layout, idtype=int64 if wide else int32)
    kind = "csr" if layout.order == (0, 1) else "csc"
    adapt: Adapt = as_it_is
    if arg.format != kind:
        adapt = partial(rows, kind=kind, who=name)
    elif kind == "csc":
        adapt = partial(native_scipy, who=f"{name}.")
    adapt = adapt if kind == "csr" else _then(adapt, transposed)
    operand = Operand(layout, dtype, given="" if shown == str(layout) else shown)
    return Argument(operand, adapt, converts=arg.format != kind)


def transposed(arg: Any) -> Any:
    """Return a csc array as the csr array of its transpose, over the same memory."""
    return scipy_of_arrays(
        class_like(arg, "csr"), arg.shape[::-1], arg.data, arg.indices, arg.indptr
    )


def _csf(rank: int) -> Layout:
    return Layout(("compressed",) * rank, tuple(range(rank)))


def _direct(name: str, arg: Tensor) -> Argument | None:
    """Return the Argument that uses *arg* as it is; None if it has to be converted."""
    if is_list(arg.layout) and arg.ascends:
        return Argument(Operand(arg.layout, type_of(name, arg.dtype)), in_order)
    if is_bitmap(arg.layout):
        return Argument(Operand(arg.layout, type_of(name, arg.dtype)), values_of)
    if has_slots(slots := _slots(arg)):
        return Argument(Operand(slots, type_of(name, arg.dtype), given=str(arg.layout)), in_order)
    return None


def _slots(arg: Tensor | DeviceTensor) -> Layout:
    """Return the layout of *arg*, with its loose fixed levels marked as unordered."""
    pairs = zip(arg.layout.levels, _loose(arg), strict=True)
    texts = tuple("fixed(unordered)" if loose else text for text, loose in pairs)
    return replace(arg.layout, levels=texts)


def _loose(arg: Tensor | DeviceTensor) -> tuple[bool, ...]:
    """For each level of *arg*: whether it is fixed, padded or unordered, and repeats nothing."""
    return tuple(
        text.startswith("fixed") and (text != "fixed" or arg.padded(at)) and arg.distinct(at)
        for at, text in enumerate(arg.layout.levels)
    )


def with_mask(bitmap: Argument, name: str) -> tuple[Argument, Argument]:
    """Return *bitmap* with a mask called *name*, and the mask, which says what is stored."""
    mask = Operand(dense(bitmap.operand.layout.rank), bool_)
    masked = replace(bitmap, operand=replace(bitmap.operand, mask=name))
    return masked, Argument(mask, mask_of, bitmap.source)


def _tensor_of_levels(name: str, arg: Tensor, wanted: Layout | None) -> Argument:
    dtype = type_of(name, arg.dtype)
    stored_as = arg.layout
    layout = iterable_layout(wanted or stored_as, padded=_is_padded(arg))
    if (layout.levels, layout.order) != (stored_as.levels, stored_as.order) or stored_as.is_dense:
        return _stored(name, arg, dtype, layout, str(wanted or stored_as))
    shown = "" if wanted is None or str(wanted) == str(layout) else str(wanted)
    return Argument(Operand(layout, dtype, given=shown), in_order)


def _is_padded(tensor: Tensor) -> bool:
    return any(tensor.padded(at) for at in range(len(tensor.levels)))


def _is_long(arg: Any) -> bool:
    """Whether coordinates or positions of *arg* may need 64 bits."""
    if isinstance(arg, Tensor | DeviceTensor):
        count = (arg.values if isinstance(arg, Tensor) else arg.data).size
    else:
        count = stored_size(arg)
    return bool(max(count, *arg.shape) > LONG)


def _stored(name: str, arg: Any, dtype: DType, wanted: Layout, given: str = "") -> Argument:
    levels = [
        "dense" if level == "dense" else "compressed" for level in iterable_layout(wanted).levels
    ]
    layout = Layout(levels, iterable_layout(wanted).order, int64 if _is_long(arg) else int32)
    shown = "" if given == str(layout) else given
    operand = Operand(layout, dtype, given=shown)
    return Argument(operand, lambda arg: stored(arg, layout, name), converts=True)
