"""In position space: the default schedule on GPUs of reductions by sorted keys."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from spcomp.ir.analysis.names import Names
from spcomp.ir.func import Func
from spcomp.ir.stmt import For
from spcomp.knobs import CUDA_GRID
from spcomp.schedule.legality.dependence import loops_of
from spcomp.schedule.nests.nests import chain, runs_once
from spcomp.schedule.steps.base import Step
from spcomp.schedule.steps.loops.bind import Bind
from spcomp.schedule.steps.loops.loops import Vectorize
from spcomp.schedule.steps.loops.tiling import Split
from spcomp.schedule.steps.sharing.list_runs import ListRuns
from spcomp.schedule.steps.sharing.segments import sorted_keys
from spcomp.schedule.steps.sharing.split_runs import SplitRuns


def key_parts(func: Func, nest: For, shares: Callable[[For], tuple[int, int]]) -> Iterator[Step]:
    """Yield steps that cut a loop over sorted keys in *nest* into parts with equally many elements.

    Groups of threads have a part each, and the threads of a group some columns each, as *shares*
    says of the loop over them: how many neighbours a thread has, and how many threads there are.
    """
    loop = next((x for x in loops_of(nest) if sorted_keys(func, x) is not None), None)
    if loop is None:
        return
    around, columns = chain(loop)[0][1:-1], chain(loop)[0][-1]
    if not all(map(runs_once, around)):
        return  # blocks that share the columns inside other loops are not proved to be apart
    name, column = loop.var.name, columns.var.name
    if columns is loop or runs_once(columns):
        yield SplitRuns(name, CUDA_GRID.own_key_elements, CUDA_GRID.block_threads, at_once=8)
        return
    width, threads = shares(columns)
    names = Names(func)
    pieces = (names.var(f"{column}_{end}").name for end in ("012" if width > 1 else "oi"))
    blocks, lanes, *own = pieces
    yield Split(column, (None, threads, width) if own else threads)
    yield Bind(blocks, "blockIdx.y")
    yield Bind(lanes, "threadIdx.x")
    for piece in own:
        yield Vectorize(piece)
    groups = max(1, CUDA_GRID.block_threads // threads)
    if threads >= CUDA_GRID.key_threads:
        yield ListRuns(name, CUDA_GRID.run_elements, groups, at_once=8)
    else:
        yield SplitRuns(name, CUDA_GRID.own_key_elements, groups)
