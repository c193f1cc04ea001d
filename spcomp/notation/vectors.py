"""Beside the route of index notation: index vectors, ``X[src[e], f]``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from spcomp.dtypes import DType
from spcomp.errors import ArgumentError, ScriptError
from spcomp.notation.algebra import rebuilt, with_reductions
from spcomp.notation.layout import Layout
from spcomp.notation.nodes import (
    Access,
    Assignment,
    Expr,
    Masked,
    Op,
    Program,
    Reduce,
    Scalar,
    accesses,
    walk,
)
from spcomp.notation.prepare import free_name
from spcomp.notation.semiring import Semiring
from spcomp.notation.sizes import Dimension, IndexOf, Sizes

INDEX_TYPES = ("int32", "int64")


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
    check_type(name, str(dtype))


def check_type(name: str, dtype: str) -> None:
    """Raise ArgumentError if the argument *name*, of *dtype*, cannot be an index vector."""
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


def vectors_of(program: Program) -> frozenset[str]:
    """Return the names of the index vectors of *program*, on either side."""
    found = (a for stmt in program.statements for a in (stmt.target, *accesses(stmt.value)))
    return frozenset(v.name for access in found for v in access.vectors if v is not None)


@dataclass(frozen=True, slots=True)
class Scattered:
    """The rows of an operand: row n has the positions at which the index vector *vector* has n.

    *places*: the results, and their dimensions, that have as many coordinates as there are rows.
    *known*: the same of arguments. *read*: arguments that are read at the vector, or as long as
    results that are, which have as many if nothing else says how many there are.
    """

    vector: str
    places: tuple[tuple[str, int], ...] = ()
    known: tuple[tuple[str, int], ...] = ()
    read: tuple[tuple[str, int], ...] = ()


def with_scatters(program: Program, semiring: Semiring) -> tuple[Program, dict[str, Scattered]]:
    """Return *program* with each scatter as a reduction over rows, and the operands of these rows.

    ``Y[dst[e], f] = max(e, x)`` becomes ``Y[n, f] = max(e, x if rows[n, e])``: what an element of
    the result takes is found, not what a term goes to, so rows are computed in parallel. Raises
    ScriptError.
    """
    if not any(stmt.target.vectors for stmt in program.statements):
        return program, {}
    taken = {name for stmt in program.statements for name in _names(stmt)}
    operands: dict[str, tuple[str, str]] = {}  # by vector: the operand, and the index of its rows
    statements: list[Assignment] = []
    indices: dict[str, IndexOf] = {}  # by operand: the same index
    for at, stmt in enumerate(program.statements):
        if stmt.target.vectors:
            vector, index = _only_vector(stmt.target)
            if vector not in operands:
                operands[vector] = (
                    free_name(f"{vector}_rows", taken),
                    free_name(f"{vector}_row", taken),
                )
            name, row = operands[vector]
            indices[name] = IndexOf(row, at)
            stmt = _over_rows(stmt, Access(name, (row, index)), semiring)
        statements.append(stmt)
    sizes = Sizes(statements, str)
    targets = {stmt.target.name for stmt in statements}
    rows: dict[str, Scattered] = {}
    for vector, (name, _) in operands.items():
        having = [key for key in sizes.having(indices[name]) if key[0] != name]
        places = tuple(key for key in having if key[0] in targets)
        known = tuple(key for key in having if key[0] not in targets)
        at_vector = _read_at(vector, statements)
        same = (key for name, dim in at_vector for key in sizes.having(Dimension(name, dim)))
        read = tuple(dict.fromkeys(key for key in same if key[0] not in targets))
        rows[name] = Scattered(vector, places, known, read)
    return Program(tuple(statements)), rows


def _read_at(vector: str, statements: Sequence[Assignment]) -> Iterator[tuple[str, int]]:
    """Yield the tensors, and their dimensions, that *statements* read at *vector*."""
    for access in (access for stmt in statements for access in accesses(stmt.value)):
        for dim, part in enumerate(access.vectors):
            if part is not None and part.name == vector:
                yield access.name, dim


def _names(stmt: Assignment) -> set[str]:
    found = {t.name for t in walk(stmt.value) if isinstance(t, (Access, Scalar))}
    for access in (stmt.target, *accesses(stmt.value)):
        found |= {access.name, *access.indices, *(v.name for v in access.vectors if v)}
    return found | {i for t in walk(stmt.value) if isinstance(t, Reduce) for i in t.indices}


def _only_vector(target: Access) -> tuple[str, str]:
    """Return the index vector of *target*, and its index; raises ScriptError for other vectors."""
    found = [s for s in target.subscripts if isinstance(s, Access)]
    if len(found) > 1:
        raise ScriptError(
            "a result is written at one index vector",
            target.at,
            hint="number the places, n = a * columns + b, and reshape the result",
        )
    if len(found[0].indices) > 1:
        raise ScriptError(
            f"{found[0]} has {len(found[0].indices)} indices, and a result is written at a vector"
            " of one",
            target.at,
            hint="flatten the vector and what stands beside it, with reshape(-1)",
        )
    (index,) = found[0].indices
    if index in target.subscripts:
        raise ScriptError(f"{index} is an index of {target}, and reduced there", target.at)
    return found[0].name, index


def _over_rows(stmt: Assignment, rows: Access, semiring: Semiring) -> Assignment:
    """Return *stmt*, which has an index vector on its left side, as a reduction over *rows*."""
    stmt = with_written_reduction(stmt, semiring)
    names = iter(stmt.target.indices)
    pairs = [(next(names), vector) for vector in stmt.target.vectors]
    indices = tuple(rows.indices[0] if vector else name for name, vector in pairs)
    target = Access(stmt.target.name, indices, at=stmt.target.at)

    def masked(term: Expr) -> Expr:
        if isinstance(term, Reduce):
            return replace(term, body=Masked(term.body, rows))
        return rebuilt(term, masked)  # it is subtracted

    return replace(stmt, target=target, value=masked(stmt.value), is_dense=True)


def with_written_reduction(stmt: Assignment, semiring: Semiring) -> Assignment:
    """Return *stmt*, which has an index vector on its left side, with its reduction written.

    It is subtracted in a statement that subtracts. Raises ScriptError.
    """
    _, index = _only_vector(stmt.target)
    if stmt.subtracts and isinstance(stmt.value, Op):
        args = tuple(_reduced(stmt, arg, index, semiring) for arg in stmt.value.args)
        return replace(stmt, value=replace(stmt.value, args=args))
    return replace(stmt, value=_reduced(stmt, stmt.value, index, semiring))


def _reduced(stmt: Assignment, value: Expr, index: str, semiring: Semiring) -> Reduce:
    """Return *value* reduced over *index*; by itself it is summed."""
    if isinstance(value, Reduce) and index in value.indices:
        return value
    if any(isinstance(t, Reduce) and index in t.indices for t in walk(value)):
        raise ScriptError(
            f"{index} is reduced inside the value, and {stmt.target} reduces over it",
            value.at,
            hint=f"reduce the whole value, max({index}, ...), or do the rest in a statement after",
        )
    summed = with_reductions(replace(stmt, value=value), semiring).value
    if isinstance(summed, Reduce) and not summed.is_written:
        return replace(summed, indices=(index, *summed.indices), is_written=True)
    return Reduce(semiring.add, (index,), summed, at=value.at)


def at_every_coordinate(access: Access) -> Access:
    """Return *access* with an index in the place of each index vector."""
    indices = tuple(f"{s.name}_row" if isinstance(s, Access) else s for s in access.subscripts)
    return Access(access.name, indices, at=access.at) if access.vectors else access


def dense_at_vectors(program: Program) -> frozenset[str]:
    """Return the names of the tensors of *program* that are dense, as index vectors say."""
    found: set[str] = set()
    for stmt in program.statements:
        for access in (stmt.target, *accesses(stmt.value)):
            if access.vectors:
                found |= {access.name, *(v.name for v in access.vectors if v)}
    return frozenset(found)
