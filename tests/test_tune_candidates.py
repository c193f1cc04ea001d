"""Features of a candidate: against counts by hand, by scipy, and by reason."""

from __future__ import annotations

import math
import time
from collections import OrderedDict

import numpy as np
import pytest
import scipy.sparse as sps

import spcomp
from spcomp import Schedule
from spcomp.errors import ArgumentError, LoweringError
from spcomp.ir.module import single
from spcomp.script.parse import parse_source
from spcomp.tune import machine as machines
from spcomp.tune.candidates import candidate_features
from spcomp.tune.machine import Machine, this_machine
from spcomp.tune.statistics import matrix_statistics
from tests.programs import BY_NAME, PROGRAMS

HERE = Machine(l1=32 << 10, l2=1 << 20, l3=8 << 20, threads=4, vector_bits=256)
FEAT = 64


def matrix(rows, columns, count, seed=0, *, offsets=None):
    rng = np.random.default_rng(seed)
    i = rng.integers(0, rows, count)
    j = rng.integers(0, columns, count)
    if offsets is not None:
        j = np.clip(i + rng.integers(-offsets, offsets + 1, count), 0, columns - 1)
    csr = sps.csr_array((np.ones(count, np.float32), (i, j)), shape=(rows, columns))
    csr.sum_duplicates()
    return csr


RANDOM = matrix(20000, 30000, 200_000)
STATISTICS = {"A": matrix_statistics(RANDOM)}
CSRMM = f"""
from spcomp import script as T

@T.prim_func
def csrmm(a: T.handle, b: T.handle, c: T.handle, indptr: T.handle, indices: T.handle,
          m: T.int32, n: T.int32, nnz: T.int32) -> None:
    I = T.dense_fixed(m)
    J = T.sparse_variable(I, (n, nnz), (indptr, indices), "int32")
    J_detach = T.dense_fixed(n)
    K = T.dense_fixed({FEAT})
    A = T.match_sparse_buffer(a, (I, J), "float32")
    B = T.match_sparse_buffer(b, (J_detach, K), "float32")
    C = T.match_sparse_buffer(c, (I, K), "float32")
    with T.sp_iter([I, J, K], "SRS", "csrmm") as [i, j, k]:
        with T.init():
            C[i, k] = 0.0
        C[i, k] = C[i, k] + A[i, j] * B[j, k]
"""
((FUNC),) = parse_source(CSRMM, "csrmm.py")
PLAIN = Schedule(FUNC).lower_sparse_iter()


def features(schedule, statistics=None, **options):
    return candidate_features(schedule, statistics or STATISTICS, machine=HERE, **options)


def default():
    kernel = spcomp.compile(FUNC, target="cpu:x86-64-v3")
    return Schedule(FUNC).replay(kernel.trace)


def test_counts_are_those_by_hand():
    f = features(PLAIN)
    m, nnz = RANDOM.shape[0], RANDOM.nnz
    assert (f.loops, f.varying) == (3, 1)
    assert f.trips == pytest.approx(nnz / m)
    assert f.operations == pytest.approx(2 * nnz * FEAT)
    assert (f.vectorized, f.lanes, f.prefetch_distance, f.prefetches) == (0, 1, 0, 0)
    # two pointers a row; its init; of each operation: C twice, A, B and a column
    assert f.requested == pytest.approx(4 * (2 * m + m * FEAT + 5 * nnz * FEAT))


def test_the_default_schedule_has_vectors_prefetches_and_chunks():
    f = features(default())
    assert f.operations == pytest.approx(2 * RANDOM.nnz * FEAT)
    assert (f.vectorized, f.lanes) == (1, 8)
    assert f.prefetch_distance == 16
    assert f.prefetches == pytest.approx(RANDOM.nnz * FEAT * 4 / 64)
    assert f.chunks == RANDOM.shape[0]
    assert f.balance == 1
    accesses = 2 * RANDOM.shape[0] * 3 + RANDOM.shape[0] * FEAT + 3 * RANDOM.nnz * FEAT
    assert f.requested == pytest.approx(4 * accesses, rel=0.01)  # the sums stay in registers


def test_lanes_count_the_vectors_that_are_not_full():
    schedule = PLAIN.reorder("k", "j").split("k", 12).reorder("k_o", "j", "k_i")
    assert features(schedule.vectorize("k_i")).lanes == pytest.approx(12 / 2)


def test_the_longest_row_limits_the_balance():
    rows = np.concatenate([np.zeros(5000), np.arange(5000)]).astype(int)
    hub = sps.csr_array((np.ones(10000, np.float32), (rows, np.arange(10000))), (5000, 10000))
    statistics = {"A": matrix_statistics(hub)}
    share = 5001 / 10000
    assert features(PLAIN.parallel("i"), statistics).balance == pytest.approx(1 / (4 * share))
    assert features(PLAIN.parallel("i")).balance == 1
    assert features(PLAIN).balance == 1 / 4
    few = {"A": matrix_statistics(matrix(6, 100, 300))}
    assert features(PLAIN.parallel("i"), few).balance <= 6 / 8  # four threads, two rows each


def test_chunks_of_equal_weight_are_counted():
    f = features(PLAIN.split_nnz("i", 1024).parallel("i_c"))
    weight = RANDOM.nnz + 2 * RANDOM.shape[0] + 1
    assert f.chunks == min(math.ceil(weight / 1024), 256)
    assert f.operations == pytest.approx(2 * RANDOM.nnz * FEAT, rel=0.01)


def test_small_operands_come_once():
    small = {"A": matrix_statistics(matrix(16, 16, 40))}
    f = features(PLAIN, small)
    assert f.working_set < HERE.l1
    assert f.from_l2 == f.from_l3 == f.from_memory
    assert f.from_l2 <= f.working_set
    assert f.over_l1 == pytest.approx(f.working_set / HERE.l1)


def test_bytes_fall_from_level_to_level():
    for schedule in (PLAIN, default(), PLAIN.parallel("i")):
        f = features(schedule)
        assert f.requested > f.from_l2 >= f.from_l3 >= f.from_memory > 0


def test_what_is_gathered_near_stays_in_cache():
    band = {"A": matrix_statistics(matrix(20000, 30000, 200_000, offsets=50))}
    f, other = features(default(), band), features(default())
    assert f.from_l3 < other.from_l3 / 3
    rows = 30000 * FEAT * 4
    assert other.from_l3 > 0.8 * RANDOM.nnz * FEAT * 4  # nearly each row is gathered from afar
    assert f.from_l3 < 2 * rows + 20000 * FEAT * 4 + RANDOM.nnz * 8 + 20001 * 4


def lines_missed(csr, cache):
    """Bytes that a cache of whole lines, the oldest leaving first, asks for: csrmm, simulated."""
    held, missed = OrderedDict(), 0

    def touch(buffer, offset):
        nonlocal missed
        line = (buffer, offset * 4 // 64)
        if line in held:
            held.move_to_end(line)
            return
        missed += 64
        held[line] = None
        if len(held) > cache // 64:
            held.popitem(last=False)

    for i in range(csr.shape[0]):
        touch("indptr", i)
        touch("indptr", i + 1)
        for p in range(csr.indptr[i], csr.indptr[i + 1]):
            for k in range(0, FEAT, 16):
                for buffer, offset in (("C", i * FEAT + k), ("A", p), ("J", p)):
                    touch(buffer, offset)
                touch("B", int(csr.indices[p]) * FEAT + k)
    return missed


@pytest.mark.parametrize("kind", ["random", "band", "few"])
def test_bytes_are_those_of_a_simulated_cache(kind):
    csr = {
        "random": matrix(1500, 1500, 15000),
        "band": matrix(1500, 1500, 15000, offsets=20),
        "few": matrix(1500, 90, 15000),
    }[kind]
    here = Machine(l1=8 << 10, l2=64 << 10, l3=1 << 20)
    f = candidate_features(PLAIN, {"A": matrix_statistics(csr)}, machine=here)
    for got, cache in zip((f.from_l2, f.from_l3, f.from_memory), here.caches, strict=True):
        assert got == pytest.approx(lines_missed(csr, cache), rel=0.25), cache


def test_merges_expect_what_independent_matrices_have_in_common():
    a, b = matrix(300, 500, 15000, 1), matrix(300, 500, 20000, 2)
    statistics = {"A": matrix_statistics(a), "B": matrix_statistics(b)}
    common = (a != 0).multiply(b != 0).nnz
    f = features(BY_NAME["row_dot"].build(), statistics)
    assert (f.merges, f.varying) == (1, 1)
    assert f.matches == pytest.approx(common, rel=0.05)
    assert f.merge_steps == pytest.approx(a.nnz + b.nnz - common, rel=0.02)
    assert f.operations == pytest.approx(2 * common, rel=0.05)


def test_one_candidate_takes_less_than_a_millisecond():
    schedule, times = default(), []
    for _ in range(50):
        start = time.perf_counter()
        features(schedule)
        times.append(time.perf_counter() - start)
    assert min(times) < 1e-3


@pytest.mark.filterwarnings("ignore:.*it is treated as a reduction")
def test_every_program_of_the_corpus_has_features():
    for program in PROGRAMS:
        module = spcomp.lower_sparse_iter(single(program.build()))
        for func in module.funcs:
            sizes = {param.name: 20 for param in func.params if param.dtype.kind != "handle"}
            f = candidate_features(func, {}, sizes, machine=HERE)
            assert all(math.isfinite(x) and x >= 0 for x in f.numbers.values()), program.name
            assert f.loops >= f.varying


def test_features_print():
    lines = str(features(PLAIN)).splitlines()
    assert lines[0] == "loops               3"
    assert len(lines) == len(features(PLAIN).numbers)


def test_wrong_arguments_are_refused():
    with pytest.raises(ArgumentError, match="'B' is no buffer along a sparse axis"):
        features(PLAIN, {"B": STATISTICS["A"]})
    with pytest.raises(ArgumentError, match="matrices"):
        features(PLAIN, {"A": RANDOM})
    with pytest.raises(ArgumentError, match="the size m is not known"):
        candidate_features(PLAIN, {})
    with pytest.raises(ArgumentError, match="no size 'feat'"):
        features(PLAIN, sizes={"feat": 3})
    with pytest.raises(ArgumentError, match="flat buffers"):
        features(PLAIN.lower_sparse_buffer())
    with pytest.raises(ArgumentError, match="program"):
        features("csrmm")
    with pytest.raises(LoweringError, match="phases"):
        features(next(p for p in PROGRAMS if p.assembles).build())


def test_the_caches_are_those_that_linux_lists(tmp_path):
    kinds = [("Data", 1, "48K"), ("Instruction", 1, "64K"), ("Unified", 2, "2M"), ("", 3, "x")]
    for at, (kind, level, size) in enumerate(kinds):
        (tmp_path / f"index{at}").mkdir()
        for name, value in (("type", kind), ("level", level), ("size", size)):
            (tmp_path / f"index{at}" / name).write_text(f"{value}\n")
    (tmp_path / "index4").mkdir()
    assert machines._cache_sizes(tmp_path) == {"l1": 48 << 10, "l2": 2 << 20}
    assert machines._cache_sizes(tmp_path / "nowhere") == {}
    with spcomp.num_threads(1):
        assert this_machine().threads == 1
    assert this_machine().vector_bits >= 128
