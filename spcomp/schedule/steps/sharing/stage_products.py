"""In position space: the step stage_products, which adds up short rows without a loop for each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from spcomp.ir.access import Load
from spcomp.ir.analysis.names import Names
from spcomp.ir.func import Func
from spcomp.ir.visitor import walk
from spcomp.schedule.nests.nests import find_loop, replace_stmt
from spcomp.schedule.steps.base import Problem, Step
from spcomp.schedule.steps.blocks.memory import MAX_ELEMENTS
from spcomp.schedule.steps.sharing.row_groups import RowGroup


@dataclass(frozen=True, slots=True)
class StageProducts(Step):
    """``for i: for j in row(i): W[i] op= x  ->  for g: for p: t[p] = x; for i in g: W[i] op= t``.

    For groups of *rows* rows. The elements of a group follow each other in memory: ``p`` runs over
    all of them, in vectors if asked to, and no processor has to guess where a row ends. Then each
    row adds up its part of ``t``. Groups of more than *most* elements, and those whose halves have
    about as many, as where nearly all rows have the same length, run row by row, as do all groups
    of fewer than *least* rows, whose lengths a processor learns.

    With *abreast*, groups of *rows* rows are staged even if their halves are alike, unless rows
    have that many elements, too, on average: these fill vectors. Where no row has more than
    *abreast* elements, rows add up theirs side by side, a term of each in turn: in vectors, if
    these gather fast from the nearest cache, no row needs a sum of its own.

    All of this depends on the data only. Legal where each row starts from a number and updates one
    element by an associative operation, and what it adds depends on the row by stored elements
    alone. Source: segmented sums (Blelloch, Heroux and Zagha, 1993).
    """

    name: ClassVar[str] = "stage_products"
    loop: str
    inner: str
    rows: int
    most: int
    least: int = 0
    abreast: int = 0

    @property
    def size(self) -> int:
        """The number of rows of a group."""
        return self.rows

    def gathers(self, func: Func) -> bool:
        """Whether the step is legal, and what rows add is read at coordinates that are data."""
        plan = self.verdict(func)
        if isinstance(plan, Problem):
            return False
        loads = (n for n in walk(plan.product) if isinstance(n, Load))
        return any(isinstance(n, Load) for x in loads for i in x.indices if i for n in walk(i))

    def plan(self, func: Func) -> RowGroup:
        """Return how a group of rows is done."""
        loop, inner = (find_loop(func, name, self) for name in (self.loop, self.inner))
        if not 1 <= self.most <= MAX_ELEMENTS:
            raise self.error(f"most must lie between 1 and {MAX_ELEMENTS}", loop)
        if self.abreast < 0:
            raise self.error("abreast must not be negative", loop)
        return RowGroup(self, func, loop, inner)

    def rewrite(self, func: Func, plan: RowGroup) -> Func:
        """Return *func* with the loop over groups."""
        return replace_stmt(
            func, plan.loop, plan.build_groups(Names(func), self.most, self.least, self.abreast)
        )
