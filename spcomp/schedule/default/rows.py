"""In position space: nests that follow each other and share rows, to run as one loop over rows.

A nest that reads what an earlier one computes for the same row goes to the end of the loop of that
one (``reverse_compute_at``): the row is then still in cache, and threads meet once, not twice. Only
programs with the attribute ``fuse_rows`` are changed; index notation sets it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from spcomp.ir.access import Load
from spcomp.ir.arith.memory import reads_of, writes_of
from spcomp.ir.axis import AnyBuffer
from spcomp.ir.func import Func
from spcomp.ir.position import Block
from spcomp.ir.stmt import For, Stmt, Store
from spcomp.ir.visitor import walk
from spcomp.knobs import Knobs
from spcomp.schedule.legality.dependence import conflicts, loop_named, loops_of
from spcomp.schedule.nests.nests import blocks_of, chain, runs_once
from spcomp.schedule.steps.base import Problem, Step
from spcomp.schedule.steps.blocks.moving import ReverseComputeAt
from spcomp.schedule.steps.sharing.horizontal import siblings
from spcomp.schedule.steps.sharing.online_softmax import OnlineSoftmax, maxima

FUSE_ROWS = "fuse_rows"


@dataclass(frozen=True, slots=True)
class RowNest:
    """The decision about a nest that assigns the arrays *names*.

    *loop*: the loop over rows in whose iterations it runs. *why*: the reason that it is a loop of
    its own; empty if it runs in the loop of an earlier nest.
    """

    names: tuple[str, ...]
    loop: str
    why: str = ""

    def __str__(self) -> str:
        names = ", ".join(self.names)
        return f"{names} in the loop {self.loop}" + (f": {self.why}" if self.why else "")


@dataclass(frozen=True, slots=True)
class RowFusion:
    """The decisions about the nests of *func*, in order; *steps* carry them out."""

    func: Func
    nests: tuple[RowNest, ...] = ()
    steps: tuple[Step, ...] = ()

    def __str__(self) -> str:
        return "\n".join(map(str, self.nests))

    @property
    def heads(self) -> tuple[str, ...]:
        """The loops in which several nests run."""
        loops = [nest.loop for nest in self.nests]
        return tuple(loop for loop in dict.fromkeys(loops) if loops.count(loop) > 1)

    def apart(self, nest: For, why: str) -> RowFusion:
        """Return the decisions with *nest* as a loop of its own."""
        decision = RowNest(_assigned(nest), nest.var.name, why)
        return replace(self, nests=(*self.nests, decision))


def row_loop(nest: For) -> For:
    """Return the loop over rows of *nest*: the last of those that are around all of a row.

    Others, of a batch or over heads, are around it; all are independent.
    """
    loops, row = chain(nest)
    several = any(True for _ in loops_of(row)) and not runs_once(loops[-1])
    return loops[-1] if several and not any(map(conflicts, loops)) else nest


def row_fusion(func: Func, knobs: Knobs, *, batched: bool = False) -> RowFusion:
    """Return which nests of *func* run in the loop of an earlier one, and why the others do not.

    *batched*: rows are those inside the loops of a batch.
    """
    fusion = RowFusion(func)
    if not func.attr(FUSE_ROWS) or func.attr("horizontal_fuse"):
        return fusion
    for stmts in list(siblings(func.body)):
        head: str | None = None  # the loop over rows of the nests before
        for nest in stmts:
            if not isinstance(nest, For):
                head = None
            elif why := _no_rows(nest):
                fusion, head = fusion.apart(nest, why), None
            elif head is None:
                rows = row_loop(nest) if batched else nest
                fusion, head = fusion.apart(rows, "it is the first"), rows.var.name
            else:
                fusion = _fused(fusion, nest, head, knobs)
                head = fusion.nests[-1].loop
    return fusion


@dataclass(frozen=True, slots=True)
class Turns:
    """The decision about the softmax of each row of the loop *loop*: *step* does it in one pass.

    *what*: what that means; without a step, why there is none.
    """

    loop: str
    step: OnlineSoftmax | None
    what: str

    def __str__(self) -> str:
        if self.step is None:
            return f"not in the loop {self.loop}: {self.what}"
        return f"{self.what}, {self.step.size} elements at a time"


def softmax_turns(fusion: RowFusion, knobs: Knobs) -> tuple[Turns, ...]:
    """Return which loops over rows, of those in which several nests run, do a softmax online."""
    found: list[Turns] = []
    for loop in fusion.heads if knobs.turn_elements else ():
        rows = loop_named(fusion.func.body, loop)
        if rows is None or not maxima(rows):
            continue
        step = OnlineSoftmax(loop, knobs.turn_elements)
        plan = step.verdict(fusion.func)
        if isinstance(plan, Problem):
            found.append(Turns(loop, None, plan.message.removeprefix(f"{step}: ")))
        else:
            found.append(Turns(loop, step, str(plan)))
    return tuple(found)


def _fused(fusion: RowFusion, nest: For, head: str, knobs: Knobs) -> RowFusion:
    """Return *fusion* with *nest* in the loop *head*, if that is legal and pays."""
    func = fusion.func
    if why := _unrelated(func, head, nest, knobs):
        return fusion.apart(nest, why)
    step = ReverseComputeAt(blocks_of(nest)[0].name, head)
    after = step.result(func)
    if isinstance(after, Problem):
        return fusion.apart(nest, str(after))
    rows = loop_named(after.body, head)
    if rows is None or conflicts(rows):
        return fusion.apart(nest, f"the iterations of {head} would depend on each other")
    return RowFusion(after, (*fusion.nests, RowNest(_assigned(nest), head)), (*fusion.steps, step))


def _assigned(nest: For) -> tuple[str, ...]:
    """Return the names of the arrays that *nest* writes."""
    return tuple(dict.fromkeys(n.buffer.name for n in walk(nest) if isinstance(n, Store)))


def _no_rows(nest: For) -> str:
    """Return why *nest* does not run row by row; empty if it does."""
    if nest.kind != "serial" or not blocks_of(nest):
        return f"{nest.var.name} is {nest.kind}"
    if conflicts(nest):
        return f"the iterations of {nest.var.name} depend on each other"
    if any(isinstance(n, Block) and n.where is not None for n in walk(nest)):
        return "it runs under a condition"
    return ""


def _unrelated(func: Func, head: str, nest: For, knobs: Knobs) -> str:
    """Return why it does not pay that *nest* runs in the loop *head*; empty if it does."""
    rows = loop_named(func.body, head)
    if rows is None or not writes_of(rows) & reads_of(nest):
        return f"it reads nothing that {head} computes"
    if not any(isinstance(n, For) for n in (*walk(rows.body), *walk(nest.body))):
        return "a row is one element, and loops over elements run in vectors"
    ours, theirs = _gathered(rows), _gathered(nest)
    if knobs.gathers_apart and ours and theirs and not ours & theirs:
        names = " and of ".join(sorted(buffer.name for buffer in (ours | theirs)))
        return f"rows of {names}, at coordinates, would take each other's place in cache"
    return ""


def _gathered(nest: Stmt) -> set[AnyBuffer]:
    """Return the arrays of which *nest* reads rows at coordinates that are data."""
    return {
        load.buffer
        for load in walk(nest)
        if isinstance(load, Load)
        for index in load.indices[:-1]
        if index is not None and any(isinstance(n, Load) for n in walk(index))
    }
