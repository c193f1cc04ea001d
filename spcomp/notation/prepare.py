"""Index notation, before formats are known: names, ranks, and operands that are windows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from spcomp.errors import ScriptError
from spcomp.notation.algebra import Windowed, rebuilt
from spcomp.notation.nodes import (
    ARG_REDUCTIONS,
    Access,
    Assignment,
    Expr,
    IndexValue,
    Program,
    Reduce,
    Scalar,
    Vector,
    children,
    free,
    walk,
)

Subscripts: TypeAlias = tuple[str | Access, ...]


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
    named = _Operands(frozenset(targets), set(ranks))
    program = Program(tuple(replace(s, value=named.rewrite(s.value)) for s in program.statements))
    parts = {name: part for (part, _), name in named.names.items()}
    operands: dict[str, int] = {}
    read: list[str] = []
    assigned: set[str] = set()
    accumulated: list[str] = []
    for stmt in program.statements:
        for term in (*walk(stmt.value), *children(stmt.target)):
            if isinstance(term, (Access, Scalar)):
                read.append(term.name)
                if term.name in targets and term.name not in assigned:
                    hint = f"write {stmt.target} += ..., which adds to what the call is given"
                    if stmt.accumulates:
                        hint = (
                            f"+= reads {stmt.target} itself: give other elements as another array"
                        )
                    raise ScriptError(
                        f"{term.name} is read before it is assigned",
                        term.at,
                        hint=hint if term.name == stmt.target.name else "",
                    )
                operands[term.name] = term.rank if isinstance(term, Access) else 0
        if stmt.accumulates and stmt.target.name not in assigned:
            accumulated.append(stmt.target.name)
            operands.setdefault(stmt.target.name, stmt.target.rank)
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


def refuse_out(program: Program) -> None:
    """Raise ScriptError if *program* reads an argument that a call cannot be given: ``out``."""
    terms = (t for s in program.statements for t in (*walk(s.value), *children(s.target)))
    reads = (t for t in terms if isinstance(t, (Access, Scalar)) and t.name == "out")
    found = next(reads, None)
    if found is None or any(stmt.target.name == "out" for stmt in program.statements):
        return
    hint = "call the argument something else"
    raise ScriptError("out is what a call is given to write results to", found.at, hint=hint)


def as_accesses(term: Expr, targets: frozenset[str]) -> Expr:
    """Return *term* with the names that statements assign as accesses, not arguments."""
    if isinstance(term, Scalar) and term.name in targets:
        return Access(term.name, (), at=term.at)
    return rebuilt(term, lambda child: as_accesses(child, targets))


def _check_reduce(term: Reduce, stmt: Assignment) -> None:
    inner, lost = set(free(term.body)), {*stmt.target.subscripts} - {*free(stmt.value)}
    for index in term.indices:
        if index not in inner:
            what = f"{index} does not occur in what is reduced over it"
            inside = any(isinstance(t, Reduce) and index in t.indices for t in walk(term.body))
            hint = f"a reduction inside has {index} of its own: call one something else"
            raise ScriptError(what, term.at, hint=hint if inside else "")
        if index in lost:
            hint = "call the index of the reduction something else"
            raise ScriptError(f"{index} is reduced, and an index of the result", term.at, hint=hint)
    if len(set(term.indices)) < len(term.indices):
        once = ", ".join(dict.fromkeys(term.indices))
        raise ScriptError("an index is reduced twice", term.at, hint=f"write each once: {once}")
    if term.op in ARG_REDUCTIONS and len(term.indices) > 1:
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

    written = {s for s in stmt.target.subscripts if isinstance(s, str)}
    outside = frozenset(free(stmt.value)) | written
    return rewrite(stmt.value, outside, {})


def _ranks(program: Program) -> dict[str, int]:
    ranks: dict[str, int] = {}
    for stmt in program.statements:
        indices = {
            i for t in (*walk(stmt.value), stmt.target) if isinstance(t, Access) for i in t.indices
        }
        for term in (*walk(stmt.value), *walk(stmt.target)):
            if not isinstance(term, (Access, Scalar)):
                continue
            rank = term.rank if isinstance(term, Access) else 0
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


@dataclass(slots=True)
class _Operands:
    """Gives each window, and each further tuple of subscripts, of an argument its own name."""

    targets: frozenset[str]
    taken: set[str]
    first: dict[str, Subscripts] = field(default_factory=dict)
    names: dict[tuple[Windowed, Subscripts], str] = field(default_factory=dict)

    def rewrite(self, term: Expr) -> Expr:
        """Return *term* with these names."""
        return self.operand(term) if isinstance(term, Access) else rebuilt(term, self.rewrite)

    def operand(self, term: Access) -> Access:
        """Return *term* as an access to an operand of its own."""
        if term.vectors:
            pairs = zip(term.vectors, term.subscripts, strict=True)
            term = replace(term, vectors=tuple(v and self.vector(v, s) for v, s in pairs))
        if term.name in self.targets:
            if term.windows:
                raise ScriptError(f"{term.name} is computed here, it has no windows yet", term.at)
            return term
        plain = not term.windows
        if plain and self.first.setdefault(term.name, term.subscripts) == term.subscripts:
            return term
        key = Windowed(term.name, term.windows), term.subscripts if plain else term.indices
        if key not in self.names:
            self.names[key] = free_name(term.name, self.taken)
        return Access(self.names[key], term.indices, vectors=term.vectors, at=term.at)

    def vector(self, vector: Vector, subscript: str | Access) -> Vector:
        """Return *vector*, which *subscript* reads, under the name of its operand."""
        assert isinstance(subscript, Access)
        if vector.name in self.targets:
            raise ScriptError(
                f"{vector.name} is computed here, so its range is not known before",
                subscript.at,
                hint="compute it in a program of its own, and give it as an argument",
            )
        return replace(vector, name=self.operand(subscript).name)


def apart(stmt: Assignment, taken: set[str]) -> tuple[Assignment, dict[str, str]]:
    """Return *stmt* with a name for each place at which it reads a tensor, and whose they are.

    So :func:`prepare` names arguments; this is for results of other statements, too.
    """
    operands = _Operands(frozenset(), taken)
    value = operands.rewrite(stmt.value)
    return replace(stmt, value=value), {n: part.name for (part, _), n in operands.names.items()}


def free_name(wish: str, taken: set[str]) -> str:
    """Return a name like *wish* that is not in *taken*, and put it there."""
    count = 2
    while (name := f"{wish}_{count}") in taken:
        count += 1
    taken.add(name)
    return name
