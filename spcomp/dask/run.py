"""The door to programs over distributed arguments: calls, bound ones, scripts, and plans."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import dask.array as da
from dask.utils import parse_bytes

from spcomp.dask.bound import BoundCall
from spcomp.dask.call import Call
from spcomp.dask.collection import DistributedTensor
from spcomp.dask.decide import Stage
from spcomp.dask.draw import draw
from spcomp.dask.estimate import Estimate, estimate
from spcomp.dask.scripts import call_script
from spcomp.display.picture import Picture
from spcomp.errors import ArgumentError
from spcomp.kernels.kernel import Kernel
from spcomp.kernels.notation.kernel import NotationKernel


@dataclass(frozen=True, slots=True)
class Plan:
    """What a call does: the statements, in order, as they are computed in blocks.

    *estimate*: what it costs, if the number of workers was given.
    """

    stages: tuple[Stage, ...]
    estimate: Estimate | None = None

    def __str__(self) -> str:
        return "\n".join(map(str, (*self.stages, *filter(None, [self.estimate]))))

    def picture(self) -> Picture:
        """Return the estimate as a picture: what is read, what is sent, and memory by worker.

        Raises ArgumentError for a plan without one.
        """
        if self.estimate is None:
            raise ArgumentError(
                "the plan has no estimate to draw", hint="kernel.plan(..., workers=8) has one"
            )
        return draw(self.estimate)


class Door:
    """Runs programs of index notation that get distributed tensors or arrays of Dask."""

    def call(self, kernel: NotationKernel, out: Any, named: Mapping[str, Any]) -> Any:
        """Return the results, as collections of Dask: nothing is computed yet."""
        return Call.of(kernel, out, named).returned()

    def bind(self, kernel: NotationKernel, named: Mapping[str, Any]) -> BoundCall:
        """Return *kernel* with *named* fixed, one of which is distributed."""
        return BoundCall(kernel, named)

    def script(self, kernel: Kernel, out: Any, named: Mapping[str, Any]) -> Any:
        """Return the results of a script, as collections if an argument is distributed."""
        if any(isinstance(x, DistributedTensor) for x in named.values()):
            return call_script(kernel, out, named)
        here = {n: x.compute() if isinstance(x, da.Array) else x for n, x in named.items()}
        return kernel(out=out, **here)

    def plan(self, kernel: NotationKernel, named: Mapping[str, Any]) -> Plan:
        """Return the plan of such a call.

        *named* may have ``workers``, a number: then the plan has an estimate, for which the blocks
        of operands are computed once. ``memory``: the bytes of a worker, as Dask writes them.
        Raises OutOfMemoryError if a worker needs more.
        """
        asked = {
            n: named[n] for n in ("workers", "memory") if n not in kernel.arguments and n in named
        }
        program = Call.of(kernel, None, {n: x for n, x in named.items() if n not in asked})
        stages = tuple(tasks.stage for tasks in program.tasks)
        if not asked:
            return Plan(stages)
        found = estimate(program.tasks, asked.get("workers", 1))
        if "memory" in asked:
            found.require(parse_bytes(asked["memory"]))
        return Plan(stages, found)
