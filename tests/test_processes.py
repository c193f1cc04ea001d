"""Processes: forks amid compilation, threads, kills, full disks, no memory."""

import itertools
import multiprocessing
import os
import pickle
import random
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import numpy as np
import pytest
import scipy.sparse as sps

import spcomp
from spcomp.codegen import cpu
from spcomp.runtime import cache as disk
from spcomp.runtime import jit
from spcomp.target import target

START = multiprocessing.get_all_start_methods()
POSIX = pytest.mark.skipif("fork" not in START, reason="the system has no fork")
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc, sets RLIMIT_AS")
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")

A = sps.random_array((60, 60), density=0.2, format="csr", rng=np.random.default_rng(0))
NUMBERS = itertools.count()


def fresh():
    """A factor that no program of any process has had."""
    return f"{os.getpid()}{next(NUMBERS)}.5"


def compute(factor):
    """Compile a program with *factor* and call it."""
    result = spcomp.compile(f"y[i] = A[i, j] * {factor}")(A=A)
    np.testing.assert_allclose(result, A.sum(axis=1) * float(factor))


@contextmanager
def busy(*works):
    """Threads that do each of *works* over and over; what they raise is raised at the end."""
    over, failures = threading.Event(), []

    def repeat(work):
        try:
            while not over.is_set():
                work()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=repeat, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert not failures


def forked(work):
    """Whether *work* ends well, and at all, in a child of this process."""
    child = os.fork()
    if child == 0:
        signal.alarm(30)
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    return os.waitpid(child, 0)[1] == 0


# -- forks ---------------------------------------------------------------------------------------


@POSIX
@pytest.mark.parametrize("count", [8, pytest.param(60, marks=pytest.mark.long)])
def test_children_forked_while_threads_compile_can_compile(count):
    compute(fresh())
    with busy(*3 * [lambda: compute(fresh())]):
        for _ in range(count):
            assert forked(lambda: compute(fresh()))


@POSIX
def test_children_forked_while_threads_drop_machine_code_can_drop_it():
    ir = "define i32 @f(ptr %slots) {\n  ret i32 0\n}\n"
    obj = cpu.object_code(ir, target("cpu"))
    with busy(*2 * [lambda: jit.load(obj, ["f"])]):
        assert all(forked(lambda: jit.load(obj, ["f"])) for _ in range(30))


@POSIX
def test_children_forked_while_threads_ask_for_what_is_computed_once_can_ask_too():
    def ask():
        kernel = spcomp.compile(f"y[i] = A[i, j] * x[j] * {fresh()}")
        kernel.bind(A=A)(x=np.ones(60))

    ask()
    with busy(ask, ask):
        assert all(forked(ask) for _ in range(6))


def call_pickled(payload):
    return pickle.loads(payload)(A=A).sum()


@pytest.mark.parametrize("method", START)
def test_a_kernel_serves_in_processes_however_they_start(method):
    factor = fresh()
    kernel = spcomp.compile(f"y[i] = A[i, j] * {factor}")
    expected = kernel(A=A).sum()
    with multiprocessing.get_context(method).Pool(2) as pool:
        assert pool.map(call_pickled, [pickle.dumps(kernel)] * 4) == [expected] * 4


# -- threads -------------------------------------------------------------------------------------


@pytest.mark.parametrize("seconds", [2, pytest.param(25, marks=pytest.mark.long)])
def test_threads_compile_call_bind_and_change_the_number_of_threads_at_once(seconds):
    before = spcomp.get_num_threads()
    large = sps.random_array((3000, 3000), density=0.01, format="csr", rng=np.random.default_rng(1))
    kernel, x = spcomp.compile("y[i] = A[i, j] * x[j]"), np.ones(3000)
    expected = kernel(A=large, x=x)

    def call():
        assert np.array_equal(kernel(A=large, x=x), expected)

    def bind():
        bound = kernel.bind(A=large)
        assert all(np.array_equal(bound(x=x), expected) for _ in range(10))

    def change():
        spcomp.set_num_threads(random.randint(1, 9))
        time.sleep(random.random() / 100)

    try:
        with busy(call, call, bind, change, lambda: compute(fresh())):
            time.sleep(seconds)
    finally:
        spcomp.set_num_threads(before)


WORKERS = """
import os, time
import numpy as np, scipy.sparse as sps, spcomp
A = sps.random_array((4000, 4000), density=0.05, format="csr", rng=np.random.default_rng(0))
kernel, x = spcomp.compile("y[i] = A[i, j] * x[j]"), np.ones(4000)
def call(threads):
    spcomp.set_num_threads(threads)
    results = {kernel(A=A, x=x).tobytes() for _ in range(5)}
    return results
def tasks():
    return len(os.listdir("/proc/self/task"))
results, rest = call(1), tasks()
for threads in (4, 2, 7, 1, 3, 64, 2, 1):
    results |= call(threads)
    deadline = time.monotonic() + 60
    while tasks() > rest + threads - 1 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert tasks() == rest + threads - 1, (threads, tasks(), rest)
assert len(results) == 1
"""


@LINUX
def test_threads_that_are_too_many_end():
    subprocess.run([sys.executable, "-c", WORKERS], check=True, timeout=120)


# -- disk and memory -----------------------------------------------------------------------------


@POSIX
@pytest.mark.parametrize("count", [5, pytest.param(40, marks=pytest.mark.long)])
def test_a_cache_whose_writers_are_killed_holds_whole_objects(count, tmp_path, monkeypatch):
    monkeypatch.setenv("SPCOMP_CACHE_DIR", str(tmp_path))
    names = [f"{k:02x}" + "0" * 62 for k in range(4)]
    script = (
        "import itertools; from spcomp.runtime import cache\n"
        f"for k, name in itertools.product(range(256), {names!r}):\n"
        "    cache.put(name, bytes([k]) * 300_000)\n"
        "    print(flush=True)\n"
    )
    for _ in range(count):
        with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as writer:
            assert writer.stdout
            writer.stdout.readline()
            time.sleep(random.random() / 20)
            writer.kill()
        result = [disk.get(name) for name in names]
        assert any(result)
        assert all(len(set(body)) == 1 and len(body) == 300_000 for body in result if body)


LIMITED = """
import resource, sys
import numpy as np, scipy.sparse as sps, spcomp
A = sps.csr_array(np.eye(3))
def compute(factor):
    assert (spcomp.compile(f"y[i] = A[i, j] * {factor}")(A=A) == factor).all()
compute(2)
"""


@POSIX
@pytest.mark.parametrize("size", [0, 20, 3000])
def test_programs_compile_on_a_full_disk(size, tmp_path):
    script = f"{LIMITED}resource.setrlimit(resource.RLIMIT_FSIZE, ({size}, {size}))\ncompute(3)\n"
    env = {**os.environ, "SPCOMP_CACHE_DIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", script], env=env, check=True)
    assert not list(tmp_path.rglob("tmp-*"))


ELSEWHERE = """
import mmap, os, random, tempfile
import numpy as np, scipy.sparse as sps
for name in ("sched_getaffinity", "sysconf", "register_at_fork", "fork", "getuid", "geteuid",
             "O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC"):
    if hasattr(os, name):
        delattr(os, name)
for name in dir(mmap):
    if name.startswith(("MADV_", "MAP_")):
        delattr(mmap, name)
import spcomp
from spcomp.runtime import cache
A = sps.csr_array(np.eye(1000))
for factor in (2, 2, 3):
    kernel = spcomp.compile(f"C[i, k] = A[i, j] * B[j, k] * {factor}")
    for _ in range(5):
        assert (kernel(A=A, B=np.eye(1000, 600)) == np.eye(1000, 600) * factor).all()
        assert (kernel.bind(A=A)(B=np.eye(1000, 600)) == np.eye(1000, 600) * factor).all()
spcomp.set_num_threads(3)
spcomp.set_num_threads(1)
assert cache.info().entries > 1 and not cache.info().refused
"""


def test_a_system_without_what_only_linux_has_does_without(tmp_path):
    env = {**os.environ, "SPCOMP_CACHE_DIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", ELSEWHERE], env=env, check=True)


@LINUX
def test_no_memory_for_machine_code_is_a_memory_error(tmp_path):
    script = f"""{LIMITED}
outcomes = []
size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
for more in (*range(0, 80, 4), 500):
    resource.setrlimit(resource.RLIMIT_AS, (size + (more << 20), -1))
    try:
        compute(more + 0.5)
        outcomes.append("computed")
    except MemoryError:
        outcomes.append("no memory")
print(outcomes[0], outcomes[-1])
"""
    env = {**os.environ, "SPCOMP_CACHE_DIR": str(tmp_path)}
    result = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True)
    assert (result.returncode, result.stdout) == (0, "no memory computed\n"), result.stderr


LEAK = """
import spcomp
from spcomp.codegen import cpu
from spcomp.runtime import jit
from spcomp.target import target
def make(k):
    ir = f"define i32 @f(ptr %slots) {{\\n  ret i32 {k}\\n}}\\n"
    jit.load(cpu.object_code(ir, target("cpu")), ["f"])
def memory():
    return int(open("/proc/self/statm").read().split()[1]) * 4
for k in range(100):
    make(k)
before = memory()
for k in range(100, 600):
    make(k)
print((memory() - before) / 500)
"""


@LINUX
def test_machine_code_that_nobody_has_leaves_little_behind():
    result = subprocess.run(
        [sys.executable, "-c", LEAK], capture_output=True, text=True, check=True
    )
    assert float(result.stdout) < 10  # KiB each; 55 where LLVM's passes and libraries stay
