"""In position space: the steps compute_at and reverse_compute_at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

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
    has computed. Loops with one iteration are kept only if *preserve_unit_loops*. Buffers that only
    *loop* then needs are allocated in it. Legal where every iteration of the block runs once, and
    its inputs are complete at the end of one iteration of *loop*. A block that is already in *loop*
    stays where it is: unlike TVM, other steps may have put it there. Source: TVM's
    reverse_compute_at.
    """

    name: ClassVar[str] = "reverse_compute_at"
    makes: ClassVar[Makes] = "blocks"
    block: str
    loop: str
    preserve_unit_loops: bool = False

    def plan(self, func: Func) -> Func:
        """Return *func* with the block in the loop; only that shows whether its order is legal."""
        site = site_of(func, self.block, self)
        loop = find_loop(func, self.loop, self)
        if any(node is site.block for node in statements(loop.body)):
            return func
        return Consumer(self, func, site, loop, keeps_units=self.preserve_unit_loops).build()


@dataclass(frozen=True, slots=True)
class ComputeAt(Step):
    """``for a: X[a] = f; for i: s(X[i:i+3])  ->  for i: for b in 3: X[i+b] = f; s(X[i:i+3])``.

    The nest of *block* goes to the start of *loop* and computes there what an iteration reads.
    Loops with one iteration are kept only if *preserve_unit_loops*. The buffer is then allocated in
    *loop*. Legal where *block* writes just one buffer, which the program allocates and only *loop*
    reads, never from earlier iterations of loops around both, and computing an element twice gives
    the same. Source: TVM's compute_at.
    """

    name: ClassVar[str] = "compute_at"
    makes: ClassVar[Makes] = "blocks"
    block: str
    loop: str
    preserve_unit_loops: bool = False

    def plan(self, func: Func) -> Func:
        """Return *func* with the block in the loop; that shows if loops may still run at once."""
        site = site_of(func, self.block, self)
        loop = find_loop(func, self.loop, self)
        return Producer(self, func, site, loop, keeps_units=self.preserve_unit_loops).build()
