"""Results at index vectors: sums and other reductions against numpy, sizes, what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sps

import spcomp
from spcomp.errors import ArgumentError, OutOfMemoryError, ScriptError
from spcomp.kernels.notation import scatters
from tests.interpreted_notation import interpreted

RNG = np.random.default_rng(0)
NODES, ROWS, EDGES, FEATURES = 9, 12, 60, 19
X, V = RNG.random((NODES, FEATURES)), RNG.random((EDGES, FEATURES))
W, B = RNG.random(EDGES) - 0.5, RNG.random(FEATURES)
SRC = RNG.integers(0, NODES, EDGES)
DST = RNG.integers(0, ROWS - 2, EDGES).astype(np.int32)  # two rows get nothing
A = sps.random_array((EDGES, FEATURES), density=0.2, format="csr", rng=0)
ARGS = {"X": X, "V": V, "w": W, "b": B, "src": SRC, "dst": DST, "A": A}


def scattered(values, ufunc=np.add, start=0.0, dst=DST):
    result = np.full((ROWS, *values.shape[1:]), start, values.dtype)
    ufunc.at(result, dst, values)
    return result


SCATTERS = {
    "Y[dst[e], f] = w[e] * X[src[e], f]": scattered(W[:, None] * X[SRC]),
    "Y[f, dst[e]] = w[e] * X[src[e], f]": scattered(W[:, None] * X[SRC]).T,
    "Y[dst[e], f] = sum(e, w[e] * X[src[e], f])": scattered(W[:, None] * X[SRC]),
    "Y[dst[e], f] = max(e, w[e] * V[e, f])": scattered(W[:, None] * V, np.maximum, -np.inf),
    "Y[dst[e], f] = min(e, X[src[e], f])": scattered(X[SRC], np.minimum, np.inf),
    "Y[dst[e]] = prod(e, w[e])": scattered(W, np.multiply, 1.0),
    "Y[dst[e]] = any(e, w[e] > 0.4)": scattered(W > 0.4, np.logical_or, False),
    "Y[dst[e]] = 1": scattered(np.ones(EDGES)),
    "Y[dst[e]] = w[e] if w[e] > 0": scattered(np.where(W > 0, W, 0)),
    "Y[dst[e], f] = V[e, f] + exp(w[e] * b[f])": scattered(V + np.exp(W[:, None] * B)),
    "Y[dst[e]] = V[e, f] * b[f]": scattered(V @ B),
    "Y[dst[e]] = sum(f, X[src[e], f] * V[e, f])": scattered((X[SRC] * V).sum(1)),
    "Y[dst[e]] = max((e, f), V[e, f])": scattered(V.max(1), np.maximum, -np.inf),
    "Y[dst[e], f] = A[e, f]": scattered(A.toarray()),
    "Y[dst[e]] = A[e, j] * b[j]": scattered(A @ B),
    "s[dst[e]] = w[e]; Y[n] = 2 * s[n]": 2 * scattered(W),
    "c[dst[e]] = 1; s[dst[e], f] = V[e, f]; Y[n, f] = s[n, f] / maximum(c[n], 1)": scattered(V)
    / np.maximum(scattered(np.ones(EDGES)), 1)[:, None],
}


def arguments(kernel, **other):
    return {name: {**ARGS, **other}[name] for name in kernel.arguments}


def sizes_of(text):
    return {text.replace(" ", "").split("[")[0]: ROWS}


@pytest.mark.parametrize("text", SCATTERS)
def test_scatters_are_those_of_numpy(text):
    kernel = spcomp.compile(text)
    args, sizes = arguments(kernel), sizes_of(text)
    assert not {name for name in kernel.arguments if name.startswith("dst_")}
    out = np.full(np.shape(SCATTERS[text]), 7, np.asarray(SCATTERS[text]).dtype)
    if text != "Y[dst[e]] = 1":
        kernel(**args, out=out)
        np.testing.assert_allclose(out, SCATTERS[text], rtol=1e-12, atol=1e-15)
    bound = kernel.bind(**{name: args[name] for name in args if name in ("dst", "src")})
    rest = {name: x for name, x in args.items() if name not in ("dst", "src")}
    for made in (
        *(kernel(**args, sizes=sizes) for _ in range(3)),
        *(bound(**rest, sizes=sizes) for _ in range(3)),
    ):
        np.testing.assert_allclose(made, SCATTERS[text], rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("stage", ["coordinate", "position", "flat"])
def test_stages_of_a_scatter_agree(stage):
    text = "Y[dst[e], f] = w[e] * X[src[e], f]"
    kernel = spcomp.compile(text)
    made = interpreted(kernel, arguments(kernel), stage, sizes=sizes_of(text))
    np.testing.assert_allclose(made, SCATTERS[text], rtol=1e-12)


def test_the_largest_says_which_edge_it_was():
    made = spcomp.compile("Y[dst[e], f] = argmax(e, V[e, f])")(V=V, dst=DST, sizes={"Y": ROWS})
    for row in range(ROWS):
        edges = np.flatnonzero(row == DST)
        want = edges[V[edges].argmax(0)] if len(edges) else np.full(FEATURES, -1)
        np.testing.assert_array_equal(made[row], want)


def test_softmax_over_the_edges_of_each_node():
    text = """
        m[dst[e]] = max(e, w[e])
        p[e] = exp(w[e] - m[dst[e]])
        s[dst[e]] = p[e]
        Y[e] = p[e] / s[dst[e]]
    """
    made = spcomp.compile(text)(w=W, dst=DST, sizes={"m": ROWS})
    p = np.exp(W - scattered(W, np.maximum, -np.inf)[DST])
    np.testing.assert_allclose(made, p / scattered(p)[DST], rtol=1e-12)


def test_what_is_added_to_gives_the_size():
    kernel = spcomp.compile("Y[dst[e], f] += w[e] * V[e, f]")
    Y = np.ones((ROWS, FEATURES))
    assert kernel(Y=Y, w=W, V=V, dst=DST) is Y
    np.testing.assert_allclose(Y, 1 + scattered(W[:, None] * V), rtol=1e-12)
    spcomp.compile("Y[dst[e], f] -= w[e] * V[e, f]")(Y=Y, w=W, V=V, dst=DST)
    np.testing.assert_allclose(Y, np.ones((ROWS, FEATURES)), rtol=1e-12)


def test_another_argument_gives_the_size():
    made = spcomp.compile("s[dst[e]] = w[e]; Y[n] = s[n] * d[n]")(w=W, dst=DST, d=np.ones(ROWS))
    np.testing.assert_allclose(made, scattered(W), rtol=1e-12)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("order", ["sorted", "reversed", "mixed"])
def test_the_order_of_a_vector_changes_no_bit(dtype, order):
    at = np.argsort(DST, kind="stable")
    at = {"sorted": at, "reversed": at[::-1], "mixed": np.arange(EDGES)}[order]
    kernel = spcomp.compile("Y[dst[e], f] = V[e, f]")
    made = kernel(V=V[at], dst=DST.astype(dtype)[at], sizes={"Y": ROWS})
    np.testing.assert_allclose(made, scattered(V), rtol=1e-12)
    strided = np.repeat(DST.astype(dtype)[at], 2)[::2]
    assert kernel(V=V[at], dst=strided, sizes={"Y": ROWS}).tobytes() == made.tobytes()


def test_a_vector_that_changed_in_place_is_sorted_again():
    kernel, dst = spcomp.compile("Y[dst[e]] = w[e]"), DST.copy()
    kernel(w=W, dst=dst, sizes={"Y": ROWS})
    dst[:] = dst[::-1].copy()
    made = kernel(w=W, dst=dst, sizes={"Y": ROWS})
    np.testing.assert_allclose(made, scattered(W, dst=dst), rtol=1e-12)


@pytest.mark.parametrize(("rows", "edges"), [(0, 0), (5, 0), (1, 4)])
def test_few_rows_and_edges(rows, edges):
    kernel = spcomp.compile("Y[dst[e], f] = V[e, f]")
    made = kernel(V=V[:edges], dst=np.zeros(edges, int), sizes={"Y": rows})
    assert made.shape == (rows, FEATURES)
    np.testing.assert_allclose(made[:1], V[:edges].sum(0)[None][:rows])


@pytest.mark.parametrize("wrong", [-1, ROWS, 2**40])
def test_a_number_that_is_no_row_is_named(wrong):
    kernel, dst = spcomp.compile("Y[dst[e]] = w[e]"), DST.astype(np.int64)
    dst[5] = wrong
    message = rf"argument dst: got {wrong} at position 5"
    with pytest.raises(ArgumentError, match=message):
        kernel(w=W, dst=dst, sizes={"Y": ROWS})
    with pytest.raises(ArgumentError, match=message):
        kernel.bind(dst=dst)(w=W, sizes={"Y": ROWS})


@pytest.mark.parametrize("text", ["Y[dst[e]] = w[e]", "z[e] = v[dst[e]]"])
def test_a_negative_number_is_refused_by_bind(text):
    with pytest.raises(ArgumentError, match="argument dst: got -1 at position 1") as caught:
        spcomp.compile(text).bind(dst=np.array([0, -1, 2]))
    assert caught.value.hint


@pytest.mark.parametrize("is_called", [False, True])
def test_a_bound_vector_is_that_of_the_bind(is_called):
    dst, w, v = np.array([0, 1, 2]), np.ones(3), np.array([1.0, 10, 100])
    kernel = spcomp.compile("Y[dst[e]] = w[e] * v[dst[e]]").bind(dst=dst)
    if is_called:
        kernel(w=w, v=v)
    dst[:] = 2
    np.testing.assert_array_equal(kernel(w=w, v=v), v)
    np.testing.assert_array_equal(kernel(w=w.astype(np.float32), v=v), v)
    np.testing.assert_array_equal(kernel.bind(w=w)(v=v), v)


def test_what_explains_or_specializes_takes_the_arguments_of_a_call():
    kernel = spcomp.compile("Y[dst[e]] = w[e]")
    args = {"w": W, "dst": DST, "sizes": {"Y": ROWS}}
    assert "dst_rows" in kernel.explain(**args)
    assert "dst_rows" in kernel.bind(dst=DST).explain(w=W, sizes={"Y": ROWS})
    special = kernel.specialize(**args)
    assert special.kernel is kernel.specialize(w=W, dst=DST).kernel
    assert np.array_equal(special(**args), kernel(**args))
    with pytest.raises(ArgumentError, match="argument sizes: Z is no result"):
        kernel.explain(w=W, dst=DST, sizes={"Z": ROWS})
    named_sizes = spcomp.compile("y[i] = 2 * sizes[i]")
    assert "y" in named_sizes.explain(sizes=W)


def test_sizes_that_do_not_fit_are_refused():
    kernel = spcomp.compile("Y[dst[e]] = w[e]")
    with pytest.raises(ArgumentError, match="no argument says how long Y is"):
        kernel(w=W, dst=DST)
    for wrong in (-1, 2.5, (ROWS,), True, 2**47, 2**62, 2**65):
        with pytest.raises(ArgumentError, match="argument sizes: got"):
            kernel(w=W, dst=DST, sizes={"Y": wrong})
    with pytest.raises(ArgumentError, match="argument sizes: Z is no result"):
        kernel(w=W, dst=DST, sizes={"Z": ROWS})
    with pytest.raises(ArgumentError, match="argument sizes: Y is no result"):
        spcomp.compile("Y[e] = w[e]")(w=W, sizes={"Y": ROWS})
    with pytest.raises(ArgumentError, match="argument sizes"):
        kernel(w=W, dst=DST, sizes=ROWS)
    with pytest.raises(ArgumentError, match="argument sizes: got 12 for Y, expected 13"):
        kernel(w=W, dst=DST, sizes={"Y": ROWS}, out=np.zeros(ROWS + 1))
    adding = spcomp.compile("Y[dst[e]] += w[e]")
    with pytest.raises(ArgumentError, match="argument sizes: got 12 for Y, expected 13"):
        adding(w=W, dst=DST, sizes={"Y": ROWS}, Y=np.zeros(ROWS + 1))
    with pytest.raises(ArgumentError, match="unexpected argument sizes") as caught:
        kernel.bind(dst=DST, sizes={"Y": ROWS})
    assert "call" in caught.value.hint


def test_more_rows_than_memory_holds_are_refused(monkeypatch):
    def full(*_):
        raise MemoryError("no")

    monkeypatch.setattr(scatters, "sorted_rows", full)
    with pytest.raises(OutOfMemoryError, match="argument dst: 1099511627776 rows"):
        spcomp.compile("Y[dst[e]] = w[e]")(w=W, dst=DST.copy(), sizes={"Y": 2**40})


def test_what_a_call_lacks_or_does_not_take_is_named():
    kernel = spcomp.compile("Y[dst[e]] = w[e]")
    with pytest.raises(ArgumentError, match="missing argument dst"):
        kernel(w=W, sizes={"Y": ROWS})
    with pytest.raises(ArgumentError, match="missing argument w"):
        kernel(dst=DST, sizes={"Y": ROWS})
    with pytest.raises(ArgumentError, match="unexpected argument x"):
        kernel(w=W, dst=DST, x=W, sizes={"Y": ROWS})
    with pytest.raises(ArgumentError, match="argument dst: got 2 dimensions"):
        kernel(w=W, dst=DST[None], sizes={"Y": ROWS})
    with pytest.raises(ArgumentError, match="argument dst: got dtype float64"):
        kernel(w=W, dst=DST * 1.0, sizes={"Y": ROWS})
    with pytest.raises(ArgumentError, match="is dense, as it is written at an index vector"):
        spcomp.compile("Y[dst[e], f] = V[e, f]", formats={"Y": "csr"})
    adding = spcomp.compile("Y[dst[e], f] += V[e, f]")
    with pytest.raises(ArgumentError, match="Y"):
        adding(Y=sps.csr_array((ROWS, FEATURES)), V=V, dst=DST)
    with pytest.raises(ArgumentError, match="w"):
        kernel(w=W[:-1], dst=DST, sizes={"Y": ROWS})


REFUSED = {
    "Y[dst[e], src[e]] = w[e]": "a result is written at one index vector",
    "Y[p[i, j]] = w[i]": "a result is written at a vector of one",
    "Y[dst[e]] = 2 * max(e, w[e])": "e is reduced inside the value",
    "Y[dst[e], e] = w[e]": "e is an index of",
    "Y[dst[e], 0:3] = w[e]": "a part and an index vector do not go together",
    "Y[dst[e]] = w[e]; Y[dst[e]] = w[e]": "Y is assigned twice",
}


@pytest.mark.parametrize("text", REFUSED)
def test_what_is_no_scatter_is_refused_where_it_stands(text):
    with pytest.raises(ScriptError, match=REFUSED[text]) as caught:
        spcomp.compile(text)(w=W, dst=DST, sizes={"Y": ROWS})
    assert "^" in str(caught.value)


def test_scatters_are_specialised_and_explained():
    kernel = spcomp.compile("Y[dst[e], f] = w[e] * V[e, f]")
    args = arguments(kernel)
    assert "dst_rows" in kernel.specialize(**args).stage("coordinate")
    assert "Y[dst_row" in kernel.explain(**args)


def test_scatters_over_a_semiring():
    made = spcomp.compile("Y[dst[e]] = w[e] * x[src[e]]", semiring="min_plus")(
        w=W, x=X[:, 0], src=SRC, dst=DST, sizes={"Y": ROWS}
    )
    np.testing.assert_allclose(made, scattered(W + X[SRC, 0], np.minimum, np.inf))


def test_scatters_in_the_emulated_gpu():
    text = "Y[dst[e], f] = w[e] * X[src[e], f]"
    kernel = spcomp.compile(text, target="cuda:sm_90,emulate")
    made = kernel(**arguments(kernel), sizes={"Y": ROWS})
    np.testing.assert_allclose(made, SCATTERS[text], rtol=1e-12)
