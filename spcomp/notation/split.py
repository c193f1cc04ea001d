"""Index notation to index notation: a statement as several, a program as several programs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from spcomp.dtypes import DType
from spcomp.notation.algebra import masked_addends, with_reductions
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
from spcomp.notation.types import in_type


def pieces(
    stmt: Assignment,
    semiring: Semiring,
    taken: set[str],
    *,
    is_dense: bool = False,
    widen_to: DType | None = None,
) -> tuple[Assignment, ...]:
    """Return the statements that *stmt* is split in: each sum in it, then their sum.

    Or the first two operands of a product, then the others; or the larger side of a sum, then the
    other. The last one assigns the result of *stmt*. If that adds to a given array, the last one
    assigns a new tensor of the same type, unless the result *is_dense*. New names are put into
    *taken*. *widen_to*: the type that each part of a sum must have.
    """
    stmt = with_reductions(stmt, semiring)
    target = stmt.target
    value = stmt.value if is_dense else masked_addends(stmt.value, semiring)
    operands = frozenset(access.name for access in accesses(value))
    pair = None if stmt.accumulates or is_dense else first_pair(value, semiring, operands)
    if pair is not None:
        access = replace(pair.access, name=free_name(target.name, taken))
        first = Assignment(access, pair.first, at=stmt.at, is_exact=True)  # infinity * 0 is NaN
        return first, replace(stmt, value=pair.rest(access))
    grows = stmt.accumulates and not is_dense
    if grows:
        old = Access(target.name, target.indices, at=target.at)
        value, minus = stmt.addend
        value = Op("-" if minus else "+", (old, value), at=value.at)
        target = replace(target, name=free_name(target.name, taken))
    terms: list[Expr] = list(_sums(value, semiring))
    side = None if terms or grows or is_dense else widest(value)
    sums: dict[Expr, Access] = {}
    for term in terms if side is None else [side]:
        indices = tuple(name for name in target.indices if name in free(term))
        sums[term] = Access(free_name(stmt.target.name, taken), indices, at=term.at)
    stmts = tuple(
        Assignment(access, in_type(term, widen_to) if widen_to else term, at=term.at)
        for term, access in sums.items()
    )
    numbers = {term: Scalar(a.name, at=a.at) for term, a in sums.items() if not a.indices}
    value = _replaced(value, {**sums, **numbers})
    if is_dense:
        return (*stmts, replace(stmt, value=value))
    of_type = stmt.target.name if grows else ""
    return (*stmts, Assignment(target, value, at=stmt.at, of_type=of_type))


def _sums(value: Expr, semiring: Semiring) -> Iterator[Reduce]:
    """Yield the reductions among the addends of *value*."""
    if isinstance(value, Reduce) and value.op == semiring.add:
        yield value
    elif isinstance(value, Op) and value.op in ("+", "-", "neg"):
        for arg in value.args:
            yield from _sums(arg, semiring)


def _replaced(value: Expr, replacements: Mapping[Expr, Expr]) -> Expr:
    if value in replacements:
        return replacements[value]
    if isinstance(value, Op) and value.op in ("+", "-", "neg"):
        return replace(value, args=tuple(_replaced(arg, replacements) for arg in value.args))
    return value


def fits_one(plans: Sequence[Plan]) -> bool:
    """Return whether the statements of *plans* fit one program.

    They do not if one has to be split, an operand is wanted in another order, or a statement with
    an assembled result reads another's result, or its own result is read.
    """
    outputs: dict[str, Output] = {}
    for plan in plans:
        output, target = plan.output, plan.stmt.target.name
        if output.storage == "split" or plan.converts:
            return False
        read = {access.name for access in accesses(plan.stmt.value)} | {target}
        for name in read & outputs.keys():
            if outputs[name].is_assembled or output.is_assembled:
                return False
        if target in outputs and outputs[target].like != output.like:
            return False
        outputs[target] = output
    assembled = [output for output in outputs.values() if output.is_assembled]
    return len(assembled) < 2 or all(output.keys is None for output in assembled)


def split_statements(
    program: Program, plans: Sequence[Plan], semiring: Semiring, taken: set[str]
) -> Iterator[tuple[Assignment, str, bool]]:
    """Yield the statements of *program*, split; the name of each result; whether it is a piece.

    A statement that adds to a given array may assign a new tensor in its place.
    """
    for stmt, plan in zip(program.statements, plans, strict=True):
        if plan.output.storage != "split":
            yield stmt, stmt.target.name, False
            continue
        is_dense = plan.output.layout.is_dense
        widen_to = plan.dtype if plan.widens else None
        *sums, last = pieces(stmt, semiring, taken, is_dense=is_dense, widen_to=widen_to)
        yield from ((piece, piece.target.name, not is_dense) for piece in sums)
        yield last, stmt.target.name, False
