"""Beside the route: the lengths of indices and dimensions, and the parameters for them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from spcomp.dtypes import int64
from spcomp.errors import ArgumentError, Span
from spcomp.ir.expr import Var
from spcomp.notation.nodes import Assignment, IndexValue, accesses, walk


@dataclass(frozen=True, slots=True)
class IndexOf:
    """The index *name* of a statement, by its number."""

    name: str
    statement: int


@dataclass(frozen=True, slots=True)
class Dimension:
    """The dimension *dim* of a *tensor*."""

    tensor: str
    dim: int


Key: TypeAlias = IndexOf | Dimension


@dataclass(frozen=True, slots=True)
class Unbound:
    """An index that no argument gives a length; a given array for one of *results* does."""

    index: str
    results: frozenset[str]
    at: Span | None

    def check(self, given: Collection[str]) -> None:
        """Raise ArgumentError unless one of the results is *given*."""
        if self.results.isdisjoint(given):
            raise ArgumentError(
                f"no argument gives {self.index} a length",
                self.at,
                hint=f"write {self.index} as an index of an argument, or give the array of the"
                f" result, out=..., which has it ({', '.join(sorted(self.results))})",
            )


class Sizes:
    """The lengths of indices; *statement*: the number of the statement whose indices are meant."""

    def __init__(self, statements: Sequence[Assignment], unique: Callable[[str], str]) -> None:
        self.statement = 0
        self._statements = statements
        self._unique = unique
        self._same: dict[Key, Key] = {}
        self._params: dict[Key, Var] = {}
        for at, stmt in enumerate(statements):
            for access in (*accesses(stmt.value), stmt.target):
                for dim, index in enumerate(access.dimensions):
                    self._join(IndexOf(index, at), Dimension(access.name, dim))

    def of(self, index: str) -> Var:
        """Return the length of *index* in the current statement."""
        root = self._root(IndexOf(index, self.statement))
        if root not in self._params:
            name = index.strip("_").replace(".", "_") or index
            self._params[root] = Var(self._unique(f"n_{name}"), int64)
        return self._params[root]

    def params(self) -> Iterator[Var]:
        """Yield the parameters made so far."""
        yield from self._params.values()

    def unbound(self, arguments: Collection[str]) -> Iterator[Unbound]:
        """Yield the indices on the left of statements that none of *arguments* has."""
        for at, stmt in enumerate(self._statements):
            for index in stmt.target.indices:
                tensors = {name for name, _ in self.having(IndexOf(index, at))}
                if tensors.isdisjoint(arguments):
                    numbers = (t for t in walk(stmt.value) if isinstance(t, IndexValue))
                    place = next((t.at for t in numbers if t.name == index), stmt.target.at)
                    yield Unbound(index, frozenset(tensors), place)

    def having(self, key: Key) -> Iterator[tuple[str, int]]:
        """Yield the tensors, and their dimensions, that are as long as *key*."""
        root = self._root(key)
        for other in list(self._same):
            if isinstance(other, Dimension) and self._root(other) == root:
                yield other.tensor, other.dim

    def _root(self, key: Key) -> Key:
        while (above := self._same.setdefault(key, key)) != key:
            key = above
        return key

    def _join(self, a: Key, b: Key) -> None:
        self._same[self._root(b)] = self._root(a)
