"""Adjoints of the script language: gradients against differences, at every stage, printed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sps

import spcomp
from spcomp import script as T
from spcomp.compiler.pipeline import lower
from spcomp.errors import ArgumentError, ScriptError
from spcomp.ir.structural import structural_equal
from tests.interpreted_notation import interpret_for
from tests.layers import STAGES, TARGET
from tests.random_adjoints import check, dense

RNG = np.random.default_rng(7)
CSR = sps.random_array((7, 9), density=0.4, format="csr", rng=3)


@T.prim_func
def spmm(
    a: T.handle, b: T.handle, c: T.handle, indptr: T.handle, indices: T.handle,
    m: T.int32, n: T.int32, feat: T.int32, nnz: T.int32,
) -> None:  # fmt: skip
    I = T.dense_fixed(m)
    J = T.sparse_variable(I, (n, nnz), (indptr, indices), "int32")
    J_detach = T.dense_fixed(n)
    K = T.dense_fixed(feat)
    A = T.match_sparse_buffer(a, (I, J), "float64")
    B = T.match_sparse_buffer(b, (J_detach, K), "float64")
    C = T.match_sparse_buffer(c, (I, K), "float64")
    with T.sp_iter([I, J, K], "SRS", "spmm") as [i, j, k]:
        with T.init():
            C[i, k] = 0.0
        C[i, k] = C[i, k] + A[i, j] * B[j, k]


@T.prim_func
def gather(
    x: T.handle, p: T.handle, w: T.handle, y: T.handle, m: T.int32, n: T.int32, feat: T.int32
) -> None:
    I = T.dense_fixed(m)
    N = T.dense_fixed(n)
    K = T.dense_fixed(feat)
    P = T.match_sparse_buffer(p, (I,), "int32")
    W = T.match_sparse_buffer(w, (I,), "float64")
    X = T.match_sparse_buffer(x, (N, K), "float64")
    Y = T.match_sparse_buffer(y, (I, K), "float64")
    with T.sp_iter([I, K], "SS", "gather") as [i, k]:
        scaled = W[i] * T.exp(X[P[i], k])
        if W[i] > 0.2:
            Y[i, k] = scaled * scaled
        else:
            Y[i, k] = T.sin(scaled)


@T.prim_func
def softmax(
    a: T.handle, c: T.handle, indptr: T.handle, indices: T.handle,
    m: T.int32, n: T.int32, nnz: T.int32,
) -> None:  # fmt: skip
    I = T.dense_fixed(m)
    J = T.sparse_variable(I, (n, nnz), (indptr, indices), "int32")
    A = T.match_sparse_buffer(a, (I, J), "float64")
    C = T.match_sparse_buffer(c, (I, J), "float64")
    M = T.alloc_sparse_buffer((I,), "float64")
    S = T.alloc_sparse_buffer((I,), "float64")
    with T.sp_iter([I, J], "SR", "largest") as [i, j]:
        with T.init():
            M[i] = T.min_value("float64")
        M[i] = max(M[i], A[i, j])
    with T.sp_iter([I, J], "SR", "total") as [i, j]:
        with T.init():
            S[i] = 0.0
        S[i] = S[i] + T.exp(A[i, j] - M[i])
    with T.sp_iter([I, J], "SS", "share") as [i, j]:
        C[i, j] = T.exp(A[i, j] - M[i]) / S[i]


@T.prim_func
def extremes(
    a: T.handle, x: T.handle, y: T.handle, z: T.handle, indptr: T.handle, indices: T.handle,
    m: T.int32, n: T.int32, nnz: T.int32,
) -> None:  # fmt: skip
    I = T.dense_fixed(m)
    J = T.sparse_variable(I, (n, nnz), (indptr, indices), "int32")
    N = T.dense_fixed(n)
    A = T.match_sparse_buffer(a, (I, J), "float64")
    X = T.match_sparse_buffer(x, (N,), "float64")
    Y = T.match_sparse_buffer(y, (I,), "float64")
    Z = T.match_sparse_buffer(z, (I,), "float64")
    with T.sp_iter([I, J], "SR", "product") as [i, j]:
        with T.init():
            Y[i] = 1.0
        Y[i] = Y[i] * (A[i, j] + X[j])
    with T.sp_iter([I, J], "SR", "smallest") as [i, j]:
        with T.init():
            Z[i] = T.max_value("float64")
        Z[i] = min(Z[i], A[i, j] * X[j] + Y[i] * A[i, i])


CASES: dict[str, tuple[Any, tuple[str, ...], dict[str, Any]]] = {
    "spmm": (spmm, ("A", "B"), {"A": CSR, "B": RNG.random((9, 4))}),
    "gather": (
        gather,
        ("X", "W"),
        {
            "X": RNG.random((5, 3)),
            "P": RNG.integers(0, 5, 8).astype(np.int32),
            "W": RNG.random(8),
        },
    ),
    "softmax": (softmax, ("A",), {"A": CSR}),
    "extremes": (extremes, ("X", "A"), {"A": CSR, "X": RNG.random(9)}),
}


def gradients(name: str) -> tuple[Any, dict[str, Any], dict[str, Any], list[Any]]:
    """The forward kernel, the arguments of the adjoint, its operands, and the weights."""
    func, _, arguments = CASES[name]
    forward = spcomp.compile(func)
    results = forward(**arguments)
    results = results if isinstance(results, tuple) else (results,)
    names = forward.signature.results
    rng = np.random.default_rng(5)
    weights = [rng.uniform(-1, 1, dense(y).shape) for y in results]
    more: dict[str, Any] = {}
    for own, y, w in zip(names, results, weights, strict=True):
        more[own] = y
        more[f"grad_{own}"] = w
        if sps.issparse(y):
            more[f"grad_{own}"] = y.copy()
            more[f"grad_{own}"].data = w[y.tocoo().coords]
    return forward, {**arguments, **more}, arguments, weights


def arguments_of(kernel: Any, known: dict[str, Any]) -> dict[str, Any]:
    return {p.name: known[p.name] for p in kernel.signature.params if p.name in known}


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_those_of_differences(name):
    forward, known, arguments, weights = gradients(name)
    wrt = CASES[name][1]
    kernel = spcomp.compile(spcomp.adjoint(CASES[name][0], wrt))
    grads = kernel(**arguments_of(kernel, known))
    grads = grads if isinstance(grads, tuple) else (grads,)
    check(forward, dict(zip(wrt, grads, strict=True)), arguments, weights, np.random.default_rng(1))


@pytest.mark.parametrize("name", CASES)
def test_an_adjoint_prints_and_parses(name, golden):
    adjoint = spcomp.adjoint(*CASES[name][:2])
    assert structural_equal(spcomp.parse(adjoint.script()), adjoint)
    golden(f"adjoint_{name}.txt", adjoint.script())


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("name", CASES)
def test_the_interpreter_agrees_at_every_stage(name, stage):
    _, known, _, _ = gradients(name)
    adjoint = spcomp.adjoint(*CASES[name][:2])
    kernel = spcomp.compile(adjoint)
    arguments = arguments_of(kernel, known)
    compiled = kernel(**arguments)
    found = interpret_for(adjoint, getattr(lower(adjoint, TARGET), stage), arguments)
    pairs = zip(*((x if isinstance(x, tuple) else (x,)) for x in (compiled, found)), strict=True)
    for a, b in pairs:
        np.testing.assert_allclose(dense(a), dense(b), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", CASES)
def test_the_same_bits_at_any_number_of_threads(name):
    _, known, _, _ = gradients(name)
    kernel = spcomp.compile(spcomp.adjoint(*CASES[name][:2]))
    arguments = arguments_of(kernel, known)
    runs = []
    for threads in (1, 2, 3):
        with spcomp.num_threads(threads):
            got = kernel(**arguments)
        runs.append([dense(x).tobytes() for x in (got if isinstance(got, tuple) else (got,))])
    assert runs[0] == runs[1] == runs[2]


def test_the_second_order_is_derived_from_the_first():
    adjoint = spcomp.adjoint(gather, "X")
    again = spcomp.adjoint(adjoint, ("X", "grad_Y"))
    _, known, arguments, weights = gradients("gather")
    first = spcomp.compile(adjoint)
    second = spcomp.compile(again)
    direction = np.random.default_rng(2).uniform(-1, 1, known["X"].shape)
    known["grad_grad_X"] = direction
    got = second(**arguments_of(second, known))
    operands = {**arguments, "grad_Y": weights[0]}
    check(first, {"X": got[0], "grad_Y": got[1]}, operands, [direction], np.random.default_rng(1))


@pytest.mark.parametrize("stage", ["one", "two"])
def test_a_bound_matrix_is_turned_once(stage):
    """What scatters along a bound matrix gathers from its transpose, as in any program."""
    n = 3000
    a = sps.random_array((n, n), density=30 / n, format="csr", rng=0)
    g = np.random.default_rng(0).random((n, 3))
    kernel = spcomp.compile(spcomp.adjoint(spmm, "B"))
    bound = kernel.bind(A=a)
    assert bound(grad_C=g).tobytes() == kernel(A=a, grad_C=g).tobytes()
    if stage == "two":
        a.data *= 2
        assert bound(grad_C=g).tobytes() == kernel(A=a, grad_C=g).tobytes()


@T.prim_func
def running(x: T.handle, y: T.handle, n: T.int32) -> None:
    N = T.dense_fixed(n)
    X = T.match_sparse_buffer(x, (N,), "float64")
    Y = T.match_sparse_buffer(y, (N,), "float64")
    with T.sp_iter([N], "S", "running") as [i]:
        Y[i] = Y[i] * Y[i] + X[i]


@T.prim_func
def rounded(x: T.handle, y: T.handle, n: T.int32) -> None:
    N = T.dense_fixed(n)
    X = T.match_sparse_buffer(x, (N,), "float64")
    Y = T.match_sparse_buffer(y, (N,), "float64")
    with T.sp_iter([N], "S", "rounded") as [i]:
        Y[i] = T.floor(X[i])


@T.prim_func
def started(x: T.handle, y: T.handle, n: T.int32) -> None:
    N = T.dense_fixed(n)
    X = T.match_sparse_buffer(x, (N,), "float64")
    O = T.dense_fixed(1)
    Y = T.match_sparse_buffer(y, (O,), "float64")
    with T.sp_iter([O, N], "SR", "started") as [o, i]:
        with T.init():
            Y[o] = 0.0
        Y[o] = max(Y[o], X[i] * 2.0)


@T.prim_func
def twice(x: T.handle, y: T.handle, n: T.int32) -> None:
    N = T.dense_fixed(n)
    O = T.dense_fixed(1)
    X = T.match_sparse_buffer(x, (N,), "float64")
    Y = T.match_sparse_buffer(y, (O,), "float64")
    with T.sp_iter([O, N], "SR", "first") as [o, i]:
        with T.init():
            Y[o] = 0.0
        Y[o] = Y[o] + X[i]
    with T.sp_iter([O, N], "SR", "second") as [o, i]:
        with T.init():
            Y[o] = 0.0
        Y[o] = Y[o] + X[i] * X[i]


@T.prim_func
def later(x: T.handle, y: T.handle, z: T.handle, n: T.int32) -> None:
    N = T.dense_fixed(n)
    X = T.match_sparse_buffer(x, (N,), "float64")
    Y = T.match_sparse_buffer(y, (N,), "float64")
    Z = T.match_sparse_buffer(z, (N,), "float64")
    with T.sp_iter([N], "S", "one") as [i]:
        Y[i] = X[i] * 2.0
    with T.sp_iter([N], "S", "two") as [i]:
        Z[i] = Y[i] * Y[i]
    with T.sp_iter([N], "S", "three") as [i]:
        Y[i] = Y[i] + X[i]


@T.prim_func
def beside_extreme(
    v: T.handle, w: T.handle, most: T.handle, picked: T.handle, m: T.int32, n: T.int32
) -> None:
    I = T.dense_fixed(m)
    J = T.dense_fixed(n)
    V = T.match_sparse_buffer(v, (I, J), "float32")
    W = T.match_sparse_buffer(w, (I, J), "float32")
    M = T.match_sparse_buffer(most, (I,), "float32")
    P = T.match_sparse_buffer(picked, (I,), "float32")
    with T.sp_iter([I, J], "SR", "beside_extreme") as [i, j]:
        with T.init():
            M[i] = T.min_value("float32")
            P[i] = 0.0
        if V[i, j] > M[i]:
            M[i] = V[i, j]
            P[i] = W[i, j]


@pytest.mark.parametrize(
    ("func", "says"),
    [
        (beside_extreme, "of a float that comes with the extreme of others"),
        (started, "does not start with -inf"),
        (twice, "assigned twice"),
        (later, "after it was read"),
        (running, "reads what it assigns"),
        (rounded, "no result depends on X"),
    ],
)
def test_what_has_no_derivative_is_refused_at_its_line(func, says):
    with pytest.raises(ScriptError, match=says) as caught:
        spcomp.adjoint(func, "X")
    assert "test_adjoint_scripts.py" in str(caught.value)


def test_operands_are_refused_by_name():
    with pytest.raises(ArgumentError, match="C is no operand"):
        spcomp.adjoint(spmm, "C")
    with pytest.raises(ArgumentError, match="P is of int32"):
        spcomp.adjoint(gather, "P")
