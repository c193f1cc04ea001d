"""The oracle's tools: stored structures as dense numpy, bfloat16, and what counts as equal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np

TERMS = 16  # roundings that a result may have gone through, as a multiple of eps
_EPS = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23, "float64": 2.0**-52}
_TINY = {"float16": 2.0**-24, "bfloat16": 1e-38, "float32": 1e-38, "float64": 1e-300}


def to_bfloat16(values: np.ndarray) -> np.ndarray:
    """Return the bits (uint16) of *values* as bfloat16, rounded to nearest even."""
    bits = np.asarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def from_bfloat16(bits: np.ndarray) -> np.ndarray:
    """Return the float64 values of bfloat16 *bits*."""
    return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def exact(value: Any) -> Any:
    """Return *value* as float64 or int64 if it is an array (uint16 is bfloat16), else itself."""
    if not isinstance(value, np.ndarray):
        return value
    if value.dtype == np.uint16:
        return from_bfloat16(value)
    return value.astype(np.float64 if value.dtype.kind == "f" else np.int64)


def exact_inputs(inputs: Mapping[str, Any]) -> SimpleNamespace:
    """Return *inputs* with every array exact, by attribute."""
    return SimpleNamespace(**{name: exact(value) for name, value in inputs.items()})


def absolute(x: SimpleNamespace) -> SimpleNamespace:
    """Return *x* with every float replaced by its magnitude."""
    return SimpleNamespace(**{name: _absolute(value) for name, value in vars(x).items()})


def _absolute(value: Any) -> Any:
    is_float = isinstance(value, float) or (
        isinstance(value, np.ndarray) and value.dtype.kind == "f"
    )
    return abs(value) if is_float else value


def fibers(indptr: np.ndarray) -> Iterator[tuple[int, int, int]]:
    """Yield ``(row, position, offset in the row)`` for every stored element."""
    for row in range(len(indptr) - 1):
        for offset, position in enumerate(range(indptr[row], indptr[row + 1])):
            yield row, position, offset


def entries(indptr: np.ndarray, indices: np.ndarray) -> Iterator[tuple[int, int, int]]:
    """Yield ``(row, position, coordinate)`` for every stored element."""
    for row, position, _ in fibers(indptr):
        yield row, position, int(indices[position])


def dense(
    indptr: np.ndarray, indices: np.ndarray, values: np.ndarray, shape: tuple[int, int]
) -> np.ndarray:
    """Return the matrix of *shape* (or block matrix, *values* having more axes) as dense."""
    full = np.zeros((*shape, *values.shape[1:]), values.dtype)
    for row, position, column in entries(indptr, indices):
        full[row, column] = values[position]
    return full


def mask(indptr: np.ndarray, indices: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """Return where a matrix of *shape* stores something."""
    return dense(indptr, indices, np.ones(len(indices), bool), shape)


def gathered(
    indptr: np.ndarray, indices: np.ndarray, full: np.ndarray, into: np.ndarray
) -> np.ndarray:
    """Return *into* with every stored element taken from the dense matrix *full*."""
    result = into.copy()
    for row, position, column in entries(indptr, indices):
        result[position] = full[row, column]
    return result


def assembled(stored: np.ndarray, full: np.ndarray, axis: str, name: str) -> dict[str, np.ndarray]:
    """Return the CSR arrays of *full* where *stored*, under the names of assembled results."""
    rows, columns = np.nonzero(stored)
    indptr = np.concatenate([[0], np.cumsum(stored.sum(axis=1, dtype=np.int64))])
    return {f"{axis}_indptr": indptr, f"{axis}_indices": columns, name: full[rows, columns]}


def assert_close(
    got: np.ndarray, want: np.ndarray, magnitude: np.ndarray, dtype: str, what: str
) -> None:
    """Assert that *got* equals *want* within TERMS · eps · *magnitude*; integers exactly.

    *magnitude* is the sum of the magnitudes of the terms of each element.
    """
    got, want = np.asarray(exact(got)).reshape(-1), np.asarray(want).reshape(-1)
    assert got.shape == want.shape, f"{what}: {got.shape[0]} elements, expected {want.shape[0]}"
    if got.dtype.kind != "f":
        np.testing.assert_array_equal(got, want, err_msg=what)
        return
    scale = np.nan_to_num(np.asarray(magnitude, np.float64).reshape(-1), posinf=0, neginf=0)
    allowed = TERMS * (_EPS[dtype] * np.abs(scale) + _TINY[dtype])
    with np.errstate(invalid="ignore"):
        good = (got == want) | (np.abs(got - want) <= allowed) | (np.isnan(got) & np.isnan(want))
    worst = np.flatnonzero(~good)[:5]
    shown = [(int(p), float(got[p]), float(want[p])) for p in worst]
    assert good.all(), f"{what}: {np.sum(~good)} wrong of {good.size}; (at, got, want): {shown}"
