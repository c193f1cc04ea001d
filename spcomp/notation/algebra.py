"""Index notation to index notation: implied reductions; and where a term is present."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

from spcomp.notation.nodes import (
    Access,
    Assignment,
    Call,
    Declared,
    Expr,
    Masked,
    Number,
    Op,
    Reduce,
    free,
    walk,
)
from spcomp.notation.semiring import Semiring
from spcomp.notation.windows import Windows


@dataclass(frozen=True, slots=True)
class Always:
    """Present at every coordinate."""

    def __str__(self) -> str:
        return "everywhere"


@dataclass(frozen=True, slots=True)
class Stored:
    """Present where the sparse operand of *access* stores the coordinate."""

    access: Access

    def __str__(self) -> str:
        return str(self.access)


@dataclass(frozen=True, slots=True)
class Both:
    """Present where all of *parts* are."""

    parts: tuple[Presence, ...]

    def __str__(self) -> str:
        return " and ".join(f"({p})" if isinstance(p, Either) else str(p) for p in self.parts)


@dataclass(frozen=True, slots=True)
class Either:
    """Present where one of *parts* is."""

    parts: tuple[Presence, ...]

    def __str__(self) -> str:
        return " or ".join(map(str, self.parts))


Presence: TypeAlias = Always | Stored | Both | Either
ALWAYS = Always()


def both(*parts: Presence) -> Presence:
    """Return the conjunction of *parts*: flat, without repetition, and ``a and (a or b)`` is a."""
    flat: list[Presence] = []
    for part in parts:
        flat += part.parts if isinstance(part, Both) else [part]
    kept = [p for p in dict.fromkeys(flat) if p != ALWAYS]
    kept = [p for p in kept if not (isinstance(p, Either) and set(p.parts) & set(kept))]
    if not kept:
        return ALWAYS
    return kept[0] if len(kept) == 1 else Both(tuple(kept))


def either(*parts: Presence) -> Presence:
    """Return the disjunction of *parts*: flat, without repetition, ``a or (a and b)`` is a."""
    flat: list[Presence] = []
    for part in parts:
        flat += part.parts if isinstance(part, Either) else [part]
    kept = list(dict.fromkeys(flat))
    if ALWAYS in kept:
        return ALWAYS
    kept = [p for p in kept if not (isinstance(p, Both) and set(p.parts) & set(kept))]
    return kept[0] if len(kept) == 1 else Either(tuple(kept))


def presence(term: Expr, sparse: frozenset[str]) -> Presence:
    """Return where *term* is present; *sparse*: the operands that may not store everything.

    ``+`` and ``-``: where one side is; other operators and functions: where all arguments are;
    reductions and ``stored``: everywhere.
    """
    match term:
        case Call(func="stored"):
            return ALWAYS
        case Access(name=name):
            return Stored(term) if name in sparse else ALWAYS
        case Op(op="+" | "-", args=(left, right)):
            return either(presence(left, sparse), presence(right, sparse))
        case Declared(presence="always"):
            return ALWAYS
        case Declared(args=args, presence="or"):
            return either(*(presence(arg, sparse) for arg in args))
        case Op(args=args) | Call(args=args) | Declared(args=args):
            return both(*(presence(arg, sparse) for arg in args))
        case Masked(value=value, cond=cond, other=other):
            kept = both(presence(value, sparse), _holds(cond, sparse))
            return kept if other is None else either(kept, presence(other, sparse))
    return ALWAYS


def _holds(cond: Expr, sparse: frozenset[str]) -> Presence:
    """Return where the condition *cond* can hold."""
    match cond:
        case Call(func="stored", args=(access,)):
            return presence(access, sparse)
        case Op(op="and" | "&", args=args):
            return both(*(_holds(arg, sparse) for arg in args))
    return presence(cond, sparse)


def asked_of(cond: Expr, sparse: frozenset[str]) -> Access | None:
    """Return the operand if *cond* only asks whether one is stored; None if it asks values."""
    match cond:
        case Call(func="stored", args=(Access() as access,)):
            return access
        case Access(name=name) if name in sparse:
            return cond
    return None


def keep(formula: Presence, wanted: frozenset[Access]) -> Presence:
    """Return *formula* where only the accesses *wanted* can be absent."""
    match formula:
        case Stored(access=access):
            return formula if access in wanted else ALWAYS
        case Both(parts=parts):
            return both(*(keep(part, wanted) for part in parts))
        case Either(parts=parts):
            return either(*(keep(part, wanted) for part in parts))
    return formula


def leaves(formula: Presence) -> tuple[Access, ...]:
    """Return the accesses that *formula* asks for, each once."""
    match formula:
        case Stored(access=access):
            return (access,)
        case Both(parts=parts) | Either(parts=parts):
            return tuple(dict.fromkeys(leaf for part in parts for leaf in leaves(part)))
    return ()


def required(formula: Presence) -> tuple[Access, ...]:
    """Return the accesses that are present wherever *formula* holds."""
    match formula:
        case Stored(access=access):
            return (access,)
        case Both(parts=parts):
            return tuple(leaf for part in parts for leaf in required(part))
    return ()


def cover(formula: Presence, usable: frozenset[Access]) -> tuple[Access, ...]:
    """Return the fewest *usable* accesses such that one is present wherever *formula* holds.

    Empty if that is impossible.
    """
    match formula:
        case Stored(access=access):
            return (access,) if access in usable else ()
        case Both(parts=parts):
            covers = [c for c in (cover(part, usable) for part in parts) if c]
            return min(covers, key=len, default=())
        case Either(parts=parts):
            covers = [cover(part, usable) for part in parts]
            return tuple(dict.fromkeys(a for c in covers for a in c)) if all(covers) else ()
    return ()


# -- rewriting -----------------------------------------------------------------------------------


def with_reductions(stmt: Assignment, semiring: Semiring) -> Assignment:
    """Return *stmt* with its implied reductions written out.

    An index that occurs only on the right side is reduced, in each addend that has it.
    """
    return replace(stmt, value=_with_reductions(stmt.value, set(stmt.target.indices), semiring))


def _with_reductions(term: Expr, bound: set[str], semiring: Semiring) -> Expr:
    missing = tuple(name for name in free(term) if name not in bound)
    if not missing:
        return term
    match term:
        case Op(op=op, args=args) if op in ("+", "-") or (op == "neg" and semiring.add == "+"):
            return replace(term, args=tuple(_with_reductions(arg, bound, semiring) for arg in args))
        case Masked(value=value, cond=cond, other=None) if not set(missing) & set(free(cond)):
            return _mask_inside(
                replace(term, value=_with_reductions(value, bound, semiring)), semiring
            )
    return Reduce(semiring.add, missing, term, is_written=False, at=term.at)


def _mask_inside(term: Masked, semiring: Semiring) -> Expr:
    """Return ``sum(k, x) if M`` as ``sum(k, x if M)``, which needs no scalar."""
    inner = term.value
    if isinstance(inner, Reduce) and inner.op == semiring.add:
        return replace(inner, body=replace(term, value=inner.body))
    return term


def masked_addends(value: Expr, semiring: Semiring) -> Expr:
    """Return ``(x + sum(k, y)) if c`` as ``(x if c) + sum(k, y if c)``, other values as is."""
    if not isinstance(value, Masked) or value.other is not None or semiring.add != "+":
        return value
    inner = value.value
    sums = (isinstance(part, Reduce) and part.op == "+" for part, _ in addends(inner, semiring))
    if not isinstance(inner, Op) or inner.op not in ("+", "-", "neg") or not any(sums):
        return value

    def masked(term: Expr) -> Expr:
        if isinstance(term, Op) and term.op in ("+", "-", "neg"):
            return replace(term, args=tuple(map(masked, term.args)))
        return _mask_inside(replace(value, value=term), semiring)

    return masked(inner)


def addends(term: Expr, semiring: Semiring) -> list[tuple[Expr, bool]]:
    """Return the addends of *term*, and whether each is subtracted; literals alone are one."""
    match term:
        case Op() if all(isinstance(part, (Op, Number)) for part in walk(term)):
            return [(term, False)]
        case Op(op="+", args=args):
            return [part for arg in args for part in addends(arg, semiring)]
        case Op(op="-", args=(left, right)) if semiring.add == "+":
            negated = [(part, not minus) for part, minus in addends(right, semiring)]
            return [*addends(left, semiring), *negated]
        case Op(op="neg", args=(inner,)) if semiring.add == "+":
            return [(part, not minus) for part, minus in addends(inner, semiring)]
    return [(term, False)]


@dataclass(frozen=True, slots=True)
class Windowed:
    """An operand that is the argument *name*, or the *windows* of it."""

    name: str
    windows: Windows


def rebuilt(term: Expr, rewrite: Callable[[Expr], Expr]) -> Expr:
    """Return *term* with *rewrite* applied to the terms directly below it."""
    match term:
        case Op(args=args) | Call(args=args):
            return replace(term, args=tuple(map(rewrite, args)))
        case Declared(args=args, body=body):
            return replace(term, args=tuple(map(rewrite, args)), body=rewrite(body))
        case Reduce(body=body):
            return replace(term, body=rewrite(body))
        case Masked(value=value, cond=cond, other=other):
            last = None if other is None else rewrite(other)
            return replace(term, value=rewrite(value), cond=rewrite(cond), other=last)
    return term
