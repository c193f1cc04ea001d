"""Around the route: any tensor in any format, ``spcomp.convert``."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias, get_args

import numpy as np

from spcomp.compiler import validate
from spcomp.compiler.conversions_blocks import in_blocks, out_of_blocks
from spcomp.compiler.conversions_build import (
    Duplicates,
    build,
    frozen,
    index_type_of,
    refuse_repeated,
)
from spcomp.compiler.conversions_sort import (
    BITS,
    SPARSE,
    Ordered,
    added_up,
    bits_of,
    index_type,
    majors_of,
    put_in_order,
    rows_in_order,
    transposed,
)
from spcomp.compiler.conversions_source import (
    dense_array,
    elements_of,
    family_of,
    from_arrays,
    in_range,
    item_type,
)
from spcomp.compiler.convert import assembled, is_parts, put_together
from spcomp.compiler.foreign import bridge
from spcomp.compiler.tensor import Tensor
from spcomp.compiler.tensor import put_together as put_tensor
from spcomp.compiler.tensor_levels import Level
from spcomp.dtypes import int64
from spcomp.errors import ArgumentError, FormatError, expect
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
            are stored in), ``"refuse"``, or ``"keep"``, for formats that have a place for them.
        sort: Whether coordinates ascend in each row or column; if not, they may stay as they were
            where duplicates are kept.

    Returns:
        For a name of a format that scipy has too, and two dimensions (``csr csc coo bsr(4) dia lil
        dok``): a scipy.sparse array, or matrix if *x* is one. For ``dense``: a numpy array. For a
        format of several parts: a :class:`spcomp.Parts`. Else, and for any ``Format``: a
        :class:`spcomp.Tensor`. Index arrays are int32, or int64 where
        that is too narrow or the ``Format`` says so. Where nothing has to change the result may
        share memory with *x*. It is the same at any number of threads.

    Raises:
        ArgumentError: for what is no tensor, a type of values that is not known (complex),
            coordinates that are out of range, duplicates that are refused or have no place, and
            a format that would be mostly padding.
        FormatError: for a format that does not fit the number of dimensions.
    """
    if duplicates not in get_args(Duplicates):
        raise ArgumentError(
            f'argument duplicates: got {duplicates!r}, expected "sum", "refuse" or "keep"'
        )
    how = _How(duplicates, sort)
    layout = composable(format)
    if is_parts(x):
        if x.format == layout:
            return x
        x = x.to_tensor()
    x = dense_array(x) if family_of(x) == "dlpack" else x
    try:
        if layout is not None:
            return _in_parts(x, layout, how)
        if isinstance(format, str):
            return _named(x, format, how)
        if not isinstance(format, Format):
            raise ArgumentError(
                f"argument format: got {type(format).__name__}, expected a Format or a name"
            )
        return to_tensor(x, format, how)
    except MemoryError as error:
        raise ArgumentError(f"argument format: {format} takes too much memory: {error}") from None


@dataclass(frozen=True, slots=True)
class _How:
    """What a conversion may and must do with the elements."""

    duplicates: Duplicates = "sum"
    sort: bool = True
    copies: bool = False  # index arrays, which nobody else may have


@dataclass(frozen=True, slots=True, eq=False)
class _Rows:
    """A matrix by rows, or by columns (*order* is 1, 0): arrays that may be longer than needed."""

    shape: tuple[int, ...]
    pointers: Array
    indices: Array
    values: Array
    order: tuple[int, int]


def _named(x: Any, name: str, how: _How) -> Any:
    rank, word = rank_of(x), name.split("(")[0].strip()
    if word == "dense":
        return to_tensor(x, _parse(name, rank), how).values.reshape(tuple(x.shape))
    if rank != 2 or word not in _SCIPY:
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


def _in_parts(x: Any, layout: ComposableFormat, how: _How) -> Parts:
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


def to_tensor(x: Any, layout: Format, how: _How | None = None) -> Tensor:
    """Return *x* as a Tensor in the format *layout*; raises ArgumentError, FormatError."""
    how, rank = how or _How(), rank_of(x)
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
        made, shape = _ordered(x, (first, second), how, layout.idtype == int64)
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


def _tensor_of_rows(x: Any, layout: Format, how: _How) -> Tensor:
    """Return the matrix *x* by rows or columns, in blocks or not; empty ones may be left out."""
    first, second = layout.order[:2]
    how = replace(how, sort=True, copies=family_of(x) != "tensor")
    made, shape = _ordered(x, (first, second), how, layout.idtype == int64)
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
    expect("format", layout, (str, Format), "a Format or a name")
    try:
        arrays = [np.asarray(own) for own in coordinates]
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
    elements = from_arrays(extents, arrays, np.asarray(values))
    made = _parse(layout, len(extents)) if isinstance(layout, str) else layout
    if made.rank != len(extents):
        raise FormatError(f"a format {made} is for {made.rank} dimensions, not {len(extents)}")
    return build(elements, made, duplicates)


def to_coo(x: Any) -> Tensor:
    """Return *x* as a Tensor in coo format."""
    return to_tensor(x, _parse("coo", rank_of(x)))


def to_scipy(x: Tensor) -> Any:
    """Return what ``Tensor.to_scipy`` does."""
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


def _compressed(x: Any, make: Any, order: tuple[int, int], how: _How) -> Any:
    made, shape = _ordered(x, order, how)
    found = put_together(make, shape, made.values, made.minors, made.pointers)
    if how.sort or how.duplicates != "keep":
        found.has_sorted_indices = True
        found.has_canonical_format = not made.repeated
    return found


def _coordinates(x: Any, make: Any, how: _How) -> Any:
    if _hollow(x, x.shape[0]):
        tensor = build(elements_of(x), _parse("coo", 2), how.duplicates)
        coords = tuple(np.array(level.indices) for level in tensor.levels if level)
        return assembled(make, tensor.shape, data=tensor.values, coords=coords)
    made, shape = _ordered(x, (0, 1), how)
    major = majors_of(made.pointers, len(made.minors), made.minors.dtype)
    found = assembled(make, shape, data=made.values, coords=(major, made.minors))
    found.has_canonical_format = not made.repeated
    return found


def _blocks(x: Any, make: Any, layout: Format, how: _How) -> Any:
    sizes = _sizes(layout)
    shape = tuple(x.shape)
    if any(extent % size for extent, size in zip(shape, sizes, strict=True)):
        raise ArgumentError(
            f"argument format: blocks of {sizes} do not fill the shape {shape}",
            hint="a spcomp.Tensor holds blocks that reach over the edge: give a spcomp.Format",
        )
    if how.duplicates == "keep":
        raise ArgumentError("argument duplicates: bsr has no place for repeated elements")
    made, _ = _ordered(x, (0, 1), replace(how, sort=True))
    pointers, indices, values = in_blocks(made, shape[1], sizes)
    found = put_together(make, shape, values, indices, pointers)
    found.has_canonical_format = True
    return found


def _diagonals(x: Any, make: Any, how: _How) -> Any:
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


# -- matrices by rows or columns -----------------------------------------------------------------


def _ordered(
    x: Any,
    order: tuple[int, int],
    how: _How,
    wide: bool = False,  # noqa: FBT001, FBT002
) -> tuple[Ordered, tuple[int, ...]]:
    """Return the matrix *x* compressed along the dimensions *order*, and its shape."""
    if sum(map(bits_of, x.shape)) > BITS:
        return _compared(x, order, how)
    given = _rows_of(x)
    if given is None:
        elements = elements_of(x)
        values, shape = np.ascontiguousarray(elements.values), elements.shape
        kind = np.dtype(np.int64) if wide else index_type(*shape, len(values))
        axes = [elements.coordinates[dim] for dim in order]
        extents = [shape[dim] for dim in order]
        sort = how.sort or how.duplicates != "keep"
        found = put_in_order(axes, values, extents, idtype=kind, sort=sort)
    else:
        values, shape = given.values, given.shape
        kind = np.dtype(np.int64) if wide else index_type(*shape, len(values))
        found = _from_rows(given, order, how, kind)
    if found.repeated and how.duplicates == "refuse":
        row = majors_of(found.pointers, len(found.minors), np.int64)
        same = (row[1:] == row[:-1]) & (found.minors[1:] == found.minors[:-1])
        at = int(np.flatnonzero(same)[0])
        pair = int(row[at]), int(found.minors[at])
        refuse_repeated([pair[order.index(0)], pair[order.index(1)]])
    if how.duplicates == "sum":
        found = added_up(found, item_type(values))
    return found, tuple(shape)


def _compared(x: Any, order: tuple[int, int], how: _How) -> tuple[Ordered, tuple[int, ...]]:
    """Do what :func:`_ordered` does for extents that are too large for keys."""
    leaf = "compressed(nonunique)" if how.duplicates == "keep" else "compressed"
    made = build(elements_of(x), Format(("dense", leaf), order, int64), how.duplicates)
    level = made.levels[1]
    assert level is not None
    assert level.indptr is not None
    assert level.indices is not None
    repeated = 0 if made.ascending(1, unique=True) else 1
    return Ordered(level.indptr, level.indices, made.values, repeated), made.shape


def _from_rows(given: _Rows, order: tuple[int, int], how: _How, kind: Any) -> Ordered:
    values = np.ascontiguousarray(given.values)
    if given.order != order:
        columns = given.shape[order[0]]
        return transposed(given.pointers, given.indices, values, columns, kind)
    validate.in_range("indices", given.indices, 0, given.shape[order[1]] - 1)
    own = np.array if how.copies else np.ascontiguousarray
    pointers, indices = own(given.pointers, kind), own(given.indices, kind)
    if validate.ascends(pointers, indices, 0, strict=True) or (
        how.duplicates == "keep" and not how.sort
    ):
        return Ordered(pointers, indices, values, 0)
    return rows_in_order(pointers, indices, values, given.shape[order[1]])


def _rows_of(x: Any) -> _Rows | None:
    """Return the matrix *x* if it is stored by rows or columns, its index arrays checked."""
    family = family_of(x)
    if family == "tensor":
        if x.order == (0, 1, 0, 1):
            return _rows_of_blocks(x)
        level = x.levels[-1] if len(x.levels) == 2 == x.ndim else None
        pointers = None if level is None else _pointers(x, x.shape[x.order[0]])
        if level is None or pointers is None:
            return None
        values = np.asarray(x.values).reshape(-1)
        return _checked(x.shape, pointers, level.indices, values, x.order)
    if family == "scipy" and x.format in ("csr", "csc") and x.ndim == 2:
        order = (0, 1) if x.format == "csr" else (1, 0)
        indptr, indices = np.asarray(x.indptr), np.asarray(x.indices)
        if indptr.dtype.kind == indices.dtype.kind == "i":  # the others are looked at later
            limit = min(indices.size, len(x.data))
            validate.pointers("indptr", indptr, x.shape[order[0]], limit)
        return _checked(x.shape, x.indptr, x.indices, np.asarray(x.data), order)
    if family == "scipy" and x.format == "bsr":
        pointers = np.asarray(in_range(x).indptr)
        part = slice(int(pointers[-1]))
        return _merged(x.shape, pointers, np.asarray(x.indices)[part], np.asarray(x.data)[part])
    if family == "torch":
        found = bridge().compressed(x)
        return None if found is None else _checked(*found)
    return None


def _rows_of_blocks(x: Tensor) -> _Rows | None:
    """Return the matrix *x* by rows if it is one of blocks that do not reach over its edges."""
    level, sizes = x.levels[1], [part.size for part in x.levels[2:] if part and part.size]
    pointers = _pointers(x, -(-x.shape[0] // sizes[0])) if len(sizes) == 2 else None
    if pointers is None or level is None or level.indices is None:
        return None
    return _merged(x.shape, pointers, level.indices, np.asarray(x.values).reshape(-1, *sizes))


def _pointers(x: Tensor, count: int) -> Array | None:
    """Return where each of *count* fibers of the second level of *x* begins, and the end.

    They are dense, or those that are not empty are listed; None: neither, or listed few of many.
    """
    outer, level = x.levels[:2]
    if level is None or level.indptr is None or level.kind != "compressed":
        return None
    if outer is None:
        return level.indptr
    listed = outer.kind == "compressed" and x.ascending(0, unique=True)
    if not listed or count > SPARSE * len(level.indptr):
        return None
    pointers = np.zeros(count + 1, level.indptr.dtype)
    pointers[1:][outer.indices] = np.diff(level.indptr)
    return np.cumsum(pointers, out=pointers)


def _merged(shape: Any, pointers: Array, indices: Array, values: Array) -> _Rows | None:
    item_type(values)
    if pointers.dtype not in (np.int32, np.int64) or indices.dtype not in (np.int32, np.int64):
        return None
    if any(n % size for n, size in zip(shape, values.shape[1:], strict=True)):
        return None
    return _Rows(tuple(shape), *out_of_blocks(pointers, indices, values, shape[1]), (0, 1))


def _checked(shape: Any, pointers: Any, indices: Any, values: Array, order: Any) -> _Rows | None:
    """Return the matrix; None where its arrays are of a kind that programs do not take."""
    item_type(values)
    pointers, indices = np.asarray(pointers), np.asarray(indices)
    if pointers.dtype not in (np.int32, np.int64) or indices.dtype not in (np.int32, np.int64):
        return None
    first, last = int(pointers[0]), int(pointers[-1])
    pointers = np.ascontiguousarray(pointers - first if first else pointers)
    part = slice(first, last)
    return _Rows(tuple(shape), pointers, np.ascontiguousarray(indices[part]), values[part], order)
