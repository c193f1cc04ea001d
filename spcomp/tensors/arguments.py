"""At the call: an argument of any accepted kind, as arrays in the layout of its buffer."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from spcomp.arrays import Array
from spcomp.errors import ArgumentError
from spcomp.tensors import checks as validate
from spcomp.tensors.checks import ANY, Condition, Coordinates, Element, Pointers
from spcomp.tensors.levels import texts
from spcomp.tensors.libraries.foreign import bridge, hint_about, is_torch
from spcomp.tensors.libraries.scipy import (
    class_like,
    is_matrix,
    is_scipy,
    native_scipy,
    scipy_holds,
    scipy_of_arrays,
)
from spcomp.tensors.storage import CONVERTED, AttributeNames, Storage, Style, is_parts
from spcomp.tensors.tensor import Level, Tensor

if TYPE_CHECKING:
    from spcomp.compiler.interface import AxisPlan, BufferPlan
    from spcomp.dtypes import DType
    from spcomp.tensors.device_tensor import DeviceTensor

COMPLEX = "there are no complex numbers here: compute with .real and .imag"
LARGE = 1 << 15  # elements from which it pays to convert in parallel
ITSELF, TENSOR = AttributeNames(), AttributeNames("values", same=("_levels", "_shape"))
COMPRESSED = AttributeNames("data", "indptr", "indices", extents="shape")  # csr and bsr of scipy
ORDERED = replace(COMPRESSED, same=("has_canonical_format",))  # trusts scipy
_LAYOUT_NAMES = {"csr": "a csr array", "bsr": "a bsr array", "dense": "a dense array"}


def storage_of(arg: Any, plan: BufferPlan, *, verify: bool, any_shape: bool = False) -> Storage:
    """Return *arg* as the storage of the buffer of *plan*.

    *verify*: check index arrays in full, else only their sizes. Raises ArgumentError.
    """
    if is_parts(arg) and plan.role == "in":
        storage = storage_of(arg.whole(), plan, verify=verify, any_shape=any_shape)
        return storage._replace(source=CONVERTED, checks=())
    from_scipy = not isinstance(arg, np.ndarray) and is_scipy(arg)
    if any_shape and (from_scipy or isinstance(arg, Tensor)):
        raise ArgumentError(
            f"argument {plan.name}: got {type(arg).__name__}, and the program is over flat buffers",
            hint="give array by array, csr.data and its index arrays; kernel.signature lists them",
        )
    if isinstance(arg, Tensor):
        return _from_tensor(arg, plan)
    if from_scipy:
        return _from_scipy(arg, plan, verify=verify)
    if not plan.handle:
        raise _unexpected(plan, arg, "a csr array or a Tensor with the pattern of the axis")
    values = as_values(plan, arg)
    if any_shape:
        return _bare(arg, values)
    if plan.layout == "dense":
        if values.ndim != len(plan.shape):
            raise ArgumentError(
                f"argument {plan.name}: got {values.ndim} dimensions {values.shape},"
                f" expected {len(plan.shape)}"
            )
        return _bare(arg, values, values.shape)
    if values.ndim == len(plan.shape) > 1 and plan.layout != "values":
        raise _unexpected(plan, arg, None)
    return _bare(arg, values)


def raw_storage_of(plan: BufferPlan, arg: Any) -> Storage:
    """Return the array *arg*, of any shape, as the storage of *plan*; raises ArgumentError."""
    if not isinstance(arg, np.ndarray):
        raise ArgumentError(f"argument {plan.handle}: got {type(arg).__name__}, expected an array")
    if plan.role == "in" and (why := _unfit(arg)):
        raise ArgumentError(f"argument {plan.handle}: is {why}")
    return _bare(arg, as_values(plan, arg))


def index_storage_of(handle: str, idtype: np.dtype[Any], arg: Any) -> Storage:
    """Return *arg* as the storage of the index array *handle*; raises ArgumentError."""
    if not isinstance(arg, np.ndarray):
        raise ArgumentError(f"argument {handle}: got {type(arg).__name__}, expected an array")
    array = validate.native(handle, arg)
    if array.dtype != idtype:
        raise ArgumentError(
            f"argument {handle}: got {array.dtype}, expected {idtype}",
            hint=f"convert it with .astype({str(idtype)!r})",
        )
    return _bare(arg, array if array.flags.c_contiguous else np.array(array, order="C"))


def _bare(arg: Any, values: Array, shape: tuple[int, ...] | None = None) -> Storage:
    return Storage(arg, values, shape, None, "raw", False, ITSELF if values is arg else CONVERTED)


def as_values(plan: BufferPlan, arg: Any) -> Array:
    """Return *arg* as a contiguous array of the buffer's dtype; inputs are copied if necessary."""
    array = arg if type(arg) is np.ndarray else _as_array(plan, arg)
    if array.dtype != plan.np_dtype:
        array = validate.native(plan.name, array) if plan.role == "in" else array
    if array.dtype != plan.np_dtype:
        array = _bits(plan.name, plan.dtype, array, written=plan.role != "in")
    why = _unfit(array)
    if not why:
        if plan.role != "in" and not array.flags.writeable:
            raise ArgumentError(f"argument {plan.name}: is read-only, and the program writes it")
        return array
    if plan.role != "in":
        raise ArgumentError(
            f"argument {plan.name}: is {why}, and the program writes it",
            hint="give an array made by np.empty, or np.ascontiguousarray of yours",
        )
    return np.array(array, order="C", copy=True)


def _unfit(array: Array) -> str:
    """Return why a kernel cannot take *array* as it lies in memory; empty if it can."""
    if not array.flags.c_contiguous:
        return "not C-contiguous"
    return "" if array.flags.aligned else "at an address that is no multiple of its elements' size"


def _as_array(plan: BufferPlan, arg: Any) -> Array:
    if isinstance(arg, np.ndarray):
        return validate.plain(plan.name, arg)
    if is_torch(arg):
        array: Array = bridge().array_for(plan.name, arg, plan.dtype, written=plan.role != "in")
        return array
    if plan.role == "in":
        if hasattr(arg, "__array__"):
            return validate.as_array(plan.name, arg)
        if isinstance(arg, (int, float)) and plan.layout == "dense" and not plan.shape:
            return np.asarray(arg, plan.np_dtype)
    raise _unexpected(plan, arg, None)


def _bits(who: str, dtype: DType, array: Array, *, written: bool) -> Array:
    """The view of *array* for *dtype*: bfloat16 is passed as its 16 bits, others are refused."""
    if dtype.kind == "bfloat" and array.dtype.name == "bfloat16":
        return array.view(np.uint16)
    expected = f"{dtype} (as uint16 bits)" if dtype.kind == "bfloat" else str(dtype)
    got = array.dtype if array.dtype.isnative else f"{array.dtype} (not in native byte order)"
    hint = f'convert it with .astype("{dtype}")'
    if array.dtype.kind == "c":
        hint = COMPLEX
    if written:
        hint = f'the result is {dtype}: give np.empty(shape, "{dtype}"), or convert the arguments'
    raise ArgumentError(f"argument {who}: got {got}, expected {expected}", hint=hint)


def _unexpected(plan: BufferPlan, arg: Any, expected: str | None) -> ArgumentError:
    axes = ", ".join(f"{axis.name} {axis.kind}" for axis in plan.axes)
    wanted = expected or _LAYOUT_NAMES.get(plan.layout, "a Tensor or an array of values")
    got = f"an array of shape {arg.shape}" if isinstance(arg, np.ndarray) else type(arg).__name__
    hints = {
        "csr": "make one with scipy.sparse.csr_array(...), or give its values as a 1-D array",
        "bsr": "make one with scipy.sparse.bsr_array(..., blocksize=...)",
        "dense": "make one with np.asarray(...)",
        "other": f"make a spcomp.Tensor; the buffer lies along {axes}",
        "values": f"give the values as a 1-D array; the buffer lies along {axes}",
    }
    return ArgumentError(
        f"argument {plan.name}: got {got}, expected {wanted}",
        hint=hint_about(arg, hints[plan.layout]),
    )


def _from_tensor(tensor: Tensor, plan: BufferPlan) -> Storage:
    require_levels(tensor, plan)
    values = as_values(plan, tensor.values) if plan.handle else None
    source = TENSOR if values is None or values is tensor.values else CONVERTED
    if values is not None and plan.layout == "dense":
        values = values.reshape(tensor.shape)
    return Storage(tensor, values, tensor.shape, tensor.levels, "tensor", True, source)


def require_levels(tensor: Tensor | DeviceTensor, plan: BufferPlan) -> None:
    """Raise ArgumentError unless the levels of *tensor* are those of the buffer of *plan*."""
    kinds = list(texts(tensor.levels))
    names = {"dense_fixed": "dense", "dense_variable": "ragged", "sparse_fixed": "fixed"}
    expected = [
        "hashed" if axis.hashed else names.get(axis.kind, "compressed") for axis in plan.axes
    ]
    if plan.layout == "dense":
        expected = ["dense"] * len(plan.shape)
    if plan.layout == "values" or kinds != expected:
        raise ArgumentError(
            f"argument {plan.name}: got a Tensor of levels {','.join(kinds)},"
            f" expected {','.join(expected)}",
            hint="give the values as a 1-D array" if plan.layout == "values" else "",
        )
    padded = (tensor.padded(at) and not axis.padded for at, axis in enumerate(plan.axes))
    if not tensor.is_plain or any(padded):
        what = f"of levels {tensor.format}" if not tensor.is_plain else "with padding"
        raise ArgumentError(
            f"argument {plan.name}: got a Tensor {what}, expected levels in order, without padding",
            hint="index notation takes it as it is",
        )


def _from_scipy(arg: Any, plan: BufferPlan, *, verify: bool) -> Storage:
    kind = str(arg.format)
    if plan.layout not in ("csr", "bsr"):
        raise _unexpected(plan, arg, None if plan.layout != "dense" else "a dense array")
    if arg.ndim != 2:
        raise ArgumentError(f"argument {plan.name}: got {arg.ndim} dimensions, expected 2")
    matrix = native_scipy(arg, f"{plan.name}.")
    same = matrix is arg or np.asarray(arg.data).size == 0
    if plan.role != "in" and not (same or np.may_share_memory(matrix.data, np.asarray(arg.data))):
        raise ArgumentError(
            f"argument {plan.name}: its data are misaligned or not in native byte order, and the"
            " program writes them"
        )
    if kind == "coo" and plan.layout == "csr" and plan.role == "in":
        for axis, coords in enumerate(matrix.coords):
            validate.in_range(f"{plan.name} coords[{axis}]", coords, 0, arg.shape[axis] - 1)
        ordered = _in_order(matrix, plan)
        matrix = matrix.tocsr() if ordered is None else ordered
    elif kind != plan.layout:
        raise _wrong_format(kind, plan)
    style: Style = "matrix" if is_matrix(arg) else "array"
    return _compressed(arg, matrix, plan, style, verify=verify)


def _in_order(matrix: Any, plan: BufferPlan) -> Any:
    """Return *matrix* as sorted csr without repeated elements, or None if scipy should do it.

    Done here for large ones, and for values that scipy does not support.
    """
    large = len(matrix.data) >= LARGE or not scipy_holds(matrix.dtype)
    if matrix.format == "bsr" or matrix.dtype != plan.np_dtype or not large:
        return None
    from spcomp.tensors.conversions.rows import compressed

    return compressed(matrix, class_like(matrix, "csr"), (0, 1))


def _wrong_format(kind: str, plan: BufferPlan) -> ArgumentError:
    hint = "convert it with .tocsr()"
    if plan.layout == "bsr":
        hint = "convert it with .tobsr(blocksize=...)"
    elif kind == "csc":
        hint = "convert it with .tocsr(); to hand over its transpose, give the csr array A.T"
    return ArgumentError(
        f"argument {plan.name}: got {kind}, expected {plan.layout}, as the buffer is laid out",
        hint=hint,
    )


def _compressed(arg: Any, matrix: Any, plan: BufferPlan, style: Style, *, verify: bool) -> Storage:
    block = matrix.blocksize if plan.layout == "bsr" else (1, 1)
    rows, columns = (n // b for n, b in zip(matrix.shape, block, strict=True))
    _check_sizes(plan.name, matrix, rows)
    indptr, indices, data = matrix.indptr, matrix.indices, matrix.data
    first, last, nnz = int(indptr[0]), int(indptr[-1]), len(indices)
    whole = not first and last == nnz == len(data)
    begins, coordinates = plan.axes[1].indptr or "indptr", plan.axes[1].indices or "indices"
    checks: tuple[Condition, ...]
    if verify:
        limits = (0, nnz) if whole else (ANY, 0)
        pointers = Pointers(begins, rows, *limits, nnz)
        order = Coordinates(coordinates, 0, columns - 1, 2, begins)
        arrays = {begins: indptr, coordinates: indices if last == nnz else indices[:last]}
        names = {begins: f"{plan.name}.indptr", coordinates: f"{plan.name}.indices"}.__getitem__
        pointers.run(arrays, names)
        canonical, checks = order.ascend(arrays, names), (pointers, order)
    else:
        if getattr(matrix, "_has_canonical_format", False) is not True:  # scipy reads the arrays
            validate.pointers(f"{plan.name}.indptr", indptr, rows, nnz)
        canonical = bool(matrix.has_canonical_format)
        checks = Element(begins, 0, 0), Element(begins, rows, nnz)
    if first:  # scipy does not support it
        parts = data[first:], indices[first:], indptr - first
        matrix = scipy_of_arrays(type(matrix), matrix.shape, *parts)
    if not canonical:
        matrix = _canonical(matrix, plan)
    if not (whole and canonical):
        indptr, count = matrix.indptr, int(matrix.indptr[-1])
        indices, data = matrix.indices[:count], matrix.data[:count]
    values = as_values(plan, data) if plan.handle else None
    source: AttributeNames | str = COMPRESSED if verify else ORDERED
    as_it_is = matrix is arg and whole and (values is None or values is data)
    if not as_it_is or not _is_read(arg, plan.axes[1]):
        source, checks = CONVERTED, ()
    shape = (rows, columns, *block) if plan.layout == "bsr" else (rows, columns)
    level = Level("compressed", indptr, indices)
    levels = (None, level, None, None) if plan.layout == "bsr" else (None, level)
    return Storage(arg, values, shape, levels, style, verify, source, checks)


def _is_read(matrix: Any, axis: AxisPlan) -> bool:
    """Whether *axis* reads the index arrays of *matrix* as they are, and its class is scipy's."""
    if axis.indptr is None or axis.indices is None:
        return False
    indptr, indices = matrix.indptr, matrix.indices
    same = indptr.dtype == axis.idtype == indices.dtype
    contiguous = indptr.flags.c_contiguous and indices.flags.c_contiguous
    return same and contiguous and str(type(matrix).__module__).startswith("scipy.sparse.")


def _check_sizes(who: str, matrix: Any, rows: int) -> None:
    """Raise ArgumentError if the arrays of *matrix* were replaced by ones that do not fit."""
    indptr, indices, data = matrix.indptr, matrix.indices, matrix.data
    fits = indptr.ndim == indices.ndim == 1 and len(indptr) == rows + 1
    if not fits or not int(indptr[-1]) <= min(len(indices), len(data)):
        raise ArgumentError(
            f"argument {who}: got indptr, indices and data of sizes {indptr.size}, {indices.size}"
            f" and {len(data)}, which do not describe a {matrix.format} array"
        )


def _canonical(matrix: Any, plan: BufferPlan) -> Any:
    """Return a sorted copy of *matrix* with repeated elements summed."""
    if plan.role != "in":
        raise ArgumentError(
            f"argument {plan.name}: has repeated or unsorted coordinates, but is written",
            hint="call .sum_duplicates() on it first",
        )
    if (ordered := _in_order(matrix, plan)) is not None:
        return ordered
    arrays = matrix.data.copy(), matrix.indices.copy(), matrix.indptr.copy()
    copy = scipy_of_arrays(type(matrix), matrix.shape, *arrays)
    copy.has_sorted_indices = copy.has_canonical_format = False
    copy.sum_duplicates()
    return copy
