"""The front door of writing: a matrix, an array or a tensor to a file, completely or not at all."""

from __future__ import annotations

import gzip
import os
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np

from spcomp.arrays import Array
from spcomp.errors import ArgumentError, OutOfMemoryError
from spcomp.io import archive, binsparse, hdf5
from spcomp.io.coordinates import Entries, csr, tensor
from spcomp.io.frostt import EXACT, ORDERS
from spcomp.io.numbers import DTYPES
from spcomp.io.read import suffix
from spcomp.io.replace import replacing
from spcomp.io.source import memory
from spcomp.tensors import checks as validate
from spcomp.tensors.libraries.foreign import is_torch
from spcomp.tensors.tensor import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable

    from scipy.sparse import csr_array

    Fill: TypeAlias = Callable[[IO[bytes]], object]

LINES = 1 << 14  # lines of a tensor that are written at a time


def write(path: str | os.PathLike[str], value: Any) -> None:
    """Write *value* to *path*, replacing it: completely, or not at all.

    Args:
        path: Ends in ``.mtx``, ``.tns``, ``.mtx.gz``, ``.tns.gz``, ``.npz``, or ``.bsp.h5``.
        value: A matrix of scipy.sparse, a coo_array of any rank, a :class:`spcomp.Tensor`, or a
            sparse tensor of torch. A ``.mtx`` file takes values of two dimensions, numpy arrays
            included; ``.bsp.h5`` also takes numpy arrays of one or two.

    ``spcomp.read`` returns the same coordinates and values, stored zeros included; repeated entries
    of a scipy matrix are added up. Text files have float64 or int64 for narrower types (``dtype``
    restores them). ``.tns`` stores no shape, and integers beyond 2**53 are refused there.

    Raises:
        ArgumentError: for a value or a path that cannot be written, and for errors of the system.
    """
    if not isinstance(path, (str, os.PathLike)):
        got = type(path).__name__
        raise ArgumentError(
            f"argument path: got {got}, expected a path",
            hint="the path comes first, the value second",
        )
    value = _of_torch(value) if is_torch(value) else value
    name = str(path)
    kind = suffix(name)
    fill = _PREPARE[kind](value)  # a value is refused before there is a file
    _replace(Path(path), fill, zipped=name.endswith(".gz"))


def _of_torch(value: Any) -> Any:
    """Return *value*, a tensor of torch, as one of scipy or ours; raises ArgumentError."""
    from spcomp.tensors.convert import convert

    layout = str(value.layout)
    if layout == "torch.strided":
        raise ArgumentError(
            "argument value: got a dense tensor of torch, expected a sparse one",
            hint="give value.numpy(), which .mtx and .bsp.h5 files take",
        )
    like = "csc" if layout == "torch.sparse_csc" else "csr"
    return convert(value, like if value.ndim == 2 else "csf")


def _replace(path: Path, fill: Fill, *, zipped: bool) -> None:
    """Replace the file *path* by what *fill* writes, if that succeeds."""
    try:
        with replacing(path) as plain:
            if zipped:
                with gzip.GzipFile("", "wb", fileobj=plain, mtime=0) as file:
                    fill(cast("IO[bytes]", file))
            else:
                fill(plain)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ArgumentError(f"argument path: {path} cannot be written: {reason}") from None


def _matrix_market(value: Any) -> Fill:
    from scipy.io import mmwrite
    from scipy.sparse import coo_array

    if isinstance(value, np.ndarray):
        array = _supported(validate.plain("value", value))
        if array.ndim != 2:
            raise ArgumentError(f"argument value: got {array.ndim} dimensions, an .mtx file has 2")
        plain = array.astype(np.int8) if array.dtype.kind == "b" else array
        return lambda file: mmwrite(file, plain, symmetry="general")
    matrix = _listed(value)
    if matrix.ndim != 2:
        raise ArgumentError(
            f"argument value: got {matrix.ndim} axes, an .mtx file has 2", hint="write a .tns file"
        )
    coordinates: Any = matrix.coordinates()
    coo = coo_array((matrix.values, coordinates), shape=matrix.shape)
    return lambda file: mmwrite(file, coo, symmetry="general")


def _frostt(value: Any) -> Fill:
    tensor = _listed(value)
    values = tensor.values
    if values.dtype.kind in "iu" and values.size:
        if max(int(values.max()), -int(values.min())) > EXACT:
            raise ArgumentError(
                "argument value: integers beyond 2**53 change in a .tns file",
                hint="write an .npz file",
            )
    elif values.dtype.kind == "b":
        values = values.astype(np.int8)
    coords, text = tensor.coordinates(), "%d " * tensor.ndim + "%r\n"

    def fill(file: IO[bytes]) -> None:
        for begin in range(0, len(values), LINES):
            part = slice(begin, begin + LINES)
            columns = [*((coord[part] + 1).tolist() for coord in coords), values[part].tolist()]
            lines = map(text.__mod__, zip(*columns, strict=True))
            file.write("".join(lines).encode("ascii"))

    return fill


def _archive(value: Any) -> Fill:
    if isinstance(value, Tensor):
        _supported(value.values)
        return lambda file: _savez(file, value)
    from scipy.sparse import save_npz

    tensor = _canonical(value)
    if tensor.ndim != 2:
        return lambda file: _savez(file, tensor)
    listed = _csr(tensor)
    return lambda file: save_npz(file, listed)


def _savez(file: IO[bytes], value: Tensor) -> None:
    arrays: dict[str, Any] = archive.pack(value)
    np.savez_compressed(file, **arrays)


def _binsparse(value: Any) -> Fill:
    content: Tensor | Array
    if isinstance(value, np.ndarray):
        content = _supported(validate.plain("value", value))
        if content.ndim not in (1, 2):
            raise ArgumentError(f"argument value: got {content.ndim} dimensions, expected 1 or 2")
    else:
        content = _canonical(value)
    hdf5.require_h5py()
    return lambda file: binsparse.write(file, content)


def _canonical(value: Any) -> Tensor:
    """Return *value* as a tensor by rows, in order, without repeated entries.

    Raises OutOfMemoryError if it has too many rows.
    """
    entries = _entries_of(value)
    rows = entries.shape[0] if len(entries.shape) > 1 else 0
    if 8 * rows > memory():
        raise OutOfMemoryError(
            f"argument value: the pointers of its {rows} rows do not fit into memory",
            hint="a .tns file, and the .npz file of a Tensor, need none",
        )
    return tensor(entries)[0]


def _listed(value: Any) -> Tensor:
    """Return *value* as a list of its entries in order, none of them repeated."""
    entries = _entries_of(value)
    return Tensor.from_coo(entries.coords, entries.values, entries.shape)


def _entries_of(value: Any) -> Entries:
    """Return the stored entries of *value*, without padding, in their own order."""
    if getattr(value, "format", "") == "coo" and getattr(value, "ndim", 2) != 2:
        from spcomp.tensors.convert import convert

        value = convert(value, "csf")  # an array of scipy
    if isinstance(value, Tensor):
        if not 1 <= value.ndim <= ORDERS:
            raise ArgumentError(f"argument value: got {value.ndim} axes, expected 1 to {ORDERS}")
        coordinates, places = value.elements()
        entries = Entries(value.shape, coordinates, value.values.reshape(-1)[places])
    else:
        entries = _entries_of_scipy(value)
    _supported(entries.values)
    return entries


def _entries_of_scipy(value: Any) -> Entries:
    """Return the entries of a scipy matrix, after checking its index arrays."""
    from spcomp.tensors.libraries.scipy import is_scipy, native_scipy

    matrix: Any = value
    if not is_scipy(value) or matrix.ndim != 2:
        raise ArgumentError(
            f"argument value: got {type(value).__name__}, expected a sparse matrix or"
            " a spcomp.Tensor"
        )
    matrix = native_scipy(matrix, "value.")
    if matrix.format not in archive.NEEDS:
        matrix = matrix.tocoo()
    arrays = {name: np.asarray(getattr(matrix, name)) for name in archive.NEEDS[matrix.format]}
    if matrix.format in ("csr", "csc", "bsr"):  # they may be longer than the entries
        used = slice(max(0, int(matrix.indptr[-1])))
        arrays |= {name: arrays[name][used] for name in ("data", "indices")}
    coords, values = archive.READERS[matrix.format](arrays, matrix.shape)
    return Entries(matrix.shape, coords, values)


def _csr(tensor: Tensor) -> csr_array:
    return csr(Entries(tensor.shape, tensor.coordinates(), tensor.values))[0]


def _supported(values: Array) -> Array:
    if values.dtype.name not in DTYPES:
        raise ArgumentError(
            f"argument value: got dtype {values.dtype}, expected one of {', '.join(DTYPES)}"
        )
    return values


_PREPARE: dict[str, Callable[[Any], Fill]] = {
    ".mtx": _matrix_market,
    ".tns": _frostt,
    ".npz": _archive,
    ".bsp.h5": _binsparse,
}
