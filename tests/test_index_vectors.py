"""Index vectors in index notation, against numpy: gathers, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sps

import spcomp
from spcomp import notation as N
from spcomp.errors import ArgumentError, ScriptError
from tests.interpreted_notation import interpreted

RNG = np.random.default_rng(0)
NODES, OTHERS, EDGES, FEATURES = 9, 7, 40, 19
X, Y = RNG.random((NODES, FEATURES)), RNG.random((OTHERS, FEATURES))
A, B, W = RNG.random(NODES), RNG.random(OTHERS), RNG.random(EDGES)
SRC, DST = RNG.integers(0, NODES, EDGES), RNG.integers(0, OTHERS, EDGES).astype(np.int32)
PAIRS = RNG.integers(0, NODES, (3, 4))
FLAGS = X > 0.5
ARGS = {"X": X, "Y": Y, "a": A, "b": B, "w": W, "src": SRC, "dst": DST, "pairs": PAIRS, "M": FLAGS}
GATHERS = {
    "Z[e, f] = X[src[e], f]": X[SRC],
    "Z[f, e] = X[src[e], f]": X[SRC].T,
    "Z[e] = sum(f, X[src[e], f] * Y[dst[e], f])": (X[SRC] * Y[DST]).sum(1),
    "Z[e] = X[src[e], f] * Y[dst[e], f]": (X[SRC] * Y[DST]).sum(1),
    "Z[f] = w[e] * X[src[e], f]": W @ X[SRC],
    "Z[e] = exp(a[src[e]] - b[dst[e]]) * src[e]": np.exp(A[SRC] - B[DST]) * SRC,
    "Z[i, j, f] = X[pairs[i, j], f]": X[PAIRS],
    "Z[i, j] = X[pairs[i, j], dst[i]]": X[PAIRS, DST[: len(PAIRS), None]],
    "Z[e, f] = X[src[e], f] - X[dst[e], f] * X[0, f]": X[SRC] - X[DST] * X[0],
    "Z[e, f] = M[src[e], f]": FLAGS[SRC],
    "Z[f] = max(e, X[src[e], f])": X[SRC].max(0),
    "Z[f] = argmax(e, X[src[e], f])": X[SRC].argmax(0),
    "m[i] = sum(f, X[i, f]); Z[e] = w[e] / m[src[e]]": W / X.sum(1)[SRC],
    "Z[e] = w[e] / sum(f, X[src[e], f])": W / X[SRC].sum(1),
    "Z[e] = w[e] if X[src[e], dst[e]] > 0.5 else -1": np.where(X[SRC, DST] > 0.5, W, -1),
    "Z[i, e] = a[i] * X[i, dst[e]]": A[:, None] * X[:, DST],
}


def arguments(kernel, **other):
    return {name: {**ARGS, **other}[name] for name in kernel.arguments}


@pytest.mark.parametrize("text", GATHERS)
def test_gathers_are_those_of_numpy(text):
    kernel = spcomp.compile(text)
    if "pairs[i, j], dst" in text:
        args = arguments(kernel, dst=DST[: len(PAIRS)])
    else:
        args = arguments(kernel)
    for made in (kernel(**args), kernel(**args), kernel(**args), interpreted(kernel, args)):
        np.testing.assert_allclose(made, GATHERS[text], rtol=1e-12)


@pytest.mark.parametrize("stage", ["position", "flat"])
def test_stages_of_a_gather_agree(stage):
    kernel = spcomp.compile("Z[e] = w[e] * X[src[e], f] * Y[dst[e], f]")
    args = arguments(kernel)
    want = W * (X[SRC] * Y[DST]).sum(1)
    np.testing.assert_allclose(interpreted(kernel, args, stage), want, rtol=1e-12)


def test_a_promised_range_needs_no_guard():
    kernel = spcomp.compile("Z[e] = a[src[e]] * b[dst[e]]")
    text = kernel.specialize(**arguments(kernel)).stage("position")
    assert "assume_buffer_domain(src, [0, n_a_0 - 1])" in text
    assert "_in = " not in text


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("step", [-1, 1, 3])
def test_a_vector_has_any_stride(dtype, step):
    kernel = spcomp.compile("Z[e, f] = X[src[e], f]")
    src = np.repeat(SRC.astype(dtype), 3)[::step]
    np.testing.assert_array_equal(kernel(X=np.asfortranarray(X), src=src), X[src])
    np.testing.assert_array_equal(kernel.bind(src=src)(X=X), X[src])
    np.testing.assert_array_equal(kernel.bind(X=X)(src=src), X[src])


@pytest.mark.parametrize(("rows", "edges"), [(0, 0), (5, 0), (1, 4)])
def test_few_nodes_and_edges_are_gathered(rows, edges):
    made = spcomp.compile("Z[e, f] = X[src[e], f]")(X=X[:rows], src=np.zeros(edges, int))
    np.testing.assert_array_equal(made, X[:rows][np.zeros(edges, int)])


def test_negative_zeros_and_nan_are_gathered_as_they_are():
    x = np.array([-0.0, np.nan, np.inf, 1.0])
    made = spcomp.compile("z[e] = x[src[e]]")(x=x, src=np.array([0, 1, 2, 0]))
    np.testing.assert_array_equal(np.signbit(made), [True, False, False, True])
    np.testing.assert_array_equal(made, x[[0, 1, 2, 0]])


@pytest.mark.parametrize("wrong", [-1, NODES, 2**40, -(2**40)])
@pytest.mark.parametrize("edges", [EDGES, 1 << 15])
def test_a_vector_out_of_range_is_named_with_place_and_value(wrong, edges):
    kernel = spcomp.compile("Z[e, f] = X[src[e], f]")
    src = np.resize(SRC, edges)
    for _ in range(3):  # calls are learnt
        kernel(X=X, src=src)
    src[7] = wrong
    with pytest.raises(ArgumentError, match=rf"argument src: got {wrong} at position 7"):
        kernel(X=X, src=src)
    with pytest.raises(ArgumentError, match=rf"argument src: got {wrong} at position 7"):
        kernel.bind(src=src)(X=X)


def test_a_shorter_operand_makes_a_vector_wrong():
    kernel = spcomp.compile("Z[e] = a[src[e]] * b[src[e]]")
    with pytest.raises(ArgumentError, match="argument src: got"):
        kernel(a=A, b=B, src=np.array([0, OTHERS, 1]))
    np.testing.assert_array_equal(kernel(a=A, b=B, src=np.array([0, 3])), (A[:7] * B)[[0, 3]])


def test_a_gather_beside_a_sparse_operand():
    matrix = sps.random_array((EDGES, 6), density=0.3, format="csr", rng=1)
    v = RNG.random(6)
    made = spcomp.compile("z[e] = A[e, j] * v[j] * a[src[e]]")(A=matrix, v=v, a=A, src=SRC)
    np.testing.assert_allclose(made, (matrix @ v) * A[SRC])
    kept = spcomp.compile("C[e, j] = A[e, j] * a[src[e]]")(A=matrix, a=A, src=SRC)
    assert kept.format == "csr"
    np.testing.assert_allclose(kept.toarray(), matrix.toarray() * A[SRC][:, None])


def test_index_vectors_as_python_objects():
    e, f = spcomp.indices("e f")
    Z, x, src = spcomp.symbols("Z X src")
    Z[e, f] = N.exp(x[src[e], f])
    kernel = spcomp.compile(Z)
    assert str(kernel.program) == "Z[e, f] = exp(X[src[e], f])"
    np.testing.assert_allclose(kernel(X=X, src=SRC), np.exp(X[SRC]))


REFUSED = {
    "Z[e] = X[src[src[e]], 0]": "an index vector is read at plain indices",
    "Z[e] = a[src[0:3]]": "an index vector is read at plain indices",
    "Z[e] = X[src[e], 0:3]": "a part and an index vector do not go together",
    "Z[e] = a[src[e] + 1]": "is no index",
    "p[e] = src[e]; Z[e] = a[p[e]]": "p is computed here",
    "Z[e] = a[src[e]] + src[e, f]": "src stands with",
}


@pytest.mark.parametrize("text", REFUSED)
def test_what_is_no_vector_is_refused_where_it_stands(text):
    with pytest.raises(ScriptError, match=REFUSED[text]) as caught:
        spcomp.compile(text)
    assert "^" in str(caught.value)


def test_wrong_vectors_are_refused():
    kernel = spcomp.compile("Z[e, f] = X[src[e], f]")
    with pytest.raises(ArgumentError, match="argument src: got dtype float64"):
        kernel(X=X, src=SRC.astype(float))
    with pytest.raises(ArgumentError, match="argument src: is sparse"):
        kernel(X=X, src=sps.coo_array(SRC))
    with pytest.raises(ArgumentError, match="argument src: got 2 dimensions"):
        kernel(X=X, src=PAIRS)
    with pytest.raises(ScriptError, match="X is sparse, and is read at coordinates that are data"):
        kernel(X=sps.csr_array(X), src=SRC)


def test_gathers_in_the_emulated_gpu():
    kernel = spcomp.compile(
        "Z[e] = sum(f, X[src[e], f] * Y[dst[e], f])", target="cuda:sm_90,emulate"
    )
    args = arguments(kernel)
    np.testing.assert_allclose(kernel(**args), (X[SRC] * Y[DST]).sum(1), rtol=1e-12)
    with pytest.raises(ArgumentError, match="argument src: got 9 at position 0"):
        kernel(**{**args, "src": np.full(EDGES, NODES)})
