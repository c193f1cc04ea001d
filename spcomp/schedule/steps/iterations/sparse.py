"""In coordinate space: the steps sparse_reorder and sparse_fuse."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from spcomp.dtypes import int64
from spcomp.errors import ScheduleError, Span
from spcomp.ir.analysis.exprs import ZERO
from spcomp.ir.analysis.forest import fusable, misordered
from spcomp.ir.analysis.positions import upper_bound
from spcomp.ir.arith.simplify import MAX_TRIPS
from spcomp.ir.axis import Axis, Domain, Flatten, Fuse, domain_axes, domain_width
from spcomp.ir.coordinate import SpIter
from spcomp.ir.expr import Expr, Var, binary, const
from spcomp.ir.func import Func
from spcomp.ir.node import Node
from spcomp.ir.program import CoordFunc
from spcomp.ir.rewrite import Rewriter
from spcomp.ir.stmt import For, Let, Stmt, seq
from spcomp.ir.visitor import walk
from spcomp.schedule.legality.dependence import conflicts
from spcomp.schedule.legality.reductions import only_reduces
from spcomp.schedule.nests.nests import replace_stmt
from spcomp.schedule.steps.base import Makes, Step, find_named, names_hint


@dataclass(frozen=True, slots=True)
class IterationStep(Step):
    """A step on the sparse iteration called *iteration*, for programs in coordinate space."""

    makes: ClassVar[Makes] = "iterations"
    iteration: str

    def fits(self, func: Func) -> bool:
        """Whether *func* is in coordinate space."""
        return isinstance(func, CoordFunc)

    def rewrite(self, func: Func, plan: tuple[SpIter, SpIter]) -> Func:
        """Return *func* with the old iteration replaced by the new one; *plan* has both."""
        return replace_stmt(func, *plan)

    def find(self, func: Func) -> SpIter:
        """Return the iteration in *func*; raises ScheduleError if its variables share names."""
        it = find_iteration(func, self.iteration, step=self)
        names = [var.name for var in it.vars]
        if len({*names}) < len(names):
            raise self.error("two of its variables have one name", it, variables_hint(it))
        return it


@dataclass(frozen=True, slots=True)
class SparseReorder(IterationStep):
    """``sp_iter([I, J, K]): s  ->  sp_iter([K, I, J]): s``; *new_order* has all variables.

    Legal where every axis still comes after the axis that it depends on, variables of one fused
    domain stay together, and of every two variables that change places one has independent
    iterations, or the body only reduces (sums in another order: the same up to rounding).
    Source: SparseTIR (ASPLOS 2023), section 3.2.2.
    """

    name: ClassVar[str] = "sparse_reorder"
    new_order: tuple[str, ...]

    def plan(self, func: Func) -> tuple[SpIter, SpIter]:
        """Return the iteration, and the one with the domains in the new order."""
        it = self.find(func)
        before = list(_groups(it))
        after = self._reorder_groups(it, before)
        self._check_axes(func, it, after)
        vars_ = tuple(var for group in after for var in group.vars)
        kinds = "".join(group.kinds for group in after)
        new = it.replace(vars=vars_, domains=tuple(g.domain for g in after), kinds=kinds)
        self._check_meaning(it, new)
        return it, new

    def _reorder_groups(self, it: SpIter, groups: list[_Group]) -> list[_Group]:
        """Return *groups* in the new order."""
        names = tuple(var.name for var in it.vars)
        if sorted(names) != sorted(self.new_order):
            raise self.error("the new order must have each variable once", it, variables_hint(it))
        ordered = sorted(groups, key=lambda group: self.new_order.index(group.vars[0].name))
        if tuple(var.name for group in ordered for var in group.vars) != self.new_order:
            raise self.error("variables of one fused domain stay together", it)
        return ordered

    def _check_axes(self, func: Func, it: SpIter, order: list[_Group]) -> None:
        axes = [axis for group in order for axis in domain_axes(group.domain)]
        if len({*axes}) < len(axes):
            raise self.error("an axis is run over twice, and others depend on which", it)
        around = {axis for outer in _around(func, it) for axis in outer} - {*axes}
        late = misordered([group.domain for group in order], around)
        if late is not None:
            raise self.error(f"{late.name} would run before what it depends on", it)

    def _check_meaning(self, it: SpIter, new: SpIter) -> None:
        """Raise unless dependences between tuples keep their direction."""
        if only_reduces(it.body):
            return
        before, after = as_loops(it), as_loops(new)
        place = {var: k for k, var in enumerate(new.vars)}
        for k, first in enumerate(it.vars):
            for second in it.vars[k + 1 :]:
                if place[first] < place[second] or not (clashes := conflicts(before[first])):
                    continue
                if conflicts(after[second]):
                    raise self.error(str(clashes[0]), it)


@dataclass(frozen=True, slots=True)
class SparseFuse(IterationStep):
    """``sp_iter([I, J, K]): s  ->  sp_iter([T.fuse(I, J), K]): s``; *iters* are variables.

    One loop over the positions of the last axis instead of one per axis; the tuples and their
    order stay. Legal for variables that follow each other, of axes each the parent of the next.
    Source: SparseTIR (ASPLOS 2023), section 3.2.2.
    """

    name: ClassVar[str] = "sparse_fuse"
    iters: tuple[str, ...]

    def plan(self, func: Func) -> tuple[SpIter, SpIter]:
        """Return the iteration, and the one with the domains of *iters* fused."""
        it = self.find(func)
        groups = list(_groups(it))
        group_of = {var.name: k for k, group in enumerate(groups) for var in group.vars}
        if not {*self.iters} <= group_of.keys():
            raise self.error("a name is no variable of the iteration", it, variables_hint(it))
        at = sorted({group_of[name] for name in self.iters})
        fused = groups[at[0] : at[-1] + 1] if at else []
        if tuple(var.name for group in fused for var in group.vars) != self.iters:
            raise self.error("the variables do not follow each other in this order", it)
        axes = tuple(axis for group in fused for axis in domain_axes(group.domain))
        if not all(isinstance(group.domain, (Axis, Fuse)) for group in fused) or not fusable(axes):
            names = ", ".join(axis.name for axis in axes)
            hint = "axes fuse along a chain, each the parent of the next"
            raise self.error(f"{names} are no chain of axes", it, hint)
        domains = [group.domain for group in groups]
        domains[at[0] : at[-1] + 1] = [Fuse(axes)]
        return it, it.replace(domains=tuple(domains))


@dataclass(frozen=True, slots=True)
class _Group:
    """A domain, and the variables that it binds."""

    domain: Domain
    vars: tuple[Var, ...]
    kinds: str


def _groups(it: SpIter) -> Iterator[_Group]:
    start = 0
    for domain in it.domains:
        end = start + domain_width(domain)
        yield _Group(domain, it.vars[start:end], it.kinds[start:end])
        start = end


def iterations_of(func: Func) -> Iterator[SpIter]:
    """Yield the sparse iterations of *func*, outer ones first."""
    return (node for node in walk(func.body, skip=Expr) if isinstance(node, SpIter))


def find_iteration(
    func: Func, name: str, span: Span | None = None, step: Step | None = None
) -> SpIter:
    """Return the sparse iteration called *name*; else raises ScheduleError, with the names.

    *step*: the step that needs it, for the message.
    """
    prefix = "" if step is None else f"{step}: "
    if not isinstance(func, CoordFunc):
        raise ScheduleError(
            f"{prefix}{func.name} has no sparse iterations at this level",
            span,
            hint="they exist in coordinate space: take this step before lower_sparse_iter",
        )
    labelled = ((it.name, it) for it in iterations_of(func))
    none = f"{prefix}no sparse iteration {name!r} in {func.name}"
    return find_named(labelled, name, none, "iterations", span)


def variables_hint(it: SpIter) -> str:
    """Return a hint that lists the variables of *it*."""
    return names_hint((var.name for var in it.vars), "variables")


def _around(func: Func, it: SpIter) -> Iterator[Sequence[Axis]]:
    """Yield the axes of each domain of the iterations around *it*."""
    for other in iterations_of(func):
        if other is not it and any(node is it for node in walk(other.body, skip=Expr)):
            yield from map(domain_axes, other.domains)


def as_loops(it: SpIter) -> dict[Var, For]:
    """Return *it* as nested loops, one for each variable, over all values it may have.

    They run more than the iteration does, so if a loop has no conflicts, its variable has none.
    """
    body: Stmt = _AsLoops().rewrite(it.body)
    loops: dict[Var, For] = {}
    for var in reversed(it.vars):
        body = loops[var] = _loop(it, var, body)
    return loops


class _AsLoops(Rewriter):
    def visit_SpIter(self, it: SpIter) -> Node:
        """Put the init before the body: the oracle asks what is touched, not when."""
        body: Stmt = self.rewrite(it.body)
        if it.init is not None:
            body = seq(self.rewrite(it.init), body)
        for var in reversed(it.vars):
            body = _loop(it, var, body)
        return body


def _loop(it: SpIter, var: Var, body: Stmt) -> For:
    """Return a loop of *body* over all values of *var*.

    A stored coordinate becomes ``position // 2``, as nothing ensures that it occurs only once.
    """
    (group,) = (group for group in _groups(it) if var in group.vars)
    axes = domain_axes(group.domain)
    var_axes = (axes[group.vars.index(var)],) if isinstance(group.domain, Fuse) else axes
    if isinstance(group.domain, Flatten) or not any(axis.is_sparse for axis in var_axes):
        return For(var, ZERO, upper_bound(it, var), body, span=it.span)
    at = Var(f"{var.name}_at", int64)
    return For(at, ZERO, const(MAX_TRIPS), Let(var, binary("//", at, 2), body), span=it.span)
