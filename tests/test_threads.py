"""Kernels under many threads, in other processes, and across pickling."""

import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import scipy.sparse as sps

import spcomp
from spcomp.runtime.executable import Executable
from tests.test_api import A, B, spmm

HAS_FORK = "fork" in multiprocessing.get_all_start_methods()


def _big(seed=0, m=400, n=300, feat=16):
    rng = np.random.default_rng(seed)
    a = sps.random_array((m, n), density=0.05, format="csr", dtype="float32", rng=rng)
    return a, rng.random((n, feat)).astype("float32")


def _product(seed):
    a, b = _big(seed)
    return spcomp.compile(spmm)(A=a, B=b)


def _call_pickled(payload):
    kernel, a, b = pickle.loads(payload)
    return kernel(A=a, B=b)


def test_many_threads_may_call_one_kernel():
    kernel = spcomp.compile(spmm)
    problems = [_big(seed) for seed in range(8)]
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda p: kernel(A=p[0], B=p[1]), problems * 10))
    for (a, b), result in zip(problems * 10, results, strict=True):
        np.testing.assert_allclose(result, a @ b, rtol=1e-4)


def test_many_threads_may_compile_and_bind():
    a, b = _big()

    def task(feat):
        return spcomp.compile(spmm, constants={"feat": feat}).bind(A=a)(B=b[:, :feat].copy())

    with ThreadPoolExecutor(4) as pool:
        for feat, result in enumerate(pool.map(task, [1, 2, 3, 4] * 3)):
            np.testing.assert_allclose(result, a @ b[:, : feat % 4 + 1], rtol=1e-4)


def test_the_result_has_the_same_bits_at_any_number_of_threads():
    a, b = _big()
    kernel = spcomp.compile(spmm)
    results = []
    for count in (1, 2, 5):
        with spcomp.num_threads(count):
            assert spcomp.get_num_threads() == count
            results.append(kernel(A=a, B=b).tobytes())
    results.append(spcomp.compile(spmm, threads=1)(A=a, B=b).tobytes())
    assert len(set(results)) == 1


def test_the_number_of_threads_can_be_set():
    before = spcomp.get_num_threads()
    try:
        spcomp.set_num_threads(1)
        assert spcomp.get_num_threads() == 1
        np.testing.assert_allclose(spcomp.compile(spmm)(A=A, B=B), A @ B, rtol=1e-5)
    finally:
        spcomp.set_num_threads(before)


def test_a_pickled_kernel_gives_the_same_result_and_keeps_its_options():
    kernel = spcomp.compile(spmm, name="mine", check="bind")
    again = pickle.loads(pickle.dumps(kernel))
    assert again.name == "mine"
    assert again._options == kernel._options
    assert (again(A=A, B=B) == kernel(A=A, B=B)).all()


def test_a_kernel_crosses_to_a_spawned_process():
    a, b = _big()
    payload = pickle.dumps((spcomp.compile(spmm), a, b))
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        (result,) = pool.map(_call_pickled, [payload])
    np.testing.assert_allclose(result, a @ b, rtol=1e-4)


def _call(kernel, feat):
    return kernel(A=A, B=np.ones((A.shape[1], feat), np.float32))


@pytest.mark.skipif(not HAS_FORK, reason="the system has no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_child_forked_while_another_thread_compiles_can_compile(monkeypatch):
    begun, over, parent = threading.Event(), threading.Event(), os.getpid()

    class Slow(Executable):
        def __init__(self, *args, **more):
            begun.set()
            if os.getpid() == parent:
                over.wait(10)
            super().__init__(*args, **more)

    monkeypatch.setattr("spcomp.runtime.executable.Executable", Slow)
    kernels = [spcomp.compile(spmm, constants={"feat": k}) for k in (23, 29)]
    thread = threading.Thread(target=_call, args=(kernels[0], 23))
    thread.start()
    begun.wait(10)
    child = os.fork()
    if child == 0:
        signal.alarm(10)
        _call(kernels[1], 29)
        os._exit(0)
    over.set()
    thread.join()
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.skipif(not HAS_FORK, reason="the system has no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_process_can_go_on_using_kernels():
    a, b = _big(3)
    want = _product(3)  # the pool of this process has started
    with multiprocessing.get_context("fork").Pool(2) as pool:
        results = pool.map(_product, [3] * 4)
    assert all((result == want).all() for result in results)
    assert (spcomp.compile(spmm)(A=a, B=b) == want).all()


def test_the_environment_sets_the_number_of_threads():
    code = "import spcomp; print(spcomp.get_num_threads())"
    env = {**os.environ, "SPCOMP_NUM_THREADS": "1"}
    run = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, check=True)
    assert run.stdout.split() == [b"1"]
