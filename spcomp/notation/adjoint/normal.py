"""Index notation to index notation: a program whose statements are sums, or have no reduction.

A reduction inside a value is a statement of its own, because its gradient is a statement, too, and
because both need its value. It is computed only where it matters: the reduction in
``A[i, j] * sum(k, X[i, k] * Y[j, k])`` has the pattern of A.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from spcomp.notation.adjoint.terms import is_active, joined, masked, names_of, present, stored
from spcomp.notation.algebra import presence, rebuilt, required, with_reductions
from spcomp.notation.nodes import (
    SYMBOLS,
    Access,
    Assignment,
    Declared,
    Expr,
    Masked,
    Op,
    Program,
    Reduce,
    free,
    walk,
)
from spcomp.notation.prepare import as_accesses, free_name, prepare, with_distinct_indices
from spcomp.notation.semiring import ORDINARY
from spcomp.notation.vectors import with_written_reduction


def normal(program: Program, wrt: Sequence[str]) -> Program:
    """Return *program* with each reduction a statement, or an addend of one if it is a sum.

    *wrt*: the operands that it is derived by. Raises ScriptError if the program is wrong.
    """
    prepare(program)
    targets = frozenset(stmt.target.name for stmt in program.statements)
    return Program(tuple(_Hoist(names_of(program), targets, {*wrt}).statements(program)))


class _Hoist:
    def __init__(self, taken: set[str], targets: frozenset[str], active: set[str]) -> None:
        self.taken, self.targets, self.active = taken, targets, active
        self.done: list[Assignment] = []

    def statements(self, program: Program) -> list[Assignment]:
        """Return the statements of *program*, and those hoisted from them."""
        for stmt in program.statements:
            stmt = replace(stmt, value=as_accesses(stmt.value, self.targets))
            if stmt.target.vectors:
                stmt = with_written_reduction(stmt, ORDINARY)
            whole = with_reductions(replace(stmt, value=with_distinct_indices(stmt)), ORDINARY)
            self.taken |= names_of(Program((whole,)))
            value = whole.value
            if isinstance(value, Reduce):
                value = self.over_terms(replace(value, body=self.inner(value.body, ())))
            else:
                value = self.addend(value)
            self.assign(replace(whole, value=value))
        return self.done

    def addend(self, term: Expr) -> Expr:
        """Return *term*, the value of a statement or an addend of it, without inner reductions."""
        if isinstance(term, Op) and term.op in ("+", "-", "neg"):
            return rebuilt(term, self.addend)
        if isinstance(term, Reduce) and term.op == "+":
            return replace(term, body=self.inner(term.body, ()))
        return self.inner(term, ())

    def inner(self, term: Expr, around: tuple[Access, ...]) -> Expr:
        """Return *term*, which matters where *around* are stored, without reductions."""
        match term:
            case Declared():
                return term
            case Reduce():
                inside = replace(term, body=self.inner(term.body, ()))
                return self.hoisted(self.over_terms(inside), around)
            case Op(op="+" | "-"):
                return rebuilt(term, partial(self.inner, around=around))
            case Masked(value=value, cond=cond, other=None):
                kept = (*around, *_required(cond))
                return replace(term, value=self.inner(value, kept), cond=self.inner(cond, around))
            case Masked():
                return rebuilt(term, partial(self.inner, around=around))
        return rebuilt(term, partial(self.inner, around=(*around, *_required(term))))

    def over_terms(self, term: Reduce) -> Reduce:
        """Return *term* over stored terms, if the gradient compares them with what they reduce to.

        Computed again, they may be rounded otherwise.
        """
        indices = free(term.body)
        sized = {i for t in walk(term.body) if isinstance(t, Access) for i in t.indices}
        compares = term.op in ("min", "max", "*") and not isinstance(term.body, Access)
        compares = compares and is_active(term.body, self.active)
        if not compares or not sized.issuperset(indices):
            return term
        terms = Access(free_name("terms", self.taken), indices, at=term.at)
        self.assign(Assignment(terms, term.body, at=term.at))
        return replace(term, body=masked(terms, present(term.body)))  # stored, it may be dense

    def hoisted(self, term: Reduce, around: tuple[Access, ...]) -> Expr:
        """Return the access that stands for *term*, which a new statement computes."""
        indices = free(term)
        sized = {i for t in walk(term) if isinstance(t, Access) for i in t.indices}
        if not sized.issuperset(indices):  # their lengths are those of the statement around it
            return term
        conds = [stored(a) for a in dict.fromkeys(around) if {*indices} >= {*a.indices}]
        value: Expr = term
        if conds and len(indices) > 1:
            value = masked(term, joined("and", conds))
        target = Access(free_name(SYMBOLS[term.op], self.taken), indices, at=term.at)
        self.assign(Assignment(target, value, is_dense=value is term, at=term.at))
        return target

    def assign(self, stmt: Assignment) -> None:
        """Add *stmt* to the program."""
        self.done.append(stmt)
        if is_active(stmt.value, self.active):
            self.active.add(stmt.target.name)


def _required(term: Expr) -> tuple[Access, ...]:
    """Return the accesses with indices that are stored wherever *term* is present."""
    if isinstance(term, Access):
        return (term,) if term.indices else ()
    names = frozenset(t.name for t in walk(term) if isinstance(t, Access) and t.indices)
    cond = term.args[0] if getattr(term, "func", "") == "stored" else term  # type: ignore[union-attr]
    return required(presence(cond, names))
