"""I to II, domains: the loop that runs over a domain, and the positions of its variables."""

from __future__ import annotations

from collections.abc import Callable

from spcomp.errors import LoweringError
from spcomp.ir.analysis.exprs import ZERO, both, plus
from spcomp.ir.analysis.positions import Auxiliary, Pos
from spcomp.ir.axis import Attach, Axis, Domain, Flatten, Fuse, domain_axes
from spcomp.ir.coordinate import SpIter
from spcomp.ir.expr import Expr, Var, binary
from spcomp.passes.iterations.iteration_plan import LoopPlan, order_error
from spcomp.passes.iterations.locate import Locator, inside, spans_axis
from spcomp.passes.iterations.scope import Binding, OpenLoop, Scope


class LoopOpener:
    """Opens the loops of one sp_iter, binding its coordinate variables in a scope."""

    def __init__(self, locator: Locator, it: SpIter) -> None:
        self.locator, self.it = locator, it
        self.aux: Auxiliary = locator.aux

    def open(self, plan: LoopPlan, scope: Scope, level: int) -> OpenLoop:
        """Return the loop of *plan*, the *level*-th of the segment of *scope*."""
        names = self.locator.names
        var = names.var("_".join(v.name for v in plan.vars))
        block_var = names.var(f"v{var.name}")
        scope.segment.levels[block_var] = level
        match plan.domain:
            case Fuse(axes=axes) | Flatten(axes=axes):
                extent = self._open_fused(plan.domain, axes, plan.vars, block_var, scope)
            case domain:
                extent = self._open_axis(domain, plan.vars[0], block_var, scope)
        loop = OpenLoop(var, block_var, extent, plan.reduces, plan.domain, plan.vars)
        scope.segment.loops.append(loop)
        return loop

    def _open_axis(self, domain: Domain, var: Var, block_var: Var, scope: Scope) -> Expr:
        (axis,) = domain_axes(domain)
        parent = self.parent_of(domain, axis, scope)
        pos = Pos(axis, parent, relative=block_var, guard=parent.guard if parent else None)
        present = self.aux.present(pos)
        pos.guard = both(pos.guard, present)
        binding = Binding(lambda: self.aux.coordinate(pos), {axis: pos}, present=present)
        scope.bind(var, binding)
        return self.aux.size(axis, parent)

    def parent_of(self, domain: Domain, axis: Axis, scope: Scope) -> Pos | None:
        """Return the position on the parent axis under which *axis* is iterated."""
        if axis.parent is None:
            return None
        if isinstance(domain, Attach):
            return self._attached_parent(domain, axis.parent, scope)
        parent = scope.position(axis.parent)
        if parent is None:
            raise order_error(self.it, axis, self.it)
        return parent

    def _attached_parent(self, domain: Attach, parent: Axis, scope: Scope) -> Pos:
        over = [b for b in scope.bindings.values() if domain.to in b.positions]
        if not over or parent.kind != "dense_fixed":
            reason = (
                "is not iterated" if not over else f"cannot index {parent.name}, not dense_fixed"
            )
            raise LoweringError(
                f"{domain.axis.name} is attached to {domain.to.name}, which {reason}",
                self.it.span,
                hint=f"iterate over {domain.to.name} before the attached axis",
            )
        value, guard = over[-1].coordinate(), over[-1].present
        if not spans_axis(parent, domain.to):
            guard = inside(value, parent.length)
        return Pos(parent, None, value, guard=guard)

    def _open_fused(
        self,
        domain: Domain,
        axes: tuple[Axis, ...],
        loop_vars: tuple[Var, ...],
        block_var: Var,
        scope: Scope,
    ) -> Expr:
        """Bind *loop_vars* to the elements of the last axis; return how many there are."""
        first = axes[0]
        if isinstance(domain, Flatten) and any(axis.padded for axis in axes):
            raise LoweringError(
                "an axis with padding cannot be flattened",
                self.it.span,
                hint="iterate over it on its own, or fuse it",
            )
        parent = self.parent_of(first, first, scope)
        begins, ends = [self.aux.begin(first, parent)], [self.aux.end(first, parent)]
        for axis in axes[1:]:
            begins.append(self.aux.first((axis,), begins[-1]))
            ends.append(self.aux.first((axis,), ends[-1]))
        absolute = plus(begins[-1], block_var)
        if isinstance(domain, Flatten):
            scope.bind(loop_vars[0], Binding(lambda: absolute, {}))
        else:
            self._bind_fused(axes, parent, (begins, ends), absolute, loop_vars, scope)
        return ends[-1] if begins[-1] is ZERO else binary("-", ends[-1], begins[-1])

    def _bind_fused(
        self,
        axes: tuple[Axis, ...],
        parent: Pos | None,
        ranges: tuple[list[Expr], list[Expr]],
        absolute: Expr,
        loop_vars: tuple[Var, ...],
        scope: Scope,
    ) -> None:
        """Bind each of *loop_vars* to its axis; positions above the last are found if needed."""
        places: list[Pos] = []
        for axis in axes[:-1]:
            places.append(Pos(axis, places[-1] if places else parent))
        places.append(Pos(axes[-1], places[-1] if places else parent, absolute=absolute))
        for k in range(len(axes) - 2, -1, -1):
            begin, end = ranges[0][k], ranges[1][k]
            places[k].absolute = self._above(axes[k + 1], places[k + 1], begin, end, scope)
        for var, axis, pos in zip(loop_vars, axes, places, strict=True):
            present = self.aux.present(pos)
            pos.guard = both(pos.parent.guard if pos.parent else None, present)
            scope.bind(var, Binding(self._coordinate(pos), {axis: pos}, present=present))

    def _coordinate(self, pos: Pos) -> Callable[[], Expr]:
        return lambda: self.aux.coordinate(pos)

    def _above(
        self, axis: Axis, pos: Pos, begin: Expr, end: Expr, scope: Scope
    ) -> Callable[[], Expr]:
        """Return a search in ``begin..end`` for the position whose fiber of *axis* holds *pos*."""

        def find() -> Expr:
            assert axis.parent is not None
            holder = self.aux.holder(axis, self.aux.absolute(pos), begin, end)
            return self.locator.lookup(scope, f"{axis.parent.name}_at", holder, fails=False)

        return find
