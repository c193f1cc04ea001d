"""Kernels of a program, and calls of them: bound, with out=, spelled in other ways."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from random import Random
from typing import Any

import numpy as np

import spcomp
from spcomp.errors import ArgumentError, SpcompError
from tests.second import grammar, spellings
from tests.second.comparison import Failure, compare, neutrals
from tests.second.trials import Data, Refusal, Trial, arguments, expected, random_data, random_sizes
from tests.second.values import Value

BY_DATA = re.compile("division by zero|singleton|mostly padding|does not hold")  # refused by values


def compiled(program: grammar.Program, rng: Random) -> Any:
    """Return the kernel of *program*, at times made of Python objects."""
    semiring: Any = program.semiring
    if " " in semiring:
        semiring = spcomp.Semiring(*semiring.split())
    source: Any = program.text()
    if rng.random() < 0.15:
        objects = spellings.as_objects(program)
        source = source if objects is None else objects
    options: dict[str, Any] = {"functions": spellings.FUNCTIONS} if "own_" in program.text() else {}
    if program.constants:
        options["constants"] = program.constants
    return spcomp.compile(source, formats=program.formats, semiring=semiring, **options)


def called(kernel: Any, fixed: list[str], given: dict[str, Any], options: dict[str, Any]) -> Any:
    """Return what *kernel* gives, those of its arguments bound that are *fixed*."""
    rest = {name: value for name, value in given.items() if name not in fixed}
    try:
        if fixed:
            kernel = kernel.bind(**{name: given[name] for name in fixed})
        return kernel(**rest, **options)
    except SpcompError:
        raise
    except Exception as error:
        raise Failure(type(error).__name__, str(error)) from error


def spelled_otherwise(program: grammar.Program, given: dict[str, Any], found: Any) -> Any:
    """Return what einsum gives, if *program* is one, else *found*."""
    spelled = spellings.as_einsum(program)
    if spelled is None or " " in program.semiring:
        return found
    subscripts, names = spelled
    try:
        return spcomp.einsum(
            subscripts, *(given[name] for name in names), semiring=program.semiring
        )
    except SpcompError as error:
        raise Failure("einsum", f"refused, the kernel was not: {error}") from error


def _specialized(kernel: Any, given: dict[str, Any]) -> None:
    """Read the stages of *kernel* back, if it is one program."""
    try:
        single = kernel.specialize(**given)
    except SpcompError:
        return
    try:
        spellings.read_back(single)
    except Exception as error:
        raise Failure("read back", f"{type(error).__name__}: {error}") from error


def _out(
    case: Trial, want: Mapping[str, Value], given: dict[str, Any], rng: Random
) -> dict[str, Any]:
    """Return out=, at times: an array of its own, or an argument of that shape and type."""
    program = case.program
    sparse = any(one.sparse for one in program.operands.values())
    if len(want) > 1 or program.formats or sparse or "C" in program.operands or rng.random() < 0.9:
        return {}
    (value,) = want.values()
    alike = [
        one
        for one in given.values()
        if isinstance(one, np.ndarray)
        and one.shape == value.number.shape
        and one.dtype == value.dtype
    ]
    own = np.full(value.number.shape, 7, value.dtype)
    return {"out": rng.choice(alike) if alike and rng.random() < 0.3 else own}


def _bound(given: dict[str, Any], rng: Random) -> list[str]:
    """Return which arguments to bind, at times; never one that is written."""
    if rng.random() < 0.9 or len(given) < 2:
        return []
    return [one for one in rng.sample(sorted(given), rng.randrange(1, len(given))) if one != "C"]


def check(case: Trial, kernel: Any, given: dict[str, Any], data: Data, rng: Random) -> None:
    """Call *kernel* with *given* and compare."""
    want = expected(case, data, given)
    options = _out(case, want, given, rng)
    copied = options and any(options["out"] is one for one in given.values())
    if rng.random() < 0.1:
        spcomp.set_num_threads(rng.choice((1, 2, 3)))
    fixed = _bound(given, rng)
    case.counts["calls"] += 1
    try:
        found = called(kernel, fixed, given, options)
    except ArgumentError:
        if copied:  # a result over an argument is refused where that matters
            return
        raise
    if rng.random() < 0.05 and not case.program.formats and not options:
        found = spelled_otherwise(case.program, given, found)
    if rng.random() < 0.05:
        _specialized(kernel, given)
    if options and found is not options["out"]:
        raise Failure("out", "what is returned is not what was given as out=")
    results = [found] if len(want) == 1 else list(found)
    if len(results) != len(want):
        raise Failure("results", f"{len(results)} results, expected {list(want)}")
    statements = {statement.target.name: statement for statement in case.program.statements}
    try:
        for (one, value), result in zip(want.items(), results, strict=True):
            compare(one, result, value, neutrals(statements[one], case.program.ring(), value.dtype))
    except Failure as failure:
        ways = "out=, " * bool(options) + f"bound {fixed}" * bool(fixed)
        raise Failure(
            f"{'out ' * bool(options)}{failure.kind}", f"{failure.text} {ways}"
        ) from failure


def run(case: Trial) -> str:
    """Run *case*; returns "" or why it was refused, raises Failure."""
    rng = Random(case.seed + 1)
    program = case.program
    try:
        kernel = compiled(program, rng)
    except SpcompError as error:
        return str(error)
    except Exception as error:
        raise Failure(type(error).__name__, str(error)) from error
    refused, accepted = "", [0, 0]
    sizes = random_sizes(program, rng, case.most)
    data: Data | None = None
    order = rng.choice(([0] * 8 + [1] * 8, [0, 1] * 8, [rng.randrange(2) for _ in range(16)]))
    for variant in order[: case.calls]:
        if rng.random() < 0.12:
            sizes = random_sizes(program, rng, case.most)
        given: dict[str, Any] = {}
        try:
            if data is None or rng.random() < 0.9 or data.sizes != sizes:
                data = random_data(case, sizes, rng, data)
            given = arguments(case, variant, data, rng)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                check(case, kernel, given, data, rng)
            accepted[variant] += 1
        except Refusal as error:
            refused = refused or f"storage: {error}"
        except SpcompError as error:
            refused = str(error)
            if accepted[variant] and not BY_DATA.search(refused):
                raise Failure("refused later", refused, given) from error
        except Failure as failure:
            failure.arguments = given
            raise
    case.counts["versions"] += sum(count > 0 for count in accepted)
    return "" if any(accepted) else refused
