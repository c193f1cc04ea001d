"""Kernels of calls of index notation that make something of their arguments first."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sps

import spcomp
from spcomp.errors import ArgumentError

N = 6
A = sps.csr_array(sps.random_array((N, N), density=0.5, rng=0))
B = np.random.default_rng(0).random((N, N))
LINE = "C[i, k] = A[i, j] * B[j, k]"
WIDE = np.random.default_rng(1).random((N, 3))


@pytest.mark.parametrize("right", [B, B.T, WIDE, np.asfortranarray(WIDE)])
@pytest.mark.parametrize(
    "left", [A, A.tocsc(), A.tocoo(), A.todense(), np.asfortranarray(A.todense())]
)
def test_a_specialized_kernel_takes_the_arguments_that_it_is_for(left, right):
    kernel = spcomp.compile(LINE).specialize(A=left, B=right)
    want = A @ right
    np.testing.assert_allclose(kernel(A=left, B=right), want)
    np.testing.assert_allclose(kernel.bind(A=left)(B=right), want)
    np.testing.assert_allclose(kernel.interpret(A=left, B=right), want)
    assert "define" in kernel.source("llvm")
    assert kernel.object_bytes


@pytest.mark.parametrize("layout", ["csc", "dcsr", "csf", "dense", "hyb", "bsr"])
def test_so_does_one_with_formats(layout):
    kernel = spcomp.compile(LINE, formats={"A": layout}).specialize(A=A, B=B.T)
    np.testing.assert_allclose(kernel(A=A, B=B.T), A @ B.T)
    assert kernel.stage("position")


@pytest.mark.parametrize(
    "program",
    [
        "t[i] = A[i, j] * x[j]; y[j] = A[i, j] * t[i]",
        "t = sum(i, x[i]); y[i] = x[i] / t",
        "T[i, k] = A[i, j] * B[j, k]; Y[i, k] = maximum(T[i, k] + x[k], 0)",
        "u[i] = 2 * x[i]; v[i] = 3 * u[i]",
    ],
)
def test_what_a_program_has_between_its_statements_is_not_returned(program):
    kernel, x = spcomp.compile(program), np.ones(N)
    named = {
        name: a
        for name, a in {"A": A, "B": B.astype("f4"), "x": x}.items()
        if f"{name}[" in program
    }
    want, got = kernel(**named), kernel.specialize(**named)(**named)
    assert type(got) is type(want)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("layout", ["dense", "csr", "csc", "coo", "bsr"])
def test_a_kernel_for_tensors_of_torch_takes_and_returns_them(layout):
    torch = pytest.importorskip("torch", reason="needs torch")
    dense = torch.from_numpy(A.todense())
    stored = {"dense": lambda: dense, "bsr": lambda: dense.to_sparse_bsr((2, 3))}
    left = stored.get(layout, lambda: getattr(dense, f"to_sparse_{layout}")())()
    right = torch.from_numpy(B)
    got = spcomp.compile(LINE).specialize(A=left, B=right)(A=left, B=right)
    torch.testing.assert_close(got, dense @ right)


def test_a_number_is_a_number():
    kernel = spcomp.compile("s = A[i, j] * B[i, j]").specialize(A=A, B=B)
    assert kernel(A=A, B=B) == pytest.approx((A * B).sum())


@pytest.mark.parametrize("layout", ["hyb", "bsr", spcomp.formats.hyb(1, [1, 2])])
def test_kernels_over_formats_are_explored(layout, tmp_path):
    kernel = spcomp.compile(LINE, formats={"A": layout})
    kernel(A=A, B=B)
    page = kernel.explore(tmp_path / "page.html").page
    assert [pane.name for pane in page.views[0].panes][:2] == ["source", "coordinate"]
    assert kernel.bind(A=A).explore().page.views


def test_a_call_with_a_transposed_operand_is_measured():
    page = spcomp.compile(LINE).explore(A=A, B=B.T).page
    assert "times of nests" not in str(page.to_json())


class Frame:
    """Gives an array, as a frame of pandas, and has no dtype."""

    def __init__(self, array):
        self.array, self.shape = array, array.shape

    def __array__(self, dtype=None, copy=None):
        return self.array


def test_frames_of_several_types_do_not_meet():
    kernel = spcomp.compile(LINE)
    for array in (B, B.astype(np.float32), np.asfortranarray(B), WIDE):
        np.testing.assert_allclose(kernel(A=A, B=Frame(array)), A @ array, rtol=1e-5)


def test_an_output_that_lies_in_between_is_named_in_out():
    kernel, q = spcomp.compile("q[i] = A[i, j] * p[j]; s = sum(i, q[i] * p[i])"), np.zeros(N)
    with pytest.raises(ArgumentError, match="unexpected argument q") as caught:
        kernel(A=A, p=np.ones(N), q=q)
    assert 'out={"q": ...}' in caught.value.hint
    kernel(A=A, p=np.ones(N), out={"q": q})
    np.testing.assert_allclose(q, A @ np.ones(N))
