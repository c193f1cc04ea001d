"""The front door of distributed tensors in files, of which each task reads a part."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from dask.highlevelgraph import HighLevelGraph
from dask.task_spec import List, Task, TaskRef
from dask.tokenize import tokenize

from spcomp.dask.chunks import by_elements, grid_of, offsets
from spcomp.dask.collection import DistributedTensor
from spcomp.dask.load import empty_matrix
from spcomp.errors import ArgumentError
from spcomp.io import parts as io
from spcomp.knobs import DASK

if TYPE_CHECKING:
    from spcomp.io.coordinates import Duplicates, Entries


def from_mtx(path: Any, chunks: Any = -1, *, duplicates: Duplicates = "error") -> DistributedTensor:
    """Return the matrix in a Matrix Market file, as blocks in csr; nothing reads the whole file.

    Args:
        path: A ``.mtx`` file, not compressed, that every worker can read. Its entries may come in
            any order: each task reads a part of the file and passes entries on to their rows.
        chunks: As in ``from_scipy``, but not by nonzeros, which are not known before.
        duplicates: What happens to an entry that is listed again: ``"error"`` or ``"sum"``.

    Raises:
        FileError: for what the header says; computing raises it for the entries.
        ArgumentError: for other arguments.
    """
    if duplicates not in ("error", "sum"):
        raise ArgumentError(f"argument duplicates: got {duplicates!r}, expected 'error' or 'sum'")
    parts = io.text_parts(path, DASK.part_bytes)
    grid = grid_of(chunks, parts.shape)
    rows, starts = grid[0], offsets(grid[0])
    token = tokenize(parts, _stamp(parts.path), rows, duplicates)
    name, layer = f"from-mtx-{token}", dict[Any, Any]()
    count = len(parts.offsets) - 1
    for at in range(count):
        key = f"entries-{token}", at
        layer[key] = Task(key, _text_pieces, parts, at, starts)
    for row in range(len(rows)):
        refs = []
        for at in range(count):
            piece = f"piece-{token}", row, at
            layer[piece] = Task(piece, _item, TaskRef((f"entries-{token}", at)), row)
            refs.append(TaskRef(piece))
        layer[name, row, 0] = Task((name, row, 0), io.block_of, parts, List(*refs), duplicates)
    graph = HighLevelGraph.from_collections(name, layer)
    meta = empty_matrix("csr", parts.dtype)
    return DistributedTensor(graph, name, (rows, (parts.shape[1],)), meta).rechunk(grid)


def _stamp(path: str) -> tuple[int, int]:
    """Return what changes when the file does."""
    status = Path(path).stat()
    return status.st_size, status.st_mtime_ns


def _text_pieces(
    parts: io.TextParts, at: int, starts: tuple[int, ...]
) -> list[tuple[Entries, int]]:
    entries, lines = io.read_text_part(parts, at)
    return [(piece, lines) for piece in io.by_rows(entries, starts)]


def _item(pieces: list[Any], at: int) -> Any:
    return pieces[at]


def from_binsparse(path: Any, chunks: Any = -1) -> DistributedTensor:
    """Return the matrix in a Binsparse file, as blocks in csr or csc, as it is stored.

    Args:
        path: A ``.bsp.h5`` file in CSR or CSC that every worker can read. Each task reads its rows,
            or columns for CSC. Needs h5py.
        chunks: As in ``from_scipy``.

    Raises:
        FileError: for what is wrong with the pointers, which are read now, or for other formats;
            computing raises it for the elements.
        ArgumentError: for other arguments.
    """
    rows, pointers = io.binsparse_rows(path)
    major = 0 if rows.format == "csr" else 1
    if isinstance(chunks, tuple) and len(chunks) == 2 and chunks[0] == "nonzeros":
        cuts = by_elements(pointers, int(chunks[1]))
        chunks = (cuts, -1) if major == 0 else (-1, cuts)
    grid = grid_of(chunks, rows.shape)
    starts = offsets(grid[major])
    name, layer = f"from-binsparse-{tokenize(rows, _stamp(rows.path), starts)}", dict[Any, Any]()
    for at in range(len(grid[major])):
        begin, end = starts[at : at + 2]
        key = (name, at, 0) if major == 0 else (name, 0, at)
        bounds = begin, end, int(pointers[begin]), int(pointers[end])
        layer[key] = Task(key, io.read_rows, rows, *bounds)
    whole = tuple(
        chunks if dim == major else (extent,)
        for dim, (chunks, extent) in enumerate(zip(grid, rows.shape, strict=True))
    )
    graph = HighLevelGraph.from_collections(name, layer)
    return DistributedTensor(graph, name, whole, empty_matrix(rows.format, rows.dtype)).rechunk(
        grid
    )
