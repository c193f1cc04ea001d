"""At a call or a conversion: sparse arrays and matrices of scipy, read and built."""

from __future__ import annotations

from functools import cache
from typing import Any, TypeAlias

import numpy as np

from spcomp.arrays import Array
from spcomp.errors import ArgumentError
from spcomp.tensors import checks as validate

Compressed: TypeAlias = tuple[Array, Array, Array]  # pointers, minors, values
FORMATS = ("csr", "csc", "coo", "bsr", "dia", "lil", "dok")  # of two dimensions


def is_scipy(arg: Any) -> bool:
    """Return whether *arg* is a sparse array or matrix of scipy."""
    return is_scipy_class(type(arg))


def is_scipy_class(kind: type) -> bool:
    """Return whether *kind* is a class of sparse arrays; loads scipy only if it may be one."""
    if not hasattr(kind, "format"):
        return False
    import scipy.sparse as sps

    return issubclass(kind, (sps.sparray, sps.spmatrix))


def class_like(arg: Any, name: str) -> Any:
    """Return scipy's class for the format *name*: a matrix class if *arg* is one, else an array."""
    import scipy.sparse as sps

    return getattr(sps, f"{name}_{'matrix' if is_matrix(arg) else 'array'}")


def is_matrix(arg: Any) -> bool:
    """Return whether *arg* is a sparse matrix of scipy, whose ``*`` is the matrix product."""
    import scipy.sparse as sps

    return isinstance(arg, sps.spmatrix)


_ARRAYS: dict[str, tuple[int, tuple[str, ...]]] = {  # dimensions of data, and the index arrays
    **dict.fromkeys(("csr", "csc"), (1, ("indptr", "indices"))),
    "bsr": (3, ("indptr", "indices")),
    "coo": (1, ("coords",)),
    "dia": (2, ("offsets",)),
}


_INDEX = (np.dtype(np.int32), np.dtype(np.int64))


def native_scipy(matrix: Any, who: str = "") -> Any:
    """Return the scipy array *matrix* with its arrays as machine code reads them.

    That is ``validate.native``, and index arrays of 32 or 64 bits; if all are so already, it is
    the same object. Checks their numbers of dimensions, not their contents. Raises ArgumentError
    with the prefix *who* before the names of arrays.
    """
    if matrix.format not in _ARRAYS:
        return matrix
    rank, names = _ARRAYS[matrix.format]
    data = matrix.data
    lists = matrix.coords if names == ("coords",) else [getattr(matrix, name) for name in names]
    if not (
        _is_read(data, rank)
        and all(_is_read(array, 1) and array.dtype in _INDEX for array in lists)
    ):
        shown = [f"coords[{k}]" for k in range(len(lists))] if names == ("coords",) else names
        data = data if isinstance(data, np.ndarray) else validate.as_array(f"{who}data", data)
        data = validate.native(f"{who}data", data)
        pairs = zip(shown, lists, strict=True)
        lists = tuple(validate.index_array(f"{who}{name}", array) for name, array in pairs)
        ranks = (rank, *(1 for _ in lists))
        for name, array, wanted in zip(("data", *shown), (data, *lists), ranks, strict=True):
            if array.ndim != wanted:
                raise ArgumentError(
                    f"argument {who}{name}: got shape {array.shape}, expected {wanted} dimensions"
                )
        arrays = {"coords": lists} if names == ("coords",) else dict(zip(names, lists, strict=True))
        matrix = scipy_of_attributes(type(matrix), matrix.shape, data=data, **arrays)
    if len(names) == 1 and any(len(array) != len(data) for array in lists):
        raise ArgumentError(f"argument {who}data: got {len(data)} elements, not one per coordinate")
    if rank == 3 and any(not b or n % b for n, b in zip(matrix.shape, data.shape[1:], strict=True)):
        raise ArgumentError(f"argument {who}data: blocks of {data.shape[1:]} do not fill the shape")
    return matrix


def with_values(matrix: Any, values: Array) -> Any:
    """Return *matrix*, what :func:`native_scipy` returns, with *values* in the place of its own."""
    _, names = _ARRAYS[matrix.format]
    arrays = {name: getattr(matrix, name) for name in names}
    return scipy_of_attributes(type(matrix), matrix.shape, data=values, **arrays)


def _is_read(array: Any, rank: int) -> bool:
    """Whether *array* has *rank* dimensions and is as machine code reads it."""
    plain = type(array) is np.ndarray and array.ndim == rank
    return plain and array.flags.aligned and array.dtype.isnative


def stored_size(arg: Any) -> int:
    """Return about how many elements *arg*, an array of any library, stores, with padding."""
    if getattr(arg, "format", "") in _ARRAYS:
        return int(np.size(getattr(arg, "data", ())))
    if hasattr(arg, "_nnz") and str(arg.layout) != "torch.strided":
        return int(arg._nnz())  # noqa: SLF001 (of torch: blocks count once)
    size = getattr(arg, "nnz", getattr(arg, "size", 0))
    return int(size) if isinstance(size, (int, np.integer)) else 0


def scipy_holds(dtype: np.dtype[Any]) -> bool:
    """Return whether sparse arrays of scipy can hold values of *dtype*: not floats of 16 bits.

    Such arrays can be built by force, but scipy's routines and constructors refuse them.
    """
    return dtype.itemsize != 2 or dtype.kind not in "fV"


def scipy_of_arrays(
    make: Any, shape: tuple[int, ...], data: Array, indices: Array, indptr: Array
) -> Any:
    """Return the scipy csr, csc or bsr object of class *make* that holds these arrays."""
    return scipy_of_attributes(make, shape, data=data, indices=indices, indptr=indptr)


def narrowed(arg: Any) -> Any:
    """Return *arg*, a csr or csc array, with int32 index arrays if they fit; others as they are."""
    if getattr(arg, "format", "") not in ("csr", "csc"):
        return arg
    limits, arrays = np.iinfo(np.int32), (arg.indices, arg.indptr)
    ends = [end for array in arrays if array.size for end in (array.min(), array.max())]
    if any(not limits.min <= end <= limits.max for end in (*ends, *arg.shape)):
        return arg
    indices, indptr = (array.astype(np.int32) for array in arrays)
    return scipy_of_arrays(type(arg), arg.shape, arg.data, indices, indptr)


def scipy_of_attributes(make: Any, shape: tuple[int, ...], data: Array, **arrays: Any) -> Any:
    """Return the scipy object of class *make* that has *data* and these *arrays* as attributes.

    Scipy's constructors check some things, may convert index arrays, refuse float16, and take
    longer than a small product; so the attributes of an empty object are copied instead.
    """
    state, arrays["data"] = _empty(make, data.ndim), data
    if state is None:
        blocks = {"blocksize": data.shape[1:]} if data.ndim == 3 else {}
        matrix = make(shape, dtype=np.float32, **blocks)
        for name, array in arrays.items():
            setattr(matrix, name, array)
    else:
        matrix = make.__new__(make)
        vars(matrix).update(state, _shape=shape, **arrays)
    return matrix


@cache
def _empty(make: Any, ndim: int) -> dict[str, Any] | None:
    """The attributes of an empty object of class *make*; None if they lack ``_shape``."""
    blocks = {"blocksize": (1, 1)} if ndim == 3 else {}
    matrix = make((1, 1), dtype=np.float32, **blocks)
    state = {name: value for name, value in vars(matrix).items() if not name.startswith("_has_")}
    return state if state.get("_shape") is matrix.shape else None


def by_scipy(matrix: Any, method: str, *args: Any, who: str = "x") -> Any:
    """Return the result of a *method* of the scipy array *matrix*, the argument *who*.

    Its index arrays have been checked. Raises ArgumentError where scipy rejects the rest.
    """
    try:
        return getattr(matrix, method)(*args)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise ArgumentError(
            f"argument {who}: scipy cannot read the {matrix.format}: {error}"
        ) from None


def in_range(matrix: Any, who: str = "") -> Any:
    """Return :func:`native_scipy` of *matrix*, with index arrays safe for scipy's routines.

    Raises ArgumentError with the prefix *who* before the names of arrays.
    """
    matrix = native_scipy(matrix, who)
    kind, shape = matrix.format, matrix.shape
    if kind == "coo":
        for dim, coords in enumerate(matrix.coords):
            validate.in_range(f"{who}coords[{dim}]", coords, 0, shape[dim] - 1)
    elif kind == "dia":
        validate.in_range(f"{who}offsets", matrix.offsets, -shape[0], shape[1])
    elif kind in ("csr", "csc", "bsr") and matrix.ndim == 2:
        block = matrix.blocksize if kind == "bsr" else (1, 1)
        rows, columns = (n // b for n, b in zip(shape, block, strict=True))
        fibers, length = (columns, rows) if kind == "csc" else (rows, columns)
        indptr, indices = matrix.indptr, matrix.indices
        if indptr.dtype != indices.dtype:  # scipy's routines take only equal types
            arrays = (array.astype(np.int64, copy=False) for array in (indices, indptr))
            matrix = scipy_of_arrays(type(matrix), shape, matrix.data, *arrays)
        validate.pointers(f"{who}indptr", indptr, fibers, min(indices.size, len(matrix.data)))
        if kind == "bsr" and indptr[0]:
            raise ArgumentError(f"argument {who}indptr: starts at {indptr[0]}, expected 0")
        validate.in_range(f"{who}indices", indices[: int(indptr[-1])], 0, length - 1)
    return matrix


# -- routines below scipy's public ones, without their overhead ----------------------------------


def by_majors(
    majors: Array, minors: Array, values: Array, shape: tuple[int, int], kind: Any
) -> Compressed:
    """Return the elements of a matrix grouped by major; those of a major keep their order.

    *values* are unsigned integers. *shape* is the numbers of majors and minors; all are in range.
    """
    from scipy.sparse._sparsetools import coo_tocsr

    result = np.empty(shape[0] + 1, kind), np.empty(len(values), kind), np.empty_like(values)
    run: Any = coo_tocsr
    run(*shape, len(values), _plain(majors, kind), _plain(minors, kind), _plain(values), *result)
    return result


def by_minors(elements: Compressed, columns: int, kind: Any) -> Compressed:
    """Return *elements* grouped by minor, all below *columns*; the majors of each minor ascend."""
    from scipy.sparse._sparsetools import csr_tocsc

    pointers, minors, values = elements
    result = np.empty(columns + 1, kind), np.empty(len(values), kind), np.empty_like(values)
    run: Any = csr_tocsc
    arrays = _plain(pointers, kind), _plain(minors, kind), _plain(values)
    run(len(pointers) - 1, columns, *arrays, *result)
    return result


def _plain(array: Array, kind: Any = None) -> Array:
    """Return *array* as *kind*, aligned and contiguous, as scipy's routines assume."""
    result = array.astype(kind or array.dtype, copy=False)
    return result if result.flags.aligned and result.flags.c_contiguous else result.copy()
