"""Matrices that are transposed on GPUs, so that threads gather what they would scatter."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sps

import spcomp
from tests.emulated import ORDERS, order
from tests.test_cuda_kernels import Cupy
from tests.test_gpu_conversions import there

EMULATED = "cuda:sm_90,emulate"
RNG = np.random.default_rng(0)
A = sps.random_array((30, 40), density=0.2, format="csr", dtype=np.float32, rng=RNG)
X, x, z = (RNG.random(shape, np.float32) for shape in ((30, 5), 30, 40))
BY_ROWS, BY_COLUMNS = ("csr", "coo"), ("csc",)
CASES = {  # a program, its result, and the formats that are transposed for it
    "y[j] = A[i, j] * x[i]": (A.T @ x, BY_ROWS),
    "y[i] = A[i, j] * z[j]": (A @ z, BY_COLUMNS),
    "Y[j, f] = A[i, j] * X[i, f]": (A.T @ X, BY_ROWS),
    "y[j] = A[i, j] * x[i] + z[j]": (A.T @ x + z, BY_ROWS),
    "y[j] = max(i, A[i, j])": (np.where(A.toarray() > 0, A.toarray(), -np.inf).max(0), BY_ROWS),
}


def operands(text, matrix):
    given = {"A": matrix, "X": X, "x": x, "z": z}
    return {name: value for name, value in given.items() if f"{name}[" in text.split("=", 1)[1]}


@pytest.mark.parametrize("layout", ["csr", "csc", "coo"])
@pytest.mark.parametrize("text", CASES)
def test_results_are_gathered_whatever_the_matrix_is_stored_by(text, layout):
    wanted, transposed = CASES[text]
    kernel, args = spcomp.compile(text, target=EMULATED), operands(text, A.asformat(layout))
    for name in ORDERS:
        with order(name):
            np.testing.assert_allclose(kernel(**args), wanted, rtol=1e-5)
    bound = kernel.bind(A=args.pop("A"))
    np.testing.assert_allclose(bound(**args), wanted, rtol=1e-5)
    if layout in transposed:
        assert ", converted" in kernel.explain()
    (part,) = kernel.kernels()
    assert "T.thread_binding" in part.stage("position")


def test_what_is_right_as_it_is_stays():
    for text, layout, reason in (
        ("y[i] = A[i, j] * z[j]", "csr", "rows are gathered"),
        ("y[j] = A[i, j] * x[i]", "csc", "columns are"),
    ):
        kernel = spcomp.compile(text, target=EMULATED)
        kernel(**operands(text, A.asformat(layout)))
        assert ", converted" not in kernel.explain(), reason
    both = spcomp.compile("B[i, j] = A[i, j] * x[i]; y[j] = A[i, j] * x[i]", target=EMULATED)
    assert both(A=A, x=x).B.format == "csr"  # as A, which only the other statement transposes
    requested = spcomp.compile("y[j] = A[i, j] * x[i]", formats={"A": "csr"}, target=EMULATED)
    np.testing.assert_allclose(requested(A=A, x=x), A.T @ x, rtol=1e-5)
    assert ", converted" not in requested.explain()
    whole = spcomp.compile("y[j] = A[i, j] * x[i]", target=EMULATED)
    counts = whole(A=A.astype(np.int32), x=np.arange(30, dtype=np.int32))  # added up atomically
    np.testing.assert_array_equal(counts, A.astype(np.int32).T @ np.arange(30))
    assert ", converted" not in whole.explain()


def test_cpus_scatter():
    kernel = spcomp.compile("y[j] = A[i, j] * x[i]")
    np.testing.assert_allclose(kernel(A=A, x=x), A.T @ x, rtol=1e-5)
    assert ", converted" not in kernel.explain()


@pytest.mark.parametrize("layout", ["csr", "csc", "coo"])
def test_matrices_on_a_gpu_are_transposed_there_and_once_if_they_are_bound(gpu, layout):
    kind = Cupy(gpu)
    kernel = spcomp.compile("y[j] = A[i, j] * x[i]", target="cuda:sm_90")
    given, dense, out = there(kind, A.asformat(layout)), kind.put(x), kind.put(z)
    np.testing.assert_allclose(kind.get(kernel(A=given, x=dense)), A.T @ x, rtol=1e-5)
    bound = kernel.bind(A=given)
    bound(x=dense, out=out)
    gpu.launches.clear()
    bound(x=dense, out=out)
    assert len(gpu.launches) == 1
    np.testing.assert_allclose(kind.get(out), A.T @ x, rtol=1e-5)


def test_gradients_of_a_matrix_on_a_gpu_and_of_what_it_is_multiplied_by(gpu):
    kind, up = Cupy(gpu), RNG.random((30, 5), np.float32)
    columns = RNG.random((40, 5), np.float32)
    adjoint = spcomp.adjoint("Y[i, f] = A[i, j] * B[j, f]", wrt=("A", "B"))
    kernel = spcomp.compile(adjoint, target="cuda:sm_90")
    args = {"A": there(kind, A), "B": kind.put(columns), "grad_Y": kind.put(up)}
    grad_A, grad_B = kernel.run(None, args)  # what torch does not follow
    np.testing.assert_allclose(kind.get(grad_B), A.T @ up, rtol=1e-5)
    assert grad_A.format == "csr"
    rows = np.repeat(np.arange(30), np.diff(A.indptr))
    wanted = (up[rows] * columns[A.indices]).sum(1)
    np.testing.assert_allclose(kind.get(grad_A.data), wanted, rtol=1e-5)
    assert "converted" in kernel.last.explain()


@pytest.mark.parametrize("layout", ["csr", "csc", "coo"])
def test_statements_that_read_a_matrix_both_ways_have_one_each(layout):
    text = "u[j] = A[i, j] * x[i]; v[i] = A[i, j] * u[j]; w[j] = u[j] + A[i, j] * v[i]"
    kernel, matrix = spcomp.compile(text, target=EMULATED), A.asformat(layout)
    wanted = spcomp.compile(text)(A=A, x=x)
    for call in (kernel, kernel.bind(A=matrix)):
        named = {"A": matrix} if call is kernel else {}
        found = np.atleast_2d(call(x=x, **named))
        for one, other in zip(found, np.atleast_2d(wanted), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5)
    assert all("T.thread_binding" in part.stage("position") for part in kernel.kernels())
