"""At the call: an argument of any accepted kind, as arrays laid out the way a buffer is."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from spcomp.compiler import validate
from spcomp.compiler.foreign import bridge, hint_about, is_torch
from spcomp.compiler.tensor import Level, Tensor
from spcomp.compiler.tensor_levels import texts
from spcomp.errors import ArgumentError

if TYPE_CHECKING:
    from spcomp.compiler.signature import BufferPlan
    from spcomp.dtypes import DType

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
Style: TypeAlias = Literal["array", "matrix", "tensor", "raw"]  # what a result should look like
LARGE = 1 << 15  # elements from which it pays to convert in parallel
_LAYOUT_NAMES = {"csr": "a csr array", "bsr": "a bsr array", "dense": "a dense array"}


@dataclass(frozen=True, slots=True, eq=False)
class Storage:
    """An argument taken apart.

    *shape* has an extent per axis and *levels* an entry per axis; both are None for a bare array
    of values. *checked*: the index arrays are in range (and, from scipy, canonical).
    """

    given: Any
    values: Array | None
    shape: tuple[int, ...] | None = None
    levels: tuple[Level | None, ...] | None = None
    style: Style = "raw"
    checked: bool = False


def convert(arg: Any, plan: BufferPlan, *, verify: bool, any_shape: bool = False) -> Storage:
    """Return *arg* as the storage of the buffer of *plan*.

    *verify*: check index arrays in full; else only their sizes. Raises ArgumentError.
    """
    if is_parts(arg) and plan.role == "in":
        arg = arg.whole()
    is_scipy = not isinstance(arg, np.ndarray) and _is_scipy(arg)
    if any_shape and (is_scipy or isinstance(arg, Tensor)):
        raise ArgumentError(
            f"argument {plan.name}: got {type(arg).__name__}, and the program is over flat buffers",
            hint="give array by array, csr.data and its index arrays; kernel.signature lists them",
        )
    if isinstance(arg, Tensor):
        return _from_tensor(arg, plan)
    if is_scipy:
        return _from_scipy(arg, plan, verify=verify)
    if not plan.handle:
        raise _unexpected(plan, arg, "a csr array or a Tensor with the pattern of the axis")
    values = as_values(plan, arg)
    if any_shape:
        return Storage(arg, values)
    if plan.layout == "dense":
        if values.ndim != len(plan.shape):
            raise ArgumentError(
                f"argument {plan.name}: got {values.ndim} dimensions {values.shape},"
                f" expected {len(plan.shape)}"
            )
        return Storage(arg, values, values.shape)
    if values.ndim == len(plan.shape) > 1 and plan.layout != "values":
        raise _unexpected(plan, arg, None)
    return Storage(arg, values)


def is_parts(arg: Any) -> bool:
    """Whether *arg* is a Parts, whose module is loaded when there is one."""
    return type(arg).__module__ == "spcomp.compiler.formats_parts"


def as_values(plan: BufferPlan, arg: Any) -> Array:
    """Return *arg* as a contiguous array of the buffer's dtype; an input is copied if need be."""
    array = arg if type(arg) is np.ndarray else _as_array(plan, arg)
    if array.dtype != plan.np_dtype:
        array = validate.native(plan.name, array) if plan.role == "in" else array
    if array.dtype != plan.np_dtype:
        array = _bits(plan.name, plan.dtype, array, written=plan.role != "in")
    flags = array.flags
    if flags.c_contiguous and flags.aligned:
        if plan.role != "in" and not flags.writeable:
            raise ArgumentError(f"argument {plan.name}: is read-only, and the program writes it")
        return array
    if plan.role != "in":
        raise ArgumentError(
            f"argument {plan.name}: is not C-contiguous, and the program writes it",
            hint="give an array made by np.empty, or np.ascontiguousarray of yours",
        )
    return np.array(array, order="C", copy=True)


def _as_array(plan: BufferPlan, arg: Any) -> Array:
    if isinstance(arg, np.ndarray):
        return validate.plain(plan.name, arg)
    if is_torch(arg):
        made: Array = bridge().array_for(plan.name, arg, plan.dtype, written=plan.role != "in")
        return made
    if plan.role == "in":
        if hasattr(arg, "__array__"):
            return validate.as_array(plan.name, arg)
        if isinstance(arg, (int, float)) and plan.layout == "dense" and not plan.shape:
            return np.asarray(arg, plan.np_dtype)
    raise _unexpected(plan, arg, None)


def _bits(who: str, dtype: DType, array: Array, *, written: bool) -> Array:
    """The view of *array* as *dtype* travels; bfloat16 arrays travel as their 16 bits."""
    if dtype.kind == "bfloat" and array.dtype.name == "bfloat16":
        return array.view(np.uint16)
    expected = f"{dtype} (as uint16 bits)" if dtype.kind == "bfloat" else str(dtype)
    got = array.dtype if array.dtype.isnative else f"{array.dtype} (not in native byte order)"
    hint = f'convert it with .astype("{dtype}")'
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
    values = as_values(plan, tensor.values) if plan.handle else None
    if values is not None and plan.layout == "dense":
        values = values.reshape(tensor.shape)
    return Storage(tensor, values, tensor.shape, tensor.levels, "tensor", checked=True)


def _is_scipy(arg: Any) -> bool:
    if not hasattr(arg, "format"):
        return False
    import scipy.sparse as sps

    return bool(sps.issparse(arg))


def _from_scipy(arg: Any, plan: BufferPlan, *, verify: bool) -> Storage:
    import scipy.sparse as sps

    kind = str(arg.format)
    if plan.layout not in ("csr", "bsr"):
        raise _unexpected(plan, arg, None if plan.layout != "dense" else "a dense array")
    if arg.ndim != 2:
        raise ArgumentError(f"argument {plan.name}: got {arg.ndim} dimensions, expected 2")
    matrix = sound(arg, f"{plan.name}.")
    own = matrix is arg or np.asarray(arg.data).size == 0
    if plan.role != "in" and not (own or np.may_share_memory(matrix.data, np.asarray(arg.data))):
        raise ArgumentError(
            f"argument {plan.name}: its data are misaligned or not in native byte order, and the"
            " program writes them"
        )
    if kind == "coo" and plan.layout == "csr" and plan.role == "in":
        if verify:
            for axis, coords in enumerate(matrix.coords):
                validate.in_range(f"{plan.name} coords[{axis}]", coords, 0, arg.shape[axis] - 1)
        matrix = _in_order(matrix, plan) or matrix.tocsr()
    elif kind != plan.layout:
        raise _wrong_format(kind, plan)
    style: Style = "array" if isinstance(arg, sps.sparray) else "matrix"
    return _compressed(arg, matrix, plan, style, verify=verify)


def _in_order(matrix: Any, plan: BufferPlan) -> Any:
    """Return *matrix* as csr in order, repeated elements summed; None for scipy to do.

    That is a large one, or of values that scipy does not compute with.
    """
    own = len(matrix.data) >= LARGE or not scipy_holds(matrix.dtype)
    if matrix.format == "bsr" or matrix.dtype != plan.np_dtype or not own:
        return None
    import scipy.sparse as sps

    from spcomp.compiler.conversions import as_rows

    make = sps.csr_array if isinstance(matrix, sps.sparray) else sps.csr_matrix
    return as_rows(matrix, make, (0, 1))


_ARRAYS: dict[str, tuple[int, tuple[str, ...]]] = {  # dimensions of data, and the index arrays
    **dict.fromkeys(("csr", "csc"), (1, ("indptr", "indices"))),
    "bsr": (3, ("indptr", "indices")),
    "coo": (1, ("coords",)),
    "dia": (2, ("offsets",)),
}
_INDEX = (np.dtype(np.int32), np.dtype(np.int64))


def sound(matrix: Any, who: str = "") -> Any:
    """Return the scipy array *matrix* with its arrays as machine code reads them.

    It is the same object if they are: ``validate.native``, and index arrays of 32 or 64 bits. Its
    arrays have the number of dimensions of its format; what is in them is not looked at. Raises
    ArgumentError, which calls them by their names behind *who*.
    """
    if matrix.format not in _ARRAYS:
        return matrix
    rank, names = _ARRAYS[matrix.format]
    data = matrix.data
    lists = matrix.coords if names == ("coords",) else [getattr(matrix, name) for name in names]
    if not (
        _is_read(data, rank) and all(_is_read(own, 1) and own.dtype in _INDEX for own in lists)
    ):
        shown = [f"coords[{k}]" for k in range(len(lists))] if names == ("coords",) else names
        data = data if isinstance(data, np.ndarray) else validate.as_array(f"{who}data", data)
        data = validate.native(f"{who}data", data)
        pairs = zip(shown, lists, strict=True)
        lists = tuple(validate.index_array(f"{who}{name}", own) for name, own in pairs)
        ranks = (rank, *(1 for _ in lists))
        for name, own, wanted in zip(("data", *shown), (data, *lists), ranks, strict=True):
            if own.ndim != wanted:
                raise ArgumentError(
                    f"argument {who}{name}: got shape {own.shape}, expected {wanted} dimensions"
                )
        arrays = {"coords": lists} if names == ("coords",) else dict(zip(names, lists, strict=True))
        matrix = assembled(type(matrix), matrix.shape, data=data, **arrays)
    if len(names) == 1 and any(len(own) != len(data) for own in lists):
        raise ArgumentError(f"argument {who}data: got {len(data)} elements, not one per coordinate")
    if rank == 3 and any(not b or n % b for n, b in zip(matrix.shape, data.shape[1:], strict=True)):
        raise ArgumentError(f"argument {who}data: blocks of {data.shape[1:]} do not fill the shape")
    return matrix


def _is_read(array: Any, rank: int) -> bool:
    """Whether *array*, of *rank* dimensions, is as machine code reads it."""
    plain = type(array) is np.ndarray and array.ndim == rank
    return plain and array.flags.aligned and array.dtype.isnative


def stored_size(given: Any) -> int:
    """Return about how many elements *given*, an array of any library, stores: padding included."""
    if getattr(given, "format", "") in _ARRAYS:
        return int(np.size(getattr(given, "data", ())))
    size = getattr(given, "nnz", getattr(given, "size", 0))
    return int(size) if isinstance(size, (int, np.integer)) else 0


def scipy_holds(dtype: np.dtype[Any]) -> bool:
    """Return whether sparse arrays of scipy may have values of *dtype*: no floats of 16 bits.

    They can be made by force, but scipy's own routines and constructors refuse them.
    """
    return dtype.itemsize != 2 or dtype.kind not in "fV"


def put_together(
    make: Any, shape: tuple[int, ...], data: Array, indices: Array, indptr: Array
) -> Any:
    """Return the scipy csr, csc or bsr object, of class *make*, of exactly these arrays."""
    return assembled(make, shape, data=data, indices=indices, indptr=indptr)


def assembled(make: Any, shape: tuple[int, ...], data: Array, **arrays: Any) -> Any:
    """Return the scipy object of class *make* that has *data* and these *arrays* as attributes.

    The constructors of scipy check in part, may convert index arrays, refuse float16, and take
    longer than a small product: what they make is copied from an empty one.
    """
    state, arrays["data"] = _empty(make, data.ndim), data
    if state is None:
        blocks = {"blocksize": data.shape[1:]} if data.ndim == 3 else {}
        made = make(shape, dtype=np.float32, **blocks)
        for name, array in arrays.items():
            setattr(made, name, array)
    else:
        made = make.__new__(make)
        vars(made).update(state, _shape=shape, **arrays)
    return made


@cache
def _empty(make: Any, ndim: int) -> dict[str, Any] | None:
    """The attributes of an empty object of the class *make*; None if ``_shape`` is none of them."""
    blocks = {"blocksize": (1, 1)} if ndim == 3 else {}
    made = make((1, 1), dtype=np.float32, **blocks)
    state = {name: value for name, value in vars(made).items() if not name.startswith("_has_")}
    return state if state.get("_shape") is made.shape else None


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


def _compressed(
    given: Any, matrix: Any, plan: BufferPlan, style: Style, *, verify: bool
) -> Storage:
    block = matrix.blocksize if plan.layout == "bsr" else (1, 1)
    rows, columns = (n // b for n, b in zip(matrix.shape, block, strict=True))
    _check_sizes(plan.name, matrix, rows)
    first = int(matrix.indptr[0])
    if verify:
        who, nnz = plan.name, len(matrix.indices)
        validate.pointers(f"{who}.indptr", matrix.indptr, rows, nnz)
        used = matrix.indices[: int(matrix.indptr[-1])]
        canonical = validate.ordered(
            f"{who}.indices", matrix.indptr, used, columns - 1, strict=True
        )
    else:
        canonical = bool(matrix.has_canonical_format)
    if first:  # scipy itself does not cope with it
        arrays = matrix.data[first:], matrix.indices[first:], matrix.indptr - first
        matrix = put_together(type(matrix), matrix.shape, *arrays)
    if not canonical:
        matrix = _canonical(matrix, plan)
    count = int(matrix.indptr[-1])
    level = Level("compressed", matrix.indptr, matrix.indices[:count])
    if plan.layout == "bsr":
        shape: tuple[int, ...] = (rows, columns, *block)
        levels: tuple[Level | None, ...] = (None, level, None, None)
    else:
        shape, levels = (rows, columns), (None, level)
    values = as_values(plan, matrix.data[:count]) if plan.handle else None
    return Storage(given, values, shape, levels, style, checked=verify)


def _check_sizes(who: str, matrix: Any, rows: int) -> None:
    """Refuse an object whose arrays were replaced by ones that do not go together."""
    indptr, indices, data = matrix.indptr, matrix.indices, matrix.data
    fits = indptr.ndim == indices.ndim == 1 and len(indptr) == rows + 1
    if not fits or not int(indptr[-1]) <= min(len(indices), len(data)):
        raise ArgumentError(
            f"argument {who}: got indptr, indices and data of sizes {indptr.size}, {indices.size}"
            f" and {len(data)}, which do not describe a {matrix.format} array"
        )


def _canonical(matrix: Any, plan: BufferPlan) -> Any:
    """Return a sorted copy without repeated coordinates, whose values are summed."""
    if plan.role != "in":
        raise ArgumentError(
            f"argument {plan.name}: has repeated or unsorted coordinates, but is written",
            hint="call .sum_duplicates() on it first",
        )
    if (made := _in_order(matrix, plan)) is not None:
        return made
    arrays = matrix.data.copy(), matrix.indices.copy(), matrix.indptr.copy()
    copy = put_together(type(matrix), matrix.shape, *arrays)
    copy.has_sorted_indices = copy.has_canonical_format = False
    copy.sum_duplicates()
    return copy
