"""Versions with extents compiled in, and compiled programs that a later process finds."""

from __future__ import annotations

import os
import signal
import threading
import warnings
from functools import partial

import numpy as np
import pytest
import scipy.sparse as sps

import spcomp
from spcomp.compiler import compiled, plain, saved
from spcomp.compiler.compiled import Compiled
from spcomp.compiler.options import Options
from spcomp.compiler.variants import (
    MAX_KEPT,
    Variants,
    Version,
    facts,
    follows_one_matrix,
    has_long_run,
    inner_extents,
    is_narrow,
    is_worth,
    repeatable_keys,
    row_pointers,
)
from spcomp.errors import SpcompWarning
from spcomp.ir.program import CoordFunc
from spcomp.knobs import CPU_KNOBS
from spcomp.schedule.default.facts import Facts
from spcomp.schedule.step import Trace
from spcomp.schedule.steps.sharing.hubs import longest_row
from spcomp.target import target
from tests.layers import source
from tests.programs import PROGRAMS

HOST = target("cpu")


@pytest.fixture
def fresh_memory(monkeypatch, tmp_path):
    """A disk cache of its own, and no memory of what was compiled."""
    monkeypatch.setenv("SPCOMP_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(compiled, "_cache", type(compiled._cache)())
    return compiled._cache


@pytest.mark.parametrize(
    ("name", "extents"),
    [("csrmm", ("feat",)), ("sddmm", ("feat",)), ("spmv", ()), ("csrmm_t", ("feat",))],
)
def test_the_extents_of_innermost_dense_axes_are_compiled_in(name, extents):
    assert inner_extents(source(name)) == extents


@pytest.mark.parametrize(
    ("name", "follows"),
    [
        ("csrmm", True),
        ("sddmm", True),
        ("csrmm_t", True),  # a scatter
        ("coo_spmm", False),  # sorted keys
        ("csr_mul", False),  # two matrices
        ("csrmm_dense_iter", False),  # elements are searched
        ("bmm", False),
    ],
)
def test_programs_that_follow_one_matrix(name, follows):
    assert follows_one_matrix(source(name)) == follows


def test_programs_that_follow_one_matrix_need_no_order():
    funcs = [source(program.name) for program in PROGRAMS]
    found = [f for f in funcs if isinstance(f, CoordFunc) and follows_one_matrix(f)]
    assert len(found) > 10
    for func in found:
        assert not Compiled.of(func, Options.of("cpu")).order_needed


def test_what_serves_all_extents_is_lowered_when_a_call_needs_it(fresh_memory):
    kernel = spcomp.compile("C[i, k] = A[i, j] * B[j, k]")
    a = sps.random_array((20, 30), density=0.2, format="csr", rng=0)
    for feat, lowered in ((8, False), (16, False), (131, True)):
        b = np.arange(30.0 * feat).reshape(30, feat)
        np.testing.assert_allclose(kernel(A=a, B=b), a @ b)
        general = next(iter(fresh_memory.values()))
        assert ("_lowered" in vars(general)) == lowered
        assert general.given is None
    assert "parallel('i')" in str(kernel.trace)


def test_versions_are_made_once_and_few_are_kept():
    made = []
    variants = Variants(
        HOST, "general", ("k",), (), lambda version: made.append(version) or len(made)
    )
    assert [variants.pick({"k": k}) for k in (1, 2, 1)] == [1, 2, 1]
    assert made == [Version((("k", 1),), Facts()), Version((("k", 2),), Facts())]
    for k in range(3, MAX_KEPT + 2):
        variants.pick({"k": k})
    assert len(variants.versions) == MAX_KEPT
    assert variants.pick({"k": 1}) == MAX_KEPT + 2  # made again


def test_which_extents_are_compiled_in_does_not_depend_on_earlier_calls():
    small, large = CPU_KNOBS.extent_small, CPU_KNOBS.extent_large
    assert all(is_worth(n, CPU_KNOBS) for n in (1, 7, small, small + 8, large))
    assert not any(is_worth(n, CPU_KNOBS) for n in (small + 1, large + 8))
    assert sum(is_worth(n, CPU_KNOBS) for n in range(1, 2 * large)) == 240
    variants = Variants(HOST, "general", ("k",), (), lambda _: "special")
    assert [variants.pick({"k": k}) for k in (small + 1, 3)] == ["general", "special"]


def test_a_version_is_made_once_though_many_threads_ask():
    made = []
    gate = threading.Barrier(4)
    variants = Variants(
        HOST, "general", ("k",), (), lambda version: made.append(version) or object()
    )

    def ask():
        gate.wait()
        variants.pick({"k": 5})

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made == [Version((("k", 5),), Facts())]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_child_forked_while_a_version_is_made_can_make_one():
    begun, over = threading.Event(), threading.Event()

    def make(version):
        begun.set()
        over.wait(10)
        return "made"

    variants = Variants(HOST, "general", ("k",), (), make)
    thread = threading.Thread(target=variants.pick, args=({"k": 5},))
    thread.start()
    begun.wait(10)
    child = os.fork()
    if child == 0:
        signal.alarm(5)
        variants.make = lambda version: "mine"
        os._exit(0 if variants.pick({"k": 6}) == "mine" else 1)
    over.set()
    thread.join()
    assert os.waitpid(child, 0)[1] == 0


def test_a_row_that_holds_more_than_its_share_has_a_version_of_its_own():
    def known(lengths, *, hubs=True, narrow=False):
        indptr = np.concatenate([[7], 7 + np.cumsum(lengths)]).astype(np.int32)
        return facts(("ptr",), {"ptr": indptr}, CPU_KNOBS, hubs=hubs, narrow=narrow)

    limit = longest_row(CPU_KNOBS.hub_piece, 0)
    assert known([limit]) == known([100] * 500) == known([]) == Facts()
    assert known([limit + 1]) == Facts(hubs=True)
    assert known([limit + 1], hubs=False) == Facts()
    assert known([3] * 5000 + [100] * 600 + [3] * 5000) == Facts(skewed=True)
    assert known([1] * 9000 + [10_000] + [1] * 9000) == Facts(hubs=True, skewed=True)
    assert known([1] * 9000 + [10_000] + [1] * 9000, narrow=True) == Facts()  # one thread does it
    assert known([1] * 4000 + [10_000] + [1] * 4000, narrow=True).hubs
    assert row_pointers(source("csrmm")) == ("indptr",)


def test_a_sorted_coordinate_that_is_repeated_often_has_a_version_of_its_own():
    keys = np.sort(np.append(np.arange(40_000), np.full(4_000, 77)))
    assert not has_long_run(keys, CPU_KNOBS)
    assert has_long_run(np.sort(np.append(keys, np.full(4_000, 77))), CPU_KNOBS)
    assert not has_long_run(np.zeros(30_000), CPU_KNOBS)  # too few to share
    assert repeatable_keys(source("coo_segment")) == ("rows",)
    assert repeatable_keys(source("csrmm")) == ()


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_learnt_call_is_not_repeated_for_keys_of_which_one_is_repeated_often(order):
    rng, count = np.random.default_rng(5), 50_000
    x = rng.random((count, 3), np.float32)
    even = np.sort(rng.integers(0, 5_000, count)).astype(np.int32)
    long = np.sort(np.where(rng.random(count) < 0.6, 1_234, even)).astype(np.int32)
    given = [(even, long)[k] for k in order]
    ptr = np.array([0, count], np.int32)

    def sums(kernel, rows):
        y = np.zeros((5_000, 3), np.float32)
        kernel(x=x.reshape(-1), y=y, indptr=ptr, rows=rows, m=5_000, nnz=count)
        return y

    kernel = spcomp.compile(source("coo_segment"))
    made = [[sums(kernel, rows) for _ in range(3)] for rows in given]
    for rows, own in zip(given, made, strict=True):
        want = np.zeros((5_000, 3))
        np.add.at(want, rows, x)
        np.testing.assert_allclose(own[0], want, rtol=1e-3)
        fresh = sums(spcomp.compile(source("coo_segment")), rows)
        assert {y.tobytes() for y in own} == {fresh.tobytes()}
    variants = kernel._compiled._variants
    traces = [
        str(variants.pick({"feat": 3, "indptr": ptr, "rows": rows}).trace) for rows in (even, long)
    ]
    assert "sorted_rows" in traces[0]
    assert "split_sorted('e', 4096, 2)" in traces[1]


def test_elements_are_few_operations_if_all_extents_are_small():
    assert is_narrow(("k", "l"), {"k": 1, "l": 16}, CPU_KNOBS)
    assert not is_narrow(("k", "l"), {"k": 1, "l": 17}, CPU_KNOBS)
    assert not is_narrow(("k",), {}, CPU_KNOBS)


def test_skewed_rows_are_cut_by_their_elements():
    kernel = spcomp.compile(source("spmv"))
    lengths = np.concatenate([np.full(9000, 2), np.full(600, 100), np.full(9000, 2)])
    skewed = np.concatenate([[0], np.cumsum(lengths)])
    even = np.linspace(0, skewed[-1], len(skewed)).astype(int)
    versions = [kernel._compiled.variant({"indptr": ptr}) for ptr in (skewed, even)]
    assert ["split_nnz" in str(version.trace) for version in versions] == [True, False]
    a = sps.csr_array(
        (np.ones(skewed[-1], np.float32), np.concatenate([np.arange(n) for n in lengths]), skewed),
        (len(lengths), 100),
    )
    x = np.arange(100, dtype=np.float32)
    np.testing.assert_allclose(kernel(A=a, X=x), a @ x)


def test_a_learnt_call_is_not_repeated_for_rows_that_begin_elsewhere(monkeypatch):
    kernel = spcomp.compile(source("spmv"))
    variants, picked = kernel._compiled._variants, []
    monkeypatch.setattr(variants, "pick", lambda v: picked.append(v) or Variants.pick(variants, v))
    lengths = np.concatenate([np.full(9000, 2), np.full(600, 100), np.full(9000, 2)])
    x = np.arange(100, dtype=np.float32)
    for order in (lengths, np.sort(lengths)):
        ptr = np.concatenate([[0], np.cumsum(order)]).astype(np.int32)
        indices = np.concatenate([np.arange(n, dtype=np.int32) for n in order])
        a = sps.csr_array((np.ones(ptr[-1], np.float32), indices, ptr), (len(order), 100))
        picked.clear()
        for _ in range(4):
            np.testing.assert_allclose(kernel(A=a, X=x), a @ x)
        assert 0 < len(picked) < 4


@pytest.mark.parametrize("bind", [False, True])
def test_hub_rows_are_split_and_the_bits_do_not_depend_on_threads_or_on_earlier_calls(bind):
    rng = np.random.default_rng(0)
    lengths = np.full(50, 3)
    lengths[17] = 40_000
    rows = np.repeat(np.arange(50), lengths)
    cols = np.concatenate([np.sort(rng.choice(50_000, n, replace=False)) for n in lengths])
    ptr = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    data = rng.random(len(rows), np.float32)
    a = sps.csr_array((data, cols.astype(np.int32), ptr), (50, 50_000))
    flat = sps.csr_array((data, a.indices, np.linspace(0, a.nnz, 51).astype(np.int32)), a.shape)
    flat.sort_indices()
    flat.sum_duplicates()
    b = rng.random((50_000, 4), np.float32)
    kernel = spcomp.compile(source("csrmm"))
    seen = set()
    for threads in (1, 2, 5, 2):
        with spcomp.num_threads(threads):
            np.testing.assert_allclose(kernel(A=flat, B=b), flat @ b, rtol=1e-4)
            result = (kernel.bind(A=a) if bind else partial(kernel, A=a))(B=b)
        np.testing.assert_allclose(result, a @ b, rtol=1e-4)
        seen.add(result.tobytes())
    assert len(seen) == 1
    hubs = kernel._compiled.variant({"feat": 4, "indptr": ptr})
    assert "split_hubs" in str(hubs.trace)
    assert "split_hubs" not in str(
        kernel._compiled.variant({"feat": 4, "indptr": flat.indptr}).trace
    )


def test_a_kernel_runs_the_version_for_its_arguments_and_gives_the_same_as_the_general_one():
    kernel = spcomp.compile(source("csrmm"))
    rng = np.random.default_rng(0)
    a = sps.random_array((20, 30), density=0.3, format="csr", rng=rng, dtype=np.float32)
    for feat in (*range(1, 12), 129, 136):
        b = rng.standard_normal((30, feat)).astype(np.float32)
        np.testing.assert_allclose(kernel(A=a, B=b), a @ b, rtol=1e-4, atol=1e-5)
    compiled = kernel._compiled
    values = {"indptr": a.indptr}
    assert compiled.variant({"feat": 1, **values}) is not compiled
    assert compiled.variant({"feat": 129, **values}) is compiled


def test_a_schedule_that_the_user_chose_is_what_runs():
    compiled = spcomp.compile(source("csrmm"), trace=Trace())._compiled
    assert compiled.variant({"feat": 4}) is compiled
    assert spcomp.compile(source("csrmm"), constants={"feat": 4})._compiled._variants.names == ()


def test_a_warning_is_given_once_though_versions_are_compiled(fresh_memory):
    with pytest.warns(SpcompWarning, match="treated as a reduction") as caught:
        kernel = spcomp.compile(source("scatter_claimed"))
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        variants = kernel._compiled._variants
        kernel._compiled.variant(dict.fromkeys((*variants.names, *variants.pointers), 2))


# -- what a later process finds ----------------------------------------------------------------


def test_a_program_found_on_disk_is_not_lowered_again_and_is_the_same(fresh_memory):
    first = spcomp.compile(source("csrmm"))
    fresh_memory.clear()
    second = spcomp.compile(source("csrmm"))
    assert first._compiled.given.stages is not None
    assert second._compiled.given.stages is None
    assert second.object_bytes == first.object_bytes
    assert second.trace == first.trace
    assert second.stage("flat") == first.stage("flat")
    a = sps.eye_array(5, format="csr", dtype=np.float32)
    b = np.arange(15, dtype=np.float32).reshape(5, 3)
    assert (second(A=a, B=b) == b).all()


def test_an_assembled_result_works_from_disk(fresh_memory):
    name = "csr_add"
    spcomp.compile(source(name))
    fresh_memory.clear()
    kernel = spcomp.compile(source(name))
    assert kernel._compiled.given.stages is None
    assert len(kernel._compiled.host) > 1


def test_a_program_with_a_warning_warns_in_every_process(fresh_memory):
    for _ in range(2):
        fresh_memory.clear()
        with pytest.warns(SpcompWarning):
            spcomp.compile(source("scatter_claimed"))


@pytest.mark.parametrize("name", ["csrmm", "csr_add", "spgemm", "ell_product", "coo_segment"])
def test_what_is_saved_is_text_that_reads_back_with_what_is_shared(fresh_memory, monkeypatch, name):
    kept = []
    monkeypatch.setattr(saved, "store", lambda key, target, made: kept.append(made))
    spcomp.compile(source(name))
    (made,) = kept
    data = plain.encode(made)
    again = plain.decode(data)
    assert plain.encode(again) == data  # an object that was shared is one row, so it still is
    assert (again.emitted, again.trace) == (made.emitted, made.trace)
    assert [func.params[0].name for func in again.heads] == [f.params[0].name for f in made.heads]


@pytest.mark.parametrize("value", [object(), np.float32(1), {"a": 1}, (spcomp.Tensor,), Variants])
def test_what_is_no_plain_description_is_not_written(value):
    with pytest.raises(TypeError):
        plain.encode(value)


@pytest.mark.parametrize(
    "rows", ['["os.system","id"]', '["spcomp.ir.stmt.sys"]', '["spcomp.ir.expr.Var"]', "[7]", "7"]
)
def test_what_names_anything_else_is_not_read(rows):
    with pytest.raises(plain.UNREADABLE):
        plain.decode(f"[{rows},[0]]".encode())


def test_what_another_compiler_saved_is_not_taken(fresh_memory, monkeypatch):
    spcomp.compile(source("csrmm"))
    fresh_memory.clear()
    monkeypatch.setattr(saved, "_compiler", lambda: "another")
    assert spcomp.compile(source("csrmm"))._compiled.given.stages is not None


def test_a_source_file_of_other_text_is_another_compiler_though_nothing_else_differs(
    tmp_path, monkeypatch
):
    (tmp_path / "compiler").mkdir()
    monkeypatch.setattr(saved, "__file__", str(tmp_path / "compiler" / "saved.py"))
    source_file, found = tmp_path / "passes.py", []
    for text in ("a = 1", "a = 2", "a = 1"):
        source_file.write_text(text)
        os.utime(source_file, (1, 1))
        found.append(saved._compiler.__wrapped__())
    assert found[0] == found[2] != found[1]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_child_forked_while_another_thread_compiles_can_compile_too():
    held, over = threading.Event(), threading.Event()

    def hold():
        with compiled._lock:
            held.set()
            over.wait(10)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(10)
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        spcomp.compile(source("spmv"))
        os._exit(0)
    over.set()
    thread.join()
    assert os.waitpid(child, 0)[1] == 0


def test_other_options_are_other_programs(fresh_memory):
    spcomp.compile(source("csrmm"))
    for changed in ({"constants": {"feat": 3}}, {"trace": Trace()}, {"check": "off"}):
        assert spcomp.compile(source("csrmm"), **changed)._compiled.given.stages is not None


@pytest.mark.parametrize("data", [b"", b"cno_such_module\nThing\n.", b"\x80\x05N."])
def test_what_cannot_be_read_is_a_miss(monkeypatch, data):
    monkeypatch.setattr(saved.cache, "get", lambda name: data)
    assert saved.load("anything", target("cpu")) is None
