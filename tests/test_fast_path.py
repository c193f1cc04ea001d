"""Calls of index notation that go straight to learned calls, and those that must not."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sps

import spcomp
from spcomp.errors import ArgumentError, SpcompError
from spcomp.kernels.notation.runner import Runner
from spcomp.tensors.libraries.scipy import stored_size

N = 6
rng = np.random.default_rng(0)


def matrix(kind=sps.csr_array):
    return kind(sps.random_array((N, N), density=0.4, rng=rng, dtype=np.float32))


def dense(*shape):
    return rng.random(shape, np.float32)


def learned(kernel, **named):
    """Return what the full way returns after calls that the kernel has learned to repeat."""
    return [kernel(**named) for _ in range(4)][-1]


def parts(result):
    """Return the arrays of *result*: one, those of a matrix, or of several results."""
    if isinstance(result, tuple):
        return list(result)
    is_array = isinstance(result, (np.ndarray, np.generic))
    return [result] if is_array else [result.data, result.indices]


@pytest.fixture
def only_fast(monkeypatch):
    """Returns a function after which calls that take the full way fail."""

    def forbid():
        def full(*_args, **_named):
            raise AssertionError("the full way")

        monkeypatch.setattr(Runner, "call", full)

    return forbid


STRAIGHT = [
    ("y[i] = A[i, j] * x[j]", {"A": matrix(), "x": dense(N)}),
    ("C[i, k] = A[i, j] * B[j, k]", {"A": matrix(), "B": dense(N, 3)}),
    ("C[i, j] = A[i, j] * B[j, i]", {"A": matrix(), "B": dense(N, N)}),
    ("C[i, j] = A[i, j] * s", {"A": matrix(sps.csr_matrix), "s": 2.0}),
    ("y[i] = A[i, j] * x[j]; z[i] = A[i, j] + 1", {"A": matrix(), "x": dense(N)}),
    ("s = A[i, j] * x[i]", {"A": matrix(), "x": dense(N)}),
    ("y[i] = A[i, j] * x[j] - x[i]", {"A": matrix(), "x": dense(N)}),
    ("s = x[i] * A[i, j] * x[j]", {"A": matrix(), "x": dense(N)}),
    ("y[i] = A[i, j] * x[j] / n", {"A": matrix(), "x": dense(N), "n": 3}),
    ("y[i] = A[i, j] * x[j] * s - x[i]", {"A": matrix(), "x": dense(N), "s": np.float32(2.5)}),
]
FULL = [
    ("y[i] = A[i, j] * x[j]", {"A": matrix(sps.csc_array), "x": dense(N)}),
    ("y[i] = x[i(0, 3)] * 2", {"x": dense(N)}),
    ("Y[d[e], f] = X[e, f]", {"d": np.array([1, 0, 1]), "X": dense(3, 2), "sizes": {"Y": 2}}),
    ("C[j, i] = A[i, j] * 2", {"A": matrix()}),
]


@pytest.mark.parametrize(("text", "named"), STRAIGHT)
def test_a_learned_call_goes_straight_to_its_code(text, named, only_fast):
    kernel = spcomp.compile(text)
    want = learned(kernel, **named)
    name = next(iter(named))
    bound = kernel.bind(**{name: named[name]})
    rest = {n: arg for n, arg in named.items() if n != name}
    learned(bound, **rest)
    explained = kernel.explain()
    only_fast()
    for got in (kernel(**named), bound(**rest)):
        assert type(got) is type(want)
        for one, other in zip(parts(got), parts(want), strict=True):
            np.testing.assert_array_equal(one, other)
    assert kernel.explain() == explained


@pytest.mark.parametrize(("text", "named"), FULL)
def test_a_call_of_which_something_is_made_takes_the_full_way(text, named, only_fast):
    kernel = spcomp.compile(text)
    learned(kernel, **named)
    only_fast()
    with pytest.raises(AssertionError, match="the full way"):
        kernel(**named)


def test_an_array_for_the_result_is_filled_and_returned(only_fast):
    A, x, y = matrix(), dense(N), np.zeros(N, np.float32)
    kernel = spcomp.compile("y[i] = A[i, j] * x[j]")
    learned(kernel, A=A, x=x, out=y)
    learned(kernel, A=A, x=x, y=y)
    full = Runner.call
    only_fast()
    for given in ({"out": y}, {"y": y}):
        y[:] = 0
        assert kernel(A=A, x=x, **given) is y
        np.testing.assert_allclose(y, A @ x, rtol=1e-6)
    Runner.call = full
    for wrong in (np.zeros(N), np.zeros(N + 1, np.float32), [y, y], A):
        with pytest.raises(ArgumentError):
            kernel(A=A, x=x, out=wrong)
    with pytest.raises(ArgumentError, match="out= is given besides"):
        kernel(A=A, x=x, y=y, out=y)


def test_what_a_call_checks_is_checked_in_a_learned_one():
    A, x = matrix(), dense(N)
    kernel = spcomp.compile("y[i] = A[i, j] * x[j]")
    learned(kernel, A=A, x=x)
    bound = kernel.bind(A=A)
    learned(bound, x=x)
    for named in ({"A": A}, {"A": A, "x": x, "z": x}, {"A": A, "x": x[:3]}, {"A": A, "x": "x"}):
        with pytest.raises(SpcompError):
            kernel(**named)
    with pytest.raises(ArgumentError, match="A: is bound already"):
        bound(A=A, x=x)
    np.testing.assert_allclose(kernel(A=A, x=x.astype(np.float64)), A @ x, rtol=1e-6)
    A.indices[0] = N
    with pytest.raises(ArgumentError, match="A"):
        kernel(A=A, x=x)
    bound(x=x)  # has its own index arrays


def test_one_array_at_two_indices_and_numbers_of_other_types_are_told_apart():
    A, x = matrix(), dense(N)
    kernel = spcomp.compile("y[i] = A[i, j] * x[j] * n - x[i]")
    learned(kernel, A=A, x=x, n=3)
    for n in (3, 4, -1, 2.5, np.float64(0.5), np.int32(7), True, 1 << 70):
        for _ in range(3):
            np.testing.assert_allclose(kernel(A=A, x=x, n=n), A @ x * float(n) - x, rtol=1e-4)
    for named in ({"x_2": x}, {"n": 10**400}, {"n": "3"}, {"n": None}, {"x": x[:3]}, {"y": x}):
        for _ in range(2):
            with pytest.raises(SpcompError):
                kernel(**{"A": A, "x": x, "n": 3, **named})
    with pytest.raises(ArgumentError, match="n"):
        kernel(A=A, x=x)
    out = np.zeros(N, np.float32)
    assert kernel(A=A, x=x, n=3, out=out) is out
    assert kernel(A=A, x=x, n=3, out=out) is out
    np.testing.assert_allclose(out, A @ x * 3 - x, rtol=1e-5)
    with pytest.raises(ArgumentError, match="shares memory"):
        kernel(A=A, x=x, n=3, out=x)


def test_csr_and_csc_tensors_of_torch_are_used_as_they_are():
    torch = pytest.importorskip("torch")
    from spcomp.tensors.libraries.torch import argument

    A, x = matrix(), torch.from_numpy(dense(N))
    csr = torch.sparse_csr_tensor(*map(torch.from_numpy, (A.indptr, A.indices, A.data)), A.shape)
    csc = torch.from_numpy(A.todense()).to_sparse_csc()
    want = torch.from_numpy(A @ x.numpy())
    kernel = spcomp.compile("y[i] = A[i, j] * x[j]")
    for given in (csr, csc, torch.from_numpy(A.todense()).to_sparse_csr()):
        taken = argument("A", given)
        assert np.shares_memory(taken.data, given.values().numpy())
        bound = kernel.bind(A=given)
        for _ in range(4):
            assert torch.allclose(kernel(A=given, x=x), want)
            assert torch.allclose(bound(x=x), want)
    scores = spcomp.compile("C[i, j] = A[i, j] * x[j]")
    results = [scores(A=csr, x=x) for _ in range(4)]
    assert all(result.layout == torch.sparse_csr for result in results)
    assert torch.allclose(results[-1].to_dense(), csr.to_dense() * x)
    csr.col_indices()[0] = N
    with pytest.raises(ArgumentError, match="A"):
        kernel(A=csr, x=x)


def test_elements_of_sparse_tensors_of_torch_are_counted():
    torch = pytest.importorskip("torch")
    eye = torch.eye(N)
    for kept in (eye.to_sparse_coo(), eye.to_sparse_csr(), eye.to_sparse_bsr((1, 1))):
        assert stored_size(kept) == N  # large ones are converted by compiled code


def test_wide_index_arrays_of_bound_tensors_are_narrowed_if_they_fit():
    torch = pytest.importorskip("torch")
    pointers, columns, values = torch.tensor([0, 1]), torch.tensor([2**32]), torch.ones(1)
    wrong = torch.sparse_csr_tensor(pointers, columns, values, (1, 3), check_invariants=False)
    with pytest.raises(ArgumentError, match="A"):  # not column 0
        spcomp.compile("y[i] = A[i, j] * x[j]").bind(A=wrong)(x=torch.ones(3))


@pytest.mark.parametrize("bound", [False, True])
def test_numbers_are_returned_by_learned_calls(bound, only_fast):
    v = dense(N)
    kernel = spcomp.compile("y = sum(i, v[i])")
    call = kernel.bind(v=v) if bound else kernel
    named = {} if bound else {"v": v}
    assert learned(call, **named) == pytest.approx(v.sum())
    out = np.zeros((), np.float32)
    assert call(out=out, **named) is out  # an array for a number takes the full way
    learned(call, **named)
    only_fast()
    found = call(**named)
    assert type(found) is np.float32
    assert found == pytest.approx(v.sum())
