"""Steps that move a block into a loop of the blocks it feeds, or that feed it: compute_at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from spcomp.errors import Span
from spcomp.ir.func import Func
from spcomp.ir.visitor import statements
from spcomp.schedule.nests.nests import find_loop
from spcomp.schedule.nests.sites import site_of
from spcomp.schedule.steps.base import Makes, Step
from spcomp.schedule.steps.blocks.consuming import Consumer
from spcomp.schedule.steps.blocks.producing import Producer


@dataclass(frozen=True, slots=True)
class ReverseComputeAt(Step):
    """``for i: X[i] = f; for a: Y[a] = X[a]  ->  for i: X[i] = f; Y[i] = X[i]``.

    The nest of *block* goes to the end of *loop*, where it runs for the elements that an iteration
    has computed. Loops that are left with one iteration stay if *preserve_unit_loops*. Buffers that
    only *loop* then needs are allocated in it. Legal where every iteration of the block runs once,
    and its inputs are complete at the end of one iteration of *loop*. A block that is in *loop*
    stays where it is: what other steps make, TVM has in nests of its own. Source: TVM's
    reverse_compute_at.
    """

    name: ClassVar[str] = "reverse_compute_at"
    makes: ClassVar[Makes] = "blocks"
    block: str
    loop: str
    preserve_unit_loops: bool = False

    def apply(self, func: Func, span: Span | None = None) -> Func:
        """Return *func* with the block in the loop."""
        site = site_of(func, self.block, self, span)
        loop = find_loop(func, self.loop, self, span)
        if any(node is site.block for node in statements(loop.body)):
            return func
        move = Consumer(
            self, func, site, loop, span or site.block.span, keeps_units=self.preserve_unit_loops
        )
        return move.moved()


@dataclass(frozen=True, slots=True)
class ComputeAt(Step):
    """``for a: X[a] = f; for i: s(X[i:i+3])  ->  for i: for b in 3: X[i+b] = f; s(X[i:i+3])``.

    The nest of *block* goes to the start of *loop* and computes there what an iteration reads.
    Loops that are left with one iteration stay if *preserve_unit_loops*. The buffer is then
    allocated in *loop*. Legal where *block* writes just one buffer, allocated here, that only
    *loop* reads, and computing an element again gives the same. Source: TVM's compute_at.
    """

    name: ClassVar[str] = "compute_at"
    makes: ClassVar[Makes] = "blocks"
    block: str
    loop: str
    preserve_unit_loops: bool = False

    def apply(self, func: Func, span: Span | None = None) -> Func:
        """Return *func* with the block in the loop."""
        site = site_of(func, self.block, self, span)
        loop = find_loop(func, self.loop, self, span)
        move = Producer(
            self, func, site, loop, span or site.block.span, keeps_units=self.preserve_unit_loops
        )
        return move.moved()
