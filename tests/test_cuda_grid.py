"""The passes that make grids: what they make of small programs, and refuse; planted faults."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import spcomp
from spcomp.compiler.pipeline import lower
from spcomp.errors import EmulationError, LoweringError
from spcomp.ir.module import single
from spcomp.ir.printer.program import print_program
from spcomp.knobs import CUDA_GRID
from spcomp.passes.grid import exact_trips, independent_blocks, synchronize
from spcomp.passes.grid.bind_parallel import BindParallel
from spcomp.passes.grid.exact_trips import ExactTrips
from spcomp.passes.grid.independent_blocks import IndependentBlocks
from spcomp.passes.grid.reduce_threads import ReduceThreads
from spcomp.passes.grid.split_kernels import SplitKernels
from spcomp.passes.grid.synchronize import Synchronize
from spcomp.script.parse import parse_source
from tests.emulated import ORDERS, TARGET, Kernels, order
from tests.layers import source
from tests.programs import BY_NAME, fresh

HEAD = """from spcomp import script as T


@T.prim_func
def loops(a: T.handle, c: T.handle, m: T.int64, n: T.int64) -> None:
    T.func_attr({{"sparse_tir_level": {level}}})
    A = T.match_buffer(a, ({size},), "float32")
    C = T.match_buffer(c, (m,), "float32")
"""
DOCUMENT = Path(__file__).resolve().parent.parent / "docs" / "gpu.md"
SIZES = {"m": 7, "n": 5}


def program(body, level=1):
    """A program with A of m * n numbers and C of m; above level 0, A is a matrix."""
    text = HEAD.format(level=level, size="m, n" if level else "m * n")
    if level:
        body = re.sub(r"A\[(\w+) \* n \+ ", r"A[\1, ", body)
        body = re.sub(r"A\[(\w+)\]", r"A[0, \1]", body)
    lines = "\n".join(f"    {line}" for line in body.strip("\n").splitlines())
    return parse_source(text + lines + "\n", "loops.py")[0]


def after(passes, body):
    """The body of the program after *passes*."""
    module = single(program(body, 0))
    for step in passes:
        module = step.run(module)
    text = print_program(module.funcs[0] if module.is_single else module)
    return "\n".join(line for line in text.splitlines() if "T.match_buffer" not in line) + "\n"


def values(seed=0, **sizes):
    rng, sizes = np.random.default_rng(seed), {**SIZES, **sizes}
    a = rng.integers(-4, 5, sizes["m"] * sizes["n"]).astype(np.float32)
    return {"a": a, "c": np.arange(sizes["m"], dtype=np.float32), **sizes}


def same(body, **sizes):
    """The kernels of the program compute in any order what the CPU computes."""
    func = program(body)
    kernels, cpu = Kernels(func), spcomp.compile(func)
    for number, seed in enumerate(ORDERS):
        arrays = values(number, **sizes)
        want = {name: np.copy(array) for name, array in arrays.items()}
        cpu(want["a"], want["c"], int(want["m"]), int(want["n"]))
        with order(seed):
            got = kernels(arrays)
        for name in "ac":
            np.testing.assert_array_equal(got[name], want[name], f"{name}, order {seed}")


ALIKE = (
    "threads that share memory run loops and conditions alike; 2, 4, 8, 16 or 32 neighbours along"
    " threadIdx.x may do so by themselves"
)
SUM = """
for i in T.thread_binding(m, thread="blockIdx.x"):
    C[i] = 0.0
    for j in T.thread_binding({size}, thread="threadIdx.x"):
        C[i] = C[i] + A[i * n + j]
"""
SOME = """
for i in T.thread_binding((n + 31) // 32, thread="blockIdx.x"):
    for t in T.thread_binding(32, thread="threadIdx.x"):
        if i * 32 + t < n:
            C[i] = C[i] + A[i * 32 + t]
"""
REVERSED = """
for i in T.thread_binding(m, thread="blockIdx.x"):
    S = T.alloc_buffer((64,), "float32", scope="shared")
    for t in T.thread_binding(64, thread="threadIdx.x"):
        S[t] = A[i * n + t]
    for u in T.thread_binding(64, thread="threadIdx.x"):
        A[i * n + u] = S[{there}]
"""
TWO_NESTS = """
W = T.alloc_buffer((m,), "float32")
for i in T.parallel(m):
    W[i] = C[i] * 2.0
C[0] = 1.0
for j in T.parallel(m):
    C[j] = C[j] + W[j]
"""
WORKSPACE = """
for i in T.parallel(m):
    W = T.alloc_buffer((n,), "float32", scope="workspace")
    for j in T.serial(n):
        W[j] = W[j] + A[i * n + j]
    for k in T.serial(n):
        A[i * n + k] = W[n - 1 - k]
        W[n - 1 - k] = 0.0
"""
TAIL = """
for t in T.thread_binding(8, thread="threadIdx.x"):
    for o in T.serial((n + 7) // 8):
        if o * 8 + t < n:
            A[o * 8 + t] = 1.0
"""
JOINT = """
for i in T.thread_binding((m + 1) // 2, thread="blockIdx.x"):
    for j in T.unroll(2):
        if i * 2 + j < m:
            C[i * 2 + j] = 0.0
            for k in T.thread_binding(4, thread="threadIdx.x"):
                C[i * 2 + j] = C[i * 2 + j] + A[(i * 2 + j) * n + k]
"""
OPEN = """
for i in T.thread_binding(m, thread="blockIdx.x"):
    for j in T.unroll(T.cast(A[i], "int64")):
        C[i + j] = 0.0
        for k in T.thread_binding(4, thread="threadIdx.x"):
            C[i + j] = C[i + j] + A[j * n + k]
"""
TRIPS = """
for i in T.thread_binding(m, thread="blockIdx.x"):
    C[i] = 0.0
    for o in T.serial(n):
        for t in T.thread_binding(4, thread="threadIdx.x"):
            C[i] = C[i] + A[(i * n + o) * 4 + t]
"""
TEXTS = {
    **{f"sum of {n}": ([ReduceThreads(CUDA_GRID)], SUM.format(size=n)) for n in (2, 5, 32, 64)},
    "sum of some": ([ReduceThreads(CUDA_GRID)], SOME),
    "sums of several trips": ([ReduceThreads(CUDA_GRID)], TRIPS),
    "joint sums": ([ReduceThreads(CUDA_GRID)], JOINT),
    "joint sums of any number": ([ReduceThreads(CUDA_GRID)], OPEN),
    "barrier": ([Synchronize()], REVERSED.format(there="63 - u")),
    "no barrier": ([Synchronize()], REVERSED.format(there="u")),
    "two nests": ([SplitKernels()], TWO_NESTS),
    "parallel": ([SplitKernels(), BindParallel(CUDA_GRID)], TWO_NESTS),
    "workspace": ([BindParallel(CUDA_GRID)], WORKSPACE),
    "tail": ([ExactTrips()], TAIL),
}


@pytest.mark.parametrize("name", TEXTS)
def test_what_a_pass_makes_of_a_small_program(name, golden):
    golden(f"grid.{name.replace(' ', '_')}.txt", after(*TEXTS[name]))


# -- programs that were wrong once ---------------------------------------------------------------

RIGHT = {
    "a store outside a loop over blocks happens once": """
for i in T.thread_binding(m, thread="blockIdx.x"):
    C[i] = C[i] + 1.0
    for j in T.thread_binding(n, thread="blockIdx.y"):
        A[i * n + j] = 2.0""",
    "iterations that meet in other threads wait for each other": """
for i in T.serial(2):
    for j in T.thread_binding(4, thread="threadIdx.x"):
        C[i + j] = C[i + j] * 2.0 + T.cast(j, "float32")""",
    "loops over threads begin anywhere": """
for j in T.thread_binding(n - 4, n, thread="threadIdx.x"):
    C[0] = C[0] + A[j]""",
    "sums are over neighbours in a warp only": """
for i in T.thread_binding(7, thread="threadIdx.x"):
    for j in T.thread_binding(4, thread="threadIdx.y"):
        C[i] = C[i] + A[i * n + j]""",
    "memory of the block that parts of a loop share in turns": """
for i in T.serial(m):
    with T.alloc_buffer((4,), "float32", scope="shared") as S:
        for t in T.thread_binding(4, thread="threadIdx.x"):
            S[t] = A[i * n + t]
        for u in T.thread_binding(4, thread="threadIdx.x"):
            C[i] = C[i] + S[u]
    with T.alloc_buffer((4,), "float32", scope="shared") as R:
        for k in T.serial(4):
            R[k] = C[i] + T.cast(k, "float32")
        C[i] = R[0] + R[3]""",
    "sums of several trips, some of which do not take place": """
for i in T.thread_binding(m, thread="blockIdx.x"):
    C[i] = 0.0
    for o in T.serial(3):
        if o + i < n:
            for t in T.thread_binding(4, thread="threadIdx.x"):
                C[i] = C[i] + A[i * n + t]""",
    "parallel loops around loops over threads": """
for i in T.parallel(m):
    for j in T.thread_binding(8, thread="threadIdx.x"):
        if j < n:
            A[i * n + j] = A[i * n + j] * 2.0""",
    "all threads read a condition before one changes it": """
for i in T.thread_binding(m, thread="blockIdx.x"):
    for j in T.thread_binding(64, thread="threadIdx.x"):
        if j < n:
            A[i * n + j] = A[i * n + j] * 2.0
    if C[i] > 2.0:
        C[i] = 1.0
    if C[i] > 0.5:
        C[i] = C[i] + 1.0""",
    "what a condition reads is not read where another excludes it": """
for i in T.serial(m + 3):
    for k in T.serial(2):
        if i < m and k < 1:
            if C[i] > 1.0:
                C[i] = C[i] * 2.0""",
    "threads of a parallel loop have shared memory of their own": """
for i in T.parallel(m):
    S = T.alloc_buffer((1,), "float32", scope="shared")
    S[0] = C[i] * 2.0
    C[i] = S[0] + 1.0""",
}


@pytest.mark.filterwarnings("ignore::spcomp.errors.SpcompWarning")
@pytest.mark.parametrize("name", RIGHT)
def test_kernels_compute_what_the_cpu_computes(name):
    same(RIGHT[name])


# -- what is refused -----------------------------------------------------------------------------

REFUSED = {
    "a block needs what another one writes": (
        """
for i in T.thread_binding(m, thread="blockIdx.x"):
    C[i] = C[i] + 1.0
    for j in T.thread_binding(n, thread="blockIdx.y"):
        A[i * n + j] = C[i]""",
        (12, 22),
        "one block of blockIdx.y may touch what another one writes to C",
        "blocks do not wait for each other",
    ),
    "an iteration needs what earlier ones add up": (
        """
for i in T.parallel(m):
    with T.prefix(i) as base:
        A[i] = C[base]""",
        (10, 8),
        "base sums up earlier iterations, which other threads run",
        "in a serial loop, in a nest of its own",
    ),
    "threads would wait for others that never come": (
        """
for i in T.thread_binding(m, thread="blockIdx.x"):
    S = T.alloc_buffer((2, 64), "float32", scope="shared")
    for y in T.thread_binding(2, thread="threadIdx.y"):
        for k in T.serial(y + 1):
            for t in T.thread_binding(64, thread="threadIdx.x"):
                S[y, t] = 1.0
            for u in T.thread_binding(64, thread="threadIdx.x"):
                A[i * n + y * 64 + u] = S[y, 63 - u]""",
        (12, 12),
        "some threads would wait for others that never come: loop k depends on the thread",
        ALIKE,
    ),
    "how many threads there are is not known": (
        """
for j in T.thread_binding(n, thread="threadIdx.x"):
    A[j] = 1.0""",
        (9, 4),
        "loop j over threadIdx.x has no constant extent",
        "split it by a constant",
    ),
    "too many threads": (
        """
for i in T.thread_binding(64, thread="threadIdx.y"):
    for j in T.thread_binding(32, thread="threadIdx.x"):
        A[i, j] = 1.0""",
        None,
        "loops has blocks of 32 x 64 x 1 threads",
        "a block has at most 1024",
    ),
    "how much memory threads share is not known": (
        """
for i in T.thread_binding(m, thread="blockIdx.x"):
    S = T.alloc_buffer((n,), "float32", scope="shared")
    for j in T.serial(n):
        S[n - 1 - j] = A[i * n + j]
    for k in T.serial(n):
        A[i * n + k] = S[k]""",
        None,
        "S, which threads share, has no constant size",
        "set_scope to global",
    ),
}


def test_refusals_follow_at_most_five_documented_rules():
    text = DOCUMENT.read_text("utf-8").split("## What is refused")[1].split("\n## ")[0]
    assert re.findall(r"^(\d)\. ", text, re.MULTILINE) == list("12345")
    shown = " ".join(text.split())
    for _, _, message, _ in REFUSED.values():
        assert message.replace("loops has", "f has") in shown


@pytest.mark.filterwarnings("ignore::spcomp.errors.SpcompWarning")
@pytest.mark.parametrize("name", REFUSED)
def test_what_no_grid_can_do_is_refused_where_it_stands(name):
    body, where, message, hint = REFUSED[name]
    with pytest.raises(LoweringError) as caught:
        Kernels(program(body))
    assert message in caught.value.message
    assert hint in (caught.value.hint or "")
    if where is not None:
        span = caught.value.span
        assert span is not None
        assert (span.line, span.col) == where


UNPROVED = {
    "only the block that writes keeps to its part": """
for s in T.serial(2):
    for b in T.thread_binding(m, thread="blockIdx.x"):
        for k in T.serial(n):
            if k < 4:
                A[b * 4 + k] = T.cast(s, "float32")
    for d in T.thread_binding(m, thread="blockIdx.x"):
        for k in T.serial(n):
            C[d] = C[d] + A[d * 4 + k]""",
    "what says where a block reads has changed": """
P = T.alloc_buffer((m,), "int64")
for s in T.serial(2):
    for b in T.thread_binding(m, thread="blockIdx.x"):
        P[b] = b
        A[P[b]] = T.cast(s, "float32")
    for d in T.thread_binding(m, thread="blockIdx.x"):
        P[d] = m - 1 - d
    for e in T.thread_binding(m, thread="blockIdx.x"):
        C[e] = A[P[e]]""",
}
PROVED = {  # in a loop of s
    "loops of other names": """
    for b in T.thread_binding(m, thread="blockIdx.x"):
        for k in T.serial(n):
            A[b * n + k] = A[b * n + k] + 1.0
    for d in T.thread_binding(m, thread="blockIdx.x"):
        for u in T.serial(1):
            for l in T.serial(n):
                A[d * n + l] = A[d * n + l] * 2.0""",
    "bounds inside bounds": """
    for b in T.thread_binding((n + 1) // 2, thread="blockIdx.x"):
        for t in T.thread_binding(4, thread="threadIdx.x"):
            if t < 2:
                if b * 2 + t < n:
                    A[s * n + (b * 2 + t)] = 1.0
    for d in T.thread_binding((n + 1) // 2, thread="blockIdx.x"):
        for t in T.thread_binding(4, thread="threadIdx.x"):
            if t < 2 and s < 2 and d * 2 + t < n:
                A[s * n + (d * 2 + t)] = A[s * n + (d * 2 + t)] + 3.0""",
    "a loop without iterations": """
    for k in T.serial(0):
        C[k] = 1.0
    for b in T.thread_binding(m, thread="blockIdx.x"):
        C[b] = C[b] * 2.0""",
    "a bound that is at least 0": """
    for b in T.thread_binding((T.max(n, 0) + 3) // 4, thread="blockIdx.x"):
        for t in T.thread_binding(4, thread="threadIdx.x"):
            if b * 4 + t < T.max(n, 0):
                A[s * n + (b * 4 + t)] = 1.0
                for r in T.serial(3):
                    A[s * n + (b * 4 + t)] = A[s * n + (b * 4 + t)] * 3.0""",
}


@pytest.mark.parametrize("name", UNPROVED)
def test_blocks_that_meet_are_refused(name):
    touched = "one block of blockIdx.x may touch what another one writes to A"
    with pytest.raises(LoweringError, match=touched):
        after([IndependentBlocks()], UNPROVED[name])


@pytest.mark.filterwarnings("ignore::spcomp.errors.SpcompWarning")
@pytest.mark.parametrize("name", PROVED)
def test_blocks_that_keep_to_their_places_are_not(name):
    same("\nfor s in T.serial(2):" + PROVED[name])


def test_a_bound_of_what_is_written_is_none_of_what_is_read():
    body = """
S = T.alloc_buffer((80,), "float32", scope="shared")
for r in T.serial(2):
    for t in T.thread_binding(4, thread="threadIdx.x"):
        for k in T.serial(20):
            if r < 1 and k < 16:
                S[t * 16 + k] = 1.0
            {read}
                C[t] = C[t] + S[t * 16 + k]"""
    assert "sync" not in after([Synchronize()], body.format(read="if r > 0 and k < 16:"))
    assert "sync" in after([Synchronize()], body.format(read="if r > 0:"))


# -- planted faults ------------------------------------------------------------------------------


class AsItIs:
    """A rewriter that changes nothing."""

    def __init__(self, *_):
        pass

    def rewrite(self, body):
        return body


def finds(body, kind):
    """The emulator finds a fault of *kind* in the kernels, in every order."""
    kernels = Kernels(program(body))
    for seed in ORDERS:
        with pytest.raises(EmulationError) as caught, order(seed):
            kernels(values(n=64))
        assert caught.value.kind == kind, caught.value


def test_a_missing_barrier_is_found(monkeypatch):
    body = REVERSED.format(there="63 - u")
    same(body, n=64)
    monkeypatch.setattr(synchronize, "Barrier", lambda *_, **__: synchronize.seq())
    finds(body, "race")


def test_a_store_by_all_threads_is_found(monkeypatch):
    body = 'for i in T.thread_binding(m, thread="blockIdx.x"):\n    C[i] = C[i] + 1.0\n'
    body += '    for t in T.thread_binding(64, thread="threadIdx.x"):\n        A[i * n + t] = 1.0\n'
    same(body, n=64)
    monkeypatch.setattr(synchronize, "_Once", AsItIs)
    finds(body, "race")


def test_a_store_by_all_blocks_is_found(monkeypatch):
    body = RIGHT["a store outside a loop over blocks happens once"]
    monkeypatch.setattr(independent_blocks, "_OneBlock", AsItIs)
    monkeypatch.setattr(independent_blocks, "_check", lambda *_: None)
    finds(body, "race")


def test_an_index_one_too_far_is_found(monkeypatch):
    exact = exact_trips._Exact._end

    def one_more(pass_, loop):
        end = exact(pass_, loop)
        return None if end is None else end + 1

    monkeypatch.setattr(exact_trips._Exact, "_end", one_more)
    kernels = Kernels(source("spmv"))
    for seed in ORDERS:
        with pytest.raises(EmulationError) as caught, order(seed):
            kernels(fresh(BY_NAME["spmv"].inputs("one")))
        assert caught.value.kind == "bounds"


def test_threads_that_are_no_group_of_a_warp_add_up_in_shared_memory():
    body = SUM.format(size=8).replace("C[i] = 0.0", "C[i] = 1.0")
    same(body, n=8)
    module = lower(program(body), TARGET).flat
    assert 'scope="warp"' in print_program(module.funcs[0])
    short = body.replace("T.thread_binding(8", "T.thread_binding(5")
    assert 'scope="warp"' not in print_program(lower(program(short), TARGET).flat.funcs[0])
    same(short, n=8)
