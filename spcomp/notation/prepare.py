"""Index notation, before formats are known: names, ranks, and operands that are windows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from spcomp.errors import ScriptError
from spcomp.notation.algebra import Windowed, rebuilt
from spcomp.notation.nodes import (
    ARGUMENTS,
    Access,
    Assignment,
    Expr,
    IndexValue,
    Program,
    Reduce,
    Scalar,
    free,
    walk,
)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A program with its names resolved.

    *operands*: the rank of each, by name; *parts*: those that are windows of an argument, or the
    same argument once more. *accumulated*: targets that a call must be given. *ranks*: those of all
    tensors of the program.
    """

    program: Program
    arguments: tuple[str, ...]
    targets: tuple[str, ...]
    results: tuple[str, ...]
    accumulated: tuple[str, ...]
    operands: Mapping[str, int]
    parts: Mapping[str, Windowed]
    ranks: Mapping[str, int]


def prepare(program: Program) -> Prepared:
    """Return *program* with its names resolved.

    An argument that is read at two tuples of indices becomes two operands, so that both can be
    iterated. Raises ScriptError where a name is used in two ways.
    """
    targets = tuple(dict.fromkeys(stmt.target.name for stmt in program.statements))
    program = Program(
        tuple(
            replace(s, value=as_accesses(s.value, frozenset(targets))) for s in program.statements
        )
    )
    program = Program(tuple(replace(s, value=with_distinct_indices(s)) for s in program.statements))
    ranks = _ranks(program)
    program, parts = _with_own_names(program, frozenset(targets), set(ranks))
    operands: dict[str, int] = {}
    read: list[str] = []
    assigned: set[str] = set()
    accumulated: list[str] = []
    for stmt in program.statements:
        for term in walk(stmt.value):
            if isinstance(term, (Access, Scalar)):
                read.append(term.name)
                if term.name in targets and term.name not in assigned:
                    hint = f"write {stmt.target} += ..., which adds to what the call is given"
                    raise ScriptError(
                        f"{term.name} is read before it is assigned",
                        term.at,
                        hint=hint if term.name == stmt.target.name else "",
                    )
                operands[term.name] = len(term.indices) if isinstance(term, Access) else 0
        if stmt.accumulates and stmt.target.name not in assigned:
            accumulated.append(stmt.target.name)
            operands.setdefault(stmt.target.name, len(stmt.target.indices))
        assigned.add(stmt.target.name)
    inputs = {name: rank for name, rank in operands.items() if name not in assigned}
    inputs |= {name: operands[name] for name in accumulated}
    sources = (parts[n].name if n in parts else n for n in inputs)
    results = tuple(name for name in targets if name not in read)
    return Prepared(
        program,
        tuple(dict.fromkeys(sources)),
        targets,
        results or targets[-1:],
        tuple(accumulated),
        inputs,
        parts,
        ranks,
    )


def as_accesses(term: Expr, targets: frozenset[str]) -> Expr:
    """Return *term* with the names that statements assign as accesses, not arguments."""
    if isinstance(term, Scalar) and term.name in targets:
        return Access(term.name, (), at=term.at)
    return rebuilt(term, lambda child: as_accesses(child, targets))


def _check_reduce(term: Reduce, stmt: Assignment) -> None:
    inner, lost = set(free(term.body)), {*stmt.target.indices} - {*free(stmt.value)}
    for index in term.indices:
        if index not in inner:
            raise ScriptError(f"{index} does not occur in what is reduced over it", term.at)
        if index in lost:
            hint = "call the index of the reduction something else"
            raise ScriptError(f"{index} is reduced, and an index of the result", term.at, hint=hint)
    if len(set(term.indices)) < len(term.indices):
        raise ScriptError("an index is reduced twice", term.at)
    if term.op in ARGUMENTS and len(term.indices) > 1:
        raise ScriptError(f"{term.op} gives the coordinate of one index", term.at)


def with_distinct_indices(stmt: Assignment) -> Expr:
    """Return the value of *stmt*, in which no reduction hides an index of the terms around it."""
    for term in walk(stmt.value):
        if isinstance(term, Reduce):
            _check_reduce(term, stmt)
    names = {t.name for t in walk(stmt.value) if isinstance(t, (Access, Scalar, IndexValue))}
    names |= {i for t in walk(stmt.value) if isinstance(t, Access) for i in t.indices}
    hides: dict[tuple[Reduce, frozenset[str]], dict[str, str]] = {}  # alike in a user's function

    def rewrite(term: Expr, around: frozenset[str], calls: dict[str, str]) -> Expr:
        match term:
            case Access(indices=indices):
                return replace(term, indices=tuple(calls.get(i, i) for i in indices))
            case IndexValue(name=name):
                return replace(term, name=calls.get(name, name))
            case Reduce(indices=indices, body=body):
                if (term, around) not in hides:
                    hidden = {i: free_name(i, names) for i in indices if i in around}
                    hides[term, around] = hidden
                hidden = hides[term, around]
                renamed = tuple(hidden.get(i, i) for i in indices)
                body = rewrite(body, around | {*renamed}, {**calls, **hidden})
                return replace(term, indices=renamed, body=body)
        return rebuilt(term, lambda child: rewrite(child, around, calls))

    outside = frozenset(free(stmt.value)) | {*stmt.target.indices}
    return rewrite(stmt.value, outside, {})


def _ranks(program: Program) -> dict[str, int]:
    ranks: dict[str, int] = {}
    for stmt in program.statements:
        indices = {
            i for t in (*walk(stmt.value), stmt.target) if isinstance(t, Access) for i in t.indices
        }
        for term in (*walk(stmt.value), stmt.target):
            if not isinstance(term, (Access, Scalar)):
                continue
            rank = 0
            if isinstance(term, Access):
                rank = len(term.windows or term.indices)
            if term.name in indices:
                raise ScriptError(f"{term.name} is an index and a tensor", term.at)
            if ranks.setdefault(term.name, rank) != rank:
                raise ScriptError(
                    f"{term.name} stands with {rank} indices here, and with {ranks[term.name]}"
                    " elsewhere",
                    term.at,
                )
        for term in walk(stmt.value):
            if isinstance(term, IndexValue) and term.name not in indices:
                raise ScriptError(f"{term.name} is the index of no tensor", term.at)
    return ranks


def _with_own_names(
    program: Program, targets: frozenset[str], taken: set[str]
) -> tuple[Program, dict[str, Windowed]]:
    """Give each window, and each further tuple of indices, of an argument its own name."""
    first: dict[str, tuple[str, ...]] = {}
    names: dict[tuple[Windowed, tuple[str, ...]], str] = {}

    def rewrite(term: Expr) -> Expr:
        if not isinstance(term, Access):
            return rebuilt(term, rewrite)
        if term.name in targets:
            if term.windows:
                raise ScriptError(f"{term.name} is computed here, it has no windows yet", term.at)
            return term
        plain = not term.windows
        if plain and first.setdefault(term.name, term.indices) == term.indices:
            return term
        key = Windowed(term.name, term.windows), term.indices
        if key not in names:
            names[key] = free_name(term.name, taken)
        return Access(names[key], term.indices, at=term.at)

    statements = tuple(replace(s, value=rewrite(s.value)) for s in program.statements)
    return Program(statements), {name: key[0] for key, name in names.items()}


def free_name(wish: str, taken: set[str]) -> str:
    """Return a name like *wish* that is not in *taken*, and put it there."""
    count = 2
    while (name := f"{wish}_{count}") in taken:
        count += 1
    taken.add(name)
    return name
