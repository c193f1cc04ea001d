"""In position space: the default schedule on GPUs of nests that update the rows of sorted lists.

These are the parts of a composable format, and the relations of a tensor. A row may be in several
of them, so none may run at the same time as another; but each row can gather what it gets.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from spcomp.ir.expr import Const
from spcomp.ir.stmt import For
from spcomp.schedule.default.plan import base_name
from spcomp.schedule.default.scatter import outermost
from spcomp.schedule.legality.dependence import loops_of
from spcomp.schedule.nests.nests import runs_once
from spcomp.schedule.steps.loops.bind import Bind
from spcomp.schedule.steps.loops.loops import Parallel, Unroll, Vectorize
from spcomp.schedule.steps.loops.tiling import Reorder, Split
from spcomp.schedule.steps.sharing.gather_rows import GatherRows
from spcomp.schedule.steps.sharing.horizontal import siblings

if TYPE_CHECKING:
    from collections.abc import Callable

    from spcomp.ir.func import Func
    from spcomp.knobs import GridKnobs
    from spcomp.schedule.default.facts import Facts
    from spcomp.schedule.default.plan import Plan
    from spcomp.schedule.steps.base import Step

    Shares = Callable[[For], tuple[int, int]]


def gathers(
    func: Func, facts: Facts, grid: GridKnobs, shares: Shares
) -> Iterator[tuple[GatherRows, int]]:
    """Yield the steps with which the rows of *func* gather what lists have for them.

    With each comes how many threads are side by side in a row. *shares*: how many neighbours of a
    row, in the loop over its elements, a thread has, and that number.
    """
    for stmts in siblings(func.body):
        nests = [x for x in stmts if isinstance(x, For)]
        if len(nests) < 2 or len(nests) < len(stmts):
            continue
        rows, *parts = nests
        several = [x for x in parts if not runs_once(x)]  # lists: finding rows in all must pay
        if not facts.full if several else not func.attr("horizontal_fuse"):
            continue
        inner = list(loops_of(rows))[1:]
        width, threads = shares(inner[0]) if inner else (1, 1)
        sizes = {x: _entry(x, columns=any(not runs_once(x) for x in inner)) for x in parts}
        widest = max(sizes.values())
        apart = [
            x.var.name for x in parts if x in several or grid.entry_elements <= widest == sizes[x]
        ]
        names = tuple(x.var.name for x in nests)
        yield GatherRows(names, width, apart=tuple(apart)), threads


def _entry(nest: For, *, columns: bool) -> int:
    """Return how many elements an entry of the list of *nest* has; 0 where that is data."""
    inside = [x.end for x in loops_of(nest) if not runs_once(x)][1:]
    inside = inside[:-1] if columns else inside
    return int(inside[0].value) if len(inside) == 1 and isinstance(inside[0], Const) else 0


def gathered(plan: Plan, step: GatherRows, threads: int, grid: GridKnobs) -> Iterator[Step]:
    """Yield *step*, and those that run its nests on groups of *threads*."""
    before = {x.var.name for x in loops_of(plan.func.body)} - {step.loops[0]}
    yield step
    for nest in [x for x in outermost(plan.func.body) if x.var.name not in before]:
        if any(_is_lane(x) for x in loops_of(nest)):
            yield from _on_groups(nest, step.width, threads, grid)
        else:
            yield Parallel(nest.var.name)


def _on_groups(nest: For, width: int, threads: int, grid: GridKnobs) -> Iterator[Step]:
    """Yield steps that run each row of *nest* on a group of threads, or on one of them."""
    row, *inside = loops_of(nest)
    name = row.var.name
    lanes = [x for x in inside if _is_lane(x)]
    around = [x for x in inside if any(x.body is lane for lane in lanes)]
    if width > 1:
        yield from (Vectorize(x.var.name) for x in lanes)
    for loop in around:
        fiber = next((x for x in inside if x.body is loop and not isinstance(x.end, Const)), None)
        yield from _copies(loop, fiber, grid)
    if threads > 1:
        tile = inside[0].var.name
        yield Split(tile, threads)
        yield Bind(f"{tile}_o", "blockIdx.y")
        yield Bind(f"{tile}_i", "threadIdx.x")
    yield Split(name, max(1, grid.block_threads // threads))
    yield Bind(f"{name}_o", "blockIdx.x")
    yield Bind(f"{name}_i", "threadIdx.y" if threads > 1 else "threadIdx.x")


def _copies(loop: For, fiber: For | None, grid: GridKnobs) -> Iterator[Step]:
    """Yield steps that write out trips of *loop*, each for several elements of the *fiber* around.

    These load at the same time, and share what they read of others.
    """
    name, size = loop.var.name, int(loop.end.value) if isinstance(loop.end, Const) else 0
    most = grid.element_copies if fiber is None else grid.element_copies // 2
    copies = next((n for n in range(most, 1, -1) if size > n and size % n == 0), 0)
    if not copies:
        yield Unroll(name)
        return
    yield Split(name, copies)
    yield Unroll(f"{name}_i")
    if fiber is not None:
        elements = fiber.var.name
        yield Split(elements, grid.fiber_copies)
        yield Reorder((f"{name}_o", f"{elements}_i", f"{name}_i"))
        yield Unroll(f"{elements}_i")


def _is_lane(loop: For) -> bool:
    """Whether *loop* runs over the elements of a row that a thread has."""
    return base_name(loop.var.name).endswith("_lane")
