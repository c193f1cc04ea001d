"""Beside the route: which indices and dimensions have one length, and the parameter for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from spcomp.dtypes import int64
from spcomp.ir.expr import Var
from spcomp.notation.nodes import Access, Reduce, accesses, walk
from spcomp.notation.plan import Plan

Key = tuple[str, int]  # an index of a statement, or a dimension of a tensor (in brackets)


class Sizes:
    """Lengths by index; *statement* says whose indices are meant."""

    def __init__(self, plans: Sequence[Plan], unique: Callable[[str], str]) -> None:
        self.statement = 0
        self._unique = unique
        self._same: dict[Key, Key] = {}
        self._params: dict[Key, Var] = {}
        for at, plan in enumerate(plans):
            for access in (*accesses(plan.stmt.value), plan.stmt.target):
                for dim, index in enumerate(access.indices):
                    self._join((index, at), (f"[{access.name}]", dim))
            self._reserve(plan, at)

    def of(self, index: str) -> Var:
        """Return the length of *index* in the statement at hand."""
        root = self._root((index, self.statement))
        if root not in self._params:
            self._params[root] = Var(self._unique(f"n_{index.strip('_') or index}"), int64)
        return self._params[root]

    def params(self) -> Iterator[Var]:
        """Yield the parameters made so far."""
        yield from self._params.values()

    def _reserve(self, plan: Plan, at: int) -> None:
        for term in walk(plan.stmt.value):
            for index in term.indices if isinstance(term, (Access, Reduce)) else ():
                self._same.setdefault((index, at), (index, at))

    def _root(self, key: Key) -> Key:
        while (above := self._same.setdefault(key, key)) != key:
            key = above
        return key

    def _join(self, a: Key, b: Key) -> None:
        self._same[self._root(b)] = self._root(a)
