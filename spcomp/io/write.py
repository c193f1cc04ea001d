"""The front door of writing: a matrix, an array or a tensor to a file, whole or not at all."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np

from spcomp.compiler import validate
from spcomp.compiler.tensor import Tensor
from spcomp.errors import ArgumentError
from spcomp.io import archive, binsparse, hdf5
from spcomp.io.coordinates import Entries, csr, tensor
from spcomp.io.frostt import EXACT, ORDERS
from spcomp.io.numbers import DTYPES
from spcomp.io.read import suffix
from spcomp.io.replace import replacing

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

    from scipy.sparse import csr_array

    Fill: TypeAlias = Callable[[IO[bytes]], object]

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
LINES = 1 << 14  # of a tensor, that are written at a time


def write(path: str | os.PathLike[str], value: Any) -> None:
    """Write *value* to *path*, replacing it: completely, or not at all.

    Args:
        path: Ends in ``.mtx``, ``.tns``, either with ``.gz`` behind it, ``.npz``, or ``.bsp.h5``.
        value: A matrix of scipy.sparse, a coo_array of any rank, or a :class:`spcomp.Tensor`; for
            ``.mtx`` also a numpy array of two dimensions, and tensors have two; for ``.bsp.h5``
            also numpy arrays of one or two.

    ``spcomp.read`` gives back the same coordinates and values, stored zeros included; repeated
    entries of a scipy matrix are added up. Text has float64 or int64 for narrower types (``dtype``
    gets them back); ``.tns`` has no shape and no integers beyond 2**53, which are refused.

    Raises:
        ArgumentError: for a value or a path that cannot be written, and for what the system says.
    """
    name = str(path)
    kind = suffix(name)
    fill = _PREPARE[kind](value)  # a value is refused before there is a file
    _replace(Path(path), fill, zipped=name.endswith(".gz"))


def _replace(path: Path, fill: Fill, *, zipped: bool) -> None:
    """Let *fill* write the file *path*, if it can do so to the end."""
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

    if isinstance(value, np.ndarray):
        array = _supported(validate.plain("value", value))
        if array.ndim != 2:
            raise ArgumentError(f"argument value: got {array.ndim} dimensions, an .mtx file has 2")
        plain = array.astype(np.int8) if array.dtype.kind == "b" else array
        return lambda file: mmwrite(file, plain, symmetry="general")
    matrix = _canonical(value)
    if matrix.ndim != 2:
        raise ArgumentError(
            f"argument value: got {matrix.ndim} axes, an .mtx file has 2", hint="write a .tns file"
        )
    listed = _csr(matrix)
    return lambda file: mmwrite(file, listed, symmetry="general")


def _frostt(value: Any) -> Fill:
    made = _canonical(value)
    values = made.values
    if values.dtype.kind in "iu" and values.size:
        if max(int(values.max()), -int(values.min())) > EXACT:
            raise ArgumentError(
                "argument value: integers beyond 2**53 change in a .tns file",
                hint="write an .npz file",
            )
    elif values.dtype.kind == "b":
        values = values.astype(np.int8)
    coords, text = made.coordinates(), "%d " * made.ndim + "%r\n"

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

    made = _canonical(value)
    if made.ndim != 2:
        return lambda file: _savez(file, made)
    listed = _csr(made)
    return lambda file: save_npz(file, listed)


def _savez(file: IO[bytes], value: Tensor) -> None:
    arrays: dict[str, Any] = archive.pack(value)
    np.savez_compressed(file, **arrays)


def _binsparse(value: Any) -> Fill:
    found: Tensor | Array
    if isinstance(value, np.ndarray):
        found = _supported(validate.plain("value", value))
        if found.ndim not in (1, 2):
            raise ArgumentError(f"argument value: got {found.ndim} dimensions, expected 1 or 2")
    else:
        found = _canonical(value)
    hdf5.needed()
    return lambda file: binsparse.write(file, found)


def _canonical(value: Any) -> Tensor:
    """Return what *value* stores as a tensor in order, without repeated entries."""
    if getattr(value, "format", "") == "coo" and getattr(value, "ndim", 2) != 2:
        from spcomp.compiler.conversions import convert

        value = convert(value, "csf")  # an array of scipy
    if isinstance(value, Tensor):
        if not 1 <= value.ndim <= ORDERS:
            raise ArgumentError(f"argument value: got {value.ndim} axes, expected 1 to {ORDERS}")
        found = Entries(value.shape, value.coordinates(), value.values.reshape(-1))
    else:
        found = _listed(value)
    _supported(found.values)
    return tensor(found)[0]


def _listed(value: Any) -> Entries:
    """Return what a scipy matrix stores, its index arrays checked."""
    from scipy.sparse import issparse

    from spcomp.compiler.convert import sound

    matrix: Any = value
    if not issparse(value) or matrix.ndim != 2:
        raise ArgumentError(
            f"argument value: got {type(value).__name__}, expected a sparse matrix or a Tensor"
        )
    matrix = sound(matrix, "value.")
    if matrix.format not in archive.NEEDS:
        matrix = matrix.tocoo()
    arrays = {name: np.asarray(getattr(matrix, name)) for name in archive.NEEDS[matrix.format]}
    if matrix.format in ("csr", "csc", "bsr"):  # scipy lets them have room behind the entries
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
