"""The step of stage II that gives each iteration of a reducing loop a partial result: rfactor."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import ClassVar

from spcomp.errors import ScheduleError, Span
from spcomp.ir.access import Load, Search
from spcomp.ir.analysis.exprs import both, conjuncts, from_zero, variables
from spcomp.ir.analysis.names import Names
from spcomp.ir.analysis.reduction import Reduction, as_reduction, combine, identity
from spcomp.ir.analysis.regions import annotate_regions
from spcomp.ir.arith.linear import expr_equal
from spcomp.ir.axis import AnyBuffer, Buffer, memory_of
from spcomp.ir.expr import BinOp, Cast, Const, Expr, Var, binary, cast
from spcomp.ir.func import Func
from spcomp.ir.node import Node
from spcomp.ir.position import Block, BlockIter
from spcomp.ir.rewrite import Rewriter, substitute
from spcomp.ir.stmt import Alloc, For, Stmt, Store, seq
from spcomp.ir.visitor import walk
from spcomp.schedule.legality.dependence import loops_of
from spcomp.schedule.nests.nests import chain, find_loop, nest, replaced
from spcomp.schedule.steps.base import Makes, Step
from spcomp.schedule.steps.blocks.decompose_reduction import bound, variables_of
from spcomp.schedule.steps.blocks.memory import accumulator


@dataclass(frozen=True, slots=True)
class RFactor(Step):
    """``for j: W op= x[j]  ->  for j: P[j] = neutral op x[j]; for j: W op= P[j]``.

    Each iteration of *loop*, which drives a reduction, gets a partial result of its own, so that
    it picks an element in the block ``{block}_rf``, which is before the one that combines them.
    Loops around the outermost one that reduces stay around both, unless *whole*: then there are two
    nests, of all loops, as in TVM. *factor_axis* says where the new axis stands among those of the
    loops of these nests that pick elements (-1: last); *scope* is that of the partial results.
    Legal for one associative update in a perfect nest, if the trip counts of these loops are known
    when the function is called. Sums are formed in another order.
    Source: TVM's rfactor.
    """

    name: ClassVar[str] = "rfactor"
    makes: ClassVar[Makes] = "blocks"
    loop: str
    factor_axis: int = 0
    scope: str = "global"
    whole: bool = False

    def apply(self, func: Func, span: Span | None = None) -> Func:
        """Return *func* with the reduction in two steps."""
        loop = find_loop(func, self.loop, self, span)
        loops, block = chain(loop)
        if not isinstance(block, Block):
            raise ScheduleError(f"{self}: it is not nested perfectly around a block", span)
        reduced = variables_of(own.value for own in block.iters if own.kind == "R")
        if loop.var not in reduced:
            raise ScheduleError(f"{self}: it does not drive the reduction of {block.name}", span)
        starts = (x for x in loops_of(func.body) if self.whole or x.var in reduced)
        nests = (chain(x)[0] for x in starts)
        loops = next(around for around in nests if loop in around)
        plan = _Plan(self, func, loops, span or loop.span)
        plan.check()
        return replaced(func, loops[0], plan.build(Names(func)))


class _Plan:
    """The two nests of an rfactor: *loops* are around *block*, from the first that reduces.

    *picks*: those that pick an element of the partial results; the others, without the factored
    one, go on reducing into it.
    """

    def __init__(self, step: RFactor, func: Func, loops: list[For], span: Span | None) -> None:
        self.step, self.func, self.span = step, func, span
        self.loops = loops
        self.loop = next(x for x in loops if x.var.name == step.loop)
        (block,) = (n for n in (loops[-1].body,) if isinstance(n, Block))
        self.block: Block = block
        found = as_reduction(block.body)
        if found is None:
            raise self.error(f"{block.name} is no associative update of one element")
        if found.is_tuple:
            raise self.error("ties would be decided in another order")
        self.reduction: Reduction = found
        reducing = [own for own in block.iters if own.kind == "R"]
        self.reduced = variables_of(own.value for own in reducing)
        self.values = {own.var: own.value for own in reducing}  # these iters are replaced
        self.where = [substitute(term, self.values) for term in conjuncts(block.where)]
        spatial = variables_of(own.value for own in block.iters if own.kind == "S")
        self.clash = spatial & self.reduced
        for term in self.where:
            if not variables(term) & self.reduced:
                spatial |= variables(term)
        self.picks = [x for x in loops if x.var in spatial]

    def error(self, why: str) -> ScheduleError:
        """Return the error that says *why*."""
        return ScheduleError(f"{self.step}: {why}", self.span)

    @property
    def target(self) -> AnyBuffer:
        """What is reduced into."""
        return self.reduction.buffer

    def check(self) -> None:
        """Raise unless the partial results can be had, and mean the same."""
        own = {x.var for x in self.loops}
        if self.block.init is not None and self.reduced & (bound(self.func) - own):
            raise self.error("a loop around it drives the reduction too")
        if self.clash:
            names = ", ".join(sorted(var.name for var in self.clash))
            raise self.error(f"{names} picks the element too")
        place = [i for i in self.reduction.indices if i is not None]
        lost = own - {x.var for x in self.picks}
        if variables_of(substitute(i, self.block.values) for i in place) & lost:
            raise self.error("which element is updated depends on what is reduced")
        if not -1 <= self.step.factor_axis <= len(self.picks):
            raise self.error(f"the partial results have {len(self.picks) + 1} axes")
        if any(x.kind == "bound" for x in self.loops):
            raise self.error("a loop is bound to hardware threads")
        for x in (self.loop, *self.picks):
            if not from_zero(x) or not self._known(x.end):
                raise self.error(
                    f"how often {x.var.name!r} runs is not known when the function is called"
                )
        self._check_reads()
        self._check_untouched(place)

    def _check_untouched(self, place: list[Expr]) -> None:
        """Raise if an element that was never updated, and never started, may not be touched."""
        loads = [n for i in place for n in walk(i) if isinstance(n, (Load, Search))]
        known = {domain.buffer for domain in self.func.domains}
        if self.block.init is None and any(n.buffer not in known for n in loads):
            raise self.error(f"an index of {self.target.name} may be wrong where nothing is added")
        picks = {x.var for x in self.picks}
        mixed = any(variables(term) & picks for term in self.where if self._is_lost(term))
        if self.block.init is None and mixed:
            raise self.error("whether an element is updated depends on what is reduced")

    def _is_lost(self, term: Expr) -> bool:
        """Whether the second nest does not know *term*."""
        kept = {x.var for x in (*self.picks, self.loop)}
        return bool(variables(term) & ({x.var for x in self.loops} - kept))

    def _known(self, extent: Expr) -> bool:
        """Whether *extent* can be the size of an allocation: constants and parameters."""
        loads = any(isinstance(n, (Load, Search)) for n in walk(extent))
        return not loads and variables(extent) <= {*self.func.params}

    def _check_reads(self) -> None:
        """Raise if anything but the update itself reads what is updated."""
        parts: list[Expr | None] = [self.block.where, *self.reduction.values]
        parts += [*self.reduction.indices, *self.block.values.values()]
        parts += [end for x in self.loops for end in (x.begin, x.end)]
        memory = memory_of(self.target)
        for node in (n for part in parts if part is not None for n in walk(part)):
            if isinstance(node, (Load, Search)) and memory_of(node.buffer) is memory:
                raise self.error(f"{node.buffer.name} is read and updated")

    def build(self, names: Names) -> Stmt:
        """Return the partial results, the nest that makes them and the one that combines them."""
        dtype = self._form().dtype if self._is_binary() else self.target.dtype
        shape = self._with_axis([x.end for x in self.picks], self.loop.end)
        name = names.unique(f"{self.target.name}_rf")
        partial = Buffer(name, None, shape, dtype, self.step.scope)
        made = seq(self._partial(names, partial), self._combined(names, partial))
        return annotate_regions(Alloc(partial, made))

    def _is_binary(self) -> bool:
        body = self.block.body
        value = body.value if isinstance(body, Store) else None
        return isinstance(value.value if isinstance(value, Cast) else value, BinOp)

    def _form(self) -> Const:
        """The neutral element, in the type in which values are combined."""
        dtype = self.reduction.value.dtype
        return identity(self.reduction.combiner, accumulator(dtype))

    def _place(self, vars_: dict[Var, Var]) -> tuple[Expr, ...]:
        """Return the indices of the partial result, by what the loops are called."""
        place: list[Expr] = [vars_[x.var] for x in self.picks]
        return self._with_axis(place, vars_[self.loop.var])

    def _with_axis(self, others: list[Expr], new: Expr) -> tuple[Expr, ...]:
        """Return *others* with *new* where the new axis stands."""
        at = self.step.factor_axis if self.step.factor_axis >= 0 else len(others)
        return (*others[:at], new, *others[at:])

    def _partial(self, names: Names, partial: Buffer) -> Stmt:
        """Return the nest that reduces into the partial results."""
        block, reduction = self.block, self.reduction
        iters = [own for own in block.iters if own.kind == "S"]
        reducing = {x.var for x in self.loops} - {x.var for x in (*self.picks, self.loop)}
        calls = _called(names, iters, {x.var: _extent(x) for x in self.loops}, reducing)
        values: dict[Var, Expr] = dict(calls)
        values |= {var: substitute(value, calls) for var, value in self.values.items()}
        place, start = self._place(calls), self._form()
        here = Load(partial, place)
        body: Stmt
        if self._is_binary():
            value = cast(substitute(reduction.value, values), partial.dtype)
            body = Store(partial, place, combine(reduction.combiner, here, value))
        else:
            start = identity(reduction.combiner, partial.dtype)
            body = substitute(_Redirect(self.target, partial, place).rewrite(block.body), values)
        where: Expr | None = None
        for term in self.where:
            where = both(where, term)
        made = block.replace(
            name=names.unique(f"{block.name}_rf"),
            iters=tuple(iters),
            init=Store(partial, place, start),
            body=body,
            where=where,
            attrs=tuple(item for item in block.attrs if item[0] != "atomic"),  # nobody shares them
        )
        return nest(self.loops, made)

    def _combined(self, names: Names, partial: Buffer) -> Stmt:
        """Return the nest that reduces the partial results; the block keeps its name."""
        block = self.block
        fresh = {x.var: names.var(x.var.name) for x in (*self.picks, self.loop)}
        spatial = [own for own in block.iters if own.kind == "S"]
        iters = [
            own.replace(var=names.var(own.var.name), value=substitute(own.value, fresh))
            for own in spatial
        ]
        values: dict[Var, Expr] = dict(fresh)
        values |= {var: substitute(value, fresh) for var, value in self.values.items()}
        values |= {old.var: new.var for old, new in zip(spatial, iters, strict=True)}
        ranges = {fresh[x.var]: x.end for x in (*self.picks, self.loop)}
        calls = _called(names, iters, ranges, {fresh[self.loop.var]})
        value = Load(partial, self._place({old: calls[new] for old, new in fresh.items()}))
        where: Expr | None = None
        for term in self.where:
            if not self._is_lost(term):
                where = both(where, substitute(term, values))
        made = block.replace(
            iters=tuple(iters),
            init=None if block.init is None else substitute(block.init, values),
            body=substitute(self._update(value), values),
            where=where,
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
        return nest(loops, made)

    def _update(self, value: Load) -> Stmt:
        """Return the update with *value* in the place of what was reduced."""
        reduction, target = self.reduction, self.target
        if not self._is_binary():
            return _Instead(reduction.value, cast(value, reduction.value.dtype)).rewrite(
                self.block.body
            )
        own = cast(Load(target, reduction.indices), value.dtype)
        total = combine(reduction.combiner, own, value)
        atomic = isinstance(self.block.body, Store) and self.block.body.atomic
        return Store(target, reduction.indices, cast(total, target.dtype), atomic=atomic)


def _called(
    names: Names, iters: list[BlockIter], ranges: dict[Var, Expr], reducing: Collection[Var]
) -> dict[Var, Var]:
    """Return what a block calls the loops of *ranges*; iters that it needs for this are added."""
    calls = {own.value: own.var for own in iters if isinstance(own.value, Var)}
    for var, extent in ranges.items():
        if var not in calls:
            calls[var] = names.var(f"v{var.name}")
            iters.append(BlockIter(calls[var], extent, var, "R" if var in reducing else "S"))
    return calls


def _extent(loop: For) -> Expr:
    return loop.end if from_zero(loop) else binary("max", loop.end, 0)


class _Redirect(Rewriter):
    """Puts the element *place* of *partial* where *target* is read and written."""

    def __init__(self, target: AnyBuffer, partial: Buffer, place: tuple[Expr, ...]) -> None:
        self.target, self.partial, self.place = target, partial, place

    def visit_Load(self, load: Load) -> Node:
        new = self.visit_Node(load)
        return Load(self.partial, self.place) if load.buffer is self.target else new

    def visit_Store(self, store: Store) -> Node:
        new = self.visit_Node(store)
        assert isinstance(new, Store)
        return new.replace(buffer=self.partial, indices=self.place, atomic=False)


class _Instead(Rewriter):
    """Puts *new* where *old* is written."""

    def __init__(self, old: Expr, new: Expr) -> None:
        self.old, self.new = old, new

    def visit_Expr(self, expr: Expr) -> Node:
        return self.new if expr_equal(expr, self.old) else self.visit_Node(expr)
