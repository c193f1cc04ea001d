"""Beside the route: intervals of machine integer expressions, on which all proofs build."""

from __future__ import annotations

from dataclasses import field
from functools import cache
from typing import TYPE_CHECKING

from spcomp.ir.access import Load, Search
from spcomp.ir.axis import AnyBuffer, BufferDomain, SparseBuffer
from spcomp.ir.expr import (
    COMPARISONS,
    BinOp,
    Broadcast,
    Call,
    Cast,
    Const,
    Expr,
    Ramp,
    Reduce,
    Select,
    UnOp,
    Var,
)
from spcomp.ir.node import record
from spcomp.ir.visitor import Visitor

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from spcomp.dtypes import DType


@record
class Interval:
    """The integers ``low..high``, both included; None: no limit on that side."""

    low: int | None = None
    high: int | None = None

    def __contains__(self, other: Interval | int) -> bool:
        low, high = (other, other) if isinstance(other, int) else (other.low, other.high)
        above = self.low is None or (low is not None and low >= self.low)
        return above and (self.high is None or (high is not None and high <= self.high))

    def __and__(self, other: Interval) -> Interval:
        if self in other:
            return self
        lows = [x for x in (self.low, other.low) if x is not None]
        highs = [x for x in (self.high, other.high) if x is not None]
        return Interval(max(lows, default=None), min(highs, default=None))

    def __or__(self, other: Interval) -> Interval:
        low = None if self.low is None or other.low is None else min(self.low, other.low)
        high = None if self.high is None or other.high is None else max(self.high, other.high)
        return Interval(low, high)

    def __add__(self, other: Interval) -> Interval:
        low = None if self.low is None or other.low is None else self.low + other.low
        high = None if self.high is None or other.high is None else self.high + other.high
        return Interval(low, high)

    def __neg__(self) -> Interval:
        return Interval(
            None if self.high is None else -self.high, None if self.low is None else -self.low
        )

    def __mul__(self, other: Interval) -> Interval:
        if self.low == self.high == 0 or other.low == other.high == 0:
            return ZERO
        if self.low == self.high == 1:
            return other
        ends = [_times(a, b) for a in self._signed() for b in other._signed()]
        return Interval(_limit(min(ends)), _limit(max(ends)))

    def _signed(self) -> tuple[float, float]:
        """The ends, with infinities for None."""
        return (-_INF if self.low is None else self.low, _INF if self.high is None else self.high)

    @property
    def value(self) -> int | None:
        """The only integer in it, None if there are several."""
        return self.low if self.low == self.high else None


_INF = float("inf")
ZERO = Interval(0, 0)
ANY = Interval()
BOOL = Interval(0, 1)
NONNEGATIVE = Interval(0, None)


def _times(a: float, b: float) -> float:
    return 0 if a == 0 or b == 0 else a * b


def _limit(end: float) -> int | None:
    return None if end in (_INF, -_INF) else int(end)


@cache
def dtype_range(dtype: DType) -> Interval:
    """Return the integers that *dtype* holds; no limits if it is not an integer or bool."""
    match dtype.kind:
        case "int":
            return Interval(-(1 << dtype.bits - 1), (1 << dtype.bits - 1) - 1)
        case "uint":
            return Interval(0, (1 << dtype.bits) - 1)
        case "bool":
            return BOOL
    return ANY


@record
class Env:
    """The intervals of variables and of the values in buffers; a missing one may hold anything."""

    vars: Mapping[Var, Interval] = field(default_factory=dict)
    buffers: Mapping[AnyBuffer, Interval] = field(default_factory=dict)

    @classmethod
    def of(
        cls, variables: Mapping[Var, Interval] | None, domains: tuple[BufferDomain, ...] = ()
    ) -> Env:
        """Return what *variables* and the promises *domains* say."""
        env = cls(dict(variables or {}))
        values = {d.buffer: hull(bounds_of(d.low, env), bounds_of(d.high, env)) for d in domains}
        return cls(env.vars, values)


def hull(first: Interval, last: Interval) -> Interval:
    """Return the interval from the start of *first* to the end of *last*; ANY if it is empty."""
    interval = Interval(first.low, last.high)
    empty = interval.low is not None and interval.high is not None and interval.low > interval.high
    return ANY if empty else interval


def as_env(env: Env | Mapping[Var, Interval] | None) -> Env:
    """Return *env* as an Env; it may be one, the intervals of variables, or None."""
    return env if isinstance(env, Env) else Env(env or {})


def bounds_of(expr: Expr, env: Env | Mapping[Var, Interval] | None = None) -> Interval:
    """Return an interval that holds every value of *expr* (each lane of a vector).

    Integers wrap around, so an operation that may leave its dtype gives the range of the dtype.
    False is 0, True is 1. Floats and divisions that may fail are anything their dtype holds.
    """
    return _Bounds(as_env(env)).visit(expr)


class _Bounds(Visitor[Interval]):
    COVERS = (Var, Const, BinOp, UnOp, Cast, Select, Call, Load, Search, Ramp, Broadcast, Reduce)

    def __init__(self, env: Env) -> None:
        self.env = env

    def visit(self, node: Expr) -> Interval:  # type: ignore[override]
        full = dtype_range(node.dtype)
        if full is ANY:
            return ANY
        interval = super().visit(node)
        return interval if interval in full else full

    def visit_Expr(self, _: Expr) -> Interval:
        return ANY

    def visit_Var(self, var: Var) -> Interval:
        interval = self.env.vars.get(var)
        return dtype_range(var.type) if interval is None else interval & dtype_range(var.type)

    def visit_Const(self, const: Const) -> Interval:
        value = int(const.value)
        return Interval(value, value)

    def visit_BinOp(self, op: BinOp) -> Interval:
        if op.op in COMPARISONS:
            if op.lhs.dtype.is_float:
                return BOOL
            return compare(op.op, self.visit(op.lhs), self.visit(op.rhs))
        rule = _RULES.get(op.op)
        return rule(self.visit(op.lhs), self.visit(op.rhs)) if rule else ANY

    def visit_UnOp(self, op: UnOp) -> Interval:
        inner = self.visit(op.value)
        if op.op == "not":
            return -inner + Interval(1, 1)
        if op.op == "~" and op.dtype.kind != "int":
            return ANY
        return -inner + (Interval(-1, -1) if op.op == "~" else ZERO)

    def visit_Cast(self, cast: Cast) -> Interval:
        if cast.value.dtype.is_float:
            return ANY
        inner = self.visit(cast.value)
        if cast.type.kind != "bool":
            return inner
        return compare("!=", inner, ZERO)

    def visit_Select(self, select: Select) -> Interval:
        cond = self.visit(select.cond).value
        if cond is not None:
            return self.visit(select.then if cond else select.otherwise)
        return self.visit(select.then) | self.visit(select.otherwise)

    def visit_Call(self, call: Call) -> Interval:
        if call.func == "popcount":
            return Interval(0, call.dtype.bits)
        if call.func == "abs":
            inner = self.visit(call.args[0])
            sides = [abs(end) for end in (inner.low, inner.high) if end is not None]
            return inner if inner in NONNEGATIVE else Interval(0, max(sides, default=None))
        return ANY

    def visit_Load(self, load: Load) -> Interval:
        interval = self.env.buffers.get(load.buffer, ANY) & dtype_range(load.buffer.dtype)
        if load.mask is not None:
            interval |= ZERO
        if isinstance(load.buffer, SparseBuffer) and not load.buffer.dtype.is_float:
            fill = int(load.buffer.fill)  # the value of a coordinate that is not stored
            interval |= Interval(fill, fill)
        return interval

    def visit_Search(self, search: Search) -> Interval:
        return self.visit(search.begin) | self.visit(search.end)

    def visit_Ramp(self, ramp: Ramp) -> Interval:
        last = ramp.stride * (ramp.lanes - 1)
        return self.visit(ramp.base) + Interval(min(0, last), max(0, last))

    def visit_Broadcast(self, broadcast: Broadcast) -> Interval:
        return self.visit(broadcast.value)

    def visit_Reduce(self, reduce: Reduce) -> Interval:
        lanes = reduce.value.dtype.lanes
        match reduce.op:
            case "min" | "max" | "and" | "or":
                return self.visit(reduce.value)
            case "+":
                return self.visit(reduce.value) * Interval(lanes, lanes)
        return ANY


def compare(op: str, a: Interval, b: Interval) -> Interval:
    """Return the interval of ``a op b``: 0, 1, or both."""
    match op:
        case "<" | ">=":
            result = _below(a, b)
        case ">" | "<=":
            result = _below(b, a)
        case _:
            result = _equal(a, b)
    if result is None:
        return BOOL
    truth = int(result == (op in ("<", ">", "==")))
    return Interval(truth, truth)


def _below(a: Interval, b: Interval) -> bool | None:
    """Return True if every value of *a* is below every one of *b*, False if none is, else None."""
    if a.high is not None and b.low is not None and a.high < b.low:
        return True
    return False if a.low is not None and b.high is not None and a.low >= b.high else None


def _equal(a: Interval, b: Interval) -> bool | None:
    if a.value is not None and a.value == b.value:
        return True
    return False if _below(a, b) or _below(b, a) else None


def _floordiv(a: Interval, b: Interval) -> Interval:
    if 0 in b or None in (a.low, a.high, b.low, b.high):
        return ANY
    ends = [x // y for x in (a.low, a.high) for y in (b.low, b.high)]  # type: ignore[operator]
    return Interval(min(ends), max(ends))


def _mod(a: Interval, b: Interval) -> Interval:
    if 0 in b or b.low is None or b.high is None:
        return ANY
    if b.low < 0:
        return Interval(b.low + 1, 0)
    if a in Interval(0, b.low - 1):
        return a
    return Interval(0, b.high - 1) & (Interval(0, a.high) if a in NONNEGATIVE else ANY)


def _min(a: Interval, b: Interval) -> Interval:
    return -_max(-a, -b)


def _max(a: Interval, b: Interval) -> Interval:
    joined = a | b
    lows = [x for x in (a.low, b.low) if x is not None]
    return Interval(max(lows, default=None), joined.high)


def _bit_and(a: Interval, b: Interval) -> Interval:
    sides = [x for x in (a, b) if x in NONNEGATIVE]
    return (
        Interval(0, min((s.high for s in sides if s.high is not None), default=None))
        if (sides)
        else ANY
    )


def _bit_or(a: Interval, b: Interval) -> Interval:
    if a not in NONNEGATIVE or b not in NONNEGATIVE or a.high is None or b.high is None:
        return ANY
    return Interval(0, (1 << max(a.high, b.high).bit_length()) - 1)


def _shift_left(a: Interval, b: Interval) -> Interval:
    if b.low is None or b.high is None or b.low < 0 or b.high > 63:
        return ANY
    return a * Interval(1 << b.low, 1 << b.high)


def _shift_right(a: Interval, b: Interval) -> Interval:
    if b.low is None or b.high is None or b.low < 0 or b.high > 63:
        return ANY
    return _floordiv(a, Interval(1 << b.low, 1 << b.high))


_RULES: dict[str, Callable[[Interval, Interval], Interval]] = {
    "+": Interval.__add__,
    "-": lambda a, b: a + -b,
    "*": Interval.__mul__,
    "//": _floordiv,
    "%": _mod,
    "min": _min,
    "max": _max,
    "and": _min,
    "or": _max,
    "&": _bit_and,
    "|": _bit_or,
    "^": _bit_or,
    "<<": _shift_left,
    ">>": _shift_right,
}
