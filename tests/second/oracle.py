"""What a program of index notation means, after docs/notation.md, on dense arrays and masks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tests.second import terms as t
from tests.second.values import (
    Array,
    Value,
    bounded,
    cast,
    combined,
    common,
    eps,
    exact,
    merged,
    truth,
)

CASTS = ("float16", "float32", "float64", "int8", "int16", "int32", "int64",
         "uint8", "uint16", "uint32", "uint64", "bool")  # fmt: skip
SEMIRINGS = {
    "plus_times": ("+", "*"), "min_plus": ("min", "+"), "max_plus": ("max", "+"),
    "max_times": ("max", "*"), "min_times": ("min", "*"), "min_max": ("min", "max"),
    "max_min": ("max", "min"), "or_and": ("or", "and"), "plus_pair": ("+", "pair"),
    "min_first": ("min", "first"), "min_second": ("min", "second"),
}  # fmt: skip
REDUCED = {"+": "sum", "*": "prod", "min": "min", "max": "max", "or": "any", "and": "all"}


RANK = 8  # how many indices, one axis each, a statement may have


@dataclass(frozen=True)
class Operand:
    """A tensor: a value for each coordinate, and whether it is stored sparse."""

    value: Value
    sparse: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.value.number.shape)


@dataclass
class Scope:
    """Where terms are evaluated: tensors, and the axis and length of each index."""

    tensors: Mapping[str, Operand]
    semiring: tuple[str, str]
    axes: dict[str, int] = field(default_factory=dict)
    lengths: dict[str, int] = field(default_factory=dict)

    def along(self, name: str, numbers: Array) -> Array:
        """Return *numbers*, one for each coordinate of an index, along its axis."""
        shape = [1] * RANK
        shape[self.axes[name]] = len(numbers)
        return np.asarray(numbers).reshape(shape)


def evaluate(term: t.Term, scope: Scope) -> Value:
    """Return the value of *term*, an axis for each index in scope."""
    match term:
        case t.Number(value):
            return exact(np.asarray(value).reshape((1,) * RANK), weak=value)
        case t.Coordinate(name):
            return exact(scope.along(name, np.arange(scope.lengths[name])))
        case t.Ref():
            return _loaded(term, scope)
        case t.Reduce():
            return replace(_reduction(term, scope), present=np.asarray(True))
        case t.Masked():
            return _masked(term, scope)
        case t.Stored(ref, spelling):
            if spelling.startswith("T."):
                return _loaded(t.Ref(f"stored {ref.name}", ref.places), scope)
            there = _loaded(ref, scope).present
            return exact(there if spelling in t.POSITIVE else ~there)
        case t.Op(name, args):
            return operation(name, [evaluate(arg, scope) for arg in args], scope.semiring)
    raise TypeError(term)


def operation(name: str, args: list[Value], semiring: tuple[str, str]) -> Value:
    """Return an operator, function or cast of *args*; + and * are those of the *semiring*."""
    if name in CASTS:
        return cast(args[0], name)
    if name == "+" or (name == "-" and semiring[0] == "+"):
        return merged(semiring[0] if name == "+" else "-", *args)
    if name == "-":
        return merged("-", *args)
    if name == "own_fill":
        filled = [
            replace(
                arg,
                number=np.where(arg.present, arg.number, np.zeros((), arg.dtype)),
                present=np.asarray(True),
            )
            for arg in args
        ]
        return replace(own(filled), present=args[0].present | args[1].present)
    if name == "own_keep":
        return own(args)
    if name == "*":
        return multiplied(semiring[1], *args)
    return combined(name, args)


def own(args: list[Value]) -> Value:
    """Return what the functions of spellings.FUNCTIONS compute."""
    return combined("/", [combined("maximum", args), exact(2, weak=2)])


def multiplied(name: str, a: Value, b: Value) -> Value:
    """Return *a* times *b*, in the sense of a semiring."""
    if name == "+":
        return combined("+", [a, b])
    if name in ("first", "second", "pair"):
        chosen = {"first": a, "second": b, "pair": exact(np.ones(a.number.shape, "int64"))}[name]
        unknown = a.unknown() | b.unknown()
        found = bounded(chosen.number, a.present & b.present, chosen.error, unknown)
        return replace(found, weak=chosen.weak)
    return combined(name, [a, b])


def _loaded(ref: t.Ref, scope: Scope) -> Value:
    value = scope.tensors[ref.name].value
    arrays = [
        np.broadcast_to(x, value.number.shape) for x in (value.number, value.present, value.error)
    ]
    picks: list[Array] = []
    for place in ref.places:
        match place:
            case t.Fixed(at):
                picks.append(np.full((1,) * RANK, at))
            case t.Window(name, coordinates, _):
                picks.append(scope.along(name, np.asarray(coordinates, dtype=int)))
            case t.Index(name):
                picks.append(scope.along(name, np.arange(scope.lengths[name])))
    if picks:
        arrays = [x[tuple(picks)] for x in arrays]
    else:
        arrays = [x.reshape((1,) * RANK) for x in arrays]
    number, present, error = arrays
    return Value(number, present, error, value.weak)


def condition_of(term: t.Term, scope: Scope) -> tuple[Array, Array]:
    """Return where *term*, a condition, holds, and where that is not known."""
    value = evaluate(term, scope)
    if isinstance(term, t.Ref) and scope.tensors[term.name].sparse:
        return value.present, value.unknown()
    value = truth(value)
    return value.present & value.number, value.unknown()


def _masked(term: t.Masked, scope: Scope) -> Value:
    holds, unknown = condition_of(term.condition, scope)
    value = evaluate(term.term, scope)
    unknown = unknown | value.unknown()
    if term.other is None:
        kept = bounded(value.number, value.present & holds, value.error, unknown)
        return replace(kept, weak=value.weak)
    other = evaluate(term.other, scope)
    both = combined("maximum", [value, other])
    kind = common([value, other], counts=False)
    value, other = cast(value, kind), cast(other, kind)
    chosen = bounded(
        np.where(holds, value.number, other.number),
        np.where(holds, value.present, other.present),
        np.where(holds, value.error, other.error),
        unknown | other.unknown(),
    )
    return replace(chosen, weak=both.weak)


def _reduction(term: t.Reduce, scope: Scope) -> Value:
    """Return a written reduction, present where it has a term."""
    lengths = _lengths(term.term, term.over, scope)
    free = [axis for axis in range(RANK) if axis not in scope.axes.values()]
    axes = dict(zip(term.over, free, strict=False))
    deeper = replace(scope, axes=scope.axes | axes, lengths=scope.lengths | lengths)
    inner = evaluate(term.term, deeper)
    found = [axes[at] for at in term.over], [lengths[at] for at in term.over]
    return reduced(term.name, inner, *found)


def _lengths(term: t.Term, names: Sequence[str], scope: Scope) -> dict[str, int]:
    """Return how long the indices *names* of a reduction are: as long as the tensors in it."""
    found: dict[str, int] = {}

    def look(term: t.Term, wanted: frozenset[str]) -> None:
        if isinstance(term, t.Reduce):
            wanted = wanted - set(term.over)
        refs = (
            [term] if isinstance(term, t.Ref) else [term.ref] if isinstance(term, t.Stored) else []
        )
        for ref in refs:
            for at, place in enumerate(ref.places):
                if not isinstance(place, t.Fixed) and place.name in wanted:
                    found[place.name] = length_of(place, scope.tensors[ref.name], at)
        for child in term.children():
            look(child, wanted)

    look(term, frozenset(names))
    return found


def length_of(place: t.Index | t.Window, tensor: Operand, at: int) -> int:
    """Return over how many coordinates an index at *place* of *tensor* runs."""
    if isinstance(place, t.Window):
        return len(place.coordinates)
    return tensor.shape[at]


def reduced(name: str, value: Value, axes: Sequence[int], lengths: Sequence[int]) -> Value:
    """Return *value* reduced over *axes*; present where any of it is."""
    shape = list(np.broadcast_shapes(value.number.shape, value.present.shape, value.error.shape))
    for axis, length in zip(axes, lengths, strict=True):
        shape[axis] = length
    number, present, error = (
        np.broadcast_to(x, shape) for x in (value.number, value.present, value.error)
    )
    if name in ("any", "all"):
        value = truth(Value(number, present, error))
        number, error = value.number, np.broadcast_to(value.error, shape)
    over = tuple(axes)
    unknown = np.any(np.isinf(error), over, keepdims=True)
    error = np.where(present & ~np.isinf(error), error, 0.0)
    if name in ("argmax", "argmin"):
        return _arg(name, number, present, error, over[0], unknown)
    if number.dtype == bool and name not in ("any", "all"):
        number = number.astype("int64")
    compute = {
        "sum": _sum,
        "prod": _prod,
        "max": _extreme,
        "min": _extreme,
        "any": _logic,
        "all": _logic,
    }[name]
    found, off = compute(name, number, present, error, over)
    if name in ("sum", "prod") and number.dtype.kind == "f":
        unknown = unknown | _overflows(name, number, present, over)
    return bounded(found, np.any(present, over, keepdims=True), off, unknown)


def _overflows(name: str, number: Array, present: Array, over: tuple[int, ...]) -> Array:
    """Return where some of the numbers, in another order, may be too large, or too small."""
    limits = np.finfo(number.dtype)
    size = np.abs(number.astype("float64"))
    size = np.where(present & np.isfinite(size), size, 0.0)
    with np.errstate(all="ignore"):
        if name == "sum":
            return np.asarray(size.sum(over, keepdims=True) >= 0.999 * limits.max)
        size = np.where(size == 0, 1.0, size)
        most = np.maximum(size, 1).prod(over, keepdims=True)
        least = np.minimum(size, 1).prod(over, keepdims=True)
    return (most >= 0.999 * limits.max) | (least <= 1.001 * limits.tiny)


def _sum(
    name: str, number: Array, present: Array, error: Array, over: tuple[int, ...]
) -> tuple[Array, Array]:
    kept = np.where(present, number, np.zeros((), number.dtype))
    with np.errstate(all="ignore"):
        total = kept.sum(over, keepdims=True, dtype=number.dtype)
        size = np.abs(kept.astype("float64")).sum(over, keepdims=True)
    terms = math.prod(number.shape[axis] for axis in over)
    return total, error.sum(over, keepdims=True) + (terms + 1) * eps(number.dtype) * size


def _prod(
    name: str, number: Array, present: Array, error: Array, over: tuple[int, ...]
) -> tuple[Array, Array]:
    kept = np.where(present, number, np.ones((), number.dtype))
    with np.errstate(all="ignore"):
        total = kept.prod(over, keepdims=True, dtype=number.dtype)
        size = np.abs(kept.astype("float64"))
        reach = (size + error).prod(over, keepdims=True) - size.prod(over, keepdims=True)
    terms = math.prod(number.shape[axis] for axis in over)
    rounding = (terms + 1) * eps(number.dtype) * size.prod(over, keepdims=True)
    return total, reach + rounding + (
        terms * np.finfo(number.dtype).tiny if number.dtype.kind == "f" else 0
    )


def neutral(name: str, dtype: np.dtype[Any]) -> Any:
    """Return what *name* reduces nothing to."""
    if name in ("sum", "any"):
        return dtype.type(0)
    if name in ("prod", "all"):
        return dtype.type(1)
    if dtype.kind == "f":
        return dtype.type(-np.inf if name == "max" else np.inf)
    if dtype.kind == "b":
        return dtype.type(name == "min")
    limits = np.iinfo(dtype)
    return dtype.type(limits.min if name == "max" else limits.max)


def _extreme(
    name: str, number: Array, present: Array, error: Array, over: tuple[int, ...]
) -> tuple[Array, Array]:
    first = neutral(name, number.dtype)
    kept = np.where(present, number, first)
    with np.errstate(all="ignore"):
        found = (np.max if name == "max" else np.min)(kept, over, keepdims=True, initial=first)
    return found, error.max(over, keepdims=True, initial=0.0)


def _logic(
    name: str, number: Array, present: Array, error: Array, over: tuple[int, ...]
) -> tuple[Array, Array]:
    kept = np.where(present, number, name == "all")
    found = (np.any if name == "any" else np.all)(kept, over, keepdims=True)
    return found, np.zeros(found.shape)


def _arg(
    name: str, number: Array, present: Array, error: Array, axis: int, unknown: Array
) -> Value:
    """Return where the largest or smallest is; unknown where two are near, at NaN, of nothing."""
    if number.dtype.kind == "f":
        value, lowest = number.astype("float64") * (1 if name == "argmax" else -1), -np.inf
    else:  # floats do not tell large ones apart; ~ turns the order around, without wrapping
        value = number.astype("int64") if number.dtype.kind == "b" else number
        value = value if name == "argmax" else ~value
        lowest = np.iinfo(value.dtype).min
    kept = np.where(present & ~np.isnan(value), value, np.asarray(lowest, value.dtype))
    if number.shape[axis] == 0:
        shape = [*number.shape[:axis], 1, *number.shape[axis + 1 :]]
        return bounded(
            np.zeros(shape, "int64"), np.asarray(False), np.zeros(shape), np.ones(shape, bool)
        )
    best = kept.max(axis, keepdims=True)
    at = np.argmax(present & (kept == best), axis, keepdims=True)
    with np.errstate(all="ignore"):
        near = (kept + 2 * error >= best) & (error > 0) & present
    odd = (near.sum(axis, keepdims=True) > 1) | (np.isnan(value) & present).any(axis, keepdims=True)
    odd = odd | ~np.any(present, axis, keepdims=True) | np.isinf(best)
    return bounded(at, np.any(present, axis, keepdims=True), np.zeros(at.shape), unknown | odd)


def _addends(
    term: t.Term, names: list[str], scope: Scope, masks: tuple[t.Term, ...] = ()
) -> tuple[list[tuple[str, Value]], Value]:
    """Return the values between the outermost + and - of *term*, under *masks*, each with a sign.

    And their sum as the parentheses stand.
    """
    match term:
        case t.Op("+" | "-" as name, (left, right)):
            (before, a), (after, b) = (_addends(x, names, scope, masks) for x in (left, right))
            if name == "-":
                after = [("-" if sign == "+" else "+", one) for sign, one in after]
            return [*before, *after], merged(scope.semiring[0] if name == "+" else "-", a, b)
        case t.Masked(inner, condition, None):
            return _addends(inner, names, scope, (condition, *masks))
    for condition in masks:
        term = t.Masked(term, condition)
    value = _addend(term, names, scope)
    return [("+", value)], value


def assigned(
    statement: t.Statement, tensors: Mapping[str, Operand], semiring: tuple[str, str]
) -> Value:
    """Return what *statement* gives its target, an array of the target's rank."""
    names = [place.name for place in statement.target.places if not isinstance(place, t.Fixed)]
    free = sorted(statement.value.free() - set(names))
    scope = Scope(tensors, semiring)
    scope.lengths.update(_lengths(statement.value, [*names, *free], scope))
    scope.axes.update({name: axis for axis, name in enumerate([*names, *free])})
    if isinstance(statement.value, t.Reduce) and statement.sign == "=":
        total = _reduction(statement.value, scope)
    else:
        total = _total(statement.value, names, scope)
    shape = [scope.lengths[name] for name in names]
    full = shape + [1] * (RANK - len(names))
    number, present, error = (
        np.broadcast_to(x, full).reshape(shape) for x in (total.number, total.present, total.error)
    )
    return Value(number, present, error, total.weak)


def _total(term: t.Term, names: list[str], scope: Scope) -> Value:
    """Return *term* with the reductions that are not written."""
    ((_, total), *rest), nested = _addends(term, names, scope)
    large = np.abs(total.number.astype("float64"))
    for sign, value in rest:
        total = merged(scope.semiring[0] if sign == "+" else "-", total, value)
        large = large + np.abs(value.number.astype("float64"))
    if len(rest) > 1 and eps(total.dtype):  # those that are present everywhere come first
        fits = large < 0.999 * float(np.finfo(total.dtype).max)  # in any order
        rounding = np.where(fits, len(rest) * eps(total.dtype) * large, np.inf)
        total = replace(total, error=total.error + rounding)
    if total.dtype != nested.dtype:  # the order of the parentheses decides the type
        total = replace(cast(total, nested.dtype), weak=nested.weak)
    if len(rest) < 2:
        return total
    error, unknown = total.error, total.unknown()
    with np.errstate(all="ignore"):
        off = np.abs(total.number.astype("float64") - nested.number.astype("float64"))
        if not term.free() - set(names):  # integers may wrap as the parentheses stand, or not
            unknown = unknown | (off > 0.5 + 1e-3 * np.abs(nested.number.astype("float64")))
        # as the parentheses stand, unless the result is dense and an operand restricts a term
        error = np.maximum(error, off + nested.error)
    return bounded(total.number, total.present, error, unknown)


def _addend(term: t.Term, names: list[str], scope: Scope) -> Value:
    """Return *term* reduced over what it has and the result has not; what is negated, before."""
    if isinstance(term, t.Op) and term.name == "neg":
        return combined("neg", [_total(term.args[0], names, scope)])
    match term:
        case t.Masked(t.Op("neg", (negated,)), _, None):  # the sign stands outside of its sum
            return combined("neg", [_total(replace(term, term=negated), names, scope)])
    missing = sorted(term.free() - set(names))
    adds = isinstance(term, t.Reduce) and term.name == REDUCED[scope.semiring[0]]
    value = _reduction(term, scope) if adds else evaluate(term, scope)
    if not missing:
        return value
    axes = [scope.axes[name] for name in missing]
    lengths = [scope.lengths[name] for name in missing]
    return reduced(REDUCED[scope.semiring[0]], value, axes, lengths)
