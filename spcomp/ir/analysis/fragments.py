"""Beside the route: matrices that the lanes of a warp hold together, and what is done with them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from spcomp.ir.access import Load
from spcomp.ir.axis import AnyBuffer
from spcomp.ir.stmt import For, Store
from spcomp.ir.visitor import walk

Role: TypeAlias = Literal["fill", "load", "multiply", "store"]
Place: TypeAlias = tuple[int, int, int]  # factors of lane // 4 and lane % 4, and an offset

COLLECTIVE = "warp_matrix"  # the attribute of a loop whose nest a warp runs as one, a Role
PREFIX = "wmma."  # of the scopes of fragments
A, B, ACCUMULATOR = (PREFIX + part for part in ("matrix_a", "matrix_b", "accumulator"))
LANES = 32


@dataclass(frozen=True, slots=True)
class Layout:
    """Which elements of a matrix a lane holds: the *places* of row and column of each, in order.

    *transposed*: the transpose of the matrix takes part. Source: the PTX ISA, section 9.7.14,
    Matrix Fragments for mma.m16n8k16 and mma.m16n8k8.
    """

    places: tuple[tuple[Place, Place], ...]
    transposed: bool = False


def _left(pairs: int) -> list[tuple[Place, Place]]:
    """Return the layout of the left operand, with *pairs* neighbouring elements in a register."""
    return [
        ((1, 0, 8 * (k // pairs % 2)), (0, pairs, k % pairs + 4 * pairs * (k // pairs // 2)))
        for k in range(4 * pairs)
    ]


def _right(pairs: int, at: int) -> list[tuple[Place, Place]]:
    """Return the layout of 8 columns of the right operand, which begin at *at*."""
    return [
        ((0, pairs, k % pairs + 4 * pairs * (k // pairs)), (1, 0, at)) for k in range(2 * pairs)
    ]


def _result(at: int) -> list[tuple[Place, Place]]:
    """Return the layout of 8 columns of the result, which begin at *at*."""
    return [((1, 0, 8 * (k // 2)), (0, 2, at + k % 2)) for k in range(4)]


def _transposed(places: list[tuple[Place, Place]], at: int = 0) -> list[tuple[Place, Place]]:
    """Return *places* of the transpose, with columns that begin at *at*."""
    return [(column, (row[0], row[1], row[2] + at)) for row, column in places]


def layout_of(scope: str, rows: int, columns: int, bits: int) -> Layout | None:
    """Return how a warp holds a matrix of *scope* with elements of *bits*; None: no warp does."""
    pairs = 2 if bits == 16 else 1
    depth, parts = 8 * pairs, range(0, columns, 8)
    match scope, rows, columns:
        case ("wmma.matrix_a", 16, _) if columns == depth:
            return Layout(tuple(_left(pairs)))
        case ("wmma.matrix_a", 8, _) if columns == depth:
            return Layout(tuple(_transposed(_right(pairs, 0))), transposed=True)
        case ("wmma.matrix_b", _, 8 | 16) if rows == depth:
            return Layout(tuple(p for at in parts for p in _right(pairs, at)))
        case ("wmma.matrix_b", _, 32) if rows == depth:
            return Layout(
                tuple(p for at in (0, 16) for p in _transposed(_left(pairs), at)), transposed=True
            )
        case ("wmma.accumulator", 16, 8 | 16):
            return Layout(tuple(p for at in parts for p in _result(at)))
        case ("wmma.accumulator", 8, 32):
            return Layout(
                tuple(p for at in (0, 16) for p in _transposed(_result(0), at)), transposed=True
            )
    return None


def is_fragment(buffer: AnyBuffer) -> bool:
    """Whether the lanes of a warp hold *buffer* together."""
    return buffer.scope.startswith(PREFIX)


def role_of(loop: For) -> Role | None:
    """Return what a warp does as one in *loop*; None: nothing."""
    role = dict(loop.attrs).get(COLLECTIVE)
    return role if role in get_args(Role) else None


def role_of_store(store: Store) -> Role | None:
    """Return what *store*, repeated for all elements, does with fragments; None: nothing."""
    loads = {n.buffer.scope for n in walk(store.value) if isinstance(n, Load)}
    read = {scope for scope in loads if scope.startswith(PREFIX)}
    if not is_fragment(store.buffer):
        return "store" if read == {ACCUMULATOR} and read == loads else None
    if read == {A, B, ACCUMULATOR} and store.buffer.scope == ACCUMULATOR:
        return "multiply"
    if read:
        return None
    return "load" if any(isinstance(n, Load) for n in walk(store.value)) else "fill"
