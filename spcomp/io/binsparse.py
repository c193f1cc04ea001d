"""Reading and writing of ``.bsp.h5``: the Binsparse format, version 0.1, in an HDF5 file.

A JSON descriptor in the attribute ``binsparse`` of the root describes the arrays. All predefined
formats and nested dense and sparse levels are read; real numbers, integers and bools; symmetric and
skew-symmetric structures. Needs h5py. See *Binary Sparse Format Specification*,
https://graphblas.org/binsparse-specification.
"""

from __future__ import annotations

import json
from typing import IO, TYPE_CHECKING, Any, TypeAlias

import numpy as np

from spcomp.arrays import Array
from spcomp.errors import ArgumentError, FileError
from spcomp.io import hdf5
from spcomp.io.coordinates import Entries, from_archive, with_mirror_images
from spcomp.io.numbers import DTYPES
from spcomp.io.source import require_room
from spcomp.tensors.tensor import Tensor

if TYPE_CHECKING:
    from collections.abc import Iterator

    from scipy.sparse import csr_array

    from spcomp.io.coordinates import Duplicates
    from spcomp.io.source import Source

Container: TypeAlias = dict[str, Array]
Described: TypeAlias = dict[str, Any]
Nest: TypeAlias = tuple[tuple[str, int], ...]  # from the root: dense or sparse, and its dimensions
ATTRIBUTE, VERSION = "binsparse", "0.1"
NAMES = r"values|fill_value|(indices|pointers_to)_\d+"
DENSE, SPARSE = ("dense", 1), ("sparse", 1)
FORMATS: dict[str, Nest] = {
    "DVEC": (DENSE,), "CVEC": (SPARSE,), "VEC": (SPARSE,),
    "DMAT": (DENSE, DENSE), "DMATR": (DENSE, DENSE), "DMATC": (DENSE, DENSE),
    "CSR": (DENSE, SPARSE), "CSC": (DENSE, SPARSE),
    "DCSR": (SPARSE, SPARSE), "DCSC": (SPARSE, SPARSE),
    "COO": (("sparse", 2),), "COOR": (("sparse", 2),), "COOC": (("sparse", 2),),
}  # fmt: skip
BY_COLUMNS = ("DMATC", "CSC", "DCSC", "COOC")
STRUCTURES = {
    f"{kind}_{half}": (sign, half)
    for kind, sign in (("symmetric", 1), ("skew_symmetric", -1))
    for half in ("lower", "upper")
}
MOST = 32  # dimensions


def read(source: Source, duplicates: Duplicates) -> csr_array | Array | Tensor:
    """Return the content of *source*; raises FileError, which names the wrong entry or array."""
    container = hdf5.arrays(source, ATTRIBUTE, NAMES)
    try:
        return _read(source, container, duplicates)
    except FileError:
        raise
    except ArgumentError as error:  # it names the array
        raise source.error(0, error.message.replace("argument", "array", 1)) from None
    except (ValueError, TypeError, RecursionError) as error:
        raise source.error(0, f"the descriptor is none of binsparse: {error}") from None


def _read(
    source: Source, container: Container, duplicates: Duplicates
) -> csr_array | Array | Tensor:
    about = descriptor(source, container)
    shape, types = shape_of(source, about), about.get("data_types")
    if not isinstance(types, dict):
        source.refuse(0, "the descriptor has no data_types")
    nest, order = _nest(source, about, len(shape))
    arrays = Arrays(source, container, types)
    levels = list(_levels(arrays, nest))
    count = _count(shape, order, levels)
    values = arrays.values(count)
    if about.get("number_of_stored_values", count) != count:
        declared = about["number_of_stored_values"]
        source.refuse(0, f"it has {count} stored values, the descriptor says {declared}")
    if about.get("fill") and np.any(arrays["fill_value"]):
        source.refuse(0, "its fill value is not 0, which is not supported")
    tensor = Tensor(shape, levels, values, order)
    entries = Entries(shape, tensor.coordinates(), tensor.values.reshape(-1))
    dense = all(kind == "dense" for kind, _ in nest)
    if (structure := about.get("structure")) is not None:
        entries = _expand_structure(source, entries, structure)
    elif dense:
        return tensor.to_numpy()
    result = from_archive(source, entries, duplicates)
    return np.asarray(result.toarray()) if dense and not isinstance(result, Tensor) else result


def descriptor(source: Source, container: Container) -> Described:
    """Return the JSON object that describes the arrays; raises FileError."""
    if ATTRIBUTE not in container:
        source.refuse(0, f"it has no attribute {ATTRIBUTE} with a descriptor")
    content = json.loads(str(container[ATTRIBUTE]))
    about = content.get(ATTRIBUTE, content) if isinstance(content, dict) else None
    if not isinstance(about, dict):
        source.refuse(0, "the descriptor is no JSON object")
    return about


def shape_of(source: Source, about: Described) -> tuple[int, ...]:
    """Return the shape that the descriptor *about* says; raises FileError."""
    shape = about.get("shape")
    fits = isinstance(shape, list) and 1 <= len(shape) <= MOST
    if not fits or not all(type(n) is int and 0 <= n < 1 << 63 for n in shape or ()):
        source.refuse(0, f"the shape is {shape!r}, expected 1 to {MOST} extents of 0 or more")
    return tuple(shape or ())


def _nest(source: Source, about: Described, rank: int) -> tuple[Nest, tuple[int, ...]]:
    """Return the levels, and the dimensions that they store, in order."""
    name, plain = about.get("format"), tuple(range(rank))
    nest = FORMATS.get(name) if isinstance(name, str) else None
    order = plain[::-1] if name in BY_COLUMNS else plain
    custom = about.get("custom")
    if nest is None and isinstance(custom, dict):
        nest = tuple(_custom(source, custom.get("level")))
        order = tuple(custom.get("transpose", plain))
    if nest is None:
        names = ", ".join(FORMATS)
        source.refuse(0, f"the format {name!r} is unknown, expected custom or one of {names}")
    if sum(n for _, n in nest) != rank or sorted(order) != list(plain):
        source.refuse(0, f"the format {name!r} does not fit the {rank} dimensions of the shape")
    return nest, order


def _custom(source: Source, level: Any) -> Iterator[tuple[str, int]]:
    while isinstance(level, dict) and level.get("level_desc") in ("dense", "sparse"):
        rank = level.get("rank")
        if type(rank) is not int or not 1 <= rank <= MOST:
            source.refuse(0, f"a level has the rank {rank!r}, expected 1 to {MOST}")
        yield level["level_desc"], rank
        level = level.get("level")
    if not isinstance(level, dict) or level.get("level_desc") != "element":
        source.refuse(0, "a level is unknown, expected dense, sparse or element")


class Arrays:
    """The arrays of a container by name, each checked against its declared type."""

    def __init__(self, source: Source, container: Container, types: Described) -> None:
        self.source, self.container, self.types = source, container, types

    def __getitem__(self, name: str) -> Array:
        return self._array(name, self._type(name))

    def values(self, count: int) -> Array:
        """Return the *count* values; an ``iso`` array stores one value for all."""
        kind = self._type("values")
        iso = kind.startswith("iso[") and kind.endswith("]")
        array = self._array("values", kind[4:-1] if iso else kind)
        expected = 1 if iso else count
        if array.size != expected:
            self.source.refuse(0, f"array values has {array.size} elements, expected {expected}")
        require_room(self.source, 0, (count,), count * array.itemsize)
        return np.repeat(array, count) if iso else array

    def _type(self, name: str) -> str:
        kind = self.types.get(name)
        if not isinstance(kind, str):
            self.source.refuse(0, f"data_types does not say what {name} is")
        return kind

    def _array(self, name: str, kind: str) -> Array:
        numbers = {"bint8": "bool"}.get(kind, kind)
        if numbers not in DTYPES or kind == "bool":
            self.source.refuse(0, f"array {name} is declared as {kind}, which is not supported")
        array = self.container.get(name)
        if array is None or array.ndim != 1:
            self.source.refuse(0, f"it has no array {name} of one dimension")
        if kind == "bint8":
            if array.dtype.itemsize != 1 or np.any(array.view(np.uint8) > 1):
                self.source.refuse(0, f"array {name} has other bytes than 0 and 1")
            return array.view(np.bool_)
        if array.dtype.newbyteorder("=") != np.dtype(numbers):
            self.source.refuse(0, f"array {name} is {array.dtype}, declared as {kind}")
        return array.astype(numbers, copy=False)


def _levels(arrays: Arrays, nest: Nest) -> Iterator[Any]:
    """Yield the levels in the form that Tensor takes."""
    depth = 0
    for kind, rank in nest:
        if kind == "dense":
            yield from (None,) * rank
        else:
            first = arrays[f"indices_{depth}"]
            pointers = arrays[f"pointers_to_{depth}"] if depth else np.array([0, first.size])
            yield "compressed", pointers, first
            yield from (("singleton", arrays[f"indices_{depth + at}"]) for at in range(1, rank))
        depth += rank


def _count(shape: tuple[int, ...], order: tuple[int, ...], levels: list[Any]) -> int:
    """Return the number of values."""
    count = 1
    for level, dim in zip(levels, order, strict=True):
        count = count * shape[dim] if level is None else len(level[-1])
    return count


def _expand_structure(source: Source, entries: Entries, structure: object) -> Entries:
    """Return the *entries* of a triangle and their mirror images."""
    if not isinstance(structure, str) or structure not in STRUCTURES:
        source.refuse(0, f"the structure {structure!r} is not supported")
    sign, half = STRUCTURES[structure]
    if len(entries.shape) != 2 or entries.shape[0] != entries.shape[1]:
        source.refuse(0, f"a tensor of shape {entries.shape} cannot be {structure}")
    rows, columns = entries.coords if half == "lower" else entries.coords[::-1]
    outside = rows < columns if sign > 0 else rows <= columns
    if np.any(outside & (entries.values != 0)):
        source.refuse(0, f"it has entries outside of the triangle that {structure} says")
    kind = entries.values.dtype
    if sign < 0 and (kind.kind in "bu" or np.any(entries.values == _least(kind))):
        source.refuse(0, f"{kind} does not hold the negative of its values, for {structure}")
    coords = tuple(coord[~outside] for coord in entries.coords)
    return with_mirror_images(Entries(entries.shape, coords, entries.values[~outside]), sign)


def _least(kind: np.dtype[Any]) -> Any:
    return np.iinfo(kind).min if kind.kind == "i" else np.nan


def write(file: IO[bytes], value: Tensor | Array) -> None:
    """Write *value*: a Tensor in order, without repeated entries, or a dense vector or matrix."""
    if isinstance(value, Tensor):
        kinds: Nest = (SPARSE,) if value.ndim == 1 else (DENSE, *(SPARSE,) * (value.ndim - 1))
        arrays: dict[str, Array] = {"values": value.values}
        for depth, level in enumerate(value.levels):
            if level is not None:
                pointers, indices = level.indptr, level.indices
                assert pointers is not None
                assert indices is not None
                arrays |= {f"pointers_to_{depth}": pointers} if depth else {}
                arrays[f"indices_{depth}"] = indices
    else:
        kinds, arrays = (DENSE,) * value.ndim, {"values": value.reshape(-1)}
    about: Described = {
        "version": VERSION,
        "shape": list(value.shape),
        "number_of_stored_values": arrays["values"].size,
        "data_types": {n: a.dtype.name.replace("bool", "bint8") for n, a in arrays.items()},
    }
    names = [name for name, nest in FORMATS.items() if nest == kinds and name not in BY_COLUMNS]
    if names:
        about["format"] = names[-1]
    else:
        about |= {"format": "custom", "custom": {"level": _level_descriptor(kinds)}}
    import h5py

    with h5py.File(file, "w") as container:
        container.attrs[ATTRIBUTE] = json.dumps({ATTRIBUTE: about})
        for name, array in arrays.items():
            stored = array.view(np.uint8) if array.dtype.kind == "b" else array
            container.create_dataset(name, data=stored)


def _level_descriptor(nest: Nest) -> Described:
    level: Described = {"level_desc": "element"}
    for kind, rank in reversed(nest):
        level = {"level_desc": kind, "rank": rank, "level": level}
    return level
