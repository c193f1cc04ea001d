"""I to II, for products: the function that says how many elements each row has at most."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from spcomp.dtypes import handle, int64
from spcomp.ir.access import Load
from spcomp.ir.analysis.exprs import ZERO, from_zero, variables
from spcomp.ir.analysis.names import Names
from spcomp.ir.analysis.positions import Auxiliary
from spcomp.ir.axis import AnyBuffer, Axis, Buffer
from spcomp.ir.expr import Expr, Var, binary, cast
from spcomp.ir.node import Node
from spcomp.ir.position import Block
from spcomp.ir.program import CoordFunc, PosFunc
from spcomp.ir.rewrite import Rewriter, relink
from spcomp.ir.stmt import Alloc, Fail, For, If, Let, Stmt, Store, seq
from spcomp.passes.assembly.assemble import Assembly, Place, close
from spcomp.passes.assembly.marks import scalar
from spcomp.passes.assembly.write_order import without_inits
from spcomp.passes.iterations.lower_iterations import lower_function


def row_work(func: CoordFunc, axis: Axis) -> tuple[PosFunc, Var]:
    """Return what notes how often *func* writes along each fiber of *axis*, and where: a handle.

    That is no more than the axis is long; element ``i + 1`` of the array, an int64, is for fiber i.
    """
    names = Names(func)
    work, none = (Var(names.unique(f"{axis.name}_{wish}"), handle) for wish in ("work", "none"))
    counted = axis.replace(indptr=work, indices=none, idtype=int64)
    made = relink(func, axes={axis: counted})
    made, _ = without_inits(made, {counted})
    results = {b.data for b in made.buffers if counted in getattr(b, "axes", ())}
    params = (*(p for p in made.params if p not in results), work)
    made = made.replace(name=f"{func.name}_work", params=params)
    lowered = lower_function(made, _Work("count", frozenset({counted})))
    body = lowered.body
    if isinstance(body, For) and from_zero(body):  # a row notes its own number only
        lowered = lowered.replace(body=body.replace(kind="parallel"))
    return lowered, work


@dataclass(slots=True)
class _Work(Assembly):
    """A write counts, whether the coordinate is new or not."""

    counts: dict[Axis, Buffer] = field(default_factory=dict)

    @property
    def ascending(self) -> bool:
        """No order is asked for."""
        return False

    def open(self, place: Place, names: Names, aux: Auxiliary) -> Callable[[Stmt], Stmt]:
        """Open the fiber: how often it has been written to."""
        count = scalar(names, f"{place.axis.name}_count")
        self.parents[place.axis] = place.parent
        self.counts[place.axis] = count

        def wrap(stmt: Stmt) -> Stmt:
            at_once = _AtOnce(count).rewrite(stmt)
            most = binary("min", Load(count, (ZERO,)), cast(place.axis.length, int64))
            end = seq(Store(count, (ZERO,), most), close(place, count, aux))
            return Alloc(count, seq(Store(count, (ZERO,), ZERO), at_once, end))

        return wrap

    def load(self, buffer: AnyBuffer, place: Place, fill: Expr) -> Expr:  # noqa: ARG002
        """Return the fill: values are of no interest."""
        return fill

    def store(self, stmt: Store, value: Expr, place: Place, aux: Auxiliary) -> Stmt:  # noqa: ARG002
        """Return what counts; a coordinate outside the axis fails the call."""
        count = self.counts[place.axis]
        add = Store(count, (ZERO,), binary("+", Load(count, (ZERO,)), 1))
        if place.within is None:
            return add
        miss = f"write to a coordinate outside of {place.axis.name}"
        return If(place.within, add, Fail(miss, span=stmt.span), span=stmt.span)


class _AtOnce(Rewriter):
    """Counts what a loop counts, one by one, at once: ``for j in n: c += 1  ->  c += n``."""

    def __init__(self, count: Buffer) -> None:
        self.count = count

    def visit_Let(self, let: Let) -> Node:
        """Keep it if it is used."""
        body = self.rewrite(let.body)
        return let.replace(body=body) if let.var in variables(body) else body

    def visit_Block(self, block: Block) -> Node:
        """Leave what does not know the iteration."""
        body = self.rewrite(block.body)
        own = {it.var for it in block.iters}
        alone = block.init is None and block.where is None and not variables(body) & own
        return body if alone and self._added(body) is not None else block.replace(body=body)

    def visit_For(self, loop: For) -> Node:
        body = self.rewrite(loop.body)
        added = self._added(body)
        if added is None or not from_zero(loop) or loop.var in variables(added):
            return loop.replace(body=body)
        times = binary("*", added, binary("max", loop.end, 0))
        return Store(self.count, (ZERO,), binary("+", Load(self.count, (ZERO,)), times))

    def _added(self, stmt: Stmt) -> Expr | None:
        """Return what *stmt* adds to the count, if it does nothing else."""
        if not isinstance(stmt, Store) or stmt.buffer is not self.count:
            return None
        return getattr(stmt.value, "rhs", None)
