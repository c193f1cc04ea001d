"""Beside the route: reductions inside a value as statements of their own, before it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import TypeAlias

from spcomp.notation.algebra import rebuilt
from spcomp.notation.nodes import (
    SYMBOLS,
    Access,
    Assignment,
    Declared,
    Expr,
    Number,
    Op,
    Program,
    Reduce,
    Scalar,
    children,
    free,
    walk,
)
from spcomp.notation.prepare import free_name

_ADDS = ("+", "-", "neg")
Takes: TypeAlias = Callable[[Reduce, Assignment], bool]


def is_small(term: Reduce, stmt: Assignment) -> bool:
    """Whether *term*, in *stmt*, has one index at most outside: it is a scalar or a vector."""
    del stmt
    return len(free(term)) <= 1


def is_across(term: Reduce, stmt: Assignment) -> bool:
    """Whether *term*, in *stmt*, goes through an operand whose first index it reduces.

    Inside *stmt* that operand would be searched for each coordinate. A term of several indices
    counts only if the result has all of them and no operand of its addend has two, so that the
    result is dense. A division, which may fail, stays where it is.
    """
    if any(isinstance(t, Op) and t.op in ("//", "%") for t in walk(term)):
        return False
    indices = {*free(term)}
    inside = [t.indices for t in walk(term) if isinstance(t, Access)]
    if not any(first[0] in term.indices and indices & {*first} for first in inside if first):
        return False
    addend = _addend_with(term, stmt.value)
    outside = (t.indices for t in _outside_reductions(addend) if isinstance(t, Access))
    return len(indices) <= 1 or (
        indices <= {*stmt.target.indices} and all(len(indices & {*names}) < 2 for names in outside)
    )


def _addend_with(term: Reduce, value: Expr) -> Expr:
    """Return the addend of *value* that *term* is in."""
    while isinstance(value, Op) and value.op in _ADDS:
        value = next((arg for arg in value.args if any(t == term for t in walk(arg))), Number(0))
    return value


def with_inner_hoisted(program: Program, takes: Takes = is_small) -> Program:
    """Return *program* with reductions inside a value as statements, if *takes* holds for them.

    ``C[i, j] = e[i, j] / sum(k, e[i, k])`` becomes ``sum_2[i] = sum(k, e[i, k])`` and
    ``C[i, j] = e[i, j] / sum_2[i]``, in which each operand is iterated by itself. The new results
    are dense: a reduction inside a value is present everywhere. A reduction that is a whole addend
    stays where it is.
    """
    taken = {stmt.target.name for stmt in program.statements}
    for stmt in program.statements:
        terms = walk(stmt.value)
        taken |= {term.name for term in terms if isinstance(term, (Access, Scalar))}
    statements: list[Assignment] = []
    for stmt in program.statements:
        value = _addends(
            stmt.value, partial(_hoist, stmt=stmt, takes=takes, statements=statements, taken=taken)
        )
        statements.append(replace(stmt, value=value))
    return Program(tuple(statements))


def _addends(term: Expr, hoist: Callable[[Expr], Expr]) -> Expr:
    """Return *term* with *hoist* applied to the parts of its addends."""
    if isinstance(term, Op) and term.op in _ADDS:
        return rebuilt(term, lambda child: _addends(child, hoist))
    return rebuilt(term, hoist)


def _hoist(
    term: Expr, stmt: Assignment, takes: Takes, statements: list[Assignment], taken: set[str]
) -> Expr:
    """Return *term* with its reductions that *takes* holds for moved to *statements*."""
    if isinstance(term, Declared):
        return term
    term = rebuilt(
        term, partial(_hoist, stmt=stmt, takes=takes, statements=statements, taken=taken)
    )
    if not isinstance(term, Reduce):
        return term
    indices = free(term)
    sized = {i for t in walk(term) if isinstance(t, Access) for i in t.indices}
    if not takes(term, stmt) or not sized.issuperset(indices):
        return term
    name = free_name(SYMBOLS[term.op], taken)
    target = Access(name, indices, at=term.at)
    statements.append(Assignment(target, term, is_dense=True, at=term.at))
    return target


def _outside_reductions(term: Expr) -> Iterator[Expr]:
    """Yield *term* and what is below it, but not inside its reductions."""
    if not isinstance(term, Reduce):
        yield term
        for child in children(term):
            yield from _outside_reductions(child)
