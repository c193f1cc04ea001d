"""Index notation as a tree that prints; the generator makes such trees, the oracle reads them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

INFIX = ("+", "-", "*", "/", "//", "%", "**", "<", "<=", ">", ">=", "==", "!=", "and", "or")
BITS = ("&", "|", "^")
POSITIVE = ("stored({})", "{} is not None")
NEGATIVE = ("not stored({})", "{} is None")


@dataclass(frozen=True)
class Index:
    """A place in brackets over which an index runs."""

    name: str

    def text(self) -> str:
        return self.name


@dataclass(frozen=True)
class Window:
    """A place in brackets where an index runs over *coordinates*, as they are *written*."""

    name: str
    coordinates: tuple[int, ...]
    written: str

    def text(self) -> str:
        return f"{self.name}({self.written})"

    def slice_text(self) -> str:
        return self.written.replace(", ", ":")


@dataclass(frozen=True)
class Fixed:
    """A place in brackets that is one coordinate."""

    at: int

    def text(self) -> str:
        return str(self.at)


Place = Index | Window | Fixed


class Term:
    """What has a value: the nodes below."""

    def children(self) -> tuple[Term, ...]:
        """Return the terms that it is made of."""
        return tuple(
            term
            for field in fields(self)  # type: ignore[arg-type]
            for value in [getattr(self, field.name)]
            for term in (value if isinstance(value, tuple) else (value,))
            if isinstance(term, Term)
        )

    def walk(self) -> Iterator[Term]:
        """Yield it and all terms below."""
        yield self
        for child in self.children():
            yield from child.walk()

    def free(self) -> frozenset[str]:
        """Return the indices that no reduction in it binds."""
        return frozenset[str]().union(*(child.free() for child in self.children()))


@dataclass(frozen=True)
class Ref(Term):
    """A tensor in brackets; a name alone if it has no places."""

    name: str
    places: tuple[Place, ...] = ()

    def free(self) -> frozenset[str]:
        return frozenset(place.name for place in self.places if not isinstance(place, Fixed))

    def text(self, sliced: str = "") -> str:
        if not self.places:
            return self.name
        return f"{self.name}[{', '.join(_place_text(place, sliced) for place in self.places)}]"


def _place_text(place: Place, sliced: str) -> str:
    if isinstance(place, Fixed) or place.name != sliced:
        return place.text()
    return place.slice_text() if isinstance(place, Window) else ":"


@dataclass(frozen=True)
class Number(Term):
    """A Python number."""

    value: Any

    def text(self, sliced: str = "") -> str:
        return repr(self.value) if self.value >= 0 else f"({self.value!r})"


@dataclass(frozen=True)
class Coordinate(Term):
    """An index as a number."""

    name: str

    def free(self) -> frozenset[str]:
        return frozenset([self.name])

    def text(self, sliced: str = "") -> str:
        return self.name


@dataclass(frozen=True)
class Op(Term):
    """An operator, a function, or a cast (an operation called by a dtype's name)."""

    name: str
    args: tuple[Term, ...]

    def text(self, sliced: str = "") -> str:
        texts = [text_of(arg, sliced) for arg in self.args]
        if self.name in INFIX + BITS:
            return f"({texts[0]} {self.name} {texts[1]})"
        if self.name in ("neg", "~", "not"):
            return f"({'-' if self.name == 'neg' else self.name} {texts[0]})"
        return f"{self.name}({', '.join(texts)})"


@dataclass(frozen=True)
class Reduce(Term):
    """A written reduction."""

    name: str
    over: tuple[str, ...]
    term: Term

    def free(self) -> frozenset[str]:
        return self.term.free() - set(self.over)

    def text(self, sliced: str = "") -> str:
        over = self.over[0] if len(self.over) == 1 else f"({', '.join(self.over)})"
        return f"{self.name}({over}, {text_of(self.term, sliced)})"


@dataclass(frozen=True)
class Masked(Term):
    """``term if condition``, with ``else other`` if there is another."""

    term: Term
    condition: Term
    other: Term | None = None

    def text(self, sliced: str = "") -> str:
        other = f" else {text_of(self.other, sliced)}" if self.other else ""
        return f"({text_of(self.term, sliced)} if {text_of(self.condition, sliced)}{other})"


@dataclass(frozen=True)
class Stored(Term):
    """Whether a sparse operand stores an element."""

    ref: Ref
    spelling: str

    def text(self, sliced: str = "") -> str:
        written = self.spelling.format(self.ref.text(sliced))
        return f"({written})" if " " in self.spelling else written


def text_of(term: Term, sliced: str = "") -> str:
    """Return *term* as it is written; the index called *sliced* as slices."""
    return term.text(sliced)  # type: ignore[attr-defined, no-any-return]


@dataclass(frozen=True)
class Statement:
    """An assignment; the index *sliced* is written as slices."""

    target: Ref
    value: Term
    sign: str = "="
    sliced: str = ""

    def text(self) -> str:
        value = text_of(self.value, self.sliced)
        return f"{self.target.text(self.sliced)} {self.sign} {value}"


def rebuilt(term: Term, children: tuple[Term, ...]) -> Term:
    """Return *term* with other *children*, in the order in which it has them."""
    rest = iter(children)
    changes: dict[str, Any] = {}
    for field in fields(term):  # type: ignore[arg-type]
        value = getattr(term, field.name)
        if isinstance(value, Term):
            changes[field.name] = next(rest)
        elif isinstance(value, tuple) and any(isinstance(one, Term) for one in value):
            changes[field.name] = tuple(next(rest) for _ in value)
    return replace(term, **changes)  # type: ignore[type-var]
