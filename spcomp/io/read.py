"""The front door of reading: from a path to a matrix or tensor, with every byte checked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from spcomp.arrays import Array
from spcomp.errors import ArgumentError
from spcomp.io import archive, binsparse, frostt, matrix_market
from spcomp.io.numbers import cast, dtype_of
from spcomp.io.progress import progress_bar
from spcomp.io.source import Source
from spcomp.tensors.tensor import Tensor

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from scipy.sparse import csr_array

    from spcomp.io.coordinates import Duplicates

SUFFIXES = (".mtx", ".mtx.gz", ".tns", ".tns.gz", ".npz", ".bsp.h5")


def read(
    path: str | os.PathLike[str],
    *,
    duplicates: Duplicates | Literal["refuse"] = "error",
    dtype: Any = None,
    shape: Sequence[int] | None = None,
) -> csr_array | Array | Tensor:
    """Return the matrix or tensor in a file.

    Args:
        path: A Matrix Market file (``.mtx``), a FROSTT tensor (``.tns``), either compressed by gzip
            (``.gz`` behind it), an archive of scipy or :func:`spcomp.write` (``.npz``), or a
            Binsparse file (``.bsp.h5``), for which h5py has to be installed.
        duplicates: What happens to an entry that is listed again: ``"error"`` or ``"sum"``.
        dtype: The type of the values. The default is float64 for reals, patterns (as ones) and
            ``.tns``, int64 for integers, and otherwise the stored type. Only rounding to narrower
            floats may change a value.
        shape: The extents of a ``.tns`` file, which does not store them; if None, the least that
            hold its coordinates.

    Returns:
        A ``scipy.sparse.csr_array`` in canonical form (indices ascend, none repeats) for a matrix,
        a numpy array for a dense one, a :class:`spcomp.Tensor` for any other order: its first
        axis dense, the others compressed, in order.

    Raises:
        FileError: for a file that cannot be read, or breaks its format in any way; it has the
            name, the line and the reason.
        ArgumentError: for other wrong arguments.
    """
    duplicates = "error" if duplicates == "refuse" else duplicates  # as spcomp.convert says it
    if duplicates not in ("error", "sum"):
        raise ArgumentError(f"argument duplicates: got {duplicates!r}, expected 'error' or 'sum'")
    value_type, extents = dtype_of(dtype), frostt.shape_of(shape)
    kind, source = suffix(str(path)), Source(path)
    if extents is not None and kind != ".tns":
        raise ArgumentError(f"argument shape: a {kind} file has its own")
    with source.file_errors(), progress_bar(source):
        result: csr_array | Array | Tensor
        if kind == ".mtx":
            result = matrix_market.read(source, duplicates)
        elif kind == ".tns":
            result = frostt.read(source, duplicates, extents)
        elif kind == ".bsp.h5":
            result = binsparse.read(source, duplicates)
        else:
            result = archive.read(source, duplicates)
        return _with_dtype(source, result, value_type)


def _with_dtype(
    source: Source, result: csr_array | Array | Tensor, dtype: np.dtype[Any] | None
) -> csr_array | Array | Tensor:
    """Return *result* with values of *dtype*."""
    if isinstance(result, np.ndarray):
        return cast(source, result, dtype)
    if isinstance(result, Tensor):
        values = cast(source, result.values, dtype)
        return result if values is result.values else result.with_values(values)
    result.data = cast(source, result.data, dtype)
    return result


def suffix(name: str) -> str:
    """Return the ending of *name*, without ``.gz``; raises ArgumentError for an unknown one."""
    if "\0" in name:
        raise ArgumentError("argument path: got a path with a zero byte, which none has")
    for ending in SUFFIXES:
        if name.endswith(ending):
            return ending.removesuffix(".gz")
    raise ArgumentError(
        f"argument path: {name} is of no known kind", hint=f"known are {', '.join(SUFFIXES)}"
    )
