"""Signals: Ctrl-C, and handlers that raise, amid calls, compilations, locks."""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from functools import cache

import llvmlite.binding as llvm
import numpy as np
import pytest
import scipy.sparse as sps

import spcomp
from spcomp import locks
from spcomp import script as T
from spcomp.locks import Lock
from tests.test_processes import POSIX, busy, compute, forked, fresh

ALARM = pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="the system has no timers")

# Python drops, with this warning, what a handler raises while an object is freed.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


class Interruption(Exception):
    """What the handler of a signal raises."""


@contextmanager
def interruption(seconds, handler=None):
    """Send this process a signal after *seconds*; its handler raises Interruption, or is given.

    Raises it again a little later: Python drops what is raised while it frees an object.
    """

    def stop(*_):
        signal.setitimer(signal.ITIMER_REAL, 1)
        raise Interruption

    before = signal.signal(signal.SIGALRM, handler or stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def long_call(rows=2000, columns=4000):
    """A kernel, and arguments with which it takes seconds."""
    kernel = spcomp.compile("C[i, k] = A[i, j] * B[j, k]")
    return kernel, {"A": _full(rows), "B": np.ones((rows, columns))}


@cache
def _full(rows):
    return sps.csr_array(np.random.default_rng(0).random((rows, rows)))


def repeat(kernel, args):
    """Call for ten seconds if nothing ends it."""
    end = time.time() + 10
    while time.time() < end:
        kernel(**args)


@pytest.fixture
def threads(request):
    before = spcomp.get_num_threads()
    spcomp.set_num_threads(request.param)
    yield request.param
    spcomp.set_num_threads(before)


TWO_THREADS = pytest.param(2, marks=pytest.mark.long)


@ALARM
@pytest.mark.parametrize("threads", [1, TWO_THREADS], indirect=True)
def test_a_signal_ends_a_call_long_before_it_is_over(threads):
    kernel, args = long_call()
    short = {**args, "B": np.ones((2000, 2))}
    begun = time.process_time()
    expected = kernel(**args)
    whole = time.process_time() - begun
    bound, rest = kernel.bind(A=args["A"]), {"B": args["B"]}
    for learnt in (False, True):
        for call, values in ((kernel, args), (bound, rest)):
            for _ in range(4 if learnt else 0):
                call(**{name: short[name] for name in values})
            begun = time.process_time()
            with interruption(0.1), pytest.raises(Interruption):
                repeat(call, values)
            assert time.process_time() - begun < 1 + whole / 3
    assert np.array_equal(bound(**rest), expected)


@T.prim_func
def in_a_nest(x: T.handle, y: T.handle, n: T.int32, m: T.int32) -> None:
    X = T.match_buffer(x, (n,), "float64")
    Y = T.match_buffer(y, (m,), "float64")
    for r in range(m):
        for i in range(n):
            Y[r * r % m] = Y[r * r % m] * 0.5 + T.sin(X[i])


@T.prim_func
def in_one_loop(y: T.handle, m: T.int32) -> None:
    Y = T.match_buffer(y, (m,), "float64")
    for i in range(1000000000):
        Y[0] = T.sin(Y[0] + i)


@T.prim_func
def on_a_condition(x: T.handle, y: T.handle, n: T.int32, m: T.int32) -> None:
    X = T.match_buffer(x, (n,), "float64")
    Y = T.match_buffer(y, (m,), "float64")
    while Y[0] < 2000000000.0:
        Y[0] = Y[0] + X[0]


def serial(program):
    """A loop that no other thread helps with, and its arguments."""
    kernel = spcomp.compile(program)
    return kernel, {"y": np.zeros(1000000)} | (
        {} if program is in_one_loop else {"x": np.ones(1000)}
    )


def total(source, **arguments):
    """A sum into one number, of which few parts are summed at once, and its arguments."""
    return spcomp.compile(source), arguments


LONG = {
    "serial nest": lambda: serial(in_a_nest),
    "serial loop": lambda: serial(in_one_loop),
    "serial while": lambda: serial(on_a_condition),
    "sum of a dense nest": lambda: total(
        "s = sum(i, sum(j, sin(x[i] + y[j])))", x=np.ones(200_000), y=np.ones(100_000)
    ),
    "sum of a sparse nest": lambda: total(
        "s = A[i, j] * B[j, k] * C[i, k]",
        A=_full(1000),
        B=np.ones((1000, 20_000)),
        C=np.ones((1000, 20_000)),
    ),
    "assembled product": lambda: (
        spcomp.compile("C[i, k] = A[i, j] * B[j, k]", formats={"C": "csr"}),
        {"A": _full(2000), "B": _full(2000)},
    ),
}


@ALARM
@pytest.mark.parametrize("threads", [1, 2], indirect=True)
@pytest.mark.parametrize("name", LONG)
@pytest.mark.sample(8, long=3)
def test_a_signal_ends_every_kind_of_loop(name, threads):
    kernel, args = LONG[name]()
    for seconds in (0.3, 0.6):
        begun = time.process_time()
        with interruption(seconds), pytest.raises(Interruption):
            repeat(kernel, args)
        assert time.process_time() - begun < 3 * threads


@ALARM
def test_a_signal_ends_a_call_amid_short_loops():
    kernel, args = long_call(300, 64)
    begun = time.process_time()
    with interruption(0.2), pytest.raises(Interruption):
        repeat(kernel, args)
    assert time.process_time() - begun < 3


@ALARM
def test_a_handler_that_does_not_raise_changes_nothing():
    kernel, args = long_call(1000, 1500)
    expected, seen = kernel(**args), []

    def handler(*_):
        seen.append(kernel(A=args["A"], B=np.ones((1000, 1))).sum())

    with interruption(0.05, handler):
        result = kernel(**args)
        deadline = time.time() + 5
        while not seen and time.time() < deadline:
            time.sleep(0.01)
    assert np.array_equal(result, expected)
    assert seen == [pytest.approx(args["A"].sum())]


@ALARM
def test_a_signal_is_the_main_threads_alone():
    kernel, args = long_call(1000, 400)
    expected = kernel(**args)

    def call():
        assert np.array_equal(kernel(**args), expected)

    with busy(call, call):
        for _ in range(5):
            with interruption(0.1), pytest.raises(Interruption):
                repeat(kernel, args)


@ALARM
def test_a_result_of_several_phases_is_ended_whole():
    a = sps.random_array((3000, 3000), density=0.05, format="csr", rng=np.random.default_rng(0))
    kernel = spcomp.compile("C[i, k] = A[i, j] * B[j, k]", formats={"C": "csr"})
    expected = kernel(A=a, B=a)
    for k in range(12):
        with interruption(0.05 + k * 0.03), pytest.raises(Interruption):
            repeat(kernel, {"A": a, "B": a})
    assert (kernel(A=a, B=a) != expected).nnz == 0


def compile_on():
    """Compile for ten seconds if nothing ends it."""
    end = time.time() + 10
    while time.time() < end:
        compute(fresh())


@ALARM
@pytest.mark.parametrize("count", [40, pytest.param(120, marks=pytest.mark.long)])
def test_a_signal_ends_a_compilation_and_the_next_one_works(count):
    compute(fresh())
    rng, late = random.Random(count), 0
    for _ in range(count):
        begun = time.process_time()
        wait = rng.random() * 0.2
        with interruption(wait), pytest.raises(Interruption):
            compile_on()
        late += time.process_time() - begun > wait + 2  # of ten, beside garbage of other tests
        assert in_time(lambda: compute(fresh()))  # another thread finds no lock taken
        compute(fresh())
    assert late <= count // 10  # Python may drop what is raised several times


def in_time(work):
    """Whether *work* ends well, and within ten seconds, on another thread."""
    ended = []
    thread = threading.Thread(target=lambda: ended.append(work()), daemon=True)
    thread.start()
    thread.join(10)
    return bool(ended)


@ALARM
@pytest.mark.parametrize("lock", [Lock, lambda: Called(llvm.ffi.lib)], ids=["ours", "LLVM's"])
@pytest.mark.parametrize("count", [2000, pytest.param(50_000, marks=pytest.mark.long)])
def test_a_lock_is_free_after_signals_that_come_while_it_is_taken(lock, count):
    lock = lock()
    before = signal.signal(signal.SIGALRM, stop)
    caught = 0
    try:
        for _ in range(count):
            try:
                signal.setitimer(signal.ITIMER_REAL, 1e-5 * (1 + random.random()))
                while True:
                    with lock:
                        pass
            except Interruption:
                caught += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert caught == count
    assert in_time(lambda: take(lock))


def take(lock):
    with lock:
        pass


def stop(*_):
    raise Interruption


class Called:
    """A lock as functions of *lib* take it."""

    def __init__(self, lib):
        self.call = lib.LLVMPY_GetVersionInfo

    __exit__ = __enter__ = lambda self, *_: self.call() and None


def test_ctrl_c_ends_a_call():
    script = (
        "import os, signal, threading, numpy as np, spcomp\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from tests.test_signals import long_call, repeat\n"
        "kernel, args = long_call()\n"
        "threading.Timer(1, os.kill, (os.getpid(), signal.SIGINT)).start()\n"
        "try:\n    repeat(kernel, args)\nexcept KeyboardInterrupt:\n    print('ended')\n"
    )
    if os.name == "nt":
        pytest.skip("a loop of the pool is not divided there")
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert result.stdout == "ended\n"


@POSIX
def test_a_child_of_a_thread_is_interrupted_as_its_main_thread():
    children = []
    kernel, args = long_call()

    def work():
        with interruption(0.2), pytest.raises(Interruption):
            repeat(kernel, args)

    thread = threading.Thread(target=lambda: children.append(forked(work)))
    thread.start()
    thread.join()
    assert children == [True]


def test_no_code_of_python_runs_where_a_lock_dies():
    """An exception that a signal handler raises in such code would be lost."""
    made = [locks.Lock() for _ in range(3 * locks.ROOM)]
    called: list[str] = []
    sys.setprofile(lambda frame, event, _: called.append(frame.f_code.co_name + event))
    try:
        made.clear()
    finally:
        sys.setprofile(None)
    assert [name for name in called if name.endswith("call") and "c_call" not in name] == []


def test_references_to_dead_locks_are_dropped():
    kept = [locks.Lock() for _ in range(10)]
    for _ in range(20 * locks.ROOM):
        locks.Lock()
    assert len(locks._locks) < 4 * locks.ROOM + 2 * sum(ref() is not None for ref in locks._locks)
    assert {id(lock) for lock in kept} <= {id(ref()) for ref in locks._locks}
