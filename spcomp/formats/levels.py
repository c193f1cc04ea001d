"""Before the route: the ways in which one level of a tensor can be stored, as plain data.

A level has a *fiber* for each position of the level above it (one for the outermost); a fiber holds
coordinates, and each place it has for one is a *position*. A tensor is a nest of levels, and one
value for each position of the last.

Source: Chou, Kjolstad, Amarasinghe, Format Abstraction for Sparse Tensor Algebra Compilers (OOPSLA
2018), section 3, for properties and capabilities; SparseTIR (ASPLOS 2023), section 3.1, for axes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal, TypeAlias

from spcomp.errors import FormatError
from spcomp.ir.axis import AxisKind
from spcomp.ir.axis import home as home  # where a hashed level has a coordinate

Iterates: TypeAlias = Literal["coordinate", "position"]
Locates: TypeAlias = Literal["direct", "search", "probe", "none"]


@dataclass(frozen=True, slots=True)
class LevelFormat:
    """How one level is stored; ``str()`` is its name and what differs from the usual.

    *arrays* store it, by name and in order. *axis* is the kind of axis that it is. Fibers are
    iterated by ``coordinate`` (each in a range) or ``position`` (each that is stored); a coordinate
    is located ``direct``, by ``search``, by ``probe``, or not at all (``none``).

    *ordered*: coordinates ascend in a fiber. *unique*: none is in it twice. *full*: it holds every
    coordinate. *branchless*: it holds exactly one. *compact*: no position is padding. *size*: of a
    dense level, the number of coordinates, if that is fixed.
    """

    name: str
    arrays: tuple[str, ...]
    axis: AxisKind
    iterates: Iterates
    locates: Locates
    ordered: bool = True
    unique: bool = True
    full: bool = False
    branchless: bool = False
    compact: bool = True
    size: int | None = None

    def __str__(self) -> str:
        usual = LEVELS.get(self.name, self)
        notes = [] if self.size is None else [str(self.size)]
        notes += [
            f"{no}{what}"
            for what, no in (("unique", "non"), ("ordered", "un"))
            if getattr(usual, what) and not getattr(self, what)
        ]
        return f"{self.name}({', '.join(notes)})" if notes else self.name


LEVELS: Mapping[str, LevelFormat] = {
    level.name: level
    for level in (
        LevelFormat("dense", (), "dense_fixed", "coordinate", "direct", full=True),
        LevelFormat("compressed", ("indptr", "indices"), "sparse_variable", "position", "search"),
        LevelFormat(
            "singleton", ("indices",), "sparse_fixed", "position", "search", branchless=True
        ),
        LevelFormat("ragged", ("indptr",), "dense_variable", "coordinate", "direct"),
        LevelFormat("fixed", ("indices",), "sparse_fixed", "position", "search", compact=False),
        LevelFormat("bitmap", ("mask",), "dense_fixed", "coordinate", "direct", compact=False),
        LevelFormat(
            "hashed",
            ("indptr", "indices"),
            "sparse_variable",
            "position",
            "probe",
            ordered=False,
            compact=False,
        ),
        LevelFormat("offset", ("offsets",), "sparse_fixed", "position", "search", compact=False),
        LevelFormat("runs", ("indptr", "indices", "ends"), "sparse_variable", "position", "search"),
    )
}
"""The level formats by name, each as it usually is.

``dense``: every coordinate. ``compressed``: fiber p holds ``indices[indptr[p] : indptr[p+1]]``.
``singleton``: it holds ``indices[p]``; ``fixed``: row p of *indices*; in both, -1 is padding.
``ragged``: it holds ``0 .. indptr[p+1] - indptr[p] - 1``. ``bitmap``: position c of it holds the
coordinate c where ``mask[p, c]`` is not 0. ``hashed``: from ``indptr[p]`` to ``indptr[p+1]`` lies
a table of 2**k slots, where coordinate c is at ``home(c, slots)`` or the first slot after it that
was free, cyclically; -1 is a free slot. ``offset``: below coordinate c of the level above, it holds
``c + offsets[d]`` at position d where that is a coordinate, and padding where it is none. ``runs``:
it holds ``indices[r] .. ends[r] - 1`` for each r of ``indptr[p] .. indptr[p+1]``, a run, and all
coordinates of a run share one position.
"""

_LOOSE = ("compressed", "fixed")  # what may also be unordered or repeat coordinates
_TEXT = re.compile(r"\s*(\w+)\s*(?:\(([^()]*)\))?\s*")


@cache
def level(text: str) -> LevelFormat:
    """Return the level format that *text* names: ``compressed(nonunique)``, ``dense(4)``.

    Raises FormatError.
    """
    found = _TEXT.fullmatch(text)
    if found is None or found[1] not in LEVELS:
        raise FormatError(f"{text!r} is no level", hint=f"levels: {', '.join(LEVELS)}")
    made = LEVELS[found[1]]
    for note in (found[2] or "").split(",") if found[2] is not None else ():
        made = _noted(made, note.strip(), text)
    return made


def _noted(made: LevelFormat, note: str, text: str) -> LevelFormat:
    if made.name == "dense" and note.isdecimal() and int(note) > 0 and made.size is None:
        return replace(made, size=int(note))
    if made.name in _LOOSE and note == "nonunique":
        return replace(made, unique=False)
    if made.name in _LOOSE and note == "unordered":
        return replace(made, ordered=False, locates="none")
    raise FormatError(
        f"{text!r} is no level",
        hint="dense takes a size, compressed and fixed take nonunique and unordered",
    )
