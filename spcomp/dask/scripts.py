"""At a call of a script with a distributed operand: its program runs on each block of rows."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import dask.array as da
import numpy as np
from dask.highlevelgraph import HighLevelGraph
from dask.task_spec import Task, TaskRef
from dask.tokenize import tokenize

from spcomp.dask import blocks
from spcomp.dask.chunks import Grid
from spcomp.dask.collection import DistributedTensor
from spcomp.dask.load import collection, empty
from spcomp.dask.rows import cut_buffers
from spcomp.dask.work import run
from spcomp.errors import ArgumentError
from spcomp.ir.program import CoordFunc
from spcomp.kernels.kernel import Kernel
from spcomp.kernels.results import Results
from spcomp.schedule.schedule import Schedule

if TYPE_CHECKING:
    from spcomp.compiler.options import Options


@dataclass(frozen=True)
class Script:
    """A script that tasks run; equal ones are compiled once in a process.

    *names*: the arguments, in the order in which tasks give them.
    """

    program: Any = field(compare=False)
    options: Options = field(compare=False)
    names: tuple[str, ...] = field(compare=False)
    token: str

    def __call__(self, *args: Any) -> tuple[Any, ...]:
        """Return the results for *args*, blocks and numbers."""
        result = _kernel(self)(**dict(zip(self.names, args, strict=True)))
        return tuple(result) if isinstance(result, tuple) else (result,)


@lru_cache(maxsize=256)
def _kernel(script: Script) -> Kernel:
    return Kernel.of(script.program, script.options)


def call_script(kernel: Kernel, out: Any, named: Mapping[str, Any]) -> Any:
    """Return what *kernel* returns for *named*, one of which is distributed, as collections.

    Raises ArgumentError for a program that does not run on blocks of its rows.
    """
    if out is not None:
        raise ArgumentError("argument out: results of distributed arguments are new collections")
    (name, *more) = [n for n, x in named.items() if isinstance(x, DistributedTensor)]
    func = kernel.program.source if isinstance(kernel.program, Schedule) else kernel.program
    if not isinstance(func, CoordFunc):
        raise ArgumentError(
            f"argument {name}: only programs in coordinate space run on blocks of rows",
            hint="compute() brings it here",
        )
    cut = cut_buffers(func, name)
    written = {param.name for param in kernel.signature.params if "out" in param.kind}
    for other in (*(n for n in more if n not in cut), *(n for n in named if n in written)):
        raise ArgumentError(
            f"argument {other}: it is {'a result' if other in written else 'not cut by rows'}",
            hint="give arrays, of Dask or here, for operands that each block needs whole",
        )
    rows = named[name].chunks[0]
    buffers = {param.name for param in kernel.signature.params if param.shape or param.layout}
    given = {n: collection(n, x) for n, x in named.items() if n in buffers}
    for n in cut & given.keys():
        if given[n].shape[:1] != (sum(rows),):
            raise ArgumentError(
                f"argument {n}: got the shape {given[n].shape}, but {name} has {sum(rows)} rows"
            )
    given = {n: _aligned(x, rows if n in cut else None) for n, x in given.items()}
    return _tasks(kernel, given, {n: x for n, x in named.items() if n not in given}, cut, rows)


def _aligned(whole: Any, rows: tuple[int, ...] | None) -> Any:
    """Return the collection *whole* in blocks of these *rows*, or in one."""
    grid: Grid = tuple((extent,) for extent in whole.shape)
    return whole.rechunk((rows, *grid[1:]) if rows is not None else grid)


def _tasks(
    kernel: Kernel,
    given: Mapping[str, Any],
    numbers: Mapping[str, Any],
    cut: frozenset[str],
    rows: tuple[int, ...],
) -> Any:
    """Return the results: for each block of *rows* a task, which returns all of its results."""
    names = (*given, *numbers)
    parts = kernel.program, kernel.options, names
    script = Script(*parts, tokenize(pickle.dumps(parts)))
    metas = script(*(_meta(x, is_cut=n in cut) for n, x in given.items()), *numbers.values())
    token = tokenize(script.token, [x.name for x in given.values()], list(numbers.values()), rows)
    calls, layer = f"script-{token}", dict[Any, Any]()
    for row in range(len(rows)):
        args = [
            TaskRef((x.name, row if n in cut else 0, *(0,) * (x.ndim - 1)))
            for n, x in given.items()
        ]
        layer[calls, row] = Task((calls, row), run, script, *args, *numbers.values())
    graph = HighLevelGraph.from_collections(calls, layer, list(given.values()))
    results = kernel.signature.results
    found = tuple(
        _result(graph, calls, at, f"{name}-{token}", meta, rows)
        for at, (name, meta) in enumerate(zip(results, metas, strict=True))
    )
    return found[0] if len(found) == 1 else Results.of(results, found)


def _meta(x: Any, *, is_cut: bool) -> Any:
    """Return an argument like *x*, but without rows if it is cut; its zeros take no memory."""
    shape = (0 if is_cut else x.shape[0], *x.shape[1:]) if x.ndim else ()
    if not isinstance(x, DistributedTensor):
        return np.zeros(shape, x.dtype)
    none = [np.zeros(0, np.int64)] * x.ndim
    return blocks.like(x.meta, none, np.zeros(0, x.dtype), shape)


def _result(
    graph: HighLevelGraph, calls: str, at: int, name: str, meta: Any, rows: tuple[int, ...]
) -> Any:
    """Return the collection of the results number *at* of the tasks *calls*."""
    grid: Grid = (rows, *((extent,) for extent in meta.shape[1:]))
    layer = {}
    for row in range(len(rows)):
        key = (name, row, *(0,) * (len(grid) - 1))
        layer[key] = Task(key, _item, TaskRef((calls, row)), at)
    whole = HighLevelGraph({**graph.layers, name: layer}, {**graph.dependencies, name: {calls}})
    if isinstance(meta, np.ndarray):
        return da.Array(whole, name, grid, meta=meta)
    return DistributedTensor(whole, name, grid, empty(meta))


def _item(results: tuple[Any, ...], at: int) -> Any:
    return results[at]
