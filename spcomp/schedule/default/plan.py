"""In position space: what default schedules of all targets ask of loops."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from spcomp.ir.access import Load
from spcomp.ir.analysis.exprs import from_zero, uncast, variables
from spcomp.ir.analysis.names import Names
from spcomp.ir.analysis.vectors import can_vectorize
from spcomp.ir.arith.simplify import coefficient
from spcomp.ir.axis import AnyBuffer, SparseBuffer
from spcomp.ir.expr import Const, Expr, Var
from spcomp.ir.func import Func
from spcomp.ir.node import Node
from spcomp.ir.position import Block, Merge
from spcomp.ir.rewrite import substitute
from spcomp.ir.stmt import For, Store, While
from spcomp.ir.visitor import walk
from spcomp.knobs import Knobs, knobs_of
from spcomp.schedule.default.facts import Facts
from spcomp.schedule.legality.dependence import conflicts, loop_named, loops_of
from spcomp.schedule.legality.reductions import innermost, is_dot
from spcomp.schedule.nests.nests import chain, reduction_loops, runs_once
from spcomp.schedule.steps.base import Problem, Step
from spcomp.schedule.steps.blocks.memory import sole_store
from spcomp.target import Target


class Plan:
    """A default schedule in the making: the steps so far, and the program after them.

    A decision is an iterator of steps. It chooses each step by looking at the program after the
    one before; a step is applied only if it is legal.
    """

    def __init__(
        self, func: Func, target: Target, facts: Facts, knobs: Knobs | None = None
    ) -> None:
        self.func, self.target, self.facts = func, target, facts
        self.knobs = knobs or knobs_of(target)
        self.steps: tuple[Step, ...] = ()

    def attempt(self, decision: Iterable[Step]) -> bool:
        """Apply the steps of *decision*, or none if one is not legal; whether any was applied."""
        before = self.func, self.steps
        for step in decision:
            result = step.result(self.func)
            if isinstance(result, Problem):
                self.func, self.steps = before
                return False
            self.func, self.steps = result, (*self.steps, step)
        return self.func is not before[0]

    def loop(self, name: str) -> For | None:
        """Return the loop called *name*, if it still exists."""
        return loop_named(self.func.body, name)


def outermost_legal(nest: For) -> For | None:
    """Return the outermost loop of *nest* that may run in parallel.

    A loop inside a loop over data-dependent fibers is too short to be worth a launch, and so is an
    innermost loop inside another.
    """
    loops = loops_down(nest)
    for inside, loop in zip(reversed(range(len(loops))), loops, strict=True):
        if not conflicts(loop):
            return loop
        if inside < 2 and not runs_once(loop):
            return None
    return None


def row_of(nest: For) -> For | None:
    """Return the loop of *nest* whose iterations are rows: the outermost legal one that has some.

    That is inside one which only runs once, as that over the fibers of a tensor's first level does,
    if it is alone there, and no merge is around it.
    """
    row = outermost_legal(nest)
    if row is None or not runs_once(row):
        return row
    first, *others = [x for x in loops_of(nest) if not runs_once(x)] or [row]
    within = sum(not runs_once(x) for x in loops_of(first.body))
    merged = any(first in loops_of(x) for x in walk(nest) if isinstance(x, Merge | While))
    return first if 0 < len(others) == within and not merged and not conflicts(first) else row


def is_contiguous(loop: For) -> bool:
    """Whether *loop* is innermost, legal to vectorize, and reads and writes memory in order."""
    if runs_once(loop) or any(isinstance(n, (For, While, Merge)) for n in walk(loop.body)):
        return False
    body, var = innermost(loop)
    accesses = _accesses(body)
    if not can_vectorize(body, var) or not any(var in variables(n) for n in accesses):
        return False
    if is_dot(body, var):
        return all(_in_order(n, var) or _is_gather(n, var) for n in accesses)
    return all(_in_order(n, var) for n in accesses) and not conflicts(loop)


def is_slice(loop: For) -> bool:
    """Whether *loop* is over the rows of a slice, which reads at coordinates stored in order."""
    if not isinstance(loop.end, Const) or not from_zero(loop) or not isinstance(loop.body, Block):
        return False
    body, var = innermost(loop)
    accesses = _accesses(body)
    gathers = [n for n in accesses if not _in_order(n, var)]
    if not gathers or not can_vectorize(body, var) or conflicts(loop):
        return False
    return all(_is_gather(n, var) for n in gathers)


def _accesses(body: Node) -> list[Load | Store]:
    return [n for n in walk(body) if isinstance(n, (Load, Store))]


def _in_order(access: Load | Store, var: Var) -> bool:
    """Whether *access* moves by one element, or not at all, when *var* moves by one."""
    places = [k for k, i in enumerate(access.indices) if i is not None and var in variables(i)]
    if not places:
        return True
    index = access.indices[places[-1]]
    assert index is not None
    if len(places) > 1 or not _is_last(access.buffer, places[-1]):
        return False
    return _unit(access.buffer, index, var)


def _is_last(buffer: AnyBuffer, place: int) -> bool:
    """Whether elements that differ by one in the index at *place* are neighbours in memory."""
    if not isinstance(buffer, SparseBuffer):
        return place == len(buffer.shape) - 1
    behind = [axis.length for axis in buffer.axes[place + 1 :] if not axis.is_sparse]
    return len(behind) == len(buffer.axes) - place - 1 and all(
        isinstance(length, Const) and length.value == 1 for length in behind
    )


def _is_gather(access: Load | Store, var: Var) -> bool:
    """Whether *access* moves with *var* only as the values of an array do, read in order."""
    moving = [i for i in access.indices if i is not None and var in variables(i)]
    loads = [uncast(index) for index in moving]
    return all(isinstance(i, Load) and _in_order(i, var) for i in loads)


def _unit(buffer: AnyBuffer, index: Expr, var: Var) -> bool:
    if isinstance(buffer, SparseBuffer) or buffer.strides is None:
        return coefficient(index, var) == 1
    return False


def picks(block: Block) -> set[Var]:
    """The loops that pick the element that *block* stores."""
    stores = [n for n in walk(block.body) if isinstance(n, Store)]
    indices = [i for store in stores for i in store.indices if i is not None]
    return {var for index in indices for var in variables(substitute(index, block.values))}


def loops_down(loop: For) -> list[For]:
    """Return *loop* and the loops nested perfectly in it, outermost first."""
    return chain(loop)[0]


def pieces(func: Func, loop: str, ends: str) -> tuple[str, ...]:
    """Return the names of the loops in which *loop* is split, each with one of *ends*."""
    names = Names(func)
    return tuple(names.var(f"{loop}_{end}").name for end in ends)


def base_name(name: str) -> str:
    """Return *name* without the number that tells it from others of the same name."""
    head, _, tail = name.rpartition("_")
    return head if tail.isdigit() and head else name


@dataclass(frozen=True, slots=True)
class TileNest:
    """A block whose innermost loop runs along memory, and may run inside the loops that reduce.

    *spatial*: the loops between these that pick elements, to go outside; *reductions*: the others.
    """

    block: Block
    spatial: tuple[str, ...]
    reductions: tuple[str, ...]


def tile_nest(func: Func, name: str) -> TileNest | None:
    """Return the nest around the loop *name*; None if no tile of it stays in registers."""
    loop = loop_named(func.body, name)
    reducing = reduction_loops(func)
    if loop is None or loop.var in reducing or not from_zero(loop):
        return None
    if not isinstance(loop.body, Block):
        return None
    loops = next(loops for loops in map(loops_down, loops_of(func.body)) if loop in loops)
    picking = picks(loop.body) & reducing  # each iteration of these updates its own element
    begin = max((k + 1 for k, x in enumerate(loops) if x.var in picking), default=0)
    first = next((k for k in range(begin, len(loops)) if loops[k].var in reducing), len(loops))
    inside = loops[first:-1]
    if loops[-1] is not loop or not inside or sole_store(loop.body) is None:
        return None
    spatial = tuple(x.var.name for x in inside if x.var not in reducing)
    return TileNest(loop.body, spatial, tuple(x.var.name for x in inside if x.var in reducing))
