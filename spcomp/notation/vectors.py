"""Beside the route of index notation: index vectors, ``X[src[e], f]``."""

from __future__ import annotations

from collections.abc import Mapping

from spcomp.dtypes import DType, int32, int64
from spcomp.errors import ArgumentError, ScriptError
from spcomp.notation.layout import Layout
from spcomp.notation.nodes import Access, Assignment, Program, accesses

INDEX_TYPES = (int32, int64)


def check_vectors(
    stmt: Assignment, layouts: Mapping[str, Layout], types: Mapping[str, DType]
) -> None:
    """Raise SpcompError where *stmt* reads at data what is sparse, or at data that is no vector.

    *layouts* and *types*: those of the tensors.
    """
    for access in accesses(stmt.value):
        if access.vectors and not layouts[access.name].is_dense:
            raise ScriptError(
                f"{access.name} is sparse, and is read at coordinates that are data",
                access.at,
                hint=f"give {access.name} as an array, or gather by a matrix of ones,"
                f" P[e, i] * {access.name}[i, j]: its row e has a 1 in the column of the vector",
            )
        for vector in (s for s in access.subscripts if isinstance(s, Access)):
            check_vector(vector.name, layouts[vector.name], types[vector.name])


def check_vector(name: str, layout: Layout, dtype: DType) -> None:
    """Raise ArgumentError if the argument *name*, stored so, cannot be an index vector."""
    if not layout.is_dense:
        raise ArgumentError(
            f"argument {name}: is sparse, and is an index vector",
            hint="give an array of integers",
        )
    if dtype not in INDEX_TYPES:
        raise ArgumentError(
            f"argument {name}: got dtype {dtype}, and an index vector has int32 or int64",
            hint='convert it with .astype("int64")',
        )


def only_vectors(program: Program) -> frozenset[str]:
    """Return the names of the operands of *program* that are read as index vectors only."""
    terms = [stmt.value for stmt in program.statements]
    every = {access.name for term in terms for access in accesses(term)}
    return frozenset(every - {a.name for term in terms for a in accesses(term, vectors=False)})
