"""Reading of ``.npz``: archives of scipy's ``save_npz`` and of :func:`spcomp.write`.

Nothing is unpickled. The arrays are checked before scipy, which trusts them, sees them.
"""

from __future__ import annotations

import lzma
import re
import struct
import tokenize
import zipfile
import zlib
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from spcomp.arrays import Array
from spcomp.errors import ArgumentError, FileError
from spcomp.formats.levels import LEVELS
from spcomp.io.coordinates import Entries, from_archive
from spcomp.io.numbers import DTYPES
from spcomp.io.source import memory
from spcomp.tensors import checks as validate
from spcomp.tensors.tensor import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable

    from scipy.sparse import csr_array

    from spcomp.io.coordinates import Duplicates
    from spcomp.io.source import Source
    from spcomp.tensors.tensor import LevelSpec

Arrays: TypeAlias = dict[str, Array]
Listed: TypeAlias = tuple[tuple[Array, Array], Array]
VERSION = 1  # of the layout of a Tensor
NAMES = re.compile(
    r"format|shape|data|row|col|spcomp_tensor|kinds|order|values|(ind(ptr|ices)|mask|offsets|ends)\d*"
)
SIZED = re.compile(r"dense\(([1-9]\d{0,17})\)")
NEEDS = {
    "csr": ("data", "indices", "indptr"),
    "csc": ("data", "indices", "indptr"),
    "bsr": ("data", "indices", "indptr"),
    "coo": ("data", "row", "col"),
    "dia": ("data", "offsets"),
}
UNREADABLE = (
    OSError, ValueError, EOFError, LookupError, RuntimeError, OverflowError, SyntaxError, TypeError,
    MemoryError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error, tokenize.TokenError,
)  # fmt: skip  # what numpy and zipfile raise for damaged archives


def read(source: Source, duplicates: Duplicates) -> csr_array | Tensor:
    """Return the matrix or tensor in *source*; raises FileError, which names the wrong array."""
    arrays = _load(source)
    try:
        if "spcomp_tensor" in arrays:
            return _tensor(source, arrays)
        kind, shape = _kind(source, arrays)
        data = arrays["data"]
        if data.dtype.name not in DTYPES:
            source.refuse(0, f"array data has dtype {data.dtype}, which is not supported")
        coords, values = READERS[kind](arrays, shape)
    except FileError:
        raise
    except ArgumentError as error:  # it names the array
        raise source.error(0, error.message.replace("argument", "array", 1)) from None
    entries = Entries(shape, coords, values.astype(values.dtype.newbyteorder("="), copy=False))
    return from_archive(source, entries, duplicates)


def _load(source: Source) -> Arrays:
    """Return the arrays of the archive whose names are known; none of them has objects."""
    try:
        with source.path.open("rb") as file:
            if not zipfile.is_zipfile(file):
                source.refuse(0, "it is not an archive of arrays")
            with zipfile.ZipFile(file) as members:
                size = sum(member.file_size for member in members.infolist())
            if size > memory():
                source.refuse(0, f"its arrays take {size / 2**30:.0f} GiB, more than the memory")
            file.seek(0)
            with np.load(file, allow_pickle=False) as archive:
                return {name: archive[name] for name in archive.files if NAMES.fullmatch(name)}
    except FileError:
        raise
    except UNREADABLE as error:
        raise source.error(0, f"the archive is damaged or not one of arrays: {error}") from None


def _kind(source: Source, arrays: Arrays) -> tuple[str, tuple[int, int]]:
    """Return the format and the shape of a matrix; refuses one that lacks an array."""
    kind = _text(arrays["format"]) if "format" in arrays else ""
    if "format" in arrays and kind not in NEEDS:
        source.refuse(0, f"the format {kind!r} is unknown, expected one of {', '.join(NEEDS)}")
    for name in ("shape", *NEEDS[kind or "csr"]):
        if not isinstance(arrays.get(name), np.ndarray):
            source.refuse(0, f"it has no array {name}, it is not a sparse matrix")
    shape = _shape(source, arrays["shape"])
    if len(shape) != 2:
        source.refuse(0, f"array shape has {len(shape)} extents, expected 2")
    rows, columns = shape
    if not kind and (rows == columns or arrays["indptr"].size != rows + 1):
        source.refuse(0, "it does not say which format it has, and it may be csr or csc")
    return kind or "csr", (rows, columns)


def _text(array: Array) -> str:
    value = array.item() if array.shape == () else ""
    return value.decode("ascii", "replace") if isinstance(value, bytes) else str(value)


def _shape(source: Source, array: Array) -> tuple[int, ...]:
    if array.ndim != 1 or array.dtype.kind not in "iu" or not 1 <= array.size <= 32:
        source.refuse(0, "array shape is not a list of integers")
    shape = tuple(int(extent) for extent in array)
    if any(not 0 <= extent < 1 << 63 for extent in shape):
        source.refuse(0, f"array shape is {shape}, expected extents of 0 or more")
    return shape


def _flat(name: str, array: Array, ndim: int = 1) -> Array:
    if array.ndim != ndim:
        raise ArgumentError(f"argument {name}: got shape {array.shape}, expected {ndim} dimensions")
    return array


def _csr(arrays: Arrays, shape: tuple[int, int]) -> Listed:
    level = ("compressed", _flat("indptr", arrays["indptr"]), _flat("indices", arrays["indices"]))
    tensor = Tensor(shape, (None, level), _flat("data", arrays["data"]))
    rows, columns = tensor.coordinates()
    return (rows, columns), tensor.values


def _csc(arrays: Arrays, shape: tuple[int, int]) -> Listed:
    (columns, rows), values = _csr(arrays, (shape[1], shape[0]))
    return (rows, columns), values


def _bsr(arrays: Arrays, shape: tuple[int, int]) -> Listed:
    data = _flat("data", arrays["data"], 3)
    down, across = data.shape[1:]
    if not down or not across or shape[0] % down or shape[1] % across:
        raise ArgumentError(f"argument data: got blocks of {down} x {across} for the shape {shape}")
    level = ("compressed", _flat("indptr", arrays["indptr"]), _flat("indices", arrays["indices"]))
    outer = (shape[0] // down, shape[1] // across)
    tensor = Tensor((*outer, down, across), (None, level, None, None), data)
    row, column, i, j = tensor.coordinates()
    return (row * down + i, column * across + j), data.reshape(-1)


def _coo(arrays: Arrays, shape: tuple[int, int]) -> Listed:
    data, coords = _flat("data", arrays["data"]), []
    for name, extent in zip(("row", "col"), shape, strict=True):
        coord = _flat(name, arrays[name])
        if coord.dtype.kind not in "iu" or coord.size != data.size:
            raise ArgumentError(
                f"argument {name}: got {coord.size} elements of {coord.dtype},"
                f" expected {data.size} integers"
            )
        validate.in_range(name, coord, 0, extent - 1)
        coords.append(coord.astype(np.int64))
    return (coords[0], coords[1]), data


def _dia(arrays: Arrays, shape: tuple[int, int]) -> Listed:
    data, offsets = _flat("data", arrays["data"], 2), _flat("offsets", arrays["offsets"])
    if offsets.dtype.kind not in "iu" or offsets.size != len(data):
        raise ArgumentError(
            f"argument offsets: got {offsets.size} elements of {offsets.dtype},"
            f" expected {len(data)} integers"
        )
    validate.in_range("offsets", offsets, -shape[0], shape[1])
    at, columns = np.nonzero(data)  # scipy, too, takes zeros for padding
    rows = columns - offsets.astype(np.int64)[at]
    inside = (rows >= 0) & (rows < shape[0]) & (columns < shape[1])
    return (rows[inside], columns[inside]), data[at[inside], columns[inside]]


# Return coordinates and values by kind of matrix; raise ArgumentError with the wrong array.
READERS: dict[str, Callable[[Arrays, tuple[int, int]], Listed]] = {
    "csr": _csr,
    "csc": _csc,
    "bsr": _bsr,
    "coo": _coo,
    "dia": _dia,
}


def _tensor(source: Source, arrays: Arrays) -> Tensor:
    """Return the Tensor of an archive of :func:`pack`."""
    missing = [name for name in ("shape", "kinds", "values") if name not in arrays]
    version = arrays["spcomp_tensor"]
    if missing:
        source.refuse(0, f"it has no array {missing[0]}, it is not a tensor")
    if version.shape != () or version.dtype.kind not in "iu" or int(version) != VERSION:
        source.refuse(0, f"its layout is not version {VERSION}")
    values, kinds = arrays["values"], arrays["kinds"]
    if kinds.dtype.kind != "U" or kinds.ndim != 1 or values.dtype.name not in DTYPES:
        source.refuse(0, f"arrays kinds and values are {kinds.dtype} and {values.dtype}")
    levels: list[LevelSpec] = []
    for at, kind in enumerate(kinds.tolist()):
        sized = SIZED.fullmatch(kind)
        fields = LEVELS[kind].arrays if kind in LEVELS else ()
        if not (kind in LEVELS or sized) or any(f"{name}{at}" not in arrays for name in fields):
            source.refuse(0, f"level {at} of kind {kind!r} is unknown or incomplete")
        spec = ("dense", int(sized[1])) if sized else (kind, *(arrays[f"{n}{at}"] for n in fields))
        levels.append(None if kind == "dense" else spec)
    order = arrays.get("order")
    if order is not None and (order.ndim != 1 or order.dtype.kind not in "iu"):
        source.refuse(0, f"array order has shape {order.shape} and type {order.dtype}")
    dims = None if order is None else order.tolist()
    return Tensor(_shape(source, arrays["shape"]), levels, values, dims)


def pack(tensor: Tensor) -> Arrays:
    """Return the arrays that an archive has for *tensor*.

    ``spcomp_tensor`` is the version of the layout, 1; ``shape`` the extents; ``kinds`` the kinds
    of the levels; ``order`` the dimensions that they store, if not in their natural order;
    ``values`` the values; and, for level k, the arrays of its kind, ``indptr{k}``, ``indices{k}``,
    ... (:data:`spcomp.formats.levels.LEVELS`).
    """
    arrays: Arrays = {
        "spcomp_tensor": np.array(VERSION),
        "shape": np.array(tensor.shape, np.int64),
        "kinds": np.array(["dense" if level is None else level.text for level in tensor.levels]),
        "values": tensor.values,
    }
    if not tensor.is_plain:
        arrays["order"] = np.array(tensor.order, np.int64)
    for at, level in enumerate(tensor.levels):
        for name in LEVELS[level.kind].arrays if level else ():
            arrays[f"{name}{at}"] = getattr(level, name)
    return arrays
