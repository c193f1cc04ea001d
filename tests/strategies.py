"""Hypothesis strategies: sparse structures with empty and full rows, and calls of any program."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

from tests.corpus_base import Compressed, Draw

SIZES = st.integers(0, 6)


class DrawnByHypothesis(Draw):
    """A Draw whose sizes and fibers hypothesis chooses, and shrinks."""

    def __init__(self, data: Any, dtype: str = "float32", idtype: str = "int32") -> None:
        seed = data.draw(st.integers(0, 99), label="seed of the values")
        super().__init__(np.random.default_rng(seed), "hypothesis", dtype, idtype)
        self.data = data

    def size(self, nominal: int) -> int:
        return self.data.draw(SIZES, label="size")

    def fiber(self, length: int, row: int, rows: int) -> list[int]:
        return self.data.draw(coordinates(length), label=f"fiber {row}")

    def sample(self, length: int, count: int) -> list[int]:
        chosen = st.permutations(range(length)).map(lambda order: sorted(order[:count]))
        return self.data.draw(chosen, label="fixed fiber")

    def offset(self) -> int:
        return self.data.draw(st.sampled_from([0, 0, 0, 1, 3]), label="indptr[0]")


def coordinates(length: int) -> st.SearchStrategy[list[int]]:
    """Ascending, distinct coordinates below *length*: none, all, or any of them."""
    if length == 0:
        return st.just([])
    some = st.lists(st.integers(0, length - 1), unique=True, max_size=length).map(sorted)
    return st.one_of(st.just([]), some, st.just(list(range(length))))


@dataclass(frozen=True)
class Csr:
    """The structure of a CSR matrix, or of blocks of *block* by *block*."""

    shape: tuple[int, int]
    axis: Compressed
    block: int = 1


@dataclass(frozen=True)
class Ell:
    """The structure of an ELL matrix: *columns* sorted indices in each row, row after row."""

    shape: tuple[int, int]
    columns: int
    indices: np.ndarray


@dataclass(frozen=True)
class Csf:
    """The structure of a three-dimensional tensor: a tree of two sparse levels."""

    shape: tuple[int, int, int]
    rows: Compressed
    tubes: Compressed


@st.composite
def csr_structures(draw: Any, idtype: str = "int32", blocks: tuple[int, ...] = (1,)) -> Csr:
    """A CSR (or BSR) structure of up to 6 by 6."""
    rows, columns = draw(SIZES), draw(SIZES)
    return Csr((rows, columns), draw(_compressed(rows, columns, idtype)), draw(_one_of(blocks)))


def bsr_structures(idtype: str = "int32") -> st.SearchStrategy[Csr]:
    """A BSR structure with blocks of 1, 2 or 3."""
    return csr_structures(idtype, (1, 2, 3))


@st.composite
def ell_structures(draw: Any, idtype: str = "int32") -> Ell:
    """An ELL structure of up to 6 by 6, every row with as many columns."""
    rows, length = draw(SIZES), draw(SIZES)
    columns = draw(st.integers(0, length))
    order = st.permutations(range(length)).map(lambda p: sorted(p[:columns]))
    indices = [j for _ in range(rows) for j in draw(order)]
    return Ell((rows, length), columns, np.asarray(indices, idtype))


@st.composite
def ragged_structures(draw: Any, idtype: str = "int32") -> Compressed:
    """The indptr of up to 6 rows of up to 6 elements."""
    counts = draw(st.lists(SIZES, max_size=6))
    return Compressed(np.cumsum([0, *counts]).astype(idtype))


@st.composite
def csf_structures(draw: Any, idtype: str = "int32") -> Csf:
    """A CSF structure of up to 6 by 6 by 6."""
    shape = (draw(SIZES), draw(SIZES), draw(SIZES))
    rows = draw(_compressed(shape[0], shape[1], idtype))
    return Csf(shape, rows, draw(_compressed(rows.nnz, shape[2], idtype)))


def values(count: int, dtype: str = "float32") -> st.SearchStrategy[np.ndarray]:
    """*count* values that float16 holds exactly, as an array of *dtype*."""
    number = st.integers(-64, 64).map(lambda v: v / 16 if "float" in dtype else v)
    return st.lists(number, min_size=count, max_size=count).map(lambda v: np.array(v, dtype))


def _one_of(options: tuple[int, ...]) -> st.SearchStrategy[int]:
    return st.sampled_from(options)


@st.composite
def _compressed(draw: Any, rows: int, length: int, idtype: str) -> Compressed:
    fibers = [draw(coordinates(length)) for _ in range(rows)]
    indptr = np.cumsum([0, *map(len, fibers)]).astype(idtype)
    return Compressed(indptr, np.array([j for f in fibers for j in f], idtype))
