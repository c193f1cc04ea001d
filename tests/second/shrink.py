"""Smaller programs that fail in the same way: terms for their parts, plain storage, few calls."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from tests.second import calls, operands, trials
from tests.second import terms as t
from tests.second.comparison import Failure
from tests.second.grammar import Program
from tests.second.trials import Trial


def failure_of(case: Trial) -> Failure | None:
    """Return how *case* fails, if it does."""
    try:
        calls.run(case)
    except Failure as failure:
        return failure
    except Exception:  # a program that means nothing: a part was needed elsewhere
        return None
    return None


def shrunk(case: Trial, kind: str, seconds: float) -> tuple[Trial, Failure | None]:
    """Return the smallest trial found that fails as *case* does, and how."""
    end = time.monotonic() + seconds
    last: Failure | None = None
    found = True
    while found and time.monotonic() < end:
        found = False
        for other in smaller(case):
            if time.monotonic() > end:
                break
            failure = failure_of(other)
            if failure is not None and failure.kind == kind:
                case, last, found = other, failure, True
                break
    return case, last


def smaller(case: Trial) -> Iterator[Trial]:
    """Yield trials that are a step smaller than *case*, the boldest first."""
    program = case.program
    for at in range(len(program.statements)):
        if len(program.statements) > 1:
            rest = program.statements[:at] + program.statements[at + 1 :]
            yield _with(case, replace(program, statements=rest))
    for most in (2, 3, 5, 130):
        if case.most > most:
            yield replace(case, most=most)
    for name in program.formats:
        formats = {other: text for other, text in program.formats.items() if other != name}
        yield _with(case, replace(program, formats=formats))
    if program.semiring != "plus_times":
        yield _with(case, replace(program, semiring="plus_times"))
    for at, statement in enumerate(program.statements):
        for value in parts(statement.value):
            changed = [*program.statements]
            changed[at] = replace(statement, value=value)
            yield _with(case, replace(program, statements=changed))
    yield from _plainer(case)
    if case.calls > 1:
        yield replace(case, calls=case.calls // 2)


def parts(term: t.Term) -> Iterator[t.Term]:
    """Yield terms that are a step smaller than *term*."""
    children = term.children()
    yield from children
    if isinstance(term, t.Masked) and term.other is not None:
        yield t.Masked(term.term, term.condition)
    for at, child in enumerate(children):
        for part in parts(child):
            yield t.rebuilt(term, (*children[:at], part, *children[at + 1 :]))


def _with(case: Trial, program: Program) -> Trial:
    """Return *case* of *program*, without operands that this does not have."""
    names = trials.used(program)
    left = replace(
        program, operands={name: one for name, one in program.operands.items() if name in names}
    )
    both: Any = tuple(
        {name: one for name, one in variant.items() if name in names} for variant in case.storages
    )
    return replace(case, program=left, storages=both)


def _plainer(case: Trial) -> Iterator[Trial]:
    """Yield *case* with an operand of float64, or stored as the other variant or simply."""
    for name, one in case.program.operands.items():
        known = operands.storages(len(one.extents), "float64", sparse=one.sparse)
        first, second = (variant[name] for variant in case.storages)
        for chosen in (
            (second, second),
            (first, first),
            (known[0], known[0]),
            (known[-1], known[-1]),
        ):
            if chosen != (first, second) and (
                first is not second or chosen[0] in (known[0], known[-1])
            ):
                if first in (known[0], known[-1]):
                    continue
                both: Any = tuple(
                    {**variant, name: to} for variant, to in zip(case.storages, chosen, strict=True)
                )
                yield replace(case, storages=both)
        if one.dtype != "float64":
            declared = {**case.program.operands, name: replace(one, dtype="float64")}
            yield replace(case, program=replace(case.program, operands=declared))
