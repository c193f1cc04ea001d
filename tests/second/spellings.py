"""The same program said in other ways: as Python objects, as einsum, as its printed stages."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import spcomp
from spcomp import notation as N
from tests.second import terms as t
from tests.second.grammar import Program

OPERATORS: dict[str, Callable[..., Any]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv,
    "//": operator.floordiv, "%": operator.mod, "**": operator.pow, "neg": operator.neg,
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
    "==": operator.eq, "!=": operator.ne, "&": operator.and_, "|": operator.or_,
    "^": operator.xor, "~": operator.invert,
}  # fmt: skip

FUNCTIONS = {
    f"own_{zero}": spcomp.Function(lambda a, b: N.maximum(a, b) / 2, zero=zero)
    for zero in ("keep", "fill")
}


def as_objects(program: Program) -> Any:
    """Return *program* as Python objects, or None: where Python would compute something itself."""
    if any(_is_python(statement) for statement in program.statements):
        return None
    terms = [term for statement in program.statements for term in statement.value.walk()]
    names = {term.name for term in terms if isinstance(term, t.Ref)}
    targets = [statement.target.name for statement in program.statements]
    symbols = {name: spcomp.symbols(name) for name in sorted(names | set(targets))}
    for statement in program.statements:
        places = tuple(map(_place, statement.target.places))
        value = _object(statement.value, symbols)
        if statement.sign == "=":
            symbols[statement.target.name][places] = value
        elif statement.sign == "+=":
            symbols[statement.target.name][places] += value
        else:
            symbols[statement.target.name][places] -= value
    assigned = tuple(symbols[name] for name in dict.fromkeys(targets))
    return assigned[0] if len(assigned) == 1 else assigned


def _is_python(statement: t.Statement) -> bool:
    """Return whether Python would compute a part of *statement*, which has only numbers."""
    plain = (t.Number, t.Stored)
    names = [term.name for term in statement.value.walk() if isinstance(term, t.Op)]
    if any(name not in OPERATORS and not hasattr(N, name) for name in names):
        return True
    numbers = any(
        isinstance(term, t.Op | t.Masked)
        and any(isinstance(child, plain) for child in term.children()[:1])
        for term in statement.value.walk()
    )
    choice = any(isinstance(term, t.Masked) and term.other for term in statement.value.walk())
    return numbers or choice or not statement.target.places or isinstance(statement.value, t.Number)


def _place(place: t.Place) -> Any:
    if isinstance(place, t.Fixed):
        return place.at
    index = spcomp.indices(place.name)
    if not isinstance(place, t.Window):
        return index
    return (
        index(list(place.coordinates))
        if "[" in place.written
        else index(*map(int, place.written.split(", ")))
    )


def _object(term: t.Term, symbols: dict[str, Any]) -> Any:
    children = [_object(child, symbols) for child in term.children()]
    match term:
        case t.Number(value):
            return value
        case t.Coordinate(name):
            return spcomp.indices(name)
        case t.Ref(name, places):
            return symbols[name][tuple(map(_place, places))] if places else symbols[name]
        case t.Reduce(name, over, _):
            indices = tuple(map(spcomp.indices, over))
            return getattr(N, name)(indices if len(indices) > 1 else indices[0], *children)
        case t.Stored(_, spelling):
            stored = N.stored(children[0])
            return stored if spelling in t.POSITIVE else ~stored
        case t.Masked():
            return children[0].masked(children[1])
        case t.Op(name, _) if name in OPERATORS:
            return OPERATORS[name](*children)
        case t.Op(name, _):
            return getattr(N, name)(*children)
    raise TypeError(term)


def as_einsum(program: Program) -> tuple[str, list[str]] | None:
    """Return subscripts and operands, if *program* is one product of tensors, summed."""
    statement = program.statements[0]
    factors = _factors(statement.value)
    plain = all(
        isinstance(place, t.Index) for ref in [*factors, statement.target] for place in ref.places
    )
    if len(program.statements) > 1 or not factors or not plain or statement.sign != "=":
        return None
    texts = ["".join(place.name for place in ref.places) for ref in factors]  # type: ignore[union-attr]
    target = "".join(place.name for place in statement.target.places)  # type: ignore[union-attr]
    return f"{','.join(texts)}->{target}", [ref.name for ref in factors]


def _factors(term: t.Term) -> list[t.Ref]:
    if isinstance(term, t.Ref) and term.places:
        return [term]
    if isinstance(term, t.Op) and term.name == "*":
        left, right = map(_factors, term.args)
        return left + right if left and right else []
    return []


def read_back(kernel: Any) -> None:
    """Parse and compile what the stages of *kernel* print."""
    for stage in ("coordinate", "position", "flat"):
        spcomp.compile(spcomp.parse(kernel.stage(stage)))
