"""Index notation, beside the route: implied reductions, and which have to be written.

An implied reduction stands around a product. So each of its indices has to occur directly in an
operand, in every addend of a sum, or in two factors of a product. If it occurs only inside
something else, as in ``maximum(A[i, j] * x[j], 0)``, the reduction could also be meant inside.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from dataclasses import replace

from spcomp.errors import ScriptError
from spcomp.notation.algebra import ALWAYS, keep, leaves, presence, rebuilt, with_reductions
from spcomp.notation.nodes import (
    SYMBOLS,
    TYPES,
    Access,
    Assignment,
    Call,
    Declared,
    Expr,
    IndexValue,
    Masked,
    Op,
    Program,
    Reduce,
    children,
    free,
    walk,
)
from spcomp.notation.semiring import Semiring


def refuse_unclear(program: Program, semiring: Semiring) -> None:
    """Raise ScriptError for an implied reduction that could stand in two places."""
    for stmt in program.statements:
        for term in _implied(stmt, semiring):
            for index in term.indices:
                around = _inside_of(term.body, index, semiring)
                if around is not None:
                    inner = _pushed(term.body, {*free(term)}, semiring)
                    raise ScriptError(
                        f"the {SYMBOLS[term.op]} over {index} is not written, and could stand"
                        f" around {around} or inside",
                        around.at or term.at,
                        hint=f"write {term}, or {inner}{_power(term)}",
                    )


def _power(term: Expr) -> str:
    """Return what a hint says of an exclusive or in *term* that may be meant as a power."""
    is_there = any(isinstance(t, Op) and t.op == "^" for t in walk(term))
    return "; a power is written with **" if is_there else ""


def refuse_dense(stmt: Assignment, names: AbstractSet[str], semiring: Semiring) -> None:
    """Raise ScriptError for an implied reduction of *stmt* that leaves a sparse operand's pattern.

    Because of another addend it would run over every coordinate of an index of one of the operands
    *names*.
    """
    sparse = frozenset(names)
    for term in _implied(stmt, semiring):
        for index in term.indices:
            if _is_restricted(term.body, index, sparse):
                continue
            operand = _lone_operand(term.body, index, sparse)
            if operand is not None:
                kept = replace(term, body=Masked(term.body, operand))
                raise ScriptError(
                    f"the {SYMBOLS[term.op]} over {index} is not written, and would run over"
                    f" every {index}, not over what {operand} stores",
                    operand.at or term.at,
                    hint=f"write {term} for every {index}, or {kept}",
                )


def _implied(stmt: Assignment, semiring: Semiring) -> Iterator[Reduce]:
    for term in walk(with_reductions(stmt, semiring).value):
        if isinstance(term, Reduce) and not term.is_written:
            yield term


def _is_product(term: Expr, semiring: Semiring) -> bool:
    match term:
        case Op(op=op):
            return op == "*" or (op == semiring.mul and op not in ("+", "-"))
        case Call(func=func):
            return func == f"{semiring.mul}imum"
    return False


def _inside_of(term: Expr, index: str, semiring: Semiring, *, counted: bool = False) -> Expr | None:
    """Return the part of *term*, which has *index*, inside of which a reduction could be meant.

    *counted*: a mask around it has the index, so that addends without it count, too.
    """
    if _is_product(term, semiring):
        factors = [arg for arg in children(term) if index in free(arg)]
        alone = len(factors) == 1
        return _inside_of(factors[0], index, semiring, counted=counted) if alone else None
    match term:
        case Access() | IndexValue():
            return None
        case Op(op="neg", args=(value,)) if semiring.add == "+":  # else -max(x) is not max(-x)
            return _inside_of(value, index, semiring, counted=counted)
        case Call(func=func, args=(value,)) if func in TYPES:
            return _inside_of(value, index, semiring, counted=counted)
        case Reduce(op=op, body=value) if op == semiring.add:
            return _inside_of(value, index, semiring, counted=counted)
        case Masked(value=value, cond=cond, other=None):
            counted |= index in free(cond)
            alone = index not in free(value)
            return None if alone else _inside_of(value, index, semiring, counted=counted)
        case Op(op="/", args=(value, by)) if index in free(value):
            alone = index not in free(by)
            return _inside_of(value, index, semiring, counted=counted) if alone else None
        case Op(op="+" | "-", args=args):
            addends = [arg for arg in args if index in free(arg)]
            if len(addends) < len(args) and not counted:
                return term
            inside = (_inside_of(arg, index, semiring, counted=counted) for arg in addends)
            return next((part for part in inside if part is not None), None)
    return term


def _pushed(term: Expr, bound: set[str], semiring: Semiring) -> Expr:
    """Return *term* reduced over its indices that are not *bound*, as far inside as possible."""
    missing = tuple(name for name in free(term) if name not in bound)
    clear = tuple(name for name in missing if _inside_of(term, name, semiring) is None)
    if len(clear) == len(missing):
        stmt = with_reductions(Assignment(Access("", tuple(bound)), term), semiring)
        return stmt.value
    if clear:
        inner = _pushed(term, bound | {*clear}, semiring)
        return Reduce(semiring.add, clear, inner)
    if isinstance(term, Masked) and term.other is None and {*missing} & {*free(term.cond)}:
        cond = term.cond
        masked = rebuilt(term.value, lambda arg: Masked(arg, cond) if free(arg) else arg)
        return rebuilt(masked, lambda arg: _pushed(arg, bound, semiring))
    below = bound | {*term.indices} if isinstance(term, Reduce) else bound
    return rebuilt(term, lambda child: _pushed(child, below, semiring))


def _is_restricted(term: Expr, index: str, sparse: frozenset[str]) -> bool:
    """Whether sparse operands restrict the coordinates of *index* at which *term* has a value."""
    formula = presence(term, sparse)
    operands = frozenset(access for access in leaves(formula) if index in access.indices)
    return keep(formula, operands) != ALWAYS


def _lone_operand(term: Expr, index: str, sparse: frozenset[str]) -> Access | None:
    """Return a sparse operand with *index* in a sum in *term*, if another addend has none."""
    if isinstance(term, Op) and term.op in ("+", "-"):
        kept = [arg for arg in term.args if _is_restricted(arg, index, sparse)]
        if 0 < len(kept) < len(term.args):
            operands = leaves(presence(kept[0], sparse))
            return next(access for access in operands if index in access.indices)
    below = (_lone_operand(part, index, sparse) for part in _parts(term))
    return next((operand for operand in below if operand is not None), None)


def _parts(term: Expr) -> tuple[Expr, ...]:
    """Return the parts of the value of *term* as written, without conditions and reductions."""
    match term:
        case Reduce():
            return ()
        case Declared(args=args):
            return args
        case Masked(value=value, other=other):
            return (value,) if other is None else (value, other)
    return children(term)
