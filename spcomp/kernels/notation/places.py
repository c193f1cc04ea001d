"""At the call of an index notation kernel: arrays of which parts are assigned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from typing import Any

import numpy as np

from spcomp.errors import ArgumentError
from spcomp.kernels.notation.arguments import CallArguments
from spcomp.kernels.notation.stored import cut_array
from spcomp.kernels.results import by_name
from spcomp.notation.algebra import Windowed
from spcomp.notation.windows import coordinates


@dataclass(frozen=True, slots=True)
class Places:
    """The results that are *parts* of given arrays, and the names of all *results* for the user."""

    parts: Mapping[str, Windowed]
    results: tuple[str, ...]

    @classmethod
    def of(cls, parts: Mapping[str, Windowed], results: tuple[str, ...]) -> Places:
        """Return the Places of a program with these *results*."""
        return cls(parts, cls(parts, ()).named(results))

    def named(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Return the user's names for the arguments or results called *names*."""
        return tuple(dict.fromkeys(self.parts[n].name if n in self.parts else n for n in names))

    def with_parts_cut(
        self, kernel: str, out: Any, arguments: CallArguments
    ) -> tuple[dict[str, Any], CallArguments, dict[str, Any]]:
        """Return the arrays for results, the other arguments, and the arrays with assigned parts.

        The first are views of the last, or copies to be put back. Raises ArgumentError.
        """
        outputs = by_name(self.results, out)
        others = dict(arguments)
        wholes: dict[str, Any] = {}
        for name in dict.fromkeys(part.name for part in self.parts.values()):
            whole = outputs.pop(name, None)
            if whole is None and name in others:
                whole = others.pop(name).value
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
        cuts: dict[str, Any] = {}
        for name, part in self.parts.items():
            whole = wholes[part.name]
            cut = cut_array(whole, coordinates(part.name, part.windows, whole.shape))
            cuts[name] = cut if cut.flags.c_contiguous else np.ascontiguousarray(cut)
        return cuts | outputs, others, wholes

    def put_back(self, outputs: Mapping[str, Any], wholes: Mapping[str, Any]) -> None:
        """Copy the parts, in *outputs*, to where they belong in *wholes*."""
        for name, part in self.parts.items():
            whole, cut = wholes[part.name], outputs[name]
            if not np.may_share_memory(whole, cut):
                kept = coordinates(part.name, part.windows, whole.shape)
                dims = [[k] if isinstance(k, int) else np.asarray(k, np.int64) for k in kept]
                whole[np.ix_(*dims)] = cut.reshape([len(dim) for dim in dims])


def _refuse_overlap(parts: Sequence[Windowed], shape: tuple[int, ...]) -> None:
    """Raise ArgumentError where two *parts* of an array of this *shape* share a coordinate."""
    for part, other in combinations(parts, 2):
        if _overlap(part, other, shape):
            raise ArgumentError(
                f"argument {part.name}: two parts of it that are assigned overlap",
                hint="assign them in programs of their own, one after the other",
            )


@lru_cache(maxsize=256)
def _overlap(part: Windowed, other: Windowed, shape: tuple[int, ...]) -> bool:
    both = (coordinates(p.name, p.windows, shape) for p in (part, other))
    sets = ([{a} if isinstance(a, int) else set(a) for a in dims] for dims in both)
    return all(a & b for a, b in zip(*sets, strict=True))
