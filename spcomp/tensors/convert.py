"""Beside the route: ``spcomp.convert``, any tensor to any format."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from spcomp.dtypes import int64
from spcomp.errors import ArgumentError, FormatError, OutOfMemoryError, expect
from spcomp.formats.format import Format
from spcomp.formats.hyb import composable
from spcomp.formats.rules import ComposableFormat, rows_of
from spcomp.runtime.cuda.arrays import lies_there
from spcomp.tensors import checks as validate
from spcomp.tensors.conversions.blocks import in_blocks
from spcomp.tensors.conversions.elements import (
    dense_array,
    elements_of,
    family_of,
    from_arrays,
    item_type,
)
from spcomp.tensors.conversions.levels import (
    Duplicates,
    build,
    checked_count,
    checked_duplicates,
    frozen,
    has_large_blocks,
    index_type_of,
)
from spcomp.tensors.conversions.order import (
    SPARSE,
    majors_of,
)
from spcomp.tensors.conversions.rows import How, compressed, in_rows
from spcomp.tensors.levels import Level
from spcomp.tensors.libraries.scipy import (
    FORMATS,
    class_like,
    native_scipy,
    scipy_of_arrays,
    scipy_of_attributes,
)
from spcomp.tensors.storage import is_parts
from spcomp.tensors.tensor import Tensor, tensor_of_levels

if TYPE_CHECKING:
    from spcomp.tensors.parts.parts import Parts

_ROWS = ("dense", "compressed")
_BLOCKS = ("compressed", "dense", "dense")  # below rows of blocks
_parse = lru_cache(maxsize=256)(Format.parse)


def convert(
    x: Any,
    format: str | Format | ComposableFormat,  # noqa: A002
    *,
    duplicates: Duplicates = "sum",
    sort: bool = True,
) -> Any:
    """Return the tensor *x* in another format.

    Args:
        x: A numpy array, a scipy.sparse array or matrix of any format, a :class:`spcomp.Tensor`,
            a torch tensor on the CPU (strided, coo, csr, csc, bsr, bsc), a pydata ``sparse``
            array, anything with ``__dlpack__``, a :class:`spcomp.Parts`, or a sparse matrix of
            PyTorch or CuPy on a GPU (coo, csr, csc, to each of these and ell, there). The elements
            of a dense one are the nonzero ones (with NaN); a sparse one keeps its stored zeros.
        format: A :class:`spcomp.Format`, or the name of one; or a format of several parts, such as
            ``spcomp.formats.hyb(2, [1, 2, 4])``. ``"hyb"`` and ``"hyb(2)"`` have one and two
            column parts, with buckets chosen for the matrix.
        duplicates: What to do with elements that have the same coordinates: ``"sum"`` (in storage
            order), ``"error"``, or ``"keep"`` for formats that can hold them.
        sort: Whether coordinates must ascend in each row or column. If not, they may keep their
            order where duplicates are kept.

    Returns:
        For two dimensions and a name that scipy has (``csr csc coo bsr(4) dia lil dok``): a
        scipy.sparse array, or matrix if *x* is one; but a :class:`spcomp.Tensor` for float16 and
        bfloat16, which scipy does not support. For ``dense``: a numpy array. For a format of
        several parts: a :class:`spcomp.Parts`. Otherwise, and for any ``Format``: a
        :class:`spcomp.Tensor`. Index arrays are int32, or int64 if int32 is too narrow or the
        ``Format`` says so. The result may share memory with *x* where nothing has to change. It
        does not depend on the number of threads.

    Raises:
        ArgumentError: If *x* is not a tensor, its dtype is not supported (complex), coordinates
            are out of range, duplicates are refused or cannot be held, or the format would be
            mostly padding.
        FormatError: If the format does not fit the number of dimensions.
        OutOfMemoryError: If there is not enough memory.
    """
    duplicates = checked_duplicates(duplicates)
    try:
        return _converted(x, format, How(duplicates, sort))
    except OutOfMemoryError:
        raise
    except MemoryError as error:
        raise OutOfMemoryError(
            f"argument format: {format} takes too much memory: {error}"
        ) from None


def _converted(x: Any, layout: Any, how: How) -> Any:
    """Return the result of ``convert``."""
    if lies_there(x):
        from spcomp.tensors.conversions.device import converted

        return converted(x, layout, how.duplicates)
    parts = composable(layout)
    if is_parts(x):
        if x.format == parts:
            return x
        x = x.to_tensor()
    family = family_of(x)
    x = dense_array(x) if family == "dlpack" else native_scipy(x) if family == "scipy" else x
    if parts is not None:
        return _in_parts(x, parts, how)
    if isinstance(layout, str):
        return _named(x, layout, how)
    if not isinstance(layout, Format):
        raise ArgumentError(
            f"argument format: got {type(layout).__name__}, expected a Format or a name"
        )
    return to_tensor(x, layout, how)


def _named(x: Any, name: str, how: How) -> Any:
    rank, word = rank_of(x), name.split("(")[0].strip()
    if word == "dense":
        return to_tensor(x, _parse(name, rank), how).values.reshape(tuple(x.shape))
    if rank == 2 and word in ("lil", "dok") and _is_of_halves(x):
        raise ArgumentError(f"argument x: got {x.dtype}, which scipy's {word} does not hold")
    if rank != 2 or word not in FORMATS or _is_of_halves(x):
        return to_tensor(x, _parse(name, rank), how)
    layout = None if word in ("lil", "dok") else _parse(name, 2)
    make = class_like(x, word)
    if word in ("csr", "csc"):
        return compressed(x, make, (0, 1) if word == "csr" else (1, 0), how)
    if word == "bsr" and layout is not None:
        return _blocks(x, make, layout, how)
    if word == "dia":
        return _diagonals(x, make, how)
    if word == "coo":
        return _coordinates(x, make, how)
    if word != name.strip():
        raise FormatError(f"{name!r} is no format", hint=f"its name is {word}")
    if how.duplicates == "keep":
        raise ArgumentError(f"argument duplicates: {word} has no place for repeated elements")
    checked_count(x.shape[0] if word == "lil" else 0)
    return make(_coordinates(x, class_like(x, "coo"), how))


def _is_of_halves(x: Any) -> bool:
    """Whether the values of *x* are floats of 16 bits, which scipy's arrays do not support."""
    return str(getattr(x, "dtype", "")).rpartition(".")[2] in ("float16", "bfloat16")


def _in_parts(x: Any, layout: ComposableFormat, how: How) -> Parts:
    from spcomp.tensors.parts.parts import put_in_parts

    if how.duplicates == "keep":
        raise ArgumentError(f"argument duplicates: {layout} has no place for repeated elements")
    tensor = to_tensor(x, Format(rows_of(rank_of(x))), how)
    return put_in_parts(tensor, item_type(tensor.values), layout)


def rank_of(x: Any) -> int:
    """Return the number of dimensions of *x*; raises ArgumentError if it is not a tensor."""
    family_of(x)
    return len(x.shape)


# -- to a Tensor ---------------------------------------------------------------------------------


def to_tensor(x: Any, layout: Format, how: How | None = None) -> Tensor:
    """Return *x* as a Tensor in the format *layout*; raises ArgumentError, FormatError."""
    how, rank = how or How(), rank_of(x)
    if layout.rank != rank:
        raise FormatError(f"a format {layout} is for {layout.rank} dimensions, not {rank}")
    kinds = tuple(kind.name for kind in layout.kinds)
    if rank == 2 and kinds == _ROWS and not layout.is_split:
        if how.duplicates == "keep" and layout.kinds[1].unique:
            raise ArgumentError(
                f"argument duplicates: a format {layout} has no place for repeated elements",
                hint="make its compressed level nonunique",
            )
        first, second = layout.order
        sort = how.sort or layout.kinds[1].ordered
        how = replace(how, sort=sort, copies=family_of(x) != "tensor")
        ordered, shape = in_rows(x, (first, second), how, layout.idtype == int64)
        for array in (ordered.pointers, ordered.minors):
            array.setflags(write=False)
        level = Level("compressed", ordered.pointers, ordered.minors)
        return tensor_of_levels(shape, (None, level), ordered.values, layout.order)
    listed = x.shape[layout.order[0]] if kinds[:1] == ("compressed",) else 0
    is_plain = _has_rows(layout) and not has_large_blocks(layout, x.shape)
    if how.duplicates != "keep" and is_plain and not _hollow(x, listed):
        return _tensor_of_rows(x, layout, how)
    return build(elements_of(x), layout, how.duplicates)


def _has_rows(layout: Format) -> bool:
    """Whether *layout* lists the nonempty rows or columns, or has rows of blocks."""
    kinds = tuple(kind.name for kind in layout.kinds)
    blocks = layout.order == (0, 1, 0, 1) and kinds[0] in _ROWS and kinds[1:] == _BLOCKS
    listed = layout.order in ((0, 1), (1, 0)) and kinds == ("compressed", "compressed")
    return (blocks or listed) and all(kind.unique and kind.ordered for kind in layout.kinds)


def _tensor_of_rows(x: Any, layout: Format, how: How) -> Tensor:
    """Return the matrix *x* as a Tensor by rows or columns, in a format of :func:`_has_rows`."""
    first, second = layout.order[:2]
    how = replace(how, sort=True, copies=family_of(x) != "tensor")
    ordered, shape = in_rows(x, (first, second), how, layout.idtype == int64)
    outer, (pointers, indices, values) = None, ordered.arrays
    inner: tuple[Level, ...] = ()
    if len(layout.kinds) > 2:
        pointers, indices, values = in_blocks(ordered, shape[1], _sizes(layout))
        inner = tuple(Level("dense", size=size) for size in values.shape[1:])
    if layout.kinds[0].name == "compressed":
        filled = np.flatnonzero(np.diff(pointers))
        outer = Level("compressed", np.array([0, len(filled)]), filled)
        pointers = np.append(pointers[filled], pointers[-1])
    kind = index_type_of(layout, *shape, values.size)
    outer_levels = outer, Level("compressed", pointers, indices)
    levels = tuple(level and frozen(level, kind) for level in outer_levels)
    return tensor_of_levels(shape, (*levels, *inner), values.reshape(-1), layout.order)


def _hollow(x: Any, extent: int) -> bool:
    """Whether *extent* is so large, and *x* so empty, that an array of this length is too big."""
    return extent > 1 << 20 and extent > SPARSE * len(elements_of(x).values)


def _sizes(layout: Format) -> tuple[int, int]:
    """Return the height and width of the blocks of *layout*."""
    height, width = (int(kind.size or 1) for kind in layout.kinds[2:])
    return height, width


def from_coordinates(
    coordinates: Sequence[Any],
    values: Any,
    shape: Sequence[int] | None,
    layout: Any,
    duplicates: Duplicates,
) -> Tensor:
    """Return the result of ``Tensor.from_coo``."""
    duplicates = checked_duplicates(duplicates)
    expect("format", layout, (str, Format), "a Format or a name")
    try:
        arrays = [
            validate.index_array(f"coordinates of axis {dim}", array)
            for dim, array in enumerate(coordinates)
        ]
        if shape is None:
            shape = tuple(int(array.max(initial=-1)) + 1 for array in arrays)
        extents = tuple(map(operator.index, shape))
    except TypeError:
        raise ArgumentError(
            "arguments coordinates and shape: got none",
            hint="give an array of integers, and an extent, for each dimension",
        ) from None
    if len(extents) != len(arrays) or min(extents, default=0) < 0:
        raise ArgumentError(
            f"argument shape: got {extents} for coordinates of {len(arrays)} dimensions"
        )
    elements = from_arrays(extents, arrays, validate.as_array("values", values))
    layout = _parse(layout, len(extents)) if isinstance(layout, str) else layout
    if layout.rank != len(extents):
        raise FormatError(f"a format {layout} is for {layout.rank} dimensions, not {len(extents)}")
    return build(elements, layout, duplicates)


def to_coo(x: Any) -> Tensor:
    """Return *x* as a Tensor in coo format."""
    return to_tensor(x, _parse("coo", rank_of(x)))


def to_scipy(x: Tensor) -> Any:
    """Return the result of ``Tensor.to_scipy``."""
    if _is_of_halves(x):
        raise ArgumentError(
            f"argument x: got {x.dtype}, which scipy.sparse has no arrays of",
            hint='convert the values first, A.astype("float32")',
        )
    if x.ndim != 2:
        import scipy.sparse as sps

        coo = to_coo(x)
        coordinates: Any = coo.elements()[0]
        return sps.coo_array((coo.values, coordinates), shape=coo.shape)
    name = x.layout.name
    blocks = [part.size for part in x.levels[2:] if part is not None and part.size]
    whole = all(n % size == 0 for n, size in zip(x.shape, blocks, strict=False))
    return convert(x, name if name.partition("(")[0] in FORMATS and whole else "csr")


# -- to scipy ------------------------------------------------------------------------------------


def _coordinates(x: Any, make: Any, how: How) -> Any:
    if _hollow(x, x.shape[0]):
        tensor = build(elements_of(x), _parse("coo", 2), how.duplicates)
        coords = tuple(np.array(level.indices) for level in tensor.levels if level)
        return scipy_of_attributes(make, tensor.shape, data=tensor.values, coords=coords)
    ordered, shape = in_rows(x, (0, 1), how)
    major = majors_of(ordered.pointers, len(ordered.minors), ordered.minors.dtype)
    matrix = scipy_of_attributes(make, shape, data=ordered.values, coords=(major, ordered.minors))
    matrix.has_canonical_format = not ordered.repeated
    return matrix


def _blocks(x: Any, make: Any, layout: Format, how: How) -> Any:
    sizes = _sizes(layout)
    shape = tuple(x.shape)
    if any(extent % size for extent, size in zip(shape, sizes, strict=True)):
        raise ArgumentError(
            f"argument format: blocks of {sizes} do not fill the shape {shape}",
            hint="a spcomp.Tensor holds blocks that reach over the edge: give a spcomp.Format",
        )
    if how.duplicates == "keep":
        raise ArgumentError("argument duplicates: bsr has no place for repeated elements")
    ordered, _ = in_rows(x, (0, 1), replace(how, sort=True))
    pointers, indices, values = in_blocks(ordered, shape[1], sizes)
    matrix = scipy_of_arrays(make, shape, values, indices, pointers)
    matrix.has_canonical_format = True
    return matrix


def _diagonals(x: Any, make: Any, how: How) -> Any:
    tensor = to_tensor(x, _parse("dia", 2), how)
    level, (rows, columns) = tensor.levels[1], tensor.shape
    assert level is not None
    assert level.offsets is not None
    values = tensor.values.reshape(rows, len(level.offsets))
    checked_count(len(level.offsets) * columns)
    data = np.zeros((len(level.offsets), columns), values.dtype)
    for number, offset in enumerate(level.offsets.tolist()):
        first, last = max(0, -offset), min(rows, columns - offset)
        data[number, first + offset : last + offset] = values[first:last, number]
    return make((data, np.array(level.offsets)), shape=tensor.shape)
