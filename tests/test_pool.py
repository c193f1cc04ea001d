"""The worker pool: same bits at any thread count, nesting, many callers, fork, failures, limits."""

import contextlib
import ctypes
import itertools
import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import spcomp
from spcomp import dtypes as dt
from spcomp.codegen import cpu
from spcomp.codegen.abi import PARALLEL_FOR, PAUSE
from spcomp.errors import ArgumentError
from spcomp.ir import expr as ex
from spcomp.ir import stmt as st
from spcomp.ir.expr import const
from spcomp.ir.module import Launch, Module
from spcomp.runtime import jit, pool
from spcomp.runtime.executable import Executable
from spcomp.runtime.native.pool_ir import pool_ir
from spcomp.target import target
from tests.test_codegen import buffer, build, function, load, loop, slots_of, store


@pytest.fixture(autouse=True)
def _restore_threads():
    with pool.num_threads(2):
        yield


def row_sums(**attrs):
    """out[i] = the sum of row i of x, which has a width that varies."""
    out, x, ends = buffer("out", dt.float32), buffer("x", dt.float32), buffer("ends", dt.int32)
    n, i, j = ex.Var("n", dt.int64), ex.Var("i", dt.int64), ex.Var("j", dt.int64)
    begin, end = (ex.Cast(load(ends, at), dt.int64) for at in (i, i + 1))
    add = store(out, i, load(out, i) + load(x, begin + j))
    body = st.seq(store(out, i, const(0.0, dt.float32)), loop(j, end - begin, add))
    return function(loop(i, n, body, "parallel", **attrs), out, x, ends, n)


def ragged(n, seed=0):
    rng = np.random.default_rng(seed)
    ends = np.concatenate([[0], np.cumsum(rng.integers(0, 9, n))]).astype(np.int32)
    return rng.normal(size=ends[-1]).astype(np.float32), ends


def answer(executable, x, ends):
    result = np.full(len(ends) - 1, np.nan, np.float32)
    assert executable.call("f", slots_of(executable, [result, x, ends, len(result)])) == 0
    return result


@pytest.mark.parametrize("grain", [0, 1, 100, 10**9])
@pytest.mark.parametrize("n", [0, 1, 2, 255, 257, 20000])
def test_any_number_of_threads_gives_the_same_bits(n, grain):
    executable = build(row_sums(grain=grain))
    x, ends = ragged(n)
    results = []
    for threads in (1, 2, 5, 2):
        pool.set_num_threads(threads)
        results += [answer(executable, x, ends).tobytes() for _ in range(3)]
    assert len(set(results)) == 1
    expected = [x[a:b].sum() for a, b in itertools.pairwise(ends)]
    np.testing.assert_allclose(
        np.frombuffer(results[0], np.float32), expected, rtol=1e-4, atol=1e-5
    )


def test_work_is_shared_by_the_threads():
    out, n, i, j = (
        buffer("out", dt.int64),
        ex.Var("n", dt.int64),
        *(ex.Var(v, dt.int64) for v in "ij"),
    )
    spin = loop(j, n, store(out, i, load(out, i) * 3 + j))
    executable = build(function(loop(i, 64, spin, "parallel", grain=1), out, n))
    result = np.zeros(64, np.int64)
    slots = slots_of(executable, [result, 3_000_000])
    executable.call("f", slots_of(executable, [result, 10]))
    others = []
    for _ in range(10):
        before = time.process_time() - time.thread_time()
        executable.call("f", slots)
        others.append(time.process_time() - time.thread_time() - before)
    assert max(others) > 0.01  # seconds that threads other than this one worked


def test_loops_at_the_same_place_of_their_pages_are_each_known_to_be_long():
    out, n, i, j = (
        buffer("out", dt.int64),
        ex.Var("n", dt.int64),
        *(ex.Var(v, dt.int64) for v in "ij"),
    )
    result, others = np.zeros(2, np.int64), {factor: [0.0] for factor in (3, 5, 7, 9, 11)}
    executables = {}
    for factor in others:
        spin = loop(j, n, store(out, i, load(out, i) * factor + j))
        executables[factor] = build(function(loop(i, 2, spin, "parallel", grain=1), out, n))
    for factor, executable in 6 * tuple(executables.items()):
        slots, before = slots_of(executable, [result, 20_000_000]), time.process_time()
        own = time.thread_time()
        executable.call("f", slots)
        others[factor].append(time.process_time() - before - (time.thread_time() - own))
    shared = [max(times) > 0.005 for times in others.values()]
    assert sum(shared) >= 3  # from the first iteration; two of five may have one place by chance


def test_a_parallel_loop_in_a_parallel_loop_covers_everything():
    out, i, j = buffer("out", dt.int64), ex.Var("i", dt.int64), ex.Var("j", dt.int64)
    inner = loop(j, 50, store(out, i * 50 + j, i * 50 + j), "parallel")
    executable = build(function(loop(i, 40, inner, "parallel"), out))
    result = np.zeros(2000, np.int64)
    assert executable.call("f", slots_of(executable, [result])) == 0
    assert np.array_equal(result, np.arange(2000))


def test_two_loops_of_one_function_run_one_after_the_other():
    a, b, i = buffer("a", dt.int64), buffer("b", dt.int64), ex.Var("i", dt.int64)
    k = ex.Var("k", dt.int64)
    body = st.seq(
        loop(i, 3000, store(a, i, i), "parallel", begin=1000),
        st.Let(
            k, load(a, 2999), loop(i, 3000, store(b, i, load(a, const(2999) - i) + k), "parallel")
        ),
    )
    executable = build(function(body, a, b))
    first, second = np.zeros(3000, np.int64), np.zeros(3000, np.int64)
    assert executable.call("f", slots_of(executable, [first, second])) == 0
    assert np.array_equal(second, first[::-1] + 2999)
    assert not first[:1000].any()
    assert np.array_equal(first[1000:], np.arange(1000, 3000))


def test_a_local_buffer_of_a_parallel_loop_is_private():
    out, i, j = buffer("out", dt.int64), ex.Var("i", dt.int64), ex.Var("j", dt.int64)
    from spcomp.ir.axis import Buffer

    for size in (const(8), const(100_000)):
        local = Buffer("t", None, (size,), dt.int64, "local")
        fill = loop(j, 8, store(local, j, i + j))
        body = st.Alloc(local, st.seq(fill, loop(j, 8, store(out, i * 8 + j, load(local, j)))))
        executable = build(function(loop(i, 500, body, "parallel", grain=1), out))
        result = np.zeros(4000, np.int64)
        assert executable.call("f", slots_of(executable, [result])) == 0
        assert np.array_equal(result.reshape(500, 8), np.add.outer(np.arange(500), np.arange(8)))


def test_values_of_every_kind_reach_the_chunks():
    out, x = buffer("out", dt.float32), buffer("x", dt.float16)
    flag, half, n = ex.Var("flag", dt.bool_), ex.Var("half", dt.bfloat16), ex.Var("n", dt.uint8)
    i = ex.Var("i", dt.int64)
    value = ex.Cast(load(x, i), dt.float32) * ex.Cast(half, dt.float32) + ex.Cast(n, dt.float32)
    picked = ex.Select(flag, value, const(0.0, dt.float32))
    executable = build(
        function(loop(i, 999, store(out, i, picked), "parallel"), out, x, flag, half, n)
    )
    a, result = np.arange(999).astype(np.float16), np.zeros(999, np.float32)
    assert executable.call("f", slots_of(executable, [result, a, True, 0.5, 200])) == 0
    assert np.array_equal(result, a.astype(np.float32) * 0.5 + 200)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_a_failure_in_a_parallel_loop_is_the_smallest_message_and_stops_nothing(threads):
    out, i, n = buffer("out", dt.int64), ex.Var("i", dt.int64), ex.Var("n", dt.int64)
    body = st.seq(
        st.If(ex.BinOp("==", i, n), st.Fail("first")),
        st.If(ex.BinOp("==", i, const(10)), st.Fail("second")),
        store(out, i, const(100) // (i - n)),
    )
    executable = build(function(loop(i, 4000, body, "parallel", grain=3), out, n))
    pool.set_num_threads(threads)
    messages = []
    for n_value in (3999, 5000):
        result = np.full(4000, 77)
        status = executable.call("f", slots_of(executable, [result, n_value]))
        messages.append(executable.emitted["f"].message(status))
        assert not (result == 77).any()
    assert messages == ["first", "second"]


def test_division_by_zero_in_a_parallel_loop_is_reported():
    out, i, n = buffer("out", dt.int64), ex.Var("i", dt.int64), ex.Var("n", dt.int64)
    executable = build(function(loop(i, 1000, store(out, i, n % (i - n)), "parallel"), out, n))
    result = np.zeros(1000, np.int64)
    status = executable.call("f", slots_of(executable, [result, 500]))
    assert executable.emitted["f"].message(status) == "integer division by zero"
    assert executable.call("f", slots_of(executable, [result, 1000])) == 0


def test_many_callers_at_once_all_get_their_answer():
    executable = build(row_sums())
    inputs = [ragged(3000 + k, k) for k in range(6)]
    expected = [answer(executable, *pair) for pair in inputs]
    wrong = []

    def work(number):
        answers = (answer(executable, *inputs[number]) for _ in range(200))
        wrong.extend(number for got in answers if not np.array_equal(got, expected[number]))

    threads = [threading.Thread(target=work, args=(k,)) for k in range(6)]
    for thread in threads:
        thread.start()
    for count in (5, 1, 3, 2):
        pool.set_num_threads(count)
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_child_has_a_pool_of_its_own():
    executable = build(row_sums())
    x, ends = ragged(20000)
    expected = answer(executable, x, ends)
    for _ in range(3):
        child = os.fork()
        if child == 0:
            same = all(np.array_equal(answer(executable, x, ends), expected) for _ in range(20))
            os._exit(0 if same else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert np.array_equal(answer(executable, x, ends), expected)


def test_workers_wake_after_a_pause():
    executable = build(row_sums(grain=10))
    x, ends = ragged(5000)
    expected = answer(executable, x, ends)
    for _ in range(20):
        time.sleep(0.004)
        assert np.array_equal(answer(executable, x, ends), expected)


def test_a_module_of_several_functions_shares_one_object():
    funcs = []
    for name, factor in (("double", 2), ("triple", 3)):
        out, i = buffer("out", dt.int64), ex.Var("i", dt.int64)
        funcs.append(function(loop(i, 100, store(out, i, i * factor), "parallel"), out, name=name))
    module = Module(funcs[0], tuple(funcs), tuple(Launch(f.name) for f in funcs))
    executable = Executable(cpu.emit(module, target("cpu")), target("cpu"))
    for name, factor in (("double", 2), ("triple", 3)):
        result = np.zeros(100, np.int64)
        assert executable.call(name, slots_of(executable, [result], name)) == 0
        assert np.array_equal(result, np.arange(100) * factor)


@pytest.mark.parametrize("bad", [0, -1, 1.5, "two", True, None, 10**6])
def test_a_number_of_threads_must_be_a_positive_integer(bad):
    with pytest.raises(ArgumentError, match="number of threads"):
        pool.set_num_threads(bad)


def test_the_context_manager_restores_the_number():
    with contextlib.suppress(KeyError), pool.num_threads(5):
        assert pool.get_num_threads() == 5
        raise KeyError
    assert pool.get_num_threads() == 2
    pool.set_num_threads(np.int32(3))
    assert pool.get_num_threads() == 3


def test_the_environment_and_the_machine_limit_the_default(monkeypatch):
    cpus = pool._affinity()
    monkeypatch.delenv("SPCOMP_NUM_THREADS", raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "1,4")
    assert pool.default_num_threads() == 1
    monkeypatch.setenv("SPCOMP_NUM_THREADS", "900")
    assert pool.default_num_threads() <= cpus
    for bad in ("0", "-3", "many", "1.5"):
        monkeypatch.setenv("SPCOMP_NUM_THREADS", bad)
        with pytest.raises(ArgumentError, match="SPCOMP_NUM_THREADS"):
            pool.default_num_threads()


def test_the_cpus_that_the_process_may_use_limit_the_default(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3}, raising=False)
    monkeypatch.setenv("SPCOMP_NUM_THREADS", "8")
    assert pool.default_num_threads() == 1


def test_cgroup_quotas_of_both_versions_are_read(tmp_path):
    def write(path, text):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)

    assert pool.cgroup_quota(tmp_path) is None
    write("proc/self/cgroup", "0::/a/b\n")
    write("sys/fs/cgroup/a/cpu.max", "150000 100000\n")
    write("sys/fs/cgroup/a/b/cpu.max", "max 100000\n")
    assert pool.cgroup_quota(tmp_path) == 1.5
    write("proc/self/cgroup", "4:cpu,cpuacct:/a\n1:memory:/\n")
    write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n")
    write("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n")
    assert pool.cgroup_quota(tmp_path) is None
    write("sys/fs/cgroup/cpu/a/cpu.cfs_quota_us", "400000\n")
    write("sys/fs/cgroup/cpu/a/cpu.cfs_period_us", "100000\n")
    assert pool.cgroup_quota(tmp_path) == 4


def test_the_process_ends_while_workers_sleep_or_spin():
    script = (
        "import numpy as np, sys; sys.path.insert(0, '.')\n"
        "from tests.test_pool import *\n"
        "pool.set_num_threads(4)\n"
        "e = build(row_sums()); x, ends = ragged(5000); answer(e, x, ends)\n"
    )
    for _ in range(3):
        subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


ON_WORKERS = """
import os, sys, time
import numpy as np
sys.path.insert(0, ".")
from tests.test_pool import *

def switches():
    counts = []
    for task in set(os.listdir("/proc/self/task")) - {str(os.getpid())}:
        lines = open(f"/proc/self/task/{task}/status").read().splitlines()
        counts += [int(line.split()[1]) for line in lines if line.startswith("voluntary")]
    return sum(counts)

pool.set_num_threads(2)
e = build(row_sums(grain=100))
big, small = ragged(300_000), ragged(400)
answer(e, *big)  # starts the worker
for pause in (0.001, 0.03):
    time.sleep(0.1)  # it falls asleep
    before = switches()
    for _ in range(30):
        answer(e, *small)
        time.sleep(pause)
    woken = switches() - before
    assert woken < 8, f"{woken} of 30 short loops woke a worker"
    for _ in range(30):
        answer(e, *big)
        time.sleep(0.005)
    assert switches() - before - woken >= 20, "a long loop woke nobody"
tasks = [int(t) for t in os.listdir("/proc/self/task")]
every = os.sched_getaffinity(0)
assert all(os.sched_getaffinity(t) == every for t in tasks)
os.sched_setaffinity(0, {min(every)})  # of the caller alone
for _ in range(5):
    time.sleep(0.01)
    answer(e, *big)
tasks.remove(os.getpid())
assert all(os.sched_getaffinity(t) == every for t in tasks)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="counts context switches as Linux does")
@pytest.mark.skipif(pool._affinity() < 2, reason="a second thread needs a second CPU")
def test_workers_are_woken_for_long_loops_only_and_stay_free_to_move():
    subprocess.run([sys.executable, "-c", ON_WORKERS], check=True, timeout=60)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_a_loop_that_grows_longer_than_it_began_is_shared_and_complete(threads):
    out, n, i, j = (buffer("out", dt.int64), *(ex.Var(v, dt.int64) for v in "nij"))
    body = loop(j, i * i, store(out, i, load(out, i) + 1))
    executable = build(function(loop(i, n, body, "parallel", grain=3), out, n))
    pool.set_num_threads(threads)
    for count in (10, 300, 20, 300):  # what was learnt of one call is wrong for the next
        result = np.zeros(count, np.int64)
        assert executable.call("f", slots_of(executable, [result, count])) == 0
        assert np.array_equal(result, np.arange(count) ** 2)


@pytest.mark.parametrize("platform", ["linux", "darwin", "win32"])
@pytest.mark.parametrize("family", ["x86_64", "aarch64", "riscv64"])
def test_the_pool_exists_for_every_platform(family, platform):
    where = target("cpu:aarch64" if family == "aarch64" else "cpu:x86-64")
    text = cpu.assembly(pool_ir(family, platform), where)
    assert "spcomp_parallel_for" in text
    assert ("pthread_create" in text) == (platform != "win32")


def test_without_threads_the_caller_runs_the_loop():
    executable = build(row_sums())
    serial = jit.load(
        cpu.object_code(pool_ir("x86_64", "win32"), executable.target),
        [PARALLEL_FOR, PAUSE],
        forever=True,
    )
    imports = {name: serial.addresses[name] for name in (PARALLEL_FOR, PAUSE)}
    entry = jit.load(executable.object_bytes, ["f__packed"], imports).function("f__packed")
    x, ends = ragged(500)
    result = np.zeros(500, np.float32)
    assert entry(slots_of(executable, [result, x, ends, 500]).ctypes.data) == 0
    assert np.array_equal(result, answer(executable, x, ends))


def test_job_numbers_start_again_after_four_billion_loops():
    text = pool_ir("x86_64", sys.platform).replace("  i64 4294967295, [", "  i64 -1, [")
    assert "  i64 -1, [" in text
    executable = build(row_sums(grain=1))
    output = jit.load(
        cpu.object_code(text, executable.target),
        [PARALLEL_FOR, PAUSE, "spcomp_set_threads"],
        forever=True,
    )
    ctypes.CFUNCTYPE(None, ctypes.c_int64)(output.addresses["spcomp_set_threads"])(2)
    imports = {name: output.addresses[name] for name in (PARALLEL_FOR, PAUSE)}
    entry = jit.load(executable.object_bytes, ["f__packed"], imports).function("f__packed")
    x, ends = ragged(20_000)
    expected, process = answer(executable, x, ends), []

    def work():
        for _ in range(3):
            result = np.zeros(len(ends) - 1, np.float32)
            entry(slots_of(executable, [result, x, ends, len(result)]).ctypes.data)
            process.append(np.array_equal(result, expected))

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(10)
    assert process == [True] * 3


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_child_forked_while_another_thread_asks_for_threads_can_ask_too():
    held, over = threading.Event(), threading.Event()

    def hold():
        with pool._lock:
            held.set()
            over.wait(10)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(10)
    child = os.fork()
    if child == 0:
        signal.alarm(5)
        pool.set_num_threads(2)
        os._exit(0)
    over.set()
    thread.join()
    assert os.waitpid(child, 0)[1] == 0


def test_limits_that_end_in_another_order_leave_nothing_behind():
    before = spcomp.get_num_threads()
    first, second = spcomp.num_threads(1), spcomp.num_threads(3)
    first.__enter__()
    second.__enter__()
    assert spcomp.get_num_threads() == 3
    first.__exit__(None, None, None)
    assert spcomp.get_num_threads() == 3
    spcomp.set_num_threads(2)
    assert spcomp.get_num_threads() == 2
    second.__exit__(None, None, None)
    assert spcomp.get_num_threads() == before
