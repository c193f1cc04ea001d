"""Before a call: large arrays of which a sparse operand picks neighbours in memory, one by one.

``X[j, k]`` beside ``A[i, j]`` is read at the coordinates j that A stores, each time for all k.
Where its elements lie next to each other along j, each comes with a cache line of its own. A copy
in the other order takes one pass over X, and is worth it where A has elements enough.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

import numpy as np

from spcomp.kernels.notation.arguments import CallArguments, call_arguments
from spcomp.notation.nodes import Access, Assignment, Program, accesses
from spcomp.tensors.libraries.scipy import stored_size
from spcomp.tensors.tensor import Tensor

LEAST = 1 << 16  # elements of an array that is copied: calls with smaller ones are repeated faster


class Crossing(NamedTuple):
    """An operand *name* of two dimensions, of which others pick coordinates along *dimension*.

    *pickers*: the operands that may do so if they are sparse, and index vectors.
    """

    name: str
    dimension: int
    pickers: frozenset[str]


def crossings(program: Program) -> tuple[Crossing, ...]:
    """Return the operands of *program* that are crossed if others are sparse."""
    targets = {stmt.target.name for stmt in program.statements}
    found = (crossing for stmt in program.statements for crossing in _crossings(stmt))
    return tuple(crossing for crossing in found if crossing.name not in targets)


def uncrossed(
    arguments: CallArguments, found: Collection[Crossing], fixed: Collection[str]
) -> CallArguments:
    """Return *arguments* with copies of those that are crossed, but for those *fixed*.

    What is crossed in either order stays as it is.
    """
    copies: dict[str, Any] = {}
    for name in dict.fromkeys(crossing.name for crossing in found):
        array = arguments[name].value if name in arguments and name not in fixed else None
        if not isinstance(array, np.ndarray) or array.ndim != 2 or array.size < LEAST:
            continue
        by_rows, by_columns = array.flags.c_contiguous, array.flags.f_contiguous
        crossed = {c.dimension for c in found if c.name == name and _is_crossed(c, arguments)}
        if by_rows != by_columns and crossed == {int(by_rows)}:
            copies[name] = np.asfortranarray(array) if by_rows else np.ascontiguousarray(array)
    return {**arguments, **call_arguments(copies)} if copies else arguments


def _is_crossed(crossing: Crossing, arguments: CallArguments) -> bool:
    """Whether coordinates enough are picked: as many as there are, which a copy goes through."""
    name, dimension, pickers = crossing
    picks = (_picks(arguments[picker].value) for picker in pickers if picker in arguments)
    extent: int = arguments[name].value.shape[dimension]
    return max(picks, default=0) >= extent


def _crossings(stmt: Assignment) -> Iterator[Crossing]:
    around = accesses(stmt.value)
    for access in around:
        if access.windows or access.rank != 2:
            continue
        for dimension, index in enumerate(access.subscripts):
            other = access.subscripts[1 - dimension]
            if isinstance(other, Access):
                continue
            if isinstance(index, Access):
                pickers = {index.name}
            else:
                pickers = {a.name for a in around if index in a.indices and other not in a.indices}
            if pickers := pickers - {access.name}:
                yield Crossing(access.name, dimension, frozenset(pickers))


def _picks(value: Any) -> int:
    """Return how many coordinates *value* picks: the elements of a sparse operand, or a vector."""
    if isinstance(value, np.ndarray):
        return value.size if value.ndim == 1 and value.dtype.kind in "iu" else 0
    if isinstance(value, Tensor):
        return 0 if value.layout.is_dense else int(value.values.size)
    return stored_size(value)
