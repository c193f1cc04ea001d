"""At the call of an index notation kernel: arrays of which a part is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from typing import Any

import numpy as np

from spcomp.compiler.notation_results import by_name
from spcomp.compiler.notation_stored import cut_array
from spcomp.errors import ArgumentError
from spcomp.notation.algebra import Windowed
from spcomp.notation.windows import coordinates


@dataclass(frozen=True, slots=True)
class Places:
    """The results that are *parts* of given arrays, and all *results* as the user calls them."""

    parts: Mapping[str, Windowed]
    results: tuple[str, ...]

    @classmethod
    def of(cls, parts: Mapping[str, Windowed], results: tuple[str, ...]) -> Places:
        """Return those of a program with these *results*."""
        return cls(parts, cls(parts, ()).named(results))

    def named(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Return *names*, of what a call takes or gives, as the user calls them."""
        return tuple(dict.fromkeys(self.parts[n].name if n in self.parts else n for n in names))

    def given(self, kernel: str, out: Any, named: Mapping[str, Any]) -> Given:
        """Return what is given for the parts, and for the other results; raises ArgumentError."""
        rest = by_name(self.results, out)
        others = dict(named)
        wholes: dict[str, Any] = {}
        outs: dict[str, Any] = {}
        for name in dict.fromkeys(part.name for part in self.parts.values()):
            whole = rest.pop(name, None)
            whole = others.pop(name, None) if whole is None else whole
            if whole is None:
                raise ArgumentError(
                    f"missing argument {name} of {kernel}, a part of which is assigned",
                    hint=f"give the array by name, {name}=..., or as out",
                )
            if not isinstance(whole, np.ndarray) or not whole.flags.writeable:
                got = "what cannot be written" if hasattr(whole, "flags") else type(whole).__name__
                raise ArgumentError(
                    f"argument {name}: got {got}, expected an array of numpy",
                    hint="a part of it is assigned",
                )
            wholes[name] = whole
            _refuse_overlap([p for p in self.parts.values() if p.name == name], whole.shape)
        for name, part in self.parts.items():
            whole = wholes[part.name]
            cut = cut_array(whole, coordinates(part.name, part.windows, whole.shape))
            outs[name] = cut if cut.flags.c_contiguous else np.ascontiguousarray(cut)
        return Given(outs | rest, others, wholes)

    def written(self, given: Given, made: Mapping[str, Any]) -> dict[str, Any]:
        """Return all results by name; the parts are put where they belong."""
        for name, part in self.parts.items():
            whole, own = given.wholes[part.name], given.out[name]
            if not np.may_share_memory(whole, own):
                kept = coordinates(part.name, part.windows, whole.shape)
                every = [[k] if isinstance(k, int) else np.asarray(k, np.int64) for k in kept]
                lengths = [len(own) for own in every]
                whole[np.ix_(*every)] = own.reshape(lengths)
        return {**made, **given.wholes}


@dataclass(frozen=True, slots=True)
class Given:
    """Arrays for results, arguments by name, and the arrays of which parts are among the first."""

    out: dict[str, Any]
    named: dict[str, Any]
    wholes: dict[str, Any]


def _refuse_overlap(parts: Sequence[Windowed], shape: tuple[int, ...]) -> None:
    """Raise ArgumentError where two *parts* of an array of this *shape* share a coordinate."""
    for one, other in combinations(parts, 2):
        if _overlap(one, other, shape):
            raise ArgumentError(
                f"argument {one.name}: two parts of it that are assigned overlap",
                hint="assign them in programs of their own, one after the other",
            )


@lru_cache(maxsize=256)
def _overlap(one: Windowed, other: Windowed, shape: tuple[int, ...]) -> bool:
    both = (coordinates(part.name, part.windows, shape) for part in (one, other))
    dims = ([{a} if isinstance(a, int) else set(a) for a in part] for part in both)
    return all(a & b for a, b in zip(*dims, strict=True))
