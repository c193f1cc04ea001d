"""Index notation, loops: their order, and what each runs over. Plain data, before any IR.

A loop's domain contains every coordinate at which its term is present, and perhaps more: the body
asks whether an unsure element is stored. So every choice here affects speed, never the result.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal, TypeAlias

from spcomp.notation.algebra import Presence, cover, keep, leaves, required
from spcomp.notation.layout import LOOSE, Layout, is_located
from spcomp.notation.nodes import Access

DomainKind: TypeAlias = Literal["dense", "one", "union", "intersect", "along"]
Ways: TypeAlias = Mapping[Access, "OperandLevel | None"]
_ONLY = "nothing else can be present"
TABLES = frozenset({"hashed"})
MOST_ALONG = 2  # cursors beside a dense loop
MOST_CASES = 20  # of a merge and the merges in its cases


@dataclass(frozen=True, slots=True)
class OperandLevel:
    """A level of a sparse operand."""

    name: str
    level: int


@dataclass(frozen=True, slots=True)
class Loop:
    """One loop of a nest.

    ``dense``: every coordinate of *index*. ``one``: what the level *parts* stores, ``union``,
    ``intersect``: of several levels. ``along``: every coordinate, in step with what *parts* store.
    *to*: for each part, the level whose coordinates are its rows; None: the loop of its parent.
    """

    index: str
    kind: DomainKind
    parts: tuple[OperandLevel, ...] = ()
    to: tuple[OperandLevel | None, ...] = ()
    why: str = ""


@dataclass(slots=True)
class Walk:
    """The loops opened so far: for each index its loop, and the levels that surely store it."""

    layouts: Mapping[str, Layout]
    loops: dict[str, Loop] = field(default_factory=dict)
    over: dict[str, frozenset[OperandLevel]] = field(default_factory=dict)

    def inside(self) -> Walk:
        """Return a copy, for the loops of an inner reduction."""
        return Walk(self.layouts, dict(self.loops), dict(self.over))

    def missing(self, access: Access) -> list[OperandLevel]:
        """Return the levels of *access* that may not store the current coordinates."""
        return [
            place
            for index, kind, place in self._levels(access)
            if kind != "dense" and place not in self.over.get(index, ())
        ]

    def open(self, index: str, formula: Presence, asked: Sequence[Access]) -> Loop:
        """Choose the domain of the loop of *index*, which becomes the innermost; return the loop.

        *formula*: where the term is present; *asked*: the accesses that it reads.
        """
        usable = self._ways(leaves(formula), index)
        restricting = frozenset(a for a in leaves(formula) if self._restricts(a, index))
        loop = self._choose(index, keep(formula, restricting), usable)
        if loop.kind == "dense":
            loop = self._along(loop, asked)
        stored = loop.parts if loop.kind in ("one", "intersect") else ()
        self.loops[index], self.over[index] = loop, frozenset(stored)
        return loop

    def all(self, index: str) -> Loop:
        """Open a loop over every coordinate of *index*; return it."""
        loop = Loop(index, "dense", why="the rows of the result come one by one")
        self.loops[index], self.over[index] = loop, frozenset()
        return loop

    def _levels(self, access: Access) -> list[tuple[str, str, OperandLevel]]:
        return levels(access, self.layouts[access.name])

    def _choose(self, index: str, formula: Presence, usable: Ways) -> Loop:
        both = [a for a in required(formula) if a in usable]
        loose = {a for a in usable if self._is_loose(a, index)}
        needed = [a for a in both if not self._is_loose(a, index, TABLES)] or both[:1]
        if alone := [a for a in needed if a in loose]:
            why = "its coordinates come in no order" if len(both) > 1 else _ONLY
            return self._over(index, "one", alone[:1], usable, why)
        if len(needed) > 1:
            return self._over(index, "intersect", needed, usable, "all of them are needed")
        if len(both) > 1:
            return self._over(index, "one", needed, usable, "hash tables are probed")
        chosen = cover(formula, frozenset(usable.keys() - loose))
        if chosen:
            why = "one of them suffices" if len(chosen) > 1 else _ONLY
            return self._over(index, "union" if len(chosen) > 1 else "one", chosen, usable, why)
        why = (
            "every coordinate can be present" if not leaves(formula) else "its order is not stored"
        )
        return Loop(index, "dense", why=why)

    def _over(
        self, index: str, kind: DomainKind, parts: Sequence[Access], usable: Ways, why: str
    ) -> Loop:
        places = tuple(self._place(access, index) for access in parts)
        return Loop(index, kind, places, tuple(usable[access] for access in parts), why)

    def _along(self, loop: Loop, asked: Sequence[Access]) -> Loop:
        """Return *loop* in step with the levels that it would have to search, if they are few."""
        index = loop.index
        ways = self._ways([a for a in asked if not self._is_loose(a, index)], index)
        roots = (self._levels(a)[0] for a in asked)
        deeper = any(name == index and kind == "dense" for name, kind, _ in roots)
        if deeper or not 0 < len(ways) <= MOST_ALONG:
            return loop
        return self._over(index, "along", list(ways), ways, loop.why)

    def _restricts(self, access: Access, index: str) -> bool:
        return any(name == index and kind != "dense" for name, kind, _ in self._levels(access))

    def _is_loose(self, access: Access, index: str, kinds: frozenset[str] = LOOSE) -> bool:
        """Whether *access* has *index* in a level of *kinds*, whose coordinates have no order."""
        return any(name == index and kind in kinds for name, kind, _ in self._levels(access))

    def _place(self, access: Access, index: str) -> OperandLevel:
        places = ((name, place) for name, kind, place in self._levels(access) if kind != "dense")
        return next(place for name, place in places if name == index)

    def _ways(self, accesses: Iterable[Access], index: str) -> Ways:
        """Return the *accesses* whose level of *index* loops can run over, and its attachment."""
        ways = {access: self._way(access, index) for access in accesses}
        return {access: way for access, way in ways.items() if not isinstance(way, bool)}

    def _way(self, access: Access, index: str) -> OperandLevel | Literal[False] | None:
        """Return what the level of *index* attaches to: None: its parent's loop; False: nothing."""
        own_levels = self._levels(access)
        names = [name for name, _, _ in own_levels]
        at = names.index(index) if index in names else -1
        if at < 0 or own_levels[at][1] in ("dense", "bitmap") or names.count(index) > 1:
            return False
        if at == 0:
            return None
        above, kind, place = own_levels[at - 1]
        if kind != "dense":
            outer = self.loops.get(above)
            merged = outer is not None and outer.kind == "union" and place in outer.parts
            if merged and outer is not None:
                depth = 1 + sum(loop.kind == "union" for loop in self.loops.values())
                merged = not too_many_cases(len(outer.parts), depth)
            return None if merged or place in self.over.get(above, ()) else False
        loop = self.loops.get(above)
        if loop is None or loop.kind in ("union", "along"):
            return False
        return None if loop.kind == "dense" else loop.parts[0]


def is_probed(access: Access, formula: Presence, layouts: Mapping[str, Layout]) -> bool:
    """Return whether *access* is located at the coordinates of another operand, without a search.

    It has tables or bitmaps, and loops go through another operand that *formula* needs, or that
    comes before it.
    """
    if not is_located(layouts[access.name]):
        return False
    needed = required(formula)
    before = needed[: needed.index(access)] if access in needed else needed
    others = [a for a in needed if not is_located(layouts[a.name])]
    return any(set(a.indices) >= set(access.indices) for a in (*before, *others))


def too_many_cases(parts: int, depth: int) -> bool:
    """Return whether the union of *parts*, *depth* levels deep, has too many cases to compile.

    Each part ends at some level, or at none.
    """
    cases: int = (depth + 1) ** parts - depth**parts
    return cases > MOST_CASES


def levels(access: Access, layout: Layout) -> list[tuple[str, str, OperandLevel]]:
    """Return the index, kind and place of each level of an operand, the outermost first."""
    return [
        (access.indices[dim], kind, OperandLevel(access.name, level))
        for level, (kind, dim) in enumerate(zip(layout.levels, layout.order, strict=True))
    ]


def chain(access: Access, layout: Layout) -> tuple[str, ...]:
    """Return the indices of the sparse levels of *access*, which have to be bound in this order."""
    return tuple(name for name, _, _ in levels(access, layout)[: layout.depth])


def order_indices(
    indices: Sequence[str],
    chains: Iterable[tuple[str, ...]],
    operands: Iterable[Access],
    layouts: Mapping[str, Layout],
) -> tuple[str, ...]:
    """Return *indices* in the order of their loops.

    It follows as many of *chains* as fit together, earlier ones first. Indices of no chain come
    last; the innermost is the one across which fewest of *operands* lie in memory, of several that
    along which most of those with the most dimensions lie, and else the last one.
    """
    before: dict[str, set[str]] = {name: set() for name in indices}
    for names in chains:
        path = [name for name in names if name in before]
        trial = {name: set(above) for name, above in before.items()}
        for above, below in pairwise(path):
            trial[below].add(above)
        if len(set(path)) == len(path) and _in_order(trial) is not None:
            before = trial
    chained = {name for names in chains for name in names}
    placed = [(access, _along_memory(access, layouts)) for access in operands if access.indices]
    lying = [(len(access.indices), at) for access, at in placed]
    free = [name for name in indices if name not in chained]

    def suits(name: str) -> tuple[int, tuple[int, int]]:
        across = sum(name in access.indices and at != name for access, at in placed)
        votes = ((rank, lying.count((rank, name))) for rank, at in lying if at == name)
        return -across, max(votes, default=(0, 0))

    innermost = max(reversed(free), key=suits, default="")
    ready = sorted(indices, key=lambda name: (name not in chained, name == innermost))
    return _in_order(before, ready) or tuple(ready)


def _along_memory(access: Access, layouts: Mapping[str, Layout]) -> str:
    """Return the index along which neighbours of *access* lie in memory."""
    layout = layouts.get(access.name)
    return access.indices[-1 if layout is None else layout.order[-1]]


def _in_order(
    before: Mapping[str, set[str]], wishes: Sequence[str] | None = None
) -> tuple[str, ...] | None:
    """Return the names in an order with *before*, near that of *wishes*; None for a cycle."""
    pending = list(before if wishes is None else wishes)
    order: list[str] = []
    while pending:
        name = next((n for n in pending if before[n] <= set(order)), None)
        if name is None:
            return None
        pending.remove(name)
        order.append(name)
    return tuple(order)
