"""Under the step online_softmax: values that are proportional to the power of the maximum."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from spcomp.errors import ScheduleError
from spcomp.ir.access import Load, Search
from spcomp.ir.axis import AnyBuffer, memory_of
from spcomp.ir.expr import BinOp, Call, Expr
from spcomp.ir.node import Node
from spcomp.ir.rewrite import Rewriter, substitute
from spcomp.ir.stmt import For, Store
from spcomp.ir.structural import expr_equal
from spcomp.ir.visitor import walk
from spcomp.schedule.nests.fibers import FiberNest
from spcomp.schedule.steps.base import Step

POWERS = ("exp", "exp2")
Indices = tuple[Expr | None, ...]


@dataclass(frozen=True, slots=True)
class Value:
    """``expr / over``; *is_scaled*: proportional to the power of minus the maximum.

    The quotient is left to the end, where the sums *over* are complete.
    """

    expr: Expr
    is_scaled: bool = False
    over: tuple[Expr, ...] = ()

    @property
    def is_plain(self) -> bool:
        """Whether it has its value from the beginning."""
        return not self.is_scaled and not self.over

    @property
    def is_kept(self) -> bool:
        """Whether it is an element that a turn has computed already, but for quotients."""
        return isinstance(self.expr, Load) and self.is_scaled


class Rescaled:
    """What the expressions of a row are in a turn, in which only the maximum so far is known.

    *element*: the position of an element in its row. *elements*: by the arrays that have one value
    for each element, their indices and that; *sums*: by sums, their indices and what they are in
    the end, if values may be divided by them.
    """

    def __init__(
        self, step: Step, loop: For, nests: Sequence[FiberNest], top: FiberNest, element: Expr
    ) -> None:
        self.step, self.loop, self.top, self.element = step, loop, top, element
        self.memory = {memory_of(x.store.buffer) for x in nests}
        self.elements: dict[AnyBuffer, tuple[Indices, Value]] = {}
        self.sums: dict[AnyBuffer, tuple[Indices, Expr | None]] = {}
        self.base = self._base(nests)
        self.shift: Load | None = None  # what stands for the maximum, once it is known
        self.highest: Expr | None = None
        self.weight: Load | None = None
        self.missing: Store | None = None  # of the weight, which is needed now
        self.is_weighed = False

    def _base(self, nests: Sequence[FiberNest]) -> str:
        """Return the function that raises to powers of differences from the maximum."""
        calls = (n for x in nests for n in walk(x.store.value) if isinstance(n, Call))
        found = {call.func for call in calls if call.func in POWERS and self._is_power(call)}
        if len(found) != 1:
            raise self.error("no sum of exp(x - maximum), or exp2, follows")
        return found.pop()

    def _is_power(self, call: Call) -> bool:
        arg = call.args[0]
        return isinstance(arg, BinOp) and arg.op == "-" and self._is_top(arg.rhs)

    def _is_top(self, expr: Expr) -> bool:
        store = self.top.store
        return isinstance(expr, Load) and self._same(expr, store.buffer, store.indices)

    def _same(self, load: Load, buffer: AnyBuffer, indices: Indices) -> bool:
        pairs = zip(load.indices, indices, strict=True)
        return (
            load.buffer is buffer
            and load.mask is None
            and all(a is not None and b is not None and expr_equal(a, b) for a, b in pairs)
        )

    def error(self, why: str) -> ScheduleError:
        """Return the error that says *why* the step is not legal."""
        return self.step.error(why, self.loop)

    def found(self, value: Expr, shift: Load, weight: Load) -> None:
        """Note that *shift* is the maximum so far of *value*; *weight*: a place for its power."""
        self.highest, self.shift, self.weight = value, shift, weight

    def power(self, exponent: Expr) -> Expr:
        """Return the power to *exponent*."""
        return Call(self.base, (exponent,))

    def weights(self) -> Store | None:
        """Return the store of the power of an element, if it is needed now for the first time."""
        store, self.missing = self.missing, None
        return store

    def plain(self, expr: Expr) -> Expr:
        """Return *expr*, which has its value from the beginning; raises ScheduleError if not."""
        if (name := self._depends(expr)) is not None:
            raise self.error(f"{name} is used where it is not known yet")
        return substitute(_Elements(self).rewrite(expr), {self.top.element: self.element})

    def of(self, expr: Expr) -> Value:
        """Return what *expr* is in a turn; raises ScheduleError where it cannot be rescaled."""
        name, value = self._depends(expr), None
        if name is None:
            return Value(self.plain(expr))
        match expr:
            case Load():
                value = self._known(expr)
            case Call(func=self.base, args=(BinOp(lhs=exponent),)) if self._is_power(expr):
                value = self._weight(exponent)
            case BinOp(op="/", lhs=lhs, rhs=rhs):
                value = self._quotient(self.of(lhs), rhs)
            case BinOp(op="*" | "+" | "-" as op, lhs=lhs, rhs=rhs):
                value = _combined(op, self.of(lhs), self.of(rhs))
        if value is None:
            raise self.error(f"{name} is no factor, nor a sum to divide by")
        return value

    def _known(self, load: Load) -> Value | None:
        """Return the element that *load* reads, if a turn has computed it."""
        indices, value = self.elements.get(load.buffer, ((), None))
        return value if value is not None and self._same(load, load.buffer, indices) else None

    def _quotient(self, value: Value, divisor: Expr) -> Value:
        total = self._sum(divisor)
        if total is None:
            return replace(value, expr=BinOp("/", value.expr, self.plain(divisor)))
        return replace(value, over=(*value.over, total))

    def _weight(self, value: Expr) -> Value:
        """Return the power of *value* minus the maximum, which is computed once for an element."""
        if self.weight is None or self.highest is None or self.shift is None:
            raise self.error("the maximum is used before it is computed")
        if not expr_equal(self.plain(value), self.highest):
            raise self.error("a power is not that of what the maximum is of")
        if not self.is_weighed:
            less = self.power(BinOp("-", self.highest, self.shift))
            self.missing = Store(self.weight.buffer, self.weight.indices, less)
            self.is_weighed = True
        return Value(self.weight, is_scaled=True)

    def _sum(self, expr: Expr) -> Expr | None:
        """Return what the sum that *expr* reads is in the end; None if it is no such sum."""
        if not isinstance(expr, Load) or expr.buffer not in self.sums:
            return None
        indices, final = self.sums[expr.buffer]
        if final is None or not self._same(expr, expr.buffer, indices):
            raise self.error(f"{expr.buffer.name} cannot be divided by before all is summed")
        return final

    def _depends(self, expr: Expr) -> str | None:
        """Return the name of what *expr* reads that has its value only in the end, or None."""
        for node in walk(expr):
            if isinstance(node, Load | Search) and memory_of(node.buffer) in self.memory:
                known = self._known(node) if isinstance(node, Load) else None
                if known is None or not known.is_plain:
                    return node.buffer.name
        return None


def _combined(op: Literal["*", "+", "-"], a: Value, b: Value) -> Value | None:
    """Return the product, or the sum, of two values; None where only their exact values do."""
    if op == "*":
        if a.is_scaled and b.is_scaled:
            return None
        return Value(BinOp("*", a.expr, b.expr), a.is_scaled or b.is_scaled, (*a.over, *b.over))
    if a.is_scaled and b.is_scaled and a.over == b.over:
        return Value(BinOp(op, a.expr, b.expr), is_scaled=True, over=a.over)
    return None


class _Elements(Rewriter):
    """Reads elements of arrays that a turn has computed."""

    def __init__(self, row: Rescaled) -> None:
        self.row = row

    def visit_Load(self, load: Load) -> Node:
        """Return the element of the turn, or the load of another buffer."""
        known = self.row.elements.get(load.buffer)
        return self.visit_Node(load) if known is None else known[1].expr
