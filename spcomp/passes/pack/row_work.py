"""I to II, for products: the function that bounds the number of elements of each row."""

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
    """Return the function that counts the writes of *func* to each fiber of *axis*, and its handle.

    A count is at most the length of the axis; element ``i + 1`` of the int64 array is for fiber i.
    """
    names = Names(func)
    work, none = (Var(names.unique(f"{axis.name}_{wish}"), handle) for wish in ("work", "none"))
    work_axis = axis.replace(indptr=work, indices=none, idtype=int64)
    counting = relink(func, axes={axis: work_axis})
    counting, _ = without_inits(counting, {work_axis})
    results = {b.data for b in counting.buffers if work_axis in getattr(b, "axes", ())}
    params = (*(p for p in counting.params if p not in results), work)
    counting = counting.replace(name=f"{func.name}_work", params=params)
    lowered_func = lower_function(counting, _Work("count", frozenset({work_axis})))
    body = lowered_func.body
    if isinstance(body, For) and from_zero(body):  # each row stores only its own count
        lowered_func = lowered_func.replace(body=body.replace(kind="parallel"))
    return lowered_func, work


@dataclass(slots=True)
class _Work(Assembly):
    """Counts every write, whether the coordinate is new or not."""

    counts: dict[Axis, Buffer] = field(default_factory=dict)

    @property
    def ascending(self) -> bool:
        """Always false: any order will do."""
        return False

    def open(self, place: Place, names: Names, aux: Auxiliary) -> Callable[[Stmt], Stmt]:
        """Open the fiber: declare the count of its writes."""
        count = scalar(names, f"{place.axis.name}_count")
        self.parents[place.axis] = place.parent
        self.counts[place.axis] = count

        def wrap(stmt: Stmt) -> Stmt:
            at_once = _SumLoops(count).rewrite(stmt)
            most = binary("min", Load(count, (ZERO,)), cast(place.axis.length, int64))
            end = seq(Store(count, (ZERO,), most), close(place, count, aux))
            return Alloc(count, seq(Store(count, (ZERO,), ZERO), at_once, end))

        return wrap

    def load(self, buffer: AnyBuffer, place: Place, fill: Expr) -> Expr:  # noqa: ARG002
        """Return the fill: a count needs no values."""
        return fill

    def store(self, stmt: Store, value: Expr, place: Place, aux: Auxiliary) -> Stmt:  # noqa: ARG002
        """Return the statement that counts; a coordinate outside the axis fails the call."""
        count = self.counts[place.axis]
        add = Store(count, (ZERO,), binary("+", Load(count, (ZERO,)), 1))
        if place.within is None:
            return add
        miss = f"write to a coordinate outside of {place.axis.name}"
        return If(place.within, add, Fail(miss, span=stmt.span), span=stmt.span)


class _SumLoops(Rewriter):
    """Replaces a loop that only counts by a sum: ``for j in n: c += 1  ->  c += n``."""

    def __init__(self, count: Buffer) -> None:
        self.count = count

    def visit_Let(self, let: Let) -> Node:
        """Keep it if it is used."""
        body = self.rewrite(let.body)
        return let.replace(body=body) if let.var in variables(body) else body

    def visit_Block(self, block: Block) -> Node:
        """Drop a block around a count that does not depend on the block's variables."""
        body = self.rewrite(block.body)
        iters = {item.var for item in block.iters}
        is_plain = block.init is None and block.where is None and not variables(body) & iters
        return body if is_plain and self._increment(body) is not None else block.replace(body=body)

    def visit_For(self, loop: For) -> Node:
        body = self.rewrite(loop.body)
        increment = self._increment(body)
        if increment is None or not from_zero(loop) or loop.var in variables(increment):
            return loop.replace(body=body)
        times = binary("*", increment, binary("max", loop.end, 0))
        return Store(self.count, (ZERO,), binary("+", Load(self.count, (ZERO,)), times))

    def _increment(self, stmt: Stmt) -> Expr | None:
        """Return the increment of the count by *stmt*, if it does nothing else."""
        if not isinstance(stmt, Store) or stmt.buffer is not self.count:
            return None
        return getattr(stmt.value, "rhs", None)
