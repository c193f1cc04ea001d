"""Index notation to index notation: a statement as several, a program as one for each of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from spcomp.notation.algebra import with_reductions
from spcomp.notation.nodes import (
    Access,
    Assignment,
    Expr,
    Op,
    Program,
    Reduce,
    Scalar,
    accesses,
    free,
)
from spcomp.notation.plan import Plan
from spcomp.notation.prepare import free_name
from spcomp.notation.results import Output, first_pair, widest
from spcomp.notation.semiring import Semiring


def pieces(
    stmt: Assignment, semiring: Semiring, taken: set[str], *, is_dense: bool = False
) -> tuple[Assignment, ...]:
    """Return the statements that *stmt* is: each sum in it, then what adds them up.

    Or the first two operands of a product and the others; or what adds up most and what is added.
    The last one assigns the result of *stmt*; where that adds to what is given, it assigns
    something new of that type, unless the result *is_dense*. New names are put into *taken*.
    """
    stmt = with_reductions(stmt, semiring)
    target, value = stmt.target, stmt.value
    every = frozenset(access.name for access in accesses(value))
    pair = None if stmt.accumulates or is_dense else first_pair(value, semiring, every)
    if pair is not None:
        access = replace(pair.access, name=free_name(target.name, taken))
        return Assignment(access, pair.first, at=stmt.at), replace(stmt, value=pair.rest(access))
    grows = stmt.accumulates and not is_dense
    if grows:
        value = Op("+", (Access(target.name, target.indices, at=target.at), value), at=value.at)
        target = replace(target, name=free_name(target.name, taken))
    terms: list[Expr] = list(_sums(value, semiring))
    side = None if terms or grows or is_dense else widest(value)
    found: dict[Expr, Access] = {}
    for term in terms if side is None else [side]:
        own = tuple(name for name in target.indices if name in free(term))
        found[term] = Access(free_name(stmt.target.name, taken), own, at=term.at)
    sums = (Assignment(access, term, at=term.at) for term, access in found.items())
    numbers = {term: Scalar(a.name, at=a.at) for term, a in found.items() if not a.indices}
    value = _replaced(value, {**found, **numbers})
    if is_dense:
        return (*sums, replace(stmt, value=value))
    of_type = stmt.target.name if grows else ""
    return (*sums, Assignment(target, value, at=stmt.at, of_type=of_type))


def _sums(value: Expr, semiring: Semiring) -> Iterator[Reduce]:
    """The reductions among the addends of *value*."""
    if isinstance(value, Reduce) and value.op == semiring.add:
        yield value
    elif isinstance(value, Op) and value.op in ("+", "-", "neg"):
        for arg in value.args:
            yield from _sums(arg, semiring)


def _replaced(value: Expr, found: Mapping[Expr, Expr]) -> Expr:
    if value in found:
        return found[value]
    if isinstance(value, Op) and value.op in ("+", "-", "neg"):
        return replace(value, args=tuple(_replaced(arg, found) for arg in value.args))
    return value


def fits_one(plans: Sequence[Plan]) -> bool:
    """Return whether the statements of *plans* are one program.

    They are not where one has to be split, an operand is wanted in two orders, or one that finds a
    pattern reads another's result, or is read itself.
    """
    made: dict[str, Output] = {}
    for plan in plans:
        output, target = plan.output, plan.stmt.target.name
        if output.storage == "split" or plan.converts:
            return False
        read = {access.name for access in accesses(plan.stmt.value)} | {target}
        for name in read & made.keys():
            if made[name].is_assembled or output.is_assembled:
                return False
        if target in made and made[target].like != output.like:
            return False
        made[target] = output
    found = [output for output in made.values() if output.is_assembled]
    return len(found) < 2 or all(output.keys is None for output in found)


def one_by_one(
    program: Program, plans: Sequence[Plan], semiring: Semiring, taken: set[str]
) -> Iterator[tuple[Assignment, str, bool]]:
    """Yield each statement of *program* on its own, what its result is called, if it is a piece.

    Where the program adds to what is given, a statement may make something new in its place.
    """
    for stmt, plan in zip(program.statements, plans, strict=True):
        if plan.output.storage != "split":
            yield stmt, stmt.target.name, False
            continue
        is_dense = plan.output.layout.is_dense
        *sums, last = pieces(stmt, semiring, taken, is_dense=is_dense)
        yield from ((piece, piece.target.name, not is_dense) for piece in sums)
        yield last, stmt.target.name, False
