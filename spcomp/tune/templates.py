"""Under the tuner: what may be decided of a schedule, for each kind of target.

A template is the default schedule with decisions left open, so that each of its traces is legal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from spcomp.knobs import CUDA_GRID, Knobs, knobs_of
from spcomp.runtime.pool import get_num_threads
from spcomp.schedule.default import cpu, cuda
from spcomp.schedule.default.facts import UNKNOWN, Facts
from spcomp.schedule.legality.dependence import loops_of
from spcomp.schedule.nests.nests import reduction_loops
from spcomp.schedule.steps.base import Problem
from spcomp.schedule.steps.loops.loops import Unroll

if TYPE_CHECKING:
    from spcomp.ir.func import Func
    from spcomp.ir.program import PosFunc
    from spcomp.schedule.steps.base import Step
    from spcomp.target import Target, TargetKind

Value: TypeAlias = int | str
Decisions: TypeAlias = Mapping[str, Value]
Scheduled: TypeAlias = "tuple[Func, tuple[Step, ...]]"

DEFAULT = "default"  # the value of a decision that the default schedule makes
_NEVER = 1 << 60  # bytes: nothing is worth a prefetch
_CUTS = frozenset(
    {"horizontal_fuse", "split_nnz", "split_sorted", "sorted_rows", "partial_results"}
)
_CHANGED = "rows"  # stands among names of steps where other shares of rows change the steps
_KNOBS: Mapping[str, tuple[str, ...]] = {  # the thresholds that a decision is the value of
    "tile": ("tile_vectors", "stream_vectors"),
    "chunk": ("chunk_elements", "chunk_nested", "chunk_sorted", "chunk_workspace"),
    "hub": ("hub_piece",),
    "scatter": ("scatter_parts",),
    "together": ("staged_rows",),
}


@dataclass(frozen=True, slots=True)
class Template:
    """The default schedule of a kind of target, with decisions left open.

    *values*: of each decision; the first is what the default schedule does. *needs*: for some
    decisions, the steps of which one has to be there for the decision to matter. *cut*: the value
    of ``rows`` that shows what else may be there. *threads*: returns how many a call uses, of a
    number that may be decided. *steps*: schedules a function as decided.
    """

    values: Mapping[str, tuple[Value, ...]]
    needs: Mapping[str, frozenset[str]]
    cut: str
    threads: Callable[[], int]
    steps: Callable[[PosFunc, Target, Facts, Decisions], Scheduled]

    def relevant(self, plain: object, cut: object, steps: set[str]) -> list[str]:
        """Return the decisions that matter where *steps* are in the schedules *plain* or *cut*."""
        there = steps | ({_CHANGED} if plain != cut else set())
        return [name for name in self.values if there & self.needs.get(name, there)]

    def schedule(
        self, func: PosFunc, target: Target, facts: Facts, decisions: Decisions
    ) -> Scheduled:
        """Return *func* scheduled as decided, and the steps."""
        last, steps = self.steps(func, target, facts, decisions)
        if decisions.get("unroll") == "sparse":
            for loop in _reducing(last):
                step = Unroll(loop)
                after = step.result(last)
                if not isinstance(after, Problem):
                    last, steps = after, (*steps, step)
        return last, steps


def _cpu(func: PosFunc, target: Target, facts: Facts, decisions: Decisions) -> Scheduled:
    rows = {
        "equal": UNKNOWN,
        "balanced": Facts(skewed=True),
        "hubs": Facts(hubs=True, skewed=True),
    }
    known = rows.get(str(decisions.get("rows")), facts)
    return cpu.default_schedule(func, target, known, _thresholds(target, decisions))


def _cuda(func: PosFunc, target: Target, facts: Facts, decisions: Decisions) -> Scheduled:
    if (rows := decisions.get("rows")) is not None:
        facts = replace(facts, hubs=rows == "hubs")
    if (row := decisions.get("row")) is not None:
        facts = replace(facts, row=int(row), few=False)
    if "hub" in decisions:
        facts = replace(facts, piece=0)
    block = int(decisions.get("block", CUDA_GRID.block_threads))
    grid = replace(CUDA_GRID, block_threads=block)
    return cuda.default_schedule(func, target, facts, _thresholds(target, decisions), grid)


def _thresholds(target: Target, decisions: Decisions) -> Knobs:
    """Return the thresholds for *target* with those that *decisions* change."""
    changed: dict[str, Any] = {}
    for name in _KNOBS.keys() & decisions.keys():
        changed |= dict.fromkeys(_KNOBS[name], decisions[name])
    if (ahead := decisions.get("prefetch")) is not None:
        changed |= dict.fromkeys(("prefetch_distance", "prefetch_distance_least"), ahead or 1)
        least = 0 if ahead else _NEVER
        changed |= {"prefetch_bytes_least": least, "prefetch_bytes_dot": least}
    if "together" in decisions:
        changed["staged_least"] = 0
    return replace(knobs_of(target), **changed)


def _reducing(func: Func) -> list[str]:
    """Return the names of serial loops that reduce, and have none inside that does."""
    reducing = reduction_loops(func)
    names = []
    for loop in loops_of(func.body):
        inner = any(x.var in reducing for x in loops_of(loop.body))
        if loop.var in reducing and loop.kind == "serial" and not inner:
            names.append(loop.var.name)
    return names


TEMPLATES: Mapping[TargetKind, Template] = {
    "cpu": Template(
        values={
            "tile": (DEFAULT, 1, 2, 4, 8, 12, 16),  # vectors of accumulators
            "prefetch": (DEFAULT, 0, 4, 8, 16, 32, 64),  # positions ahead; 0: none
            "rows": (DEFAULT, "equal", "balanced", "hubs"),  # by rows, elements, pieces of rows
            "chunk": (DEFAULT, 512, 1024, 2048, 4096, 8192, 16384, 65536),  # elements of a share
            "hub": (DEFAULT, 512, 2048, 8192, 32768),  # elements of a piece of a long row
            "scatter": (DEFAULT, 1, 2, 8, 16),  # parts of scattered rows
            "unroll": (DEFAULT, "sparse"),  # innermost loops that reduce over stored elements
            "together": (DEFAULT, 0, 8, 32),  # short rows in a group; 0: row by row
        },
        needs={
            "tile": frozenset({"cache_write"}),
            "together": frozenset({"stage_products"}),
            "rows": frozenset({_CHANGED, "split_nnz"}),
            "chunk": _CUTS,
            "hub": frozenset({_CHANGED, "split_hubs"}),
            "scatter": frozenset({"lift_loop"}),
        },
        cut="balanced",
        threads=get_num_threads,
        steps=_cpu,
    ),
    "cuda": Template(
        values={
            "row": (DEFAULT, 2, 4, 8, 16, 32, 64, 128),  # elements that a row is taken to have
            "block": (DEFAULT, 32, 64, 256, 512),  # threads of a block
            "rows": (DEFAULT, "equal", "hubs"),  # rows as they are, and long ones in pieces
            "hub": (DEFAULT, 64, 1024, 4096),  # elements of a piece of a long row
            "chunk": (DEFAULT, 32, 128, 512, 2048),  # elements of a share
            "unroll": (DEFAULT, "sparse"),
        },
        needs={
            "row": frozenset({"bind"}),
            "block": frozenset({"bind"}),
            "rows": frozenset({_CHANGED, "split_rows"}),
            "hub": frozenset({_CHANGED, "split_rows"}),
            "chunk": _CUTS,
        },
        cut="hubs",
        threads=partial(int, 1),
        steps=_cuda,
    ),
}
