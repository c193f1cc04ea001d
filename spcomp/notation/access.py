"""Beside the route of index notation: an access, of what stands in the brackets behind a name."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from numbers import Integral
from typing import Any, TypeAlias

from spcomp.errors import ScriptError, Span
from spcomp.notation.nodes import Access, Vector
from spcomp.notation.windows import IndexSet, Part, Window

_OF_SLICE = re.compile(r"_\d+")
# an index and what it runs over; a slice, whose index has no name; a coordinate; an index vector
Subscript: TypeAlias = tuple[str, Part] | Window | int | Access


def access_of(name: str, subscripts: Iterable[Subscript], at: Span | None = None) -> Access:
    """Return the access *at* a place that reads *name* at *subscripts*; raises ScriptError."""
    indices: list[str] = []
    windows: list[Part] = []
    vectors: list[Vector | None] = []
    subscripts = tuple(subscripts)
    for part in subscripts:
        vectors.append(None)
        if isinstance(part, Access):
            _refuse_parts(part)
            vectors[-1] = Vector(part.name, part.rank)
            indices += part.indices
        elif isinstance(part, tuple):
            indices.append(part[0])
            windows.append(part[1])
        else:
            indices += [_of_slice(indices)] if isinstance(part, Window) else []
            windows.append(part)
    _refuse_names_of_slices(subscripts, indices, at)
    plain = all(not isinstance(w, int) and (w is None or w.is_whole) for w in windows)
    if not any(vectors):
        return Access(name, tuple(indices), () if plain else tuple(windows), at=at)
    if not plain:
        raise ScriptError(
            "a part and an index vector do not go together",
            at,
            hint="read the part in a statement of its own, or give it as an argument",
        )
    return Access(name, tuple(indices), vectors=tuple(vectors), at=at)


def _of_slice(before: Iterable[str]) -> str:
    """Return the name of the index of a slice that stands behind the indices *before*.

    Printed programs have these names in the place of whole slices.
    """
    return f"_{sum(_OF_SLICE.fullmatch(index) is not None for index in before)}"


def _refuse_names_of_slices(
    subscripts: Iterable[Subscript], indices: Sequence[str], at: Span | None
) -> None:
    """Raise ScriptError if one of *subscripts* has the name of the index of a slice beside it."""
    if not any(isinstance(part, Window) for part in subscripts):
        return
    written = {part[0] for part in subscripts if isinstance(part, tuple)}
    for name in indices:
        if _OF_SLICE.fullmatch(name) and (name in written or indices.count(name) > 1):
            hint = "call the index otherwise: i, j, k"
            raise ScriptError(f"{name} is the name of the index of a slice", at, hint=hint)


def _refuse_parts(vector: Access) -> None:
    """Raise ScriptError unless *vector*, which stands for an index, is read at indices."""
    if not vector.indices or vector.windows or vector.vectors:
        raise ScriptError(
            "an index vector is read at plain indices",
            vector.at,
            hint="X[src[e], f], where e is an index; what else is meant, compute before",
        )


def window_of(ends: Iterable[Any], *, counts: bool = False, at: Span | None = None) -> Window:
    """Return the window with *ends*: start, stop and step. Raises ScriptError."""
    start, stop, step = ends
    if not all(end is None or isinstance(end, Integral) for end in (start, stop, step)):
        raise ScriptError("the ends of a window are whole numbers", at)
    start, stop, step = (None if end is None else int(end) for end in (start, stop, step))
    if step == 0:
        raise ScriptError("the step of a window is not 0", at)
    return Window(start, stop, 1 if step is None else step, counts, at=at)


def index_set(numbers: Collection[Any], *, is_set: bool, at: Span | None = None) -> IndexSet:
    """Return the coordinates *numbers*, in the order of a list or of a set. Raises ScriptError."""
    coords = [int(c) for c in numbers if isinstance(c, Integral) and not isinstance(c, bool)]
    if len(coords) < len(numbers) or min(coords, default=0) < 0:
        raise ScriptError("the coordinates of an index set are whole numbers from 0 on", at)
    return IndexSet(tuple(sorted({*coords}) if is_set else coords), at=at)
