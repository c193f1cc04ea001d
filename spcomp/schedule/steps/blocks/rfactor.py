"""In position space: the step rfactor, which gives iterations of a loop partial results."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import ClassVar

from spcomp.errors import ScheduleError
from spcomp.ir.access import Load
from spcomp.ir.analysis.exprs import conjunction, conjuncts, from_zero, variables
from spcomp.ir.analysis.names import Names
from spcomp.ir.analysis.reduction import Reduction, accumulator, as_reduction, combine, identity
from spcomp.ir.analysis.regions import annotate_regions
from spcomp.ir.arith.memory import read_by
from spcomp.ir.axis import AnyBuffer, Buffer, memory_of
from spcomp.ir.expr import BinOp, Cast, Const, Expr, Var, binary, cast
from spcomp.ir.func import Func
from spcomp.ir.node import Node
from spcomp.ir.position import Block, BlockIter
from spcomp.ir.rewrite import Rewriter, substitute
from spcomp.ir.stmt import Alloc, For, Stmt, Store, seq
from spcomp.ir.structural import expr_equal
from spcomp.schedule.legality.dependence import loops_of
from spcomp.schedule.nests.nests import chain, find_loop, nest, replace_stmt
from spcomp.schedule.steps.base import Makes, Step
from spcomp.schedule.steps.blocks.decompose_reduction import bound_vars, variables_of


@dataclass(frozen=True, slots=True)
class RFactor(Step):
    """``for j: W op= x[j]  ->  for j: P[j] = neutral op x[j]; for j: W op= P[j]``.

    Each iteration of *loop*, which drives a reduction, gets a partial result of its own: the block
    ``{block}_rf`` computes them, and the old block combines them afterwards. Loops around the
    outermost one that reduces stay around both blocks, unless *whole*: then all loops are in both
    nests, as in TVM. *factor_axis*: the place of the new axis among those of the loops of these
    nests that pick elements (-1: last); *scope*: that of the partial results. Legal for one
    associative update in a perfect nest, if the trip counts of *loop* and of the loops that pick
    elements are known at the call. Sums are formed in another order. Source: TVM's rfactor.
    """

    name: ClassVar[str] = "rfactor"
    makes: ClassVar[Makes] = "blocks"
    loop: str
    factor_axis: int = 0
    scope: str = "global"
    whole: bool = False

    def plan(self, func: Func) -> _Plan:
        """Return the plan of the two nests."""
        loop = find_loop(func, self.loop, self)
        loops, block = chain(loop)
        if not isinstance(block, Block):
            raise self.error("it is not nested perfectly around a block", loop)
        reduced = variables_of(it.value for it in block.iters if it.kind == "R")
        if loop.var not in reduced:
            raise self.error(f"it does not drive the reduction of {block.name}", loop)
        starts = (x for x in loops_of(func.body) if self.whole or x.var in reduced)
        nests = (chain(x)[0] for x in starts)
        loops = next(around for around in nests if loop in around)
        plan = _Plan(self, func, loops)
        plan.check()
        return plan

    def rewrite(self, func: Func, plan: _Plan) -> Func:
        """Return *func* with the reduction in two steps."""
        return replace_stmt(func, plan.loops[0], plan.build(Names(func)))


class _Plan:
    """The two nests of an rfactor: *loops* are around *block*, from the first that reduces.

    *picks*: those that pick an element of the partial results; the others, except the factored
    one, reduce into it.
    """

    def __init__(self, step: RFactor, func: Func, loops: list[For]) -> None:
        self.step, self.func = step, func
        self.loops = loops
        self.loop = next(x for x in loops if x.var.name == step.loop)
        (block,) = (n for n in (loops[-1].body,) if isinstance(n, Block))
        self.block: Block = block
        reduction = as_reduction(block.body, choices=True)
        if reduction is None:
            raise self.error(f"{block.name} is no associative update of one element")
        if reduction.is_tuple:
            raise self.error("ties would be decided in another order")
        self.reduction: Reduction = reduction
        reducing = [it for it in block.iters if it.kind == "R"]
        self.reduced = variables_of(it.value for it in reducing)
        self.values = {it.var: it.value for it in reducing}  # these iters are replaced
        self.where = [substitute(term, self.values) for term in conjuncts(block.where)]
        spatial = variables_of(it.value for it in block.iters if it.kind == "S")
        self.clash = spatial & self.reduced
        for term in self.where:
            if not variables(term) & self.reduced:
                spatial |= variables(term)
        self.picks = [x for x in loops if x.var in spatial]

    def error(self, why: str) -> ScheduleError:
        """Return the error that says *why*."""
        return self.step.error(why, self.loop)

    @property
    def target(self) -> AnyBuffer:
        """The buffer that the block reduces into."""
        return self.reduction.buffer

    def check(self) -> None:
        """Raise unless the partial results can be allocated and give the same result."""
        loop_vars = {x.var for x in self.loops}
        if self.block.init is not None and self.reduced & (bound_vars(self.func) - loop_vars):
            raise self.error("a loop around it drives the reduction too")
        if self.clash:
            names = ", ".join(sorted(var.name for var in self.clash))
            raise self.error(f"{names} picks the element too")
        place = [i for i in self.reduction.indices if i is not None]
        lost = loop_vars - {x.var for x in self.picks}
        if variables_of(substitute(i, self.block.values) for i in place) & lost:
            raise self.error("which element is updated depends on what is reduced")
        if not -1 <= self.step.factor_axis <= len(self.picks):
            raise self.error(f"the partial results have {len(self.picks) + 1} axes")
        if any(x.kind == "bound" for x in self.loops):
            raise self.error("a loop is bound to hardware threads")
        for x in (self.loop, *self.picks):
            if not from_zero(x) or not self._known_at_call(x.end):
                raise self.error(
                    f"how often {x.var.name!r} runs is not known when the function is called"
                )
        self._check_reads()
        self._check_untouched(place)

    def _check_untouched(self, place: list[Expr]) -> None:
        """Raise if the second nest could touch an element that was not touched before."""
        checked = {domain.buffer for domain in self.func.domains}
        if self.block.init is None and not checked.issuperset(read_by(*place)):
            raise self.error(f"an index of {self.target.name} may be wrong where nothing is added")
        picks = {x.var for x in self.picks}
        mixed = any(variables(term) & picks for term in self.where if self._is_lost(term))
        if self.block.init is None and mixed:
            raise self.error("whether an element is updated depends on what is reduced")

    def _is_lost(self, term: Expr) -> bool:
        """Whether *term* uses loops that the second nest does not have."""
        visible = {x.var for x in (*self.picks, self.loop)}
        return bool(variables(term) & ({x.var for x in self.loops} - visible))

    def _known_at_call(self, extent: Expr) -> bool:
        """Whether *extent* can be the size of an allocation: constants and parameters."""
        return not any(read_by(extent)) and variables(extent) <= {*self.func.params}

    def _check_reads(self) -> None:
        """Raise if anything but the update itself reads what is updated."""
        parts: list[Expr | None] = [self.block.where, *self.reduction.values]
        parts += [*self.reduction.indices, *self.block.values.values()]
        parts += [end for x in self.loops for end in (x.begin, x.end)]
        for buffer in read_by(*(part for part in parts if part is not None)):
            if memory_of(buffer) is memory_of(self.target):
                raise self.error(f"{buffer.name} is read and updated")

    def build(self, names: Names) -> Stmt:
        """Return the buffer of partial results around the nests that make and combine them."""
        dtype = self._form().dtype if self._is_binary() else self.target.dtype
        shape = self._with_axis([x.end for x in self.picks], self.loop.end)
        name = names.unique(f"{self.target.name}_rf")
        partial = Buffer(name, None, shape, dtype, self.step.scope)
        nests = seq(self._partial_nest(names, partial), self._combining_nest(names, partial))
        return annotate_regions(Alloc(partial, nests))

    def _is_binary(self) -> bool:
        body = self.block.body
        value = body.value if isinstance(body, Store) else None
        return isinstance(value.value if isinstance(value, Cast) else value, BinOp)

    def _form(self) -> Const:
        """Return the neutral element, in the type in which values are combined."""
        dtype = self.reduction.value.dtype
        return identity(self.reduction.combiner, accumulator(dtype))

    def _place(self, vars_: dict[Var, Var]) -> tuple[Expr, ...]:
        """Return the indices of the partial result; *vars_*: the variable for each loop."""
        place: list[Expr] = [vars_[x.var] for x in self.picks]
        return self._with_axis(place, vars_[self.loop.var])

    def _with_axis(self, others: list[Expr], new: Expr) -> tuple[Expr, ...]:
        """Return *others* with *new* where the new axis stands."""
        at = self.step.factor_axis if self.step.factor_axis >= 0 else len(others)
        return (*others[:at], new, *others[at:])

    def _partial_nest(self, names: Names, partial: Buffer) -> Stmt:
        """Return the nest that reduces into the partial results."""
        block, reduction = self.block, self.reduction
        iters = [it for it in block.iters if it.kind == "S"]
        reducing = {x.var for x in self.loops} - {x.var for x in (*self.picks, self.loop)}
        calls = _iters_for(names, iters, {x.var: _extent(x) for x in self.loops}, reducing)
        values: dict[Var, Expr] = dict(calls)
        values |= {var: substitute(value, calls) for var, value in self.values.items()}
        place, start = self._place(calls), self._form()
        partial_load = Load(partial, place)
        body: Stmt
        if self._is_binary():
            value = cast(substitute(reduction.value, values), partial.dtype)
            body = Store(partial, place, combine(reduction.combiner, partial_load, value))
        else:
            start = identity(reduction.combiner, partial.dtype)
            body = substitute(_Redirect(self.target, partial, place).rewrite(block.body), values)
        new_block = block.replace(
            name=names.unique(f"{block.name}_rf"),
            iters=tuple(iters),
            init=Store(partial, place, start),
            body=body,
            where=conjunction(self.where),
            attrs=tuple(item for item in block.attrs if item[0] != "atomic"),  # nobody shares them
        )
        return nest(self.loops, new_block)

    def _combining_nest(self, names: Names, partial: Buffer) -> Stmt:
        """Return the nest that reduces the partial results; the block keeps its name."""
        block = self.block
        fresh = {x.var: names.var(x.var.name) for x in (*self.picks, self.loop)}
        spatial = [it for it in block.iters if it.kind == "S"]
        iters = [
            it.replace(var=names.var(it.var.name), value=substitute(it.value, fresh))
            for it in spatial
        ]
        values: dict[Var, Expr] = dict(fresh)
        values |= {var: substitute(value, fresh) for var, value in self.values.items()}
        values |= {old.var: new.var for old, new in zip(spatial, iters, strict=True)}
        ranges = {fresh[x.var]: x.end for x in (*self.picks, self.loop)}
        calls = _iters_for(names, iters, ranges, {fresh[self.loop.var]})
        value = Load(partial, self._place({old: calls[new] for old, new in fresh.items()}))
        where = [substitute(term, values) for term in self.where if not self._is_lost(term)]
        new_block = block.replace(
            iters=tuple(iters),
            init=None if block.init is None else substitute(block.init, values),
            body=substitute(self._update(value), values),
            where=conjunction(where),
        )
        loops = [
            x.replace(
                var=fresh[x.var],
                end=substitute(x.end, fresh),
                kind="parallel" if x.kind == "parallel" else "serial",
                attrs=(),
            )
            for x in (*self.picks, self.loop)
        ]
        return nest(loops, new_block)

    def _update(self, value: Load) -> Stmt:
        """Return the update with *value*, a partial result, in place of the reduced value."""
        reduction, target = self.reduction, self.target
        if not self._is_binary():
            return _ReplaceExpr(reduction.value, cast(value, reduction.value.dtype)).rewrite(
                self.block.body
            )
        so_far = cast(Load(target, reduction.indices), value.dtype)
        total = combine(reduction.combiner, so_far, value)
        atomic = isinstance(self.block.body, Store) and self.block.body.atomic
        return Store(target, reduction.indices, cast(total, target.dtype), atomic=atomic)


def _iters_for(
    names: Names, iters: list[BlockIter], ranges: dict[Var, Expr], reducing: Collection[Var]
) -> dict[Var, Var]:
    """Return the iter for each loop variable of *ranges*; adds missing ones to *iters*."""
    calls = {it.value: it.var for it in iters if isinstance(it.value, Var)}
    for var, extent in ranges.items():
        if var not in calls:
            calls[var] = names.var(f"v{var.name}")
            iters.append(BlockIter(calls[var], extent, var, "R" if var in reducing else "S"))
    return calls


def _extent(loop: For) -> Expr:
    return loop.end if from_zero(loop) else binary("max", loop.end, 0)


class _Redirect(Rewriter):
    """Replaces reads and writes of *target* by those of *partial* at *place*."""

    def __init__(self, target: AnyBuffer, partial: Buffer, place: tuple[Expr, ...]) -> None:
        self.target, self.partial, self.place = target, partial, place

    def visit_Load(self, load: Load) -> Node:
        new = self.visit_Node(load)
        return Load(self.partial, self.place) if load.buffer is self.target else new

    def visit_Store(self, store: Store) -> Node:
        new = self.visit_Node(store)
        assert isinstance(new, Store)
        return new.replace(buffer=self.partial, indices=self.place, atomic=False)


class _ReplaceExpr(Rewriter):
    """Replaces the expression *old* by *new*."""

    def __init__(self, old: Expr, new: Expr) -> None:
        self.old, self.new = old, new

    def visit_Expr(self, expr: Expr) -> Node:
        return self.new if expr_equal(expr, self.old) else self.visit_Node(expr)
