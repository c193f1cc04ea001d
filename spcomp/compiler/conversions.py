"""Around the route: any tensor in any format, ``spcomp.convert``."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from spcomp.compiler import validate
from spcomp.compiler.conversions_blocks import in_blocks
from spcomp.compiler.conversions_build import (
    Duplicates,
    build,
    frozen,
    how_of,
    index_type_of,
)
from spcomp.compiler.conversions_rows import How, in_rows
from spcomp.compiler.conversions_sort import (
    SPARSE,
    majors_of,
)
from spcomp.compiler.conversions_source import (
    dense_array,
    elements_of,
    family_of,
    from_arrays,
    item_type,
)
from spcomp.compiler.convert import assembled, is_parts, put_together, sound
from spcomp.compiler.tensor import Tensor
from spcomp.compiler.tensor import put_together as put_tensor
from spcomp.compiler.tensor_levels import Level
from spcomp.dtypes import int64
from spcomp.errors import ArgumentError, FormatError, OutOfMemoryError, expect
from spcomp.formats.format import Format
from spcomp.formats.hyb import composable
from spcomp.formats.rules import ComposableFormat, rows_of

if TYPE_CHECKING:
    from spcomp.compiler.formats_parts import Parts

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
_ROWS = ("dense", "compressed")
_BLOCKS = ("compressed", "dense", "dense")  # below rows of blocks
_parse = lru_cache(maxsize=256)(Format.parse)
_SCIPY = ("csr", "csc", "coo", "bsr", "dia", "lil", "dok")


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
            array, or anything that has ``__dlpack__``. The elements of a dense one are those that
            are not zero (NaN is not); stored zeros of a sparse one stay. Or a
            :class:`spcomp.Parts`.
        format: A :class:`spcomp.Format`, or the name of one; or a format of several parts, such as
            ``spcomp.formats.hyb(2, [1, 2, 4])``, or ``"hyb"``, ``"hyb(2)"``: of one or two column
            parts, and buckets that are chosen by the matrix.
        duplicates: What becomes of elements with the same coordinates: ``"sum"`` (in the order they
            are stored in), ``"error"``, or ``"keep"``, for formats that have a place for them.
        sort: Whether coordinates ascend in each row or column; if not, they may stay as they were
            where duplicates are kept.

    Returns:
        For a name of a format that scipy has too, and two dimensions (``csr csc coo bsr(4) dia lil
        dok``): a scipy.sparse array, or matrix if *x* is one; but a :class:`spcomp.Tensor` for
        float16 and bfloat16, which scipy does not hold. For ``dense``: a numpy array. For a
        format of several parts: a :class:`spcomp.Parts`. Else, and for any ``Format``: a
        :class:`spcomp.Tensor`. Index arrays are int32, or int64 where
        that is too narrow or the ``Format`` says so. Where nothing has to change the result may
        share memory with *x*. It is the same at any number of threads.

    Raises:
        ArgumentError: for what is no tensor, a type of values that is not known (complex),
            coordinates that are out of range, duplicates that are refused or have no place, and
            a format that would be mostly padding.
        FormatError: for a format that does not fit the number of dimensions.
        OutOfMemoryError: where there is not the memory for it.
    """
    duplicates = how_of(duplicates)
    try:
        return _converted(x, format, How(duplicates, sort))
    except OutOfMemoryError:
        raise
    except MemoryError as error:
        raise OutOfMemoryError(
            f"argument format: {format} takes too much memory: {error}"
        ) from None


def _converted(x: Any, layout: Any, how: How) -> Any:
    """Return what ``convert`` does."""
    parts = composable(layout)
    if is_parts(x):
        if x.format == parts:
            return x
        x = x.to_tensor()
    family = family_of(x)
    x = dense_array(x) if family == "dlpack" else sound(x) if family == "scipy" else x
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
    if rank != 2 or word not in _SCIPY or _is_of_halves(x):
        return to_tensor(x, _parse(name, rank), how)
    layout = None if word in ("lil", "dok") else _parse(name, 2)
    import scipy.sparse as sps

    matrix = family_of(x) == "scipy" and not isinstance(x, sps.sparray)
    make: Any = getattr(sps, f"{word}_{'matrix' if matrix else 'array'}")
    if word in ("csr", "csc"):
        return _compressed(x, make, (0, 1) if word == "csr" else (1, 0), how)
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
    return make(_coordinates(x, getattr(sps, "coo_matrix" if matrix else "coo_array"), how))


def _is_of_halves(x: Any) -> bool:
    """Whether the values of *x* are floats of 16 bits, which scipy's arrays do not hold."""
    return str(getattr(x, "dtype", "")).rpartition(".")[2] in ("float16", "bfloat16")


def as_rows(x: Any, make: Any, order: tuple[int, int]) -> Any:
    """Return *x* as a scipy csr or csc object of class *make*, whatever its values are."""
    return _compressed(x, make, order, How())


def _in_parts(x: Any, layout: ComposableFormat, how: How) -> Parts:
    from spcomp.compiler.formats_parts import put_in_parts

    if how.duplicates == "keep":
        raise ArgumentError(f"argument duplicates: {layout} has no place for repeated elements")
    made = to_tensor(x, Format(rows_of(rank_of(x))), how)
    return put_in_parts(made, item_type(made.values), layout)


def rank_of(x: Any) -> int:
    """Return the number of dimensions of *x*; raises ArgumentError for what is no tensor."""
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
        made, shape = in_rows(x, (first, second), how, layout.idtype == int64)
        for array in (made.pointers, made.minors):
            array.setflags(write=False)
        level = Level("compressed", made.pointers, made.minors)
        return put_tensor(shape, (None, level), made.values, layout.order)
    listed = x.shape[layout.order[0]] if kinds[:1] == ("compressed",) else 0
    if how.duplicates != "keep" and _has_rows(layout) and not _hollow(x, listed):
        return _tensor_of_rows(x, layout, how)
    return build(elements_of(x), layout, how.duplicates)


def _has_rows(layout: Format) -> bool:
    """Whether a format lists rows or columns that are not empty, or has rows of blocks."""
    kinds = tuple(kind.name for kind in layout.kinds)
    blocks = layout.order == (0, 1, 0, 1) and kinds[0] in _ROWS and kinds[1:] == _BLOCKS
    listed = layout.order in ((0, 1), (1, 0)) and kinds == ("compressed", "compressed")
    return (blocks or listed) and all(kind.unique and kind.ordered for kind in layout.kinds)


def _tensor_of_rows(x: Any, layout: Format, how: How) -> Tensor:
    """Return the matrix *x* by rows or columns, in blocks or not; empty ones may be left out."""
    first, second = layout.order[:2]
    how = replace(how, sort=True, copies=family_of(x) != "tensor")
    made, shape = in_rows(x, (first, second), how, layout.idtype == int64)
    outer, (pointers, indices, values) = None, made.arrays
    inner: tuple[Level, ...] = ()
    if len(layout.kinds) > 2:
        pointers, indices, values = in_blocks(made, shape[1], _sizes(layout))
        inner = tuple(Level("dense", size=size) for size in values.shape[1:])
    if layout.kinds[0].name == "compressed":
        some = np.flatnonzero(np.diff(pointers))
        outer = Level("compressed", np.array([0, len(some)]), some)
        pointers = np.append(pointers[some], pointers[-1])
    kind = index_type_of(layout, *shape, values.size)
    every = outer, Level("compressed", pointers, indices)
    levels = tuple(level and frozen(level, kind) for level in every)
    return put_tensor(shape, (*levels, *inner), values.reshape(-1), layout.order)


def _hollow(x: Any, extent: int) -> bool:
    """Whether an array as long as *extent* is too much for as few elements as *x* has."""
    return extent > 1 << 20 and extent > SPARSE * len(elements_of(x).values)


def _sizes(layout: Format) -> tuple[int, int]:
    """Return the sizes of blocks, of which a format says one or two."""
    height, width = (int(kind.size or 1) for kind in layout.kinds[2:])
    return height, width


def from_coordinates(
    coordinates: Sequence[Any],
    values: Any,
    shape: Sequence[int] | None,
    layout: Any,
    duplicates: Duplicates,
) -> Tensor:
    """Return what ``Tensor.from_coo`` does."""
    duplicates = how_of(duplicates)
    expect("format", layout, (str, Format), "a Format or a name")
    try:
        arrays = [
            validate.index_array(f"coordinates of axis {dim}", own)
            for dim, own in enumerate(coordinates)
        ]
        if shape is None:
            shape = tuple(int(own.max(initial=-1)) + 1 for own in arrays)
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
    made = _parse(layout, len(extents)) if isinstance(layout, str) else layout
    if made.rank != len(extents):
        raise FormatError(f"a format {made} is for {made.rank} dimensions, not {len(extents)}")
    return build(elements, made, duplicates)


def to_coo(x: Any) -> Tensor:
    """Return *x* as a Tensor in coo format."""
    return to_tensor(x, _parse("coo", rank_of(x)))


def to_scipy(x: Tensor) -> Any:
    """Return what ``Tensor.to_scipy`` does."""
    if _is_of_halves(x):
        raise ArgumentError(
            f"argument x: got {x.dtype}, which scipy.sparse has no arrays of",
            hint='convert the values first, A.astype("float32")',
        )
    if x.ndim != 2:
        import scipy.sparse as sps

        made = to_coo(x)
        coordinates: Any = made.elements()[0]
        return sps.coo_array((made.values, coordinates), shape=made.shape)
    name = x.layout.name
    blocks = [part.size for part in x.levels[2:] if part is not None and part.size]
    whole = all(n % size == 0 for n, size in zip(x.shape, blocks, strict=False))
    return convert(x, name if name.partition("(")[0] in _SCIPY and whole else "csr")


# -- to scipy ------------------------------------------------------------------------------------


def _compressed(x: Any, make: Any, order: tuple[int, int], how: How) -> Any:
    made, shape = in_rows(x, order, how)
    found = put_together(make, shape, made.values, made.minors, made.pointers)
    if how.sort or how.duplicates != "keep":
        found.has_sorted_indices = True
        found.has_canonical_format = not made.repeated
    return found


def _coordinates(x: Any, make: Any, how: How) -> Any:
    if _hollow(x, x.shape[0]):
        tensor = build(elements_of(x), _parse("coo", 2), how.duplicates)
        coords = tuple(np.array(level.indices) for level in tensor.levels if level)
        return assembled(make, tensor.shape, data=tensor.values, coords=coords)
    made, shape = in_rows(x, (0, 1), how)
    major = majors_of(made.pointers, len(made.minors), made.minors.dtype)
    found = assembled(make, shape, data=made.values, coords=(major, made.minors))
    found.has_canonical_format = not made.repeated
    return found


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
    made, _ = in_rows(x, (0, 1), replace(how, sort=True))
    pointers, indices, values = in_blocks(made, shape[1], sizes)
    found = put_together(make, shape, values, indices, pointers)
    found.has_canonical_format = True
    return found


def _diagonals(x: Any, make: Any, how: How) -> Any:
    made = to_tensor(x, _parse("dia", 2), how)
    level, (rows, columns) = made.levels[1], made.shape
    assert level is not None
    assert level.offsets is not None
    values = made.values.reshape(rows, len(level.offsets))
    data = np.zeros((len(level.offsets), columns), values.dtype)
    for number, offset in enumerate(level.offsets.tolist()):
        first, last = max(0, -offset), min(rows, columns - offset)
        data[number, first + offset : last + offset] = values[first:last, number]
    return make((data, np.array(level.offsets)), shape=made.shape)
