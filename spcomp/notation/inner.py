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
    """Whether *term*, in *stmt*, is a number, or one for each coordinate of an index."""
    del stmt
    return len(free(term)) <= 1


def is_across(term: Reduce, stmt: Assignment) -> bool:
    """Whether *term*, in *stmt*, goes through an operand by an index that it reduces first.

    Inside of *stmt* that operand would be searched, or leapt through, for each coordinate. Of more
    indices, only if the result has all of them and is dense: no operand has two. A division that
    may fail stays where it is.
    """
    if any(isinstance(t, Op) and t.op in ("//", "%") for t in walk(term)):
        return False
    own = {*free(term)}
    inside = [t.indices for t in walk(term) if isinstance(t, Access)]
    if not any(first[0] in term.indices and own & {*first} for first in inside if first):
        return False
    outside = (t.indices for t in _beside(stmt.value) if isinstance(t, Access))
    return len(own) <= 1 or (
        own <= {*stmt.target.indices} and all(len(own & {*indices}) < 2 for indices in outside)
    )


def with_inner_apart(program: Program, takes: Takes = is_small) -> Program:
    """Return *program* with the reductions inside a value that *takes* holds for as statements.

    ``C[i, j] = e[i, j] / sum(k, e[i, k])`` becomes ``sum_2[i] = sum(k, e[i, k])`` and
    ``C[i, j] = e[i, j] / sum_2[i]``, in which each operand is iterated by itself. The new results
    are dense: a reduction inside a value is present everywhere. Those that are a whole addend stay
    where they are.
    """
    taken = {stmt.target.name for stmt in program.statements}
    for stmt in program.statements:
        terms = walk(stmt.value)
        taken |= {term.name for term in terms if isinstance(term, (Access, Scalar))}
    made: list[Assignment] = []
    for stmt in program.statements:
        value = _addends(
            stmt.value, partial(_apart, stmt=stmt, takes=takes, made=made, taken=taken)
        )
        made.append(replace(stmt, value=value))
    return Program(tuple(made))


def _addends(term: Expr, apart: Callable[[Expr], Expr]) -> Expr:
    """Return *term* of which no addend has a reduction inside that is taken *apart*."""
    if isinstance(term, Op) and term.op in _ADDS:
        return rebuilt(term, lambda child: _addends(child, apart))
    return rebuilt(term, apart)


def _apart(
    term: Expr, stmt: Assignment, takes: Takes, made: list[Assignment], taken: set[str]
) -> Expr:
    if isinstance(term, Declared):
        return term
    term = rebuilt(term, partial(_apart, stmt=stmt, takes=takes, made=made, taken=taken))
    if not isinstance(term, Reduce):
        return term
    indices = free(term)
    known = {i for t in walk(term) if isinstance(t, Access) for i in t.indices}
    if not takes(term, stmt) or not known.issuperset(indices):
        return term
    name = free_name(SYMBOLS[term.op], taken)
    target = Access(name, indices, at=term.at)
    made.append(Assignment(target, term, is_dense=True, at=term.at))
    return target


def _beside(term: Expr) -> Iterator[Expr]:
    """Yield *term* and what is below it, but not inside its reductions."""
    if not isinstance(term, Reduce):
        yield term
        for child in children(term):
            yield from _beside(child)
