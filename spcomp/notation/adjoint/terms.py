"""Under adjoints: what is asked of terms, and small ones that adjoints are made of."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from functools import reduce
from typing import Any

from spcomp.dtypes import dtype
from spcomp.ir.analysis.derivatives import FLAT
from spcomp.notation.algebra import ALWAYS, keep, leaves, presence, rebuilt
from spcomp.notation.nodes import (
    TYPES,
    Access,
    Call,
    Declared,
    Expr,
    IndexValue,
    Masked,
    Number,
    Op,
    Program,
    Reduce,
    Scalar,
    Term,
    children,
    walk,
)
from spcomp.notation.objects import call

ZERO, TRUE = Number(0), Number(True)
_DISCRETE = frozenset({"argmax", "argmin", "or", "and"})  # reductions


class Functions:
    """The functions of index notation by name, as rules of derivatives call them."""

    def __getattr__(self, name: str) -> Any:
        return lambda *args: call(name, *args)


def is_flat(term: Expr) -> bool:
    """Whether the derivative of *term* is zero wherever it has one: comparisons, ``floor``."""
    match term:
        case Op(op=name) | Call(func=name):
            return name in FLAT or (name in TYPES and not dtype(name).is_float)
        case Reduce(op=op):
            return op in _DISCRETE
    return isinstance(term, (Number, IndexValue))


def inputs(term: Expr) -> tuple[Expr, ...]:
    """Return the parts of *term* that its value depends on by a derivative."""
    match term:
        case Masked(value=value, other=other):
            return (value,) if other is None else (value, other)
        case Call(func="where", args=(_, *values)):
            return tuple(values)
    return () if is_flat(term) else children(term)


def is_active(term: Expr, names: Collection[str]) -> bool:
    """Whether *term* depends on one of the tensors and numbers *names* by a derivative."""
    if isinstance(term, (Access, Scalar)):
        return term.name in names
    return any(is_active(part, names) for part in inputs(term))


def names_of(program: Program) -> set[str]:
    """Return every name in *program*: tensors, numbers and indices."""
    names: set[str] = set()
    for stmt in program.statements:
        for term in (*walk(stmt.target), *walk(stmt.value)):
            if isinstance(term, (Access, Scalar, IndexValue)):
                names.add(term.name)
            if isinstance(term, (Access, Reduce)):
                names |= {*term.indices}
    return names


def stored(access: Access) -> Expr:
    """Return the question whether *access* is stored."""
    return Call("stored", (access,))


def joined(op: str, terms: Iterable[Expr]) -> Expr:
    """Return *terms*, one or more, joined by the operator *op*."""
    return reduce(lambda left, right: Op(op, (left, right)), terms)


def is_filtered(term: Expr) -> bool:
    """Whether a mask outside reductions decides where *term* has a value."""
    if isinstance(term, Reduce):
        return False
    return (isinstance(term, Masked) and term.other is None) or any(map(is_filtered, inputs(term)))


def present(term: Expr) -> Expr | None:
    """Return the condition under which *term* is present; None: everywhere."""
    match term:
        case Access(indices=indices):
            return stored(term) if indices else None
        case Masked(value=value, cond=cond, other=None):
            inner = present(value)
            if inner is not None and isinstance(cond, Access):
                return Masked(inner, cond)  # where it is stored; beside "and", where it is not 0
            return cond if inner is None else Op("and", (cond, inner))
        case Masked(value=value, cond=cond, other=Term() as other):
            a, b = present(value), present(other)
            return None if a is b is None else Masked(a or TRUE, cond, b or TRUE)
        case Call(func="stored") | Declared(presence="always"):
            return None
        case Declared(body=body) if is_filtered(body):
            mask, given = present(body), present(replace(term, body=ZERO))
            return mask if mask is None or given is None else Op("and", (given, mask))
        case Op(op="+" | "-", args=args) | Declared(presence="or", args=args):
            found = [present(arg) for arg in args]
            return None if None in found else joined("or", dict.fromkeys(filter(None, found)))
        case Op(args=args) | Call(args=args) | Declared(args=args):
            found = [there for arg in args if (there := present(arg))]
            return joined("and", dict.fromkeys(filter(None, found))) if found else None
    return None


def masked(term: Expr, cond: Expr | None) -> Expr:
    """Return *term* where *cond* holds; a sum takes the mask inside."""
    if cond is None:
        return term
    if isinstance(term, Reduce) and term.op == "+":
        return replace(term, body=masked(term.body, cond))
    return Masked(term, cond)


def everywhere(term: Expr, access: Access, dense: Collection[str] = ()) -> Expr:
    """Return *term*, zero where it is absent although *access* is stored.

    *dense*: the tensors that store every element.
    """
    names = frozenset(t.name for t in walk(term) if isinstance(t, Access)) - {*dense}
    formula = presence(term, names)
    absent = keep(formula, frozenset(leaves(formula)) - {access})
    if absent == ALWAYS and not is_filtered(term):
        return term
    return Op("+", (term, ZERO))


def renamed(term: Expr, names: Mapping[str, str]) -> Expr:
    """Return *term* with its indices called as *names* says."""
    match term:
        case Access(indices=indices):
            return replace(term, indices=tuple(names.get(i, i) for i in indices))
        case IndexValue(name=name):
            return replace(term, name=names.get(name, name))
        case Reduce(indices=indices):
            term = replace(term, indices=tuple(names.get(i, i) for i in indices))
    return rebuilt(term, lambda part: renamed(part, names))


def unmasked(term: Expr, known: Collection[Expr], dense: Collection[str]) -> Expr:
    """Return *term* without masks that hold: *known* ones, and what *dense* tensors store."""
    term = rebuilt(term, lambda part: unmasked(part, known, dense))
    match term:
        case Masked(value=value, cond=Call(func="stored", args=(Access() as access,)), other=None):
            sized = {i for t in walk(value) if isinstance(t, Access) for i in t.indices}
            if term.cond in known or (access.name in dense and {*access.indices} <= sized):
                return value
    return term
