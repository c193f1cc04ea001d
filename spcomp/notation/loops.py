"""Index notation, loops: their order, and what each runs over. Plain data, before any IR.

A loop's domain may be larger than where its term is present, never smaller: what is not sure to be
stored is asked for in the body. So every choice here is about speed, none about the result.
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
Ways: TypeAlias = Mapping[Access, "Place | None"]
_ONLY = "nothing else can be present"
TABLES = frozenset({"hashed"})
MOST_ALONG = 2  # cursors beside a dense loop
MOST_CASES = 20  # of a merge and the merges in its cases


@dataclass(frozen=True, slots=True)
class Place:
    """A level of a sparse operand."""

    name: str
    level: int


@dataclass(frozen=True, slots=True)
class Loop:
    """One loop of a nest.

    ``dense``: every coordinate of *index*. ``one``: what the level *parts* stores, ``union``,
    ``intersect``: of several levels. ``along``: every coordinate, in step with what *parts* store.
    *to* has for each part the level whose coordinates are its rows; None: the loop of its parent.
    """

    index: str
    kind: DomainKind
    parts: tuple[Place, ...] = ()
    to: tuple[Place | None, ...] = ()
    why: str = ""


@dataclass(slots=True)
class Walk:
    """Where the loops opened so far stand: per index its loop, and the levels it surely is on."""

    layouts: Mapping[str, Layout]
    loops: dict[str, Loop] = field(default_factory=dict)
    over: dict[str, frozenset[Place]] = field(default_factory=dict)

    def inside(self) -> Walk:
        """Return a copy for the loops of a reduction inside."""
        return Walk(self.layouts, dict(self.loops), dict(self.over))

    def missing(self, access: Access) -> list[Place]:
        """The levels of *access* at which the coordinates at hand may not be stored."""
        return [
            place
            for index, kind, place in levels(access, self.layouts[access.name])
            if kind != "dense" and place not in self.over.get(index, ())
        ]

    def open(self, index: str, formula: Presence, asked: Sequence[Access]) -> Loop:
        """Choose what the loop of *index* runs over; it is now the innermost.

        *formula* says where the term is present that reads *asked*.
        """
        usable = self._ways(leaves(formula), index)
        here = frozenset(a for a in leaves(formula) if self._restricts(a, index))
        loop = self._choose(index, keep(formula, here), usable)
        if loop.kind == "dense":
            loop = self._along(loop, asked)
        known = set(loop.parts) if loop.kind in ("one", "intersect") else set()
        self.loops[index], self.over[index] = loop, frozenset(known)
        return loop

    def all(self, index: str) -> Loop:
        """Let the loop of *index* take every coordinate."""
        loop = Loop(index, "dense", why="the rows of the result come one by one")
        self.loops[index], self.over[index] = loop, frozenset()
        return loop

    def _choose(self, index: str, formula: Presence, usable: Ways) -> Loop:
        both = [a for a in required(formula) if a in usable]
        loose = {a for a in usable if self._is_loose(a, index)}
        met = [a for a in both if not self._is_loose(a, index, TABLES)] or both[:1]
        if alone := [a for a in met if a in loose]:
            why = "its coordinates come in no order" if len(both) > 1 else _ONLY
            return self._over(index, "one", alone[:1], usable, why)
        if len(met) > 1:
            return self._over(index, "intersect", met, usable, "all of them are needed")
        if len(both) > 1:
            return self._over(index, "one", met, usable, "hash tables are probed")
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
        """Return *loop*, in step with the few levels that would have to be searched in it."""
        index = loop.index
        ways = self._ways([a for a in asked if not self._is_loose(a, index)], index)
        roots = (levels(a, self.layouts[a.name])[0] for a in asked)
        deeper = any(name == index and kind == "dense" for name, kind, _ in roots)
        if deeper or not 0 < len(ways) <= MOST_ALONG:
            return loop
        return self._over(index, "along", list(ways), ways, loop.why)

    def _restricts(self, access: Access, index: str) -> bool:
        own = levels(access, self.layouts[access.name])
        return any(name == index and kind != "dense" for name, kind, _ in own)

    def _is_loose(self, access: Access, index: str, kinds: frozenset[str] = LOOSE) -> bool:
        """Whether *access* has coordinates of *index* in levels of *kinds*: in no order."""
        own = levels(access, self.layouts[access.name])
        return any(name == index and kind in kinds for name, kind, _ in own)

    def _place(self, access: Access, index: str) -> Place:
        own = levels(access, self.layouts[access.name])
        return next(place for name, kind, place in own if name == index and kind != "dense")

    def _ways(self, accesses: Iterable[Access], index: str) -> Ways:
        """Those of *accesses* whose level of *index* can be iterated, and what to attach it to."""
        ways = {access: self._way(access, index) for access in accesses}
        return {access: way for access, way in ways.items() if not isinstance(way, bool)}

    def _way(self, access: Access, index: str) -> Place | Literal[False] | None:
        """What the level of *index* is attached to: None if its parent's loop is; False: no way."""
        own = levels(access, self.layouts[access.name])
        names = [name for name, _, _ in own]
        at = names.index(index) if index in names else -1
        if at < 0 or own[at][1] in ("dense", "bitmap") or names.count(index) > 1:
            return False
        if at == 0:
            return None
        above, kind, place = own[at - 1]
        if kind != "dense":
            outer = self.loops.get(above)
            merged = outer is not None and outer.kind == "union" and place in outer.parts
            if merged and outer is not None:
                depth = 1 + sum(loop.kind == "union" for loop in self.loops.values())
                merged = not too_many(len(outer.parts), depth)
            return None if merged or place in self.over.get(above, ()) else False
        loop = self.loops.get(above)
        if loop is None or loop.kind in ("union", "along"):
            return False
        return None if loop.kind == "dense" else loop.parts[0]


def is_asked(access: Access, formula: Presence, layouts: Mapping[str, Layout]) -> bool:
    """Return whether *access* is asked at coordinates of another operand, and found at once.

    It has tables and bitmaps, and what else *formula* needs has levels that are gone through, or
    comes before it.
    """
    if not is_located(layouts[access.name]):
        return False
    needed = required(formula)
    before = needed[: needed.index(access)] if access in needed else needed
    others = [a for a in needed if not is_located(layouts[a.name])]
    return any(set(a.indices) >= set(access.indices) for a in (*before, *others))


def too_many(parts: int, depth: int) -> bool:
    """Return whether the union of *parts*, *depth* levels deep, has too many cases to compile.

    Each part is missing from some level on, or is not.
    """
    cases: int = (depth + 1) ** parts - depth**parts
    return cases > MOST_CASES


def levels(access: Access, layout: Layout) -> list[tuple[str, str, Place]]:
    """Return index, kind and place of each level of an operand, from the outermost in."""
    return [
        (access.indices[dim], kind, Place(access.name, level))
        for level, (kind, dim) in enumerate(zip(layout.levels, layout.order, strict=True))
    ]


def chain(access: Access, layout: Layout) -> tuple[str, ...]:
    """Return the indices of the tree of *access*, which have to be bound in this order."""
    return tuple(name for name, _, _ in levels(access, layout)[: layout.depth])


def order_indices(
    indices: Sequence[str], chains: Iterable[tuple[str, ...]], operands: Iterable[Access]
) -> tuple[str, ...]:
    """Return *indices* in the order of their loops.

    It follows as many of *chains* as go together, the first ones first. Indices of no chain come
    last, the one that most accesses have as their last innermost.
    """
    before: dict[str, set[str]] = {name: set() for name in indices}
    for names in chains:
        own = [name for name in names if name in before]
        trial = {name: set(above) for name, above in before.items()}
        for above, below in pairwise(own):
            trial[below].add(above)
        if len(set(own)) == len(own) and _sorted(trial) is not None:
            before = trial
    chained = {name for names in chains for name in names}
    last = [access.indices[-1] for access in operands if access.indices]
    rank = {n: (n not in chained, last.count(n) if n not in chained else 0) for n in indices}
    ready = sorted(indices, key=lambda name: rank[name])
    return _sorted(before, ready) or tuple(ready)


def _sorted(
    before: Mapping[str, set[str]], wishes: Sequence[str] | None = None
) -> tuple[str, ...] | None:
    """Return the names such that *before* holds, by *wishes* where free; None for a cycle."""
    left = list(before if wishes is None else wishes)
    done: list[str] = []
    while left:
        name = next((n for n in left if before[n] <= set(done)), None)
        if name is None:
            return None
        left.remove(name)
        done.append(name)
    return tuple(done)
