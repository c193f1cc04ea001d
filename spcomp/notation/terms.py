"""Index notation to expressions: the value of a term, and the condition under which it has one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial, reduce
from typing import TypeAlias
from typing import cast as typed

from spcomp.dtypes import bool_, int64
from spcomp.dtypes import dtype as dtype_of
from spcomp.errors import ScriptError
from spcomp.ir.access import Load, Stored
from spcomp.ir.analysis.reduction import Combiner, identity
from spcomp.ir.arith.fold import fold
from spcomp.ir.expr import BinOp, BinOpKind, Const, Expr, Select, UnOp, UnOpKind, cast, const
from spcomp.ir.expr import Call as CallExpr
from spcomp.ir.expr import Cast as CastExpr
from spcomp.ir.promotion import (
    Value,
    arguments,
    combine,
    folds,
    literal,
    resolve,
    truth,
    unify,
)
from spcomp.notation import nodes
from spcomp.notation.algebra import asked_of
from spcomp.notation.nodes import (
    Access,
    Call,
    Declared,
    IndexValue,
    Masked,
    Number,
    Op,
    Scalar,
    walk,
)
from spcomp.notation.semiring import Semiring

Cond: TypeAlias = Expr | None  # None: always
_EXTREMES: dict[str, BinOpKind] = {"maximum": "max", "minimum": "min"}
ONE = const(1, int64)  # the value of a pair of elements, where pairs are counted
_ARITHMETIC = frozenset({"+", "-", "*", "/", "//", "%", "min", "max"})


@dataclass(frozen=True, slots=True)
class Terms:
    """Translates the terms of one nest.

    *load* gives the element of an access, *mask* the mask of a bitmap there, *scalar* the value of
    a name, *index* the coordinate of an index. *unsure*: the accesses that may be absent.
    """

    load: Callable[[Access], Load]
    mask: Callable[[Access], Expr | None]
    scalar: Callable[[str], Value]
    index: Callable[[str], Expr]
    unsure: frozenset[Access]
    sparse: frozenset[str]
    semiring: Semiring

    def term(self, term: nodes.Expr) -> tuple[Value, Cond]:
        """Return the value of *term*, and the condition under which it is present."""
        match term:
            case Number(value=value):
                return literal(value), None
            case Scalar(name=name):
                return self.scalar(name), None
            case IndexValue(name=name):
                return Value(self.index(name)), None
            case Access():
                return self._access(term)
            case Op(op="+" | "-", args=(left, right)):
                return self._sum(term, left, right)
            case Masked():
                return self._masked(term)
            case Declared(presence="always", body=body):
                return or_zero(*self.term(body)), None
            case Declared():
                return self._declared(term)
        return self._function(typed("Op | Call", term))

    def _access(self, term: Access) -> tuple[Value, Cond]:
        load, mask = self.load(term), self.mask(term)
        if mask is not None:  # elsewhere a bitmap may hold anything
            return Value(Select(mask, load, const(0, load.dtype))), mask
        return Value(load), Stored(load) if term in self.unsure else None

    def _function(self, term: Op | Call) -> tuple[Value, Cond]:
        parts = [self.term(arg) for arg in term.args]
        if isinstance(term, Call) and term.func == "stored":
            (_, present), *_ = parts
            return Value(const(True, bool_) if present is None else present), None
        values, cond = [value for value, _ in parts], _all([c for _, c in parts])
        try:
            return self._apply(term, values), cond
        except ValueError as error:
            is_power = isinstance(term, Op) and term.op == "^"
            hint = "a power is written with **" if is_power else ""
            raise ScriptError(str(error), term.at, hint=hint) from None

    def _apply(self, term: Op | Call, values: list[Value]) -> Value:
        name = term.op if isinstance(term, Op) else term.func
        if isinstance(term, Op) and len(values) == 1:
            return unary(name, values[0])
        if isinstance(term, Op):
            op = self.semiring.mul if name == "*" else name
            if op == "first":
                return values[0]
            if op == "second":
                return values[1]
            return Value(ONE) if op == "pair" else binary(op, *values)
        if name in _EXTREMES:
            return binary(_EXTREMES[name], *values)
        if name == "where":
            return choose(condition(values[0]), values[1], values[2])
        if name in nodes.TYPES:
            return Value(cast(resolve(values[0]), dtype_of(name)))
        weak = all(value.weak for value in values)
        if folds(values):
            return fold(name, values)
        if all(value.dtype.kind == "bool" for value in values):
            values = [number(value) for value in values]
        return Value(CallExpr(name, arguments(name, values), span=term.at), weak)

    def _sum(self, term: Op, left: nodes.Expr, right: nodes.Expr) -> tuple[Value, Cond]:
        (a, has_a), (b, has_b) = self.term(left), self.term(right)
        add = self.semiring.add if term.op == "+" else "+"
        op = self.semiring.add if term.op == "+" else "-"
        if term.op == "-" and self.semiring.add != "+":
            raise ScriptError(f"this semiring has no -, it adds by {self.semiring.add}", term.at)
        cond = None if has_a is None or has_b is None else BinOp("or", has_a, has_b)
        try:
            if add not in ("or", "and"):  # what is neutral in a narrow type is not in a wide one
                a, b = alike(a, b)
            both = binary(op, or_neutral(a, has_a, add), or_neutral(b, has_b, add))
        except ValueError as error:
            raise ScriptError(str(error), term.at) from None
        return both, cond

    def _masked(self, term: Masked) -> tuple[Value, Cond]:
        value, has_value = self.term(term.value)
        test = self._condition(term.cond)
        if term.other is None:
            return value, _all([test, has_value])
        other, has_other = self.term(term.other)
        if test is None:
            converted, _ = unify((value, other))  # both sides decide the dtype
            return Value(converted, weak=value.weak and other.weak), has_value
        cond: Cond = None
        if has_value is not None or has_other is not None:
            true = identity("and", bool_)
            cond = Select(test, has_value or true, has_other or true)
        return choose(test, value, other), cond

    def _condition(self, cond: nodes.Expr) -> Cond:
        operand = asked_of(cond, self.sparse)
        if operand is not None:
            return self.term(operand)[1]
        value, present = self.term(cond)
        return _all([present, condition(value)])

    def _declared(self, term: Declared) -> tuple[Value, Cond]:
        conds = [self.term(arg)[1] for arg in term.args]
        if term.presence == "or":
            known = [c for c in conds if c is not None]
            either = None if len(known) < len(conds) else reduce(partial(BinOp, "or"), known)
            conds = [either]
        value, cond = self.term(term.body)
        if any(isinstance(t, Masked) and t.other is None for t in walk(term.body)):
            conds.append(cond)
        return value, _all(conds)


def unary(op: str, value: Value) -> Value:
    """Return *value* under ``neg``, ``not`` or ``~``; raises ValueError."""
    if folds((value,)):
        return fold("negative" if op == "neg" else op, (value,))
    if op == "not":
        return Value(UnOp("not", condition(value)), value.weak)
    operand = resolve(number(value) if op == "neg" else value)
    if op == "~" and operand.dtype.is_float:
        raise ValueError(f"~ has no meaning for {operand.dtype}")
    return Value(UnOp(typed("UnOpKind", "-" if op == "neg" else op), operand), value.weak)


def binary(op: str, a: Value, b: Value) -> Value:
    """Return ``a op b``; bools alone count as 0 and 1 in arithmetic. Raises ValueError."""
    if folds((a, b)):
        return fold(op, (a, b))
    if op in _ARITHMETIC and a.dtype.kind == b.dtype.kind == "bool":
        a, b = number(a), number(b)
    kind, weak = typed("BinOpKind", op), a.weak and b.weak
    if kind in ("and", "or"):
        a, b = Value(condition(a)), Value(condition(b))
    return Value(combine(kind, a, b), weak)


def condition(value: Value) -> Expr:
    """Return whether *value* is not zero; of a literal, as a constant."""
    if value.weak and isinstance(value.expr, Const):
        return const(bool(value.expr.value), bool_)
    return truth(value)


def number(value: Value) -> Value:
    """Return *value* for arithmetic: a bool as an int64."""
    is_bool = value.dtype.kind == "bool"
    return Value(cast(resolve(value), int64), value.weak) if is_bool else value


def choose(cond: Expr, then: Value, otherwise: Value) -> Value:
    """Return *then* if *cond*, else *otherwise*; raises ValueError."""
    a, b = unify((then, otherwise))
    return Value(Select(cond, a, b), weak=then.weak and otherwise.weak)


def alike(a: Value, b: Value) -> tuple[Value, Value]:
    """Return *a* and *b* in the type in which they are combined; raises ValueError."""
    if a.weak and b.weak:
        return a, b
    if a.dtype.kind == b.dtype.kind == "bool":
        a, b = number(a), number(b)
    left, right = unify((a, b))
    return Value(left), Value(right)


def or_neutral(value: Value, cond: Cond, op: str) -> Value:
    """Return *value*, or the neutral element of *op* where *cond* does not hold."""
    if cond is None:
        return value
    if op == "+" and _reads_zero(value, cond):
        return value
    expr = condition(value) if op in ("and", "or") else resolve(value)
    neutral = identity(typed("Combiner", op), expr.dtype)
    return Value(Select(cond, expr, neutral), value.weak and op == "+")


def or_zero(value: Value, cond: Cond) -> Value:
    """Return *value*, or 0 where *cond* does not hold."""
    if cond is None or _reads_zero(value, cond):
        return value
    return choose(cond, value, literal(0))


def _reads_zero(value: Value, cond: Cond) -> bool:
    """Whether *value* is an element that reads as 0 where *cond* does not hold."""
    expr = value.expr
    while isinstance(expr, CastExpr):
        expr = expr.value
    return isinstance(cond, Stored) and cond.element is expr


def _all(conds: list[Cond]) -> Cond:
    result: Cond = None
    for cond in conds:
        if cond is not None and cond is not result:
            result = cond if result is None else BinOp("and", result, cond)
    return result
