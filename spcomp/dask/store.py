"""The front door of collections in folders: blocks are written and read one by one, in waves."""

from __future__ import annotations

import json
import shutil
import uuid
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
from dask.highlevelgraph import HighLevelGraph
from dask.task_spec import Task, TaskRef
from dask.tokenize import tokenize
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from spcomp.arrays import Array
from spcomp.dask.chunks import Grid, grid_of
from spcomp.dask.collection import DistributedTensor, Values
from spcomp.dask.estimate import size
from spcomp.dask.load import empty, known_chunks
from spcomp.errors import ArgumentError, FileError
from spcomp.formats.format import Format
from spcomp.io.read import read as read_file
from spcomp.io.write import write as write_file
from spcomp.tensors.convert import convert
from spcomp.tensors.tensor import Tensor

ABOUT, UNFINISHED = "about.json", "unfinished-"  # the latter are left by workers that died


def write(path: Any, collection: Any, *, wave: int | None = None, progress: bool = False) -> None:
    """Write a collection to the folder *path*, a file for each block: completely, or not at all.

    Args:
        path: A folder that is not there yet, which every worker can write to. It gets this name
            when all blocks are written.
        collection: A DistributedTensor, or an array of Dask with known chunks.
        wave: The blocks that are computed and written before the next ones begin, which bounds the
            memory; None: all at once, as Dask orders them.
        progress: Whether a bar tells after each wave, on stderr, how many blocks are written, and
            how many bytes in a second.

    Raises:
        ArgumentError: for a folder that is there, and other arguments.
        SpcompError: that of a block which cannot be computed or written.
    """
    folder = Path(path)
    if not isinstance(collection, (DistributedTensor, da.Array)):
        raise ArgumentError(f"argument collection: got {type(collection).__name__}")
    if (dtype := np.dtype(collection.dtype)).kind not in "biufc":
        raise ArgumentError(f"argument collection: its elements are {dtype}, no numbers")
    if wave is not None and (not isinstance(wave, int) or wave < 1):
        raise ArgumentError(f"argument wave: got {wave!r}, expected a number of blocks")
    if folder.exists():
        raise ArgumentError(f"argument path: {folder} is there already")
    places = list(np.ndindex(*collection.numblocks))
    about = _about(collection)
    temporary = folder.with_name(f".{uuid.uuid4().hex}.tmp")
    try:
        temporary.mkdir()
        step = wave or max(len(places), 1)
        with _bar(len(places), disable=not progress) as bar:
            for first in range(0, len(places), step):
                _write_wave(collection, places[first : first + step], temporary)
                seconds = bar.tasks[0].elapsed or 1e-9
                count = sum(file.stat().st_size for file in temporary.iterdir()) if progress else 0
                done = min(first + step, len(places))
                bar.update(bar.tasks[0].id, completed=done, rate=f"{size(count / seconds)}/s")
        for left in temporary.glob(f"{UNFINISHED}*"):
            left.unlink()
        (temporary / ABOUT).write_text(json.dumps(about), encoding="utf-8")
        temporary.rename(folder)
    except OSError as error:
        raise ArgumentError(f"argument path: {folder} cannot be written: {error}") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _bar(blocks: int, *, disable: bool) -> Progress:
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    bar = Progress(
        *columns, TextColumn("{task.fields[rate]}"), console=Console(stderr=True), disable=disable
    )
    bar.add_task("blocks", total=blocks, rate="")
    return bar


def _about(collection: Any) -> dict[str, Any]:
    kind = "dense"
    if isinstance(collection, DistributedTensor):
        meta = collection.meta
        kind = str(meta.layout) if isinstance(meta, Tensor) else meta.format
    chunks = known_chunks("collection", collection)
    return {"format": kind, "dtype": np.dtype(collection.dtype).name, "chunks": chunks}


def _write_wave(collection: Any, places: list[tuple[int, ...]], folder: Path) -> None:
    name = f"write-{tokenize(collection.name, str(folder))}"
    ending = ".npz" if isinstance(collection, DistributedTensor) else ".npy"
    layer: dict[Any, Any] = {}
    for at in places:
        file = folder / _file(at, ending)
        layer[name, *at] = Task((name, *at), _write, TaskRef((collection.name, *at)), file)
    graph = HighLevelGraph.from_collections(name, layer, [collection])
    Values(graph, list(layer)).compute()


def _file(at: tuple[int, ...], ending: str) -> str:
    return "-".join(map(str, ("part", *at))) + ending


def _write(block: Any, file: Path) -> None:
    """Write *block* to *file*, which is there when it is whole.

    A task may run again, on another worker, while the first one still writes.
    """
    part = file.with_name(f"{UNFINISHED}{uuid.uuid4().hex}{file.suffix}")
    if file.suffix == ".npy":
        array = np.asarray(block)
        np.save(part, array.astype(array.dtype.newbyteorder("="), copy=False), allow_pickle=False)
    else:
        write_file(part, block)
    part.replace(file)


def read(path: Any) -> Any:
    """Return the collection in the folder *path*, as ``write`` left it; its blocks are tasks.

    Raises FileError for a folder that is none of ``write``; computing raises it for files.
    """
    folder = Path(path)
    try:
        about = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
        dtype, kind = np.dtype(about["dtype"]), str(about["format"])
        sizes = [tuple(chunks) for chunks in about["chunks"]]
        grid = grid_of(sizes, [sum(chunks) for chunks in sizes])
    except (OSError, ValueError, TypeError, LookupError, ArgumentError) as error:
        raise FileError(f"{folder}: it has no tensor in blocks: {error}") from None
    stamp = (folder / ABOUT).stat().st_mtime_ns
    name, layer = f"read-{tokenize(str(folder), about, stamp)}", dict[Any, Any]()
    form = kind if kind in ("dense", "csr", "csc") else Format.parse(kind, len(grid))
    ending = ".npy" if kind == "dense" else ".npz"
    for at in np.ndindex(*map(len, grid)):
        shape = tuple(chunks[k] for chunks, k in zip(grid, at, strict=True))
        file = folder / _file(at, ending)
        layer[name, *at] = Task((name, *at), _read, file, form, shape, dtype)
    graph = HighLevelGraph.from_collections(name, layer)
    return _collection(graph, name, grid, form, dtype)


def _collection(graph: Any, name: str, grid: Grid, form: Any, dtype: np.dtype[Any]) -> Any:
    if form == "dense":
        return da.Array(graph, name, grid, dtype=dtype)
    meta = empty(convert(np.zeros((1,) * len(grid), dtype), form))
    return DistributedTensor(graph, name, grid, meta)


def _read(file: Path, form: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
    block = _load(file) if form == "dense" else convert(read_file(file), form)
    if block.shape != shape or block.dtype != dtype:
        raise FileError(f"{file}: it has {block.dtype} of {block.shape}, not {dtype} of {shape}")
    return block


def _load(file: Path) -> Array:
    try:
        loaded: Array = np.load(file, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise FileError(f"{file}: it is damaged or not there: {error}") from None
    return loaded
