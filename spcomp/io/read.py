"""The front door of reading: a path to a matrix or tensor, every byte of its file checked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from spcomp.compiler.tensor import Tensor
from spcomp.errors import ArgumentError
from spcomp.io import archive, binsparse, frostt, matrix_market
from spcomp.io.numbers import cast, wanted
from spcomp.io.progress import watched
from spcomp.io.source import Source

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from scipy.sparse import csr_array

    from spcomp.io.coordinates import Duplicates

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
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
        duplicates: What becomes of an entry that is listed again: ``"error"`` or ``"sum"``.
        dtype: The type of the values, if not that of the file: float64 (reals, patterns as ones,
            and ``.tns``), int64 (integers), the stored one (else). No value may change but
            by rounding to narrower floats.
        shape: The extents of a ``.tns`` file, which does not have them; the least that hold its
            coordinates if None.

    Returns:
        A ``scipy.sparse.csr_array`` in canonical form (indices ascend, none repeats) for a matrix,
        a numpy array for a dense one, a :class:`spcomp.Tensor` for any other order: its first
        axis dense, the others compressed, in order.

    Raises:
        FileError: for a file that cannot be read, or breaks its format in any way; with its name,
            the line and the reason.
        ArgumentError: for other arguments that are none of the above.
    """
    duplicates = "error" if duplicates == "refuse" else duplicates  # as spcomp.convert says it
    if duplicates not in ("error", "sum"):
        raise ArgumentError(f"argument duplicates: got {duplicates!r}, expected 'error' or 'sum'")
    asked, extents = wanted(dtype), frostt.shape_of(shape)
    kind, source = suffix(str(path)), Source(path)
    if extents is not None and kind != ".tns":
        raise ArgumentError(f"argument shape: a {kind} file has its own")
    with source.blamed(), watched(source):
        found: csr_array | Array | Tensor
        if kind == ".mtx":
            found = matrix_market.read(source, duplicates)
        elif kind == ".tns":
            found = frostt.read(source, duplicates, extents)
        elif kind == ".bsp.h5":
            found = binsparse.read(source, duplicates)
        else:
            found = archive.read(source, duplicates)
        return _typed(source, found, asked)


def _typed(
    source: Source, found: csr_array | Array | Tensor, dtype: np.dtype[Any] | None
) -> csr_array | Array | Tensor:
    """Return *found* with values of *dtype*."""
    if isinstance(found, np.ndarray):
        return cast(source, found, dtype)
    if isinstance(found, Tensor):
        values = cast(source, found.values, dtype)
        return found if values is found.values else found.with_values(values)
    found.data = cast(source, found.data, dtype)
    return found


def suffix(name: str) -> str:
    """Return the ending of *name* that says what is in it, without ``.gz``; else ArgumentError."""
    if "\0" in name:
        raise ArgumentError("argument path: got a path with a zero byte, which none has")
    for ending in SUFFIXES:
        if name.endswith(ending):
            return ending.removesuffix(".gz")
    raise ArgumentError(
        f"argument path: {name} is of no known kind", hint=f"known are {', '.join(SUFFIXES)}"
    )
