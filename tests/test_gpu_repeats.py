"""Bound calls on a GPU that are like an earlier one are repeated, and what differs is seen."""

from __future__ import annotations

import sys

import numpy as np
import pytest

import spcomp
from spcomp.errors import ArgumentError
from tests import fake_cuda, fake_libraries
from tests.fake_launches import emulate
from tests.fake_libraries import Tensor
from tests.test_cuda_kernels import TARGET, WAITS, Torch, both, compiled, kinds, operands


@pytest.fixture
def gpu(monkeypatch):
    with fake_cuda.installed() as gpu:
        emulate(gpu, monkeypatch)
        fake_libraries.install(monkeypatch, gpu)
        yield gpu


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
    assert sum(event in ("call", "c_call") for event in events) < 60
