"""In position space: the step stage_products, which adds up short rows without a loop for each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from spcomp.ir.access import Load, Search
from spcomp.ir.analysis.exprs import ZERO, plus, uncast, variables
from spcomp.ir.analysis.names import Names
from spcomp.ir.analysis.reduction import combine
from spcomp.ir.axis import AnyBuffer, Buffer, SparseBuffer
from spcomp.ir.expr import BinOp, Const, Expr, Var, binary, cast, const
from spcomp.ir.func import Func
from spcomp.ir.node import Node
from spcomp.ir.rewrite import Rewriter, substitute
from spcomp.ir.stmt import Alloc, For, If, Let, Stmt, Store, seq
from spcomp.ir.visitor import walk
from spcomp.schedule.nests.nests import find_loop, replace_stmt
from spcomp.schedule.steps.base import Problem, Step
from spcomp.schedule.steps.blocks.memory import MAX_ELEMENTS
from spcomp.schedule.steps.sharing.abreast import Abreast, Part
from spcomp.schedule.steps.sharing.hubs import RowSum
from spcomp.schedule.steps.sharing.split_nnz import ceil_div

UNEVEN = 32  # halves of a group differ by more than this part of its elements


@dataclass(frozen=True, slots=True)
class StageProducts(Step):
    """``for i: for j in row(i): W[i] op= x  ->  for g: for p: t[p] = x; for i in g: W[i] op= t``.

    For groups of *rows* rows. The elements of a group follow each other in memory: ``p`` runs over
    all of them, in vectors if asked to, and no processor has to guess where a row ends. Then each
    row adds up its part of ``t``. Groups of more than *most* elements, and those whose halves have
    about as many, as where nearly all rows have the same length, run row by row, as do all groups
    of fewer than *least* rows, whose lengths a processor learns.

    With *abreast*, groups with halves alike are staged, too, unless they are smaller than *rows*.
    Where no row has more than *abreast* elements, rows add up theirs side by side, a term of each
    in turn: in vectors, if these gather fast from the nearest cache, no row needs a sum of its own.

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

    def plan(self, func: Func) -> Group:
        """Return how a group of rows is done."""
        loop, inner = (find_loop(func, name, self) for name in (self.loop, self.inner))
        if not 1 <= self.most <= MAX_ELEMENTS:
            raise self.error(f"most must lie between 1 and {MAX_ELEMENTS}", loop)
        if self.abreast < 0:
            raise self.error("abreast must not be negative", loop)
        return Group(self, func, loop, inner)

    def rewrite(self, func: Func, plan: Group) -> Func:
        """Return *func* with the loop over groups."""
        return replace_stmt(func, plan.loop, plan.build_groups(Names(func)))


class Group(RowSum):
    """A group of rows: the products of its elements, and their sums."""

    def __init__(self, step: StageProducts, func: Func, loop: For, inner: For) -> None:
        super().__init__(step, func, loop, inner)
        self.group = step
        self.size = step.rows
        if self.spatial or len(self.reduction.values) != 1:
            raise self.error("a row updates more than one element")
        start = uncast(self.start)
        if not isinstance(start, Const) or str(start.value) == "-0.0":
            raise self.error("rows do not start from a number that stays when 0 is added")
        if self.target.dtype.itemsize < 4 or not isinstance(self.target, (Buffer, SparseBuffer)):
            raise self.error("short floats are added up in longer ones")
        self.position = Names(func).var(f"{inner.var.name}_p")
        value = substitute(self.reduction.values[0], self.values)
        self.product = _AtPosition(self, inner.var).rewrite(value)
        inside = {n.var for n in walk(loop) if isinstance(n, For)}
        if variables(self.product) & inside or any(isinstance(n, Search) for n in walk(value)):
            raise self.error("what it adds does not depend on stored elements alone")

    def build_groups(self, names: Names) -> For:
        """Return the loop over groups of rows."""
        step, loop, name = self.group, self.loop, self.loop.var.name
        group, first, count = (names.var(f"{name}_{what}") for what in ("g", "first", "count"))
        start = binary("*", group, const(step.rows))
        after = binary("+", start, const(step.rows))
        part = Part(start, BinOp("min", after, loop.end), first, count)
        as_it_was = loop.replace(begin=part.start, end=part.end, kind="serial", attrs=())
        many = BinOp("<=", const(step.least), loop.end)
        fits = BinOp("<=", count, const(step.most))
        suits = BinOp("<=", after, loop.end) if step.abreast else self._uneven(part)
        worth = BinOp("and", BinOp("and", many, fits), suits)
        body: Stmt = If(worth, self._staged(names, part), as_it_was)
        body = Let(count, binary("-", self.begin(part.end), first), body)
        body = Let(first, self.begin(start), body)
        return loop.replace(var=group, end=ceil_div(loop.end, const(step.rows)), body=body)

    def _uneven(self, part: Part) -> Expr:
        """Return whether one half of a group has more elements than the other."""
        middle = BinOp("min", binary("+", part.start, const(self.size // 2)), self.loop.end)
        half = binary("-", self.begin(middle), part.first)
        more = binary("-", binary("*", half, const(2)), part.count)
        apart = binary("max", more, binary("-", const(0, more.dtype), more))
        return BinOp("<", part.count, binary("*", apart, const(UNEVEN)))

    def _staged(self, names: Names, part: Part) -> Stmt:
        """Return the products of the elements of a group, and the sums of its rows."""
        what, size = f"{self.target.name}_terms", (const(self.group.most),)
        staged = Buffer(names.unique(what), None, size, self.target.dtype, "local")
        if self.group.abreast:
            return Alloc(staged, Abreast(self, names, part, staged).sums(self.group.abreast))
        at = names.var(self.position.name)
        products = For(at, ZERO, part.count, self.product_at(part, staged, at))
        return Alloc(staged, seq(products, self.sums(names, part, staged)))

    def product_at(self, part: Part, staged: Buffer, at: Expr) -> Stmt:
        """Return the store of the product of the element *at* of a group."""
        value = substitute(self.product, {self.position: binary("+", part.first, at)})
        return Store(staged, (at,), cast(value, staged.dtype), span=self.store.span)

    def sums(self, names: Names, part: Part, staged: Buffer) -> Stmt:
        """Return the loop in which a row after the other adds up its part of *staged*."""
        row, other = (names.var(f"{x.var.name}_s") for x in (self.loop, self.inner))
        place = self.place_at(row, ())
        term = Load(staged, (plus(binary("-", self.begin(row), part.first), other),))
        total = combine(self.reduction.combiner, Load(self.target, place), term)
        length = BinOp("max", self.length(row), ZERO)  # which code then need not ask again
        add = For(other, ZERO, length, Store(self.target, place, total, span=self.store.span))
        begin = Store(self.target, place, cast(self.start, staged.dtype), span=self.store.span)
        return For(row, part.start, part.end, seq(begin, add))


class _AtPosition(Rewriter):
    """Reads stored elements of a row at absolute positions."""

    def __init__(self, row: Group, inner: Var) -> None:
        self.row, self.inner = row, inner

    def visit_Load(self, load: Load) -> Node:
        """Use the position instead of the row and the position in it."""
        new = self.visit_Node(load)
        assert isinstance(new, Load)
        buffer: AnyBuffer = new.buffer
        axes = buffer.axes[:2] if isinstance(buffer, SparseBuffer) else ()
        if axes != self.row.axis.path() or new.indices[:2] != (self.row.loop.var, self.inner):
            return new
        return new.replace(indices=(None, self.row.position, *new.indices[2:]))
