"""The programs everyone writes, for every combination of formats: against numpy's einsum."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import scipy.sparse as sps

import spcomp
from tests.interpreted_notation import interpreted
from tests.level_tensors import tensor

SIZES = {"i": 5, "j": 6, "k": 4, "l": 3, "r": 3}
MATRICES = (
    *("dense", "csr", "csc", "dcsr", "dcsc", "coo", "ell", "dia", "bitmap", "hash", "rle"),
    *("bsr(2)", "dbsr(2, 3)", "sell(2)", "dense,hashed of dimensions 1,0", "compressed,dense"),
)
FEW = ("dense", "csr", "csc", "dcsr", "coo", "hash")
CUBES = (
    *("dense", "csf", "coo", "hash", "bitmap", "dense,dense,compressed"),
    *("compressed,compressed,compressed of dimensions 2,0,1", "compressed,dense,compressed"),
    *("dense,compressed,compressed of dimensions 1,2,0", "compressed,dense,dense"),
)
VECTORS = ("dense", "sparse", "hash", "bitmap")


class Program(NamedTuple):
    """One line: which operands take which formats, what it computes, and what is dense."""

    text: str
    formats: dict[str, tuple[str, ...]]
    want: Callable[..., Any]
    dense: tuple[str, ...] = ()


PROGRAMS = {
    "spmv": Program(
        "y[i] = A[i,j] * x[j]",
        {"A": MATRICES, "x": VECTORS},
        lambda A, x: A @ x,
    ),
    "transposed": Program(
        "y[j] = A[i,j] * x[i]", {"A": MATRICES, "x": VECTORS}, lambda A, x: A.T @ x
    ),
    "scaled": Program(
        "y[j] = 2 * A[i,j] * x[i] + 3 * z[j]",
        {"A": MATRICES, "z": VECTORS},
        lambda A, x, z: 2 * A.T @ x + 3 * z,
        ("x",),
    ),
    "residual": Program(
        "y[i] = b[i] - A[i,j] * x[j]",
        {"A": MATRICES, "b": ("dense", "sparse")},
        lambda A, x, b: b - A @ x,
        ("x",),
    ),
    "add": Program("C[i,j] = A[i,j] + B[i,j]", {"A": MATRICES, "B": FEW}, lambda A, B: A + B),
    "add three": Program(
        "C[i,j] = A[i,j] + B[i,j] + D[i,j]",
        {"A": FEW, "B": FEW, "D": ("csr", "csc")},
        lambda A, B, D: A + B + D,
    ),
    "elementwise": Program(
        "C[i,j] = A[i,j] * B[i,j]", {"A": MATRICES, "B": FEW}, lambda A, B: A * B
    ),
    "product": Program("C[i,k] = A[i,j] * B[j,k]", {"A": MATRICES, "B": FEW}, lambda A, B: A @ B),
    "masked product": Program(
        "C[i,k] = (A[i,j] * B[j,k]) if M[i,k]",
        {"A": FEW, "B": FEW, "M": ("csr", "csc", "dcsr", "coo")},
        lambda A, B, M: (A @ B) * (M != 0),
    ),
    "sddmm": Program(
        "C[i,j] = A[i,j] * X[i,k] * Y[k,j]",
        {"A": MATRICES},
        lambda A, X, Y: A * (X @ Y),
        ("X", "Y"),
    ),
    "ttv": Program(
        "C[i,j] = T[i,j,k] * v[k]",
        {"T": CUBES, "v": VECTORS},
        lambda T, v: np.einsum("ijk,k->ij", T, v),
    ),
    "ttv first": Program(
        "C[j,k] = T[i,j,k] * v[i]",
        {"T": CUBES, "v": ("dense", "sparse")},
        lambda T, v: np.einsum("ijk,i->jk", T, v),
    ),
    "ttm": Program(
        "C[i,j,l] = T[i,j,k] * B[k,l]",
        {"T": CUBES, "B": ("dense", "csr", "csc")},
        lambda T, B: np.einsum("ijk,kl->ijl", T, B),
    ),
    "mttkrp": Program(
        "D[i,r] = T[i,j,k] * X[j,r] * Y[k,r]",
        {"T": CUBES, "Y": ("dense", "csr", "csc")},
        lambda T, X, Y: np.einsum("ijk,jr,kr->ir", T, X, Y),
        ("X",),
    ),
    "inner": Program("s = A[i,j] * B[i,j]", {"A": MATRICES, "B": FEW}, lambda A, B: (A * B).sum()),
    "inner of cubes": Program(
        "s = T[i,j,k] * U[i,j,k]",
        {"T": CUBES, "U": CUBES[:5]},
        lambda T, U: (T * U).sum(),
    ),
    "bilinear": Program(
        "s = x[i] * A[i,j] * z[j]",
        {"A": MATRICES, "x": ("dense", "sparse"), "z": ("dense", "sparse")},
        lambda A, x, z: x @ A @ z,
    ),
}
COMBINATIONS = [
    (name, dict(zip(program.formats, layouts, strict=True)))
    for name, program in PROGRAMS.items()
    for layouts in itertools.product(*program.formats.values())
]
CHUNKS = 24


def argument(array: Any, layout: str) -> Any:
    """*array* as scipy's or numpy's, where they have the format, else as a Tensor."""
    if layout == "dense":
        return array
    if layout in ("csr", "csc"):
        return sps.coo_array(array).asformat(layout)
    return tensor(array, array != 0, spcomp.Format.parse(layout, array.ndim))


def full(result: Any) -> Any:
    """*result* as a numpy array."""
    if isinstance(result, spcomp.Tensor):
        return result.to_dense()
    return result.toarray() if sps.issparse(result) else result


def operands(program: Program) -> dict[str, Any]:
    """An array for each tensor that *program* reads: small whole numbers, half of them 0."""
    rng = np.random.default_rng(3)
    found: dict[str, Any] = {}
    for name in (*program.formats, *program.dense):
        indices = program.text.split("=")[1].split(f"{name}[")[1].split("]")[0].split(",")
        shape = [SIZES[index] for index in indices]
        found[name] = rng.integers(-4, 5, shape) * (rng.random(shape) < 0.5) * 1.0
    return found


@pytest.mark.parametrize("chunk", range(CHUNKS))
@pytest.mark.sample(16, long=4)
def test_every_combination_of_formats(chunk):
    for at, (name, layouts) in enumerate(COMBINATIONS[chunk::CHUNKS]):
        program = PROGRAMS[name]
        arrays = operands(program)
        want = program.want(**arrays)
        args = {n: argument(a, layouts.get(n, "dense")) for n, a in arrays.items()}
        kernel = spcomp.compile(program.text)
        shown = f"{program.text} of {layouts}"
        np.testing.assert_array_equal(full(interpreted(kernel, args)), want, shown)
        if at % 3 == chunk % 3:
            np.testing.assert_array_equal(full(kernel(**args)), want, shown)
