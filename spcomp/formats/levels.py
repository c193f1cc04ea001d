"""Before the route: the ways in which one level of a tensor can be stored, as plain data.

A level has a *fiber* for each position of the level above it (the outermost has one). A fiber holds
coordinates; each place for one is a *position*. A tensor consists of nested levels, and one value
for each position of the last.

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
from spcomp.ir.axis import home as home  # the slot of a coordinate in a hashed level

Iterates: TypeAlias = Literal["coordinate", "position"]
Locates: TypeAlias = Literal["direct", "search", "probe", "none"]


@dataclass(frozen=True, slots=True)
class LevelFormat:
    """How one level is stored; ``str()`` is its name, with properties that differ from the default.

    *arrays* are the names of its arrays, in order. *axis* is its kind of axis. Fibers are iterated
    by ``coordinate`` (all of a range) or ``position`` (all that are stored). A coordinate is
    located ``direct``, by ``search``, by ``probe``, or not at all (``none``).

    *ordered*: coordinates ascend in a fiber. *unique*: a fiber has none twice. *full*: it has every
    coordinate. *branchless*: it has exactly one. *compact*: no position is padding. *size*: the
    fixed number of coordinates of a dense level.
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
"""The level formats by name, with their default properties. Fiber p of each holds:

``dense``: every coordinate. ``compressed``: ``indices[indptr[p] : indptr[p+1]]``. ``singleton``:
``indices[p]``; ``fixed``: row p of *indices*; in both, -1 is padding. ``ragged``:
``0 .. indptr[p+1] - indptr[p] - 1``. ``bitmap``: coordinate c, at position c, where ``mask[p, c]``
is not 0. ``hashed``: a table of 2**k slots from ``indptr[p]`` to ``indptr[p+1]``, with coordinate c
at ``home(c, slots)`` or in the first slot after it that was free, cyclically; -1 is a free slot.
``offset``: below coordinate c of the level above, ``c + offsets[d]`` at position d, or padding if
that is not a coordinate. ``runs``: ``indices[r] .. ends[r] - 1`` for each run r of
``indptr[p] .. indptr[p+1]``; all coordinates of a run share one position.
"""

_LOOSE = ("compressed", "fixed")  # levels that may be unordered or repeat coordinates
_TEXT = re.compile(r"\s*(\w+)\s*(?:\(([^()]*)\))?\s*")


@cache
def level(text: str) -> LevelFormat:
    """Return the level format that *text* names: ``compressed(nonunique)``, ``dense(4)``.

    Raises FormatError.
    """
    match = _TEXT.fullmatch(text)
    if match is None or match[1] not in LEVELS:
        raise FormatError(f"{text!r} is no level", hint=f"levels: {', '.join(LEVELS)}")
    result = LEVELS[match[1]]
    for note in (match[2] or "").split(",") if match[2] is not None else ():
        result = _with_note(result, note.strip(), text)
    return result


def _with_note(kind: LevelFormat, note: str, text: str) -> LevelFormat:
    if kind.name == "dense" and note.isdecimal() and int(note) > 0 and kind.size is None:
        return replace(kind, size=int(note))
    if kind.name in _LOOSE and note == "nonunique":
        return replace(kind, unique=False)
    if kind.name in _LOOSE and note == "unordered":
        return replace(kind, ordered=False, locates="none")
    raise FormatError(
        f"{text!r} is no level",
        hint="dense takes a size, compressed and fixed take nonunique and unordered",
    )
