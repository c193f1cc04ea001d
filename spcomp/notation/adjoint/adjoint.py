"""Index notation to index notation: an adjoint, a program of gradients with what it needs."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from spcomp.errors import ArgumentError, ScriptError, nearest_or_all
from spcomp.notation.adjoint.derive import Backward, gradient_names
from spcomp.notation.adjoint.normal import normal
from spcomp.notation.adjoint.terms import is_filtered, names_of
from spcomp.notation.algebra import ALWAYS, presence, rebuilt
from spcomp.notation.nodes import (
    Access,
    Assignment,
    Call,
    Expr,
    Masked,
    Program,
    Reduce,
    Scalar,
    accesses,
    children,
    walk,
)
from spcomp.notation.prepare import prepare
from spcomp.notation.vectors import at_every_coordinate, dense_at_vectors

Casts = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Given:
    """What is known of a call. *grads*: the results whose gradients are given.

    *dense*: the tensors that store every element. *saved*: the values of the forward program that
    are given. *types*: the types of gradients that would otherwise get another, by operand.
    *widens*: there are floats of 16 bits, whose gradients are computed in float32.
    """

    grads: frozenset[str]
    dense: frozenset[str] = frozenset()
    saved: frozenset[str] = frozenset()
    types: Casts = ()
    widens: bool = False


@dataclass(frozen=True)
class Adjoint:
    """The gradients of a program of index notation, as such a program.

    *forward*: the program, with each inner reduction as a statement. *wrt*: the operands whose
    gradients it computes, in their order; that of A is called ``grad_A``. *results*: the results of
    the program that have a gradient; that of C is the argument ``grad_C``. *exact*: derived so that
    it can be derived again, also where a factor of a product is zero.
    """

    forward: Program
    wrt: tuple[str, ...]
    results: tuple[str, ...]
    exact: bool = False

    @cached_property
    def names(self) -> dict[str, str]:
        """What the gradients are called, by what they are gradients of."""
        return gradient_names(self.forward, self.wrt)

    @cached_property
    def program(self) -> Program:
        """The adjoint for operands of any format, with all gradients given and nothing saved."""
        return self.of(Given(frozenset(self.results)))

    @property
    def arguments(self) -> tuple[str, ...]:
        """The arguments that a call may need: of the forward program, and gradients of results."""
        names = self.names
        return (*prepare(self.forward).arguments, *(names[name] for name in self.results))

    @cached_property
    def needed(self) -> tuple[str, ...]:
        """The arguments whose values are read, not only what they store."""
        statements = self.program.statements
        values = {
            name for s in statements for t in (s.value, *children(s.target)) for name in _read(t)
        }
        return tuple(name for name in self.arguments if name in values)

    @cached_property
    def saves(self) -> tuple[str, ...]:
        """The values that the forward pass should keep: they are needed, and have a reduction.

        Not the extreme of computed terms: terms that are computed again may be rounded otherwise,
        so that none is equal to it.
        """
        targets = {s.target.name for s in self.forward.statements}
        kept = (s for s in self._recomputed() if _is_costly(s) and not _compares(s, targets))
        return tuple(dict.fromkeys(s.target.name for s in kept))

    @property
    def recomputes(self) -> tuple[str, ...]:
        """The other values that are needed: they cost about as much to compute as to read."""
        costly = self.saves
        names = dict.fromkeys(s.target.name for s in self._recomputed())
        return tuple(name for name in names if name not in costly)

    @property
    def forward_and_saves(self) -> Program:
        """The forward program that also returns a value ``saved_m`` for each m in *saves*."""
        names = [name for name in self.saves if name not in prepare(self.forward).results]
        taken = names_of(self.forward)
        kept = []
        for name in names:
            written = next(s.target for s in self.forward.statements if s.target.name == name)
            target = at_every_coordinate(written)
            if f"saved_{name}" in taken:
                raise ArgumentError(f"argument program: saved_{name} is the name of a saved value")
            kept.append(
                Assignment(Access(f"saved_{name}", target.indices), Access(name, target.indices))
            )
        return Program((*self.forward.statements, *kept))

    def of(self, given: Given) -> Program:
        """Return the program for a call of which *given* is known."""
        dense = self.dense_names(given)
        args = self.forward, self.wrt, given.grads, dense, self.exact, given.widens
        gradients = Backward(*args).run()
        needed = {name for s in gradients.statements for name in _names(s.value)}
        again = []
        for stmt in reversed(self.forward.statements):
            if stmt.target.name in needed and stmt.target.name not in given.saved:
                needed |= _names(stmt.value)
                again.append(stmt)
        names = self.names
        types = {names[name]: dtype for name, dtype in given.types}
        typed = [
            _typed(s, types[s.target.name]) if s.target.name in types else s
            for s in gradients.statements
        ]
        statements = (*reversed(again), *typed)
        return Program(tuple(replace(s, value=_with_scalars(s.value)) for s in statements))

    def again(self, wrt: Sequence[str]) -> Adjoint:
        """Return the adjoint of this adjoint with respect to *wrt*."""
        return adjoint_of(replace(self, exact=True).program, wrt)

    def explain(self) -> str:
        """Return what the gradients are, what is saved, recomputed, and not needed, as text."""
        lines = [str(self.program)]
        needed = self.needed
        for what, names in (
            ("save", self.saves),
            ("recompute", self.recomputes),
            ("no values needed", [name for name in self.arguments if name not in needed]),
        ):
            if names:
                lines.append(f"{what}: {', '.join(names)}")
        return "\n".join(lines)

    def __str__(self) -> str:
        return str(self.program)

    def _recomputed(self) -> tuple[Assignment, ...]:
        """Return the statements of the forward program that the adjoint repeats."""
        own = {*self.names.values()}
        targets = {s.target.name for s in self.forward.statements}
        return tuple(s for s in self.program.statements if s.target.name in targets - own)

    def dense_names(self, given: Given) -> frozenset[str]:
        """Return the tensors that store every element, of those given and those computed."""
        gathered = dense_at_vectors(self.forward)
        dense = {*given.dense, *gathered}
        for stmt in self.forward.statements:
            name = stmt.target.name
            if name not in given.saved and _is_dense(stmt, frozenset(dense)):
                dense.add(name)
        names = self.names
        kept = {n for n in dense & names.keys() if n not in self.results or n in gathered}
        return frozenset(dense | {names[n] for n in kept})


class NoDependenceError(ScriptError):
    """No result of a program changes with its operands but in steps."""


class NoOperandError(ArgumentError):
    """A derivative by what is no operand of the program."""


def adjoint_of(program: Program, wrt: Sequence[str]) -> Adjoint:
    """Return the adjoint of *program*, of ordinary sums and products, with respect to *wrt*.

    Raises ScriptError where the program has no derivative, ArgumentError for names in *wrt*.
    """
    forward = normal(program, wrt)
    prepared = prepare(forward)
    operands = prepared.arguments
    for name in wrt:
        if name not in operands or name in prepared.accumulated:
            known = [n for n in operands if n not in prepared.accumulated]
            raise NoOperandError(
                f"argument wrt: {name} is no operand of the program",
                hint=nearest_or_all(name, known),
            )
    if not wrt or len({*wrt}) < len(wrt):
        raise ArgumentError(f"argument wrt: got {wrt!r}, expected different operands")
    _check_order(forward)
    active = gradient_names(forward, wrt)
    results = tuple(name for name in prepared.results if name in active)
    if not results:
        last = forward.statements[-1]
        raise NoDependenceError(
            f"{last.target.name} does not depend on {', '.join(wrt)} by a derivative",
            last.at or last.target.at,
            hint="coordinates, comparisons and rounded values change in steps",
        )
    result = Adjoint(forward, tuple(wrt), results)
    prepare(result.program)
    return result


def _check_order(program: Program) -> None:
    """Raise ScriptError for a tensor assigned twice, or read, and added to afterwards."""
    read: set[str] = set()
    assigned: set[str] = set()
    for stmt in program.statements:
        if stmt.target.name in assigned and not stmt.accumulates:
            where = stmt.at or stmt.target.at
            raise ScriptError(f"{stmt.target.name} is assigned twice", where)
        assigned.add(stmt.target.name)
        if stmt.target.name in read:
            raise ScriptError(
                f"{stmt.target.name} is added to after it was read, so no adjoint is derived",
                stmt.at or stmt.target.at,
                hint="give the sum a name of its own",
            )
        read |= _names(stmt.value)


def _names(term: Expr) -> set[str]:
    """Return the names of the tensors and numbers in *term*."""
    return {t.name for t in walk(term) if isinstance(t, (Access, Scalar))}


def _read(term: Expr) -> Iterator[str]:
    """Yield the names of what *term* reads, other than to ask what is stored."""
    if isinstance(term, (Access, Scalar)):
        yield term.name
        for vector in children(term):
            yield from _read(vector)
    elif not (isinstance(term, Call) and term.func == "stored"):
        for part in children(term):
            yield from _read(part)


def _is_costly(stmt: Assignment) -> bool:
    return any(isinstance(term, Reduce) for term in walk(stmt.value))


def _is_dense(stmt: Assignment, dense: frozenset[str]) -> bool:
    """Whether the result of *stmt* certainly stores every element."""
    if stmt.is_dense or not stmt.target.indices:
        return True
    value = stmt.value
    if isinstance(value, Reduce):
        if len(stmt.target.indices) == 1:
            return not is_filtered(value.body)
        value = value.body
    names = frozenset(a.name for a in accesses(value)) - dense
    return presence(value, names) == ALWAYS and not is_filtered(value)


def _compares(stmt: Assignment, targets: Collection[str]) -> bool:
    """Whether *stmt* is the extreme of terms that the program computes."""
    value = stmt.value.value if isinstance(stmt.value, Masked) else stmt.value
    extreme = isinstance(value, Reduce) and value.op in ("min", "max")
    return extreme and any(a.name in targets for a in accesses(value))


def _with_scalars(term: Expr) -> Expr:
    """Return *term* with accesses that have no index written as a name."""
    if isinstance(term, Access) and not term.indices and not term.windows:
        return Scalar(term.name, at=term.at)
    return rebuilt(term, _with_scalars)


def _typed(stmt: Assignment, dtype: str) -> Assignment:
    """Return *stmt* with its value as *dtype*."""
    value = stmt.value
    if stmt.target.vectors and isinstance(value, Reduce):  # which is reduced as a whole
        return replace(stmt, value=replace(value, body=Call(dtype, (value.body,))))
    return replace(stmt, value=_cast(value, dtype))


def _cast(value: Expr, dtype: str) -> Expr:
    """Return *value* as *dtype*; the mask of a result stays outermost."""
    match value:
        case Masked(other=None):
            return replace(value, value=_cast(value.value, dtype))
        case Reduce(body=Masked(value=body, cond=cond, other=None)):
            return Masked(Call(dtype, (replace(value, body=body),)), cond)
    return Call(dtype, (value,))
