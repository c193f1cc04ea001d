"""Bound calls on a GPU that are like an earlier one are repeated, and what differs is seen."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse as sps

import spcomp
from benchmarks import programs
from benchmarks.gpu import graphs, ours
from spcomp import script as T
from spcomp.errors import ArgumentError
from spcomp.runtime.cuda import timing
from tests import fake_cuda
from tests import test_gpu_conversions as conversions
from tests.fake_libraries import Tensor
from tests.test_cuda_kernels import TARGET, WAITS, Cupy, Torch, both, compiled, kinds, operands


def test_calls_with_bound_matrices_are_repeated_with_other_arrays(gpu):
    there, (A, _, _) = Torch(gpu), operands()
    kernel = compiled("csrmm").bind(A=there.csr(A))
    shapes = [(30, 8), (30, 5), (30, 8), (30, 8)]
    for seed, shape in enumerate(shapes):
        dense = np.random.default_rng(seed).random(shape, np.float32)
        out = there.put(np.zeros((20, shape[1]), np.float32))
        assert kernel(B=there.put(dense), out=out) is out
        np.testing.assert_allclose(there.get(out), A @ dense, rtol=1e-5)
    assert len(kernel._calls._replays) == 2
    same = there.put(np.zeros((30, 8), np.float32))
    inside = Tensor(same.pointer, (20, 8), "float32")
    with pytest.raises(ArgumentError, match="C: shares memory with B"):
        kernel(B=same, out=inside)
    values = Tensor(gpu.put(np.zeros(200, np.float32)) + 4, (20, 8), "float32")
    with pytest.raises(ArgumentError, match="expected a multiple of 16"):
        kernel(B=same, out=values)
    with pytest.raises(ArgumentError, match="B: got float64"):
        kernel(B=there.put(np.zeros((30, 8))), out=inside)


@both
def test_repeated_calls_see_what_differs(gpu, kind):
    """Numbers, signs of zero, the order of arguments and arrays that come twice are told apart."""
    there = kind(gpu)
    a = np.arange(1, 5, dtype=np.float32)
    arrays = {name: there.put(a * factor) for name, factor in (("x", 1), ("y", 10), ("z", 100))}
    out = there.put(np.zeros(4, np.float32))
    kernel = spcomp.compile("q[i] = a[i] * x[i] - y[i] / s", target=TARGET).bind(a=there.put(a))

    def run(x, y, s, **more):
        assert kernel(x=arrays[x], y=arrays[y], s=s, out=out, **more) is out
        with np.errstate(divide="ignore"):
            expected = a * a * scale[x] - a * scale[y] / np.float32(s)
        np.testing.assert_allclose(there.get(out), expected, rtol=1e-5)

    scale = {"x": 1, "y": 10, "z": 100}
    for s in (0.0, -0.0, 2.0, -0.0):
        run("x", "x", s)
        run("x", "y", s)
        run("z", "x", s)
    gpu.log.clear()
    run("y", "z", 2.0)
    assert not kinds(gpu, *WAITS, "upload")
    run("y", "z", 2.0, stream=0x99)
    assert gpu.launches[-1].stream == 0x99
    with pytest.raises(ArgumentError, match="a: is bound already"):
        kernel(a=out, x=out, y=out, s=2.0, out=out)
    small = there.put(np.zeros(3, np.float32))
    with pytest.raises(ArgumentError):
        kernel(x=small, y=small, s=2.0, out=out)


def test_explain_is_about_the_call_that_was_repeated_last(gpu):
    there = Torch(gpu)
    bound = spcomp.compile("q[i] = a[i] * x[i]", target=TARGET).bind(a=there.put(np.ones(4, "f4")))
    given = [
        {"x": there.put(np.ones(4, kind)), "out": there.put(np.zeros(4, kind))}
        for kind in ("float32", "float64")
    ]
    said = []
    for arrays in given * 2:
        bound(**arrays)
        said.append(str(bound.kernels()[0].signature))
    assert said[:2] == said[2:]
    assert "float64" not in said[0]
    assert "float64" in said[1]


@both
def test_repeated_calls_of_several_results_return_them_by_name(gpu, kind):
    there, a = kind(gpu), np.arange(6, dtype=np.float32)
    kernel = spcomp.compile("p[i] = a[i] + x[i]; q[i] = a[i] - x[i]", target=TARGET)
    bound = kernel.bind(a=there.put(a))
    given = {name: there.put(np.zeros(6, np.float32)) for name in "pqx"}
    p, q, x = given.values()
    for out in ({"p": p, "q": q}, (p, q), {"q": q, "p": p}, (p, q), {"p": p, "q": q}):
        there.get(p)[:] = there.get(q)[:] = -1
        results = bound(x=x, out=out)
        assert results.p is p
        assert results.q is q
        np.testing.assert_array_equal(there.get(p), a)
        np.testing.assert_array_equal(there.get(q), a)


@both
@pytest.mark.parametrize("notation", [False, True], ids=["program", "notation"])
def test_a_repeated_call_is_few_calls_of_python(gpu, kind, notation, monkeypatch):
    there, (A, B, _) = kind(gpu), operands()
    kernel = compiled("csrmm")
    if notation:
        kernel = spcomp.compile("C[i, k] = A[i, j] * B[j, k]", target=TARGET)
    bound = kernel.bind(A=A)
    dense, out = there.put(B), there.put(np.empty((20, 8), np.float32))
    for _ in range(2):
        bound(B=dense, out=out)
    driver = sys.modules["numba.cuda.cudadrv.driver"].driver
    monkeypatch.setattr(driver, "cuLaunchKernel", lambda *_: None)
    monkeypatch.setattr(driver, "cuCtxGetCurrent", lambda: fake_cuda.CONTEXT)
    events: list[str] = []
    sys.setprofile(lambda frame, event, _: events.append(event))
    try:
        bound(B=dense, out=out)
    finally:
        sys.setprofile(None)
    assert sum(event in ("call", "c_call") for event in events) < 64


def with_a_hub():
    """Return a matrix of 20 rows, one of them so long that its pieces are added up afterwards."""
    rng = np.random.default_rng(3)
    lengths = [3] * 20
    lengths[4] = 5000
    indptr = np.cumsum([0, *lengths]).astype(np.int32)
    columns = np.concatenate([np.sort(rng.choice(6000, n, replace=False)) for n in lengths])
    values = rng.random(len(columns), np.float32)
    return sps.csr_array((values, columns.astype(np.int32), indptr), shape=(20, 6000))


@pytest.fixture
def product(gpu):
    """Return a product with a matrix whose kernels leave partial results, and the right result."""
    there, A = Torch(gpu), with_a_hub()
    x = np.random.default_rng(4).random(6000, np.float32)
    kernel = spcomp.compile("y[i] = A[i, j] * x[j]", target=TARGET).bind(A=there.csr(A))
    given, out = there.put(x), there.put(np.zeros(20, np.float32))
    kernel(x=given, out=out)
    assert len({launch.name for launch in gpu.launches}) > 1
    return SimpleNamespace(there=there, run=partial(kernel, x=given, out=out), out=out, y=A @ x)


def used(gpu, count):
    """Return the pointers that the last *count* launches got."""
    return {word for launch in gpu.launches[-count:] for word in launch.arguments}


def test_partial_results_of_repeated_calls_are_allocated_once_for_a_stream(gpu, product):
    started = len(gpu.launches)
    product.run()
    count, room = len(gpu.launches) - started, list(gpu.next)
    first = used(gpu, count)
    product.there.get(product.out)[:] = np.nan
    product.run()
    assert gpu.next == room
    assert used(gpu, count) == first
    np.testing.assert_allclose(product.there.get(product.out), product.y, rtol=1e-5)
    product.run(stream=0x99)
    assert gpu.next > room
    assert used(gpu, count) != first
    np.testing.assert_allclose(product.there.get(product.out), product.y, rtol=1e-5)


def test_graphs_have_partial_results_of_their_own(gpu, product):
    product.run()
    started = len(gpu.launches)
    product.run()
    count = len(gpu.launches) - started
    kept = used(gpu, count)
    graphs = [timing.capture(lambda stream: product.run(stream=stream)) for _ in range(2)]
    own = []
    for graph in graphs:
        product.there.get(product.out)[:] = np.nan
        graph.launch()
        own.append(used(gpu, count))
        np.testing.assert_allclose(product.there.get(product.out), product.y, rtol=1e-5)
    assert len({frozenset(pointers) for pointers in (kept, *own)}) == 3


def test_calls_of_two_threads_on_one_stream_do_not_mix_their_kernels(gpu, product):
    product.run()
    started = len(gpu.launches)
    product.run()
    count = len(gpu.launches) - started
    order = [launch.name for launch in gpu.launches[-count:]]
    started = len(gpu.launches)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: product.run(), range(40)))
    names = [launch.name for launch in gpu.launches[started:]]
    assert names == order * 40


def test_sizes_that_bound_index_arrays_give_are_those_of_every_call(gpu):
    there, edges = Torch(gpu), graphs.relations(np, 3, 40, 400, 8)
    names = ("indptr_i", "indices_i", "indptr_j", "indices_j")
    fixed = dict(zip(names, map(there.put, edges.levels), strict=True))
    layer = spcomp.compile(programs.parse(ours.RGCN), target=TARGET)
    bound = layer.bind(**fixed, A=there.put(edges.values))
    weights, features = np.ones((3, 32, 32), np.float32), np.ones((40, 32), np.float32)
    rest = {"W": there.put(weights), "X": there.put(features)}
    out = there.put(np.zeros((40, 32), np.float32))
    bound(**rest, out=out)
    gpu.log.clear()
    bound(**rest, out=out)
    assert not kinds(gpu, *WAITS, "allocate")
    sums = np.bincount(edges.row, edges.values, 40)
    np.testing.assert_allclose(there.get(out)[:, 0], 32 * sums, rtol=1e-5)


@T.prim_func
def grown(a: T.handle, x: T.handle, y: T.handle, m: T.int32) -> None:
    I = T.dense_fixed(m)
    A = T.match_sparse_buffer(a, (I,), "float32")
    X = T.match_sparse_buffer(x, (I,), "float32")
    Y = T.match_sparse_buffer(y, (I,), "float32")
    with T.sp_iter([I], "S", "grown") as [i]:
        Y[i] = Y[i] + A[i] * X[i]


def test_a_bound_array_of_the_host_is_copied_and_may_come_again(gpu):
    """As another argument it has what it holds now; as a result it leaves the copy as it is."""
    a, x = np.full(4, 2, np.float32), np.ones(4, np.float32)
    kernel = spcomp.compile(grown, target=TARGET).bind(A=a)
    a[:] = 5
    np.testing.assert_array_equal(kernel(X=a, Y=np.zeros(4, np.float32)), np.full(4, 10))
    np.testing.assert_array_equal(kernel(X=x, Y=a), np.full(4, 7))
    np.testing.assert_array_equal(kernel(X=x, Y=np.zeros(4, np.float32)), np.full(4, 2))


@T.prim_func
def outer(a: T.handle, x: T.handle, y: T.handle, z: T.handle, m: T.int32, k: T.int32,
          n: T.int32) -> None:  # fmt: skip
    I = T.dense_fixed(m)
    K = T.dense_fixed(k)
    N = T.dense_fixed(n)
    A = T.match_sparse_buffer(a, (I,), "float32")
    X = T.match_sparse_buffer(x, (I, K), "float32")
    Y = T.match_sparse_buffer(y, (I, N), "float32")
    Z = T.match_sparse_buffer(z, (I, K, N), "float32")
    with T.sp_iter([I, K, N], "SSS", "outer") as [i, p, q]:
        Z[i, p, q] = A[i] * X[i, p] * Y[i, q]


def test_versions_for_sizes_are_told_apart_by_the_names_of_these(gpu):
    """The same two numbers come in the same order, for the other size each."""
    kernel = spcomp.compile(outer, target=TARGET).bind(A=np.ones(3, np.float32))
    rng = np.random.default_rng(5)
    narrow, wide = rng.random((3, 4), np.float32), rng.random((3, 8), np.float32)
    for given in ({"X": narrow, "Y": wide}, {"Y": narrow, "X": wide}):
        expected = np.einsum("ik,in->ikn", given["X"], given["Y"])
        np.testing.assert_allclose(kernel(**given), expected, rtol=1e-5)


def test_numbers_that_decide_nothing_leave_no_version_behind(gpu):
    kernel = spcomp.compile("q[i] = a[i] * s", target=TARGET)
    bound = kernel.specialize(a=np.ones(3, "f4"), s=1.0).bind(a=np.ones(3, "f4"))
    for s in range(1, 50):
        assert bound(s=s / 7)[0] == np.float32(s / 7)
    assert len(bound._calls._codes) == 1


@T.prim_func
def padded(a: T.handle, indices: T.handle, x: T.handle, y: T.handle, m: T.int32, n: T.int32,
           width: T.int32) -> None:  # fmt: skip
    I = T.dense_fixed(m)
    J = T.sparse_fixed(I, (n, width), indices, "int32")
    J_detach = T.dense_fixed(n)
    A = T.match_sparse_buffer(a, (I, J), "float32")
    X = T.match_sparse_buffer(x, (J_detach,), "float32")
    Y = T.match_sparse_buffer(y, (I,), "float32")
    with T.sp_iter([I, J], "SR", "padded") as [i, j]:
        with T.init():
            Y[i] = 0.0
        Y[i] = Y[i] + A[i, j] * X[j]


@both
def test_index_arrays_that_are_not_bound_are_checked_in_every_call(gpu, kind):
    there, x = kind(gpu), np.arange(6, dtype=np.float32)
    kernel = spcomp.compile(padded, target=TARGET).bind(X=there.put(x))
    out = there.put(np.zeros(3, np.float32))
    rest = {"A": there.put(np.ones(6, np.float32)), "m": 3, "width": 2, "out": out}
    for columns in ([0, 1, 2, 3, 4, 5], [5, 4, 3, 2, 1, 0]):
        kernel(indices=there.put(np.array(columns, np.int32)), **rest)
        np.testing.assert_array_equal(there.get(out), x[columns].reshape(3, 2).sum(1))
    with pytest.raises(ArgumentError, match="indices"):
        kernel(indices=there.put(np.array([0, 1, 2, 60, 4, 5], np.int32)), **rest)


@pytest.mark.parametrize("of", [np.ones, lambda n, kind: sps.csr_array(np.ones((1, n), kind))])
def test_all_kinds_of_calls_of_bound_notation_see_the_values_of_the_bind(gpu, of):
    kernel = spcomp.compile("q[k, i] = a[k, i] * x[i]", target=TARGET)
    a = of(4, "f4").reshape(1, 4)
    call = kernel.bind(a=a)
    for kind in ("f4", "f4", "f8"):
        (a.data if sps.issparse(a) else a)[...] = 5
        result = call(x=np.ones(4, kind))
        np.testing.assert_array_equal(result.toarray() if sps.issparse(result) else result, 1)


def test_a_matrix_that_is_read_in_two_orders_has_one_set_of_values(gpu):
    there, (A, _, _) = Cupy(gpu), operands()
    A = A[:, :20] + 0
    x, y = np.random.default_rng(0).random((2, 20)).astype(np.float32)
    matrix, out = conversions.there(there, A), there.put(np.zeros(20, np.float32))
    kernel = spcomp.compile("y[i] = A[i, j] * x[j] + A[j, i] * z[j]", target=TARGET)
    bound = kernel.bind(A=matrix)
    for _ in range(4):
        bound(x=there.put(x), z=there.put(y), out=out)
        np.testing.assert_allclose(there.get(out), A @ x + A.T @ y, rtol=1e-5)
        there.get(matrix.data)[:] *= 10
