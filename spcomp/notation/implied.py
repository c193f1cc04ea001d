"""Index notation, beside the route: reductions that are not written, and which have to be.

A reduction that is not written stands around a product. So each index that it runs over has to
stand in an operand, in a sum of which each addend has it so, or in two factors of a product. Where
its one place is inside of anything else, as in ``maximum(A[i, j] * x[j], 0)``, it could as well be
meant there.
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
    """Raise ScriptError for a reduction that is not written, and could stand in two places."""
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
                        hint=f"write {term}, or {inner}",
                    )


def refuse_dense(stmt: Assignment, names: AbstractSet[str], semiring: Semiring) -> None:
    """Raise ScriptError for a reduction of *stmt* that would leave a sparse operand's pattern.

    It is not written, and because of another addend it would run over every coordinate of an index
    of an operand called one of *names*.
    """
    sparse = frozenset(names)
    for term in _implied(stmt, semiring):
        for index in term.indices:
            if _is_restricted(term.body, index, sparse):
                continue
            found = _left_alone(term.body, index, sparse)
            if found is not None:
                kept = replace(term, body=Masked(term.body, found))
                raise ScriptError(
                    f"the {SYMBOLS[term.op]} over {index} is not written, and would run over"
                    f" every {index}, not over what {found} stores",
                    found.at or term.at,
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

    *counted*: a mask around it has the index, and so what is without it.
    """
    if _is_product(term, semiring):
        own = [arg for arg in children(term) if index in free(arg)]
        return None if len(own) > 1 else _inside_of(own[0], index, semiring, counted=counted)
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
            own = [arg for arg in args if index in free(arg)]
            if len(own) < len(args) and not counted:
                return term
            found = (_inside_of(arg, index, semiring, counted=counted) for arg in own)
            return next((part for part in found if part is not None), None)
    return term


def _pushed(term: Expr, bound: set[str], semiring: Semiring) -> Expr:
    """Return *term* reduced over its indices that are not *bound*, as far inside as can be."""
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
    own = {*term.indices} if isinstance(term, Reduce) else set()
    return rebuilt(term, lambda child: _pushed(child, bound | own, semiring))


def _is_restricted(term: Expr, index: str, sparse: frozenset[str]) -> bool:
    """Whether sparse operands say at which coordinates of *index* there is a value of *term*."""
    formula = presence(term, sparse)
    own = frozenset(access for access in leaves(formula) if index in access.indices)
    return keep(formula, own) != ALWAYS


def _left_alone(term: Expr, index: str, sparse: frozenset[str]) -> Access | None:
    """Return a sparse operand with *index* in a sum in *term* of which an addend lacks them."""
    if isinstance(term, Op) and term.op in ("+", "-"):
        kept = [arg for arg in term.args if _is_restricted(arg, index, sparse)]
        if 0 < len(kept) < len(term.args):
            found = leaves(presence(kept[0], sparse))
            return next(access for access in found if index in access.indices)
    each = (_left_alone(part, index, sparse) for part in _parts(term))
    return next((found for found in each if found is not None), None)


def _parts(term: Expr) -> tuple[Expr, ...]:
    """What the value of *term* is made of, as it is written: without conditions and reductions."""
    match term:
        case Reduce():
            return ()
        case Declared(args=args):
            return args
        case Masked(value=value, other=other):
            return (value,) if other is None else (value, other)
    return children(term)
