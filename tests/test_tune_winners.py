"""What kernels do with what was tuned: ``compile(..., tuned=True)``, and suggestions."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sps

import spcomp
from spcomp import formats as F
from spcomp.compiler.options import Tuner
from spcomp.errors import ArgumentError
from spcomp.schedule.step import Trace
from spcomp.tensors.convert import to_tensor
from spcomp.tune.choice import Choice
from spcomp.tune.decisions import NONE, is_kept
from spcomp.tune.frozen import frozen
from spcomp.tune.problem import digest, fingerprint, versions
from spcomp.tune.store import Record
from spcomp.tune.task import Task
from spcomp.tune.winners import FixedWinner, StoredWinners, TunedKernel
from tests.test_tune_space import spmm
from tests.tune_helpers import (
    FEAT,
    ROWS,
    dense,
    matrix,
    prefetching,
)
from tests.tune_helpers import keep as keep_one
from tests.tune_helpers import store as store


def keep(store, choice, kind="any", *, program=spmm, **options):
    """Keep a winner for *program*, or for the one of the other tests."""
    if program is spmm and not options:
        return keep_one(store, choice, kind)
    problem = Task.of(program, {"A": matrix(), "B": dense()}, **options).problem
    record = Record(
        kind, problem.program, problem.extents_text, problem.matrices_text, fingerprint(),
        versions(), choice.to_json(), 1e-3, 1.5, 1.4, 1.6, created=1.0,
    )  # fmt: skip
    return store.add([record])


def test_a_kernel_does_what_won(store):
    keep(store, prefetching(4), "as_is")
    kernel = spcomp.compile(spmm, tuned=True)
    plain = spcomp.compile(spmm)
    want = plain(A=matrix(), B=dense())
    np.testing.assert_array_equal(kernel(A=matrix(), B=dense()), want)
    assert "1.50 (1.40 to 1.60) times as fast" in kernel.explain()
    assert "prefetch('j', 4)" in kernel.explain(A=matrix(), B=dense())
    bound = kernel.bind(A=matrix())
    np.testing.assert_array_equal(bound(B=dense()), want)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(kernel))(A=matrix(), B=dense()), want)


def test_index_notation_explains_what_won_before_a_call(store):
    program = "C[i, k] = A[i, j] * B[j, k]"
    keep(store, Choice(), "as_is", program=program)
    told = spcomp.compile(program, tuned=True).explain(A=matrix(), B=dense())
    assert "times as fast as the default" in told
    assert NONE not in told


def test_a_near_matrix_gets_it_too_and_a_far_one_not(store):
    keep(store, prefetching(4), "as_is")
    kernel = spcomp.compile(spmm, tuned=True)
    kernel(A=matrix(seed=7), B=dense())
    assert "away" in kernel.explain()
    far = sps.random_array((ROWS, ROWS), density=0.2, format="csr", dtype=np.float32, rng=0)
    kernel(A=far, B=dense())
    assert NONE in kernel.explain()
    other = np.ones((ROWS, 24), np.float32)
    np.testing.assert_allclose(kernel(A=matrix(), B=other), matrix() @ other, rtol=1e-4)
    only = "tuned: nothing was found for feat=24, only for feat=64, with matrices like these"
    assert kernel.explain().splitlines()[0] == only


@pytest.mark.parametrize("change", [{"machine": "another"}, {"versions": "spcomp 0"}])
def test_what_other_machines_and_versions_found_is_named(store, change):
    keep(store, prefetching(4), "as_is")
    (record,) = store.records()
    store.path.unlink()
    store.add([replace(record, **change)])
    kernel = spcomp.compile(spmm, tuned=True)
    kernel(A=matrix(), B=dense())
    other = "on another machine or with other threads"
    where = other if "machine" in change else "by spcomp 0"
    note = f"tuned: nothing was found here for such matrices, only {where}: tune it again"
    assert kernel.explain().splitlines()[0] == note


def locked(csr):
    """Return a csr array whose arrays are read-only, and views of some that are not."""
    arrays = [getattr(csr, name).copy() for name in ("data", "indices", "indptr")]
    arrays = [array[:] for array in arrays]
    locked = sps.csr_array((ROWS, ROWS), dtype=np.float32)
    for name, array in zip(("data", "indices", "indptr"), arrays, strict=True):
        array.flags.writeable = False
        setattr(locked, name, array)
    return locked


def test_a_read_only_view_of_what_can_change_is_named_and_how_to_freeze(store):
    keep(store, Choice((("A", "bsr((2, 2))"),)), "any")
    kernel = spcomp.compile(spmm, tuned=True)
    kernel(A=locked(matrix()), B=dense())
    first = kernel.explain().splitlines()[0]
    assert "read-only, and no views of arrays that are not" in first
    assert "A=spcomp.tune.frozen(A)" in first
    steady = spcomp.tune.frozen(locked(matrix()))
    np.testing.assert_allclose(kernel(A=steady, B=dense()), matrix() @ dense(), rtol=1e-4)
    assert "A in bsr((2, 2))" in kernel.explain()


@pytest.mark.parametrize("make", [sps.csr_array, sps.csc_matrix, sps.bsr_array])
def test_a_frozen_matrix_is_a_copy_that_nobody_changes(make):
    mine = make(matrix())
    steady = spcomp.tune.frozen(mine)
    mine.data[:] = 0
    assert type(steady) is make
    assert is_kept(steady)
    assert abs(steady - matrix()).max() == 0
    tensor = to_tensor(matrix(), spcomp.Format.parse("csr", 2))
    kept = spcomp.tune.frozen(tensor)
    assert is_kept(kept)
    tensor.values[:] = 0
    assert kept.values.all()


def test_what_cannot_be_frozen_is_refused():
    for wrong in (matrix().tocoo(), dense(), "a.mtx", None):
        with pytest.raises(ArgumentError, match="cannot be frozen") as caught:
            spcomp.tune.frozen(wrong)
        assert "bind(A=..., calls=...)" in caught.value.hint


def test_formats_are_for_matrices_that_cannot_change(store):
    keep(store, Choice((("A", "bsr((2, 2))"),)), "any")
    keep(store, prefetching(4), "as_is")
    kernel = spcomp.compile(spmm, tuned=True)
    changing, steady = matrix(), frozen(matrix())
    kernel(A=changing, B=dense())
    assert "as it comes" in kernel.explain()
    kernel(A=steady, B=dense())
    assert "A in bsr((2, 2))" in kernel.explain()
    bound = kernel.bind(A=changing)
    before = bound(B=dense())
    changing.data *= 2
    np.testing.assert_allclose(bound(B=dense()), 2 * before, rtol=1e-6)


def shown(kernel):
    """What a kernel says of itself."""
    return str(kernel.trace), kernel.stage("coordinate"), kernel.source()


def test_a_winner_in_a_format_that_waits_is_named(store):
    keep(store, Choice((("A", "bsr((2, 2))"),)), "any")
    kernel, waits = spcomp.compile(spmm, tuned=True), "A in bsr((2, 2)), default steps was 1.50"
    for as_is in (None, Choice(), prefetching(4)):
        if as_is is not None:
            keep(store, as_is, "as_is")
            kernel = spcomp.compile(spmm, tuned=True)
        kernel(A=matrix(), B=dense())
        first = kernel.explain().splitlines()[0]
        assert first.startswith("tuned: as it comes")
        assert waits in first
        assert "are read-only, and no views of arrays that are not, as of A=spcomp.tune.f" in first
        assert "or bind(A=..., calls=...)" in first
        kernel(A=frozen(matrix()), B=dense())
        assert "waits" not in kernel.explain()


@pytest.mark.parametrize("program", [spmm, "C[i, k] = A[i, j] * B[j, k]"])
def test_what_a_kernel_tells_is_of_the_kernel_that_ran(store, program):
    keep(store, Choice((("A", "bsr((2, 2))"),)), "any", program=program)
    kernel, plain = spcomp.compile(program, tuned=True), spcomp.compile(program)
    direct = spcomp.decompose(spmm, A=F.bsr((2, 2))).compile()
    if isinstance(program, str):
        direct = spcomp.compile(program, formats={"A": F.bsr((2, 2))})
    want = plain(A=matrix(), B=dense())
    direct(A=matrix(), B=dense())
    for matrices, like in ((matrix(), plain), (frozen(matrix()), direct), (matrix(), plain)):
        np.testing.assert_allclose(kernel(A=matrices, B=dense()), want, rtol=1e-5)
        assert shown(kernel) == shown(like)
        bound = kernel.bind(A=matrices)
        np.testing.assert_allclose(bound(B=dense()), want, rtol=1e-5)
        assert shown(bound) == shown(like)
        assert bound.explain().splitlines()[0] == kernel.explain().splitlines()[0]
        named = bound.specialize(B=dense())
        assert ("bsr" in named.source()) == ("bsr" in like.source())
        ran = str(bound.profile(B=dense(), repeat=1))
        assert ("loop io" in ran) == (like is direct)
        np.testing.assert_allclose(bound.interpret("code", B=dense()), want, rtol=1e-5)
    if isinstance(program, str):
        assert "A[i, j]: csr" in kernel.explain()
        assert "A[i, j]: csr" not in kernel.explain(A=frozen(matrix()), B=dense())


def test_a_size_is_the_same_as_a_constant_and_as_a_size_of_a_call(store):
    keep(store, Choice((("A", "bsr((2, 2))"),)), "any", constants={"feat": FEAT})
    steady = frozen(matrix())
    for constants in ({}, {"feat": FEAT}):
        kernel = spcomp.compile(spmm, tuned=True, constants=constants)
        np.testing.assert_allclose(kernel(A=steady, B=dense()), matrix() @ dense(), rtol=1e-4)
        assert "A in bsr((2, 2))" in kernel.explain()
    kernel(A=steady, B=dense())
    other = spcomp.compile(spmm, tuned=True)
    other(A=steady, B=np.ones((ROWS, 24), np.float32))
    assert "nothing was found for feat=24, only for feat=64" in other.explain()


def test_so_is_one_that_was_tuned_as_a_size_of_a_call(store):
    keep(store, prefetching(4), "as_is")
    kernel = spcomp.compile(spmm, tuned=True, constants={"feat": FEAT})
    np.testing.assert_allclose(kernel(A=matrix(), B=dense()), matrix() @ dense(), rtol=1e-4)
    assert "prefetch('j', 4)" in kernel.explain(A=matrix(), B=dense())


def test_what_earlier_versions_kept_with_constants_is_found(store):
    task = Task.of(spmm, {"A": matrix(), "B": dense()}, constants={"feat": FEAT})
    (earlier,) = task.problem.earlier
    assert earlier.program == digest(spmm, task.options)
    assert not earlier.extents
    record = Record(
        "as_is", earlier.program, earlier.extents_text, earlier.matrices_text, fingerprint(),
        versions(), Choice((), prefetching(4).trace).to_json(), 1e-3, 1.5, 1.4, 1.6, created=1.0,
    )  # fmt: skip
    store.add([record])
    kernel = spcomp.compile(spmm, tuned=True, constants={"feat": FEAT})
    kernel(A=matrix(), B=dense())
    assert "1.50 (1.40 to 1.60) times as fast" in kernel.explain()


def test_index_arrays_are_those_of_the_bind(store):
    keep(store, prefetching(4), "as_is")
    csr = matrix()
    bound = spcomp.compile(spmm, tuned=True).bind(A=csr)
    want = matrix() @ dense()
    csr.indices[:] = 0
    np.testing.assert_allclose(bound(B=dense()), want, rtol=1e-4, atol=1e-5)


def test_a_winner_that_does_not_fit_leaves_the_default(store):
    trace = Trace.from_json_lines(
        '{"func": "csrmm", "step": "split", "loop": "gone", "factors": 4}'
    )
    keep(store, Choice((), trace), "as_is")
    kernel = spcomp.compile(spmm, tuned=True)
    np.testing.assert_allclose(kernel(A=matrix(), B=dense()), matrix() @ dense(), rtol=1e-4)
    assert "does not fit" in kernel.explain()


def test_calls_by_position_and_wrong_arguments_are_those_of_kernels(store):
    keep(store, prefetching(4), "as_is")
    kernel, plain = spcomp.compile(spmm, tuned=True), spcomp.compile(spmm)
    csr, out = matrix(), np.zeros((ROWS, FEAT), np.float32)
    sizes = (ROWS, ROWS, FEAT, csr.nnz)
    assert kernel(csr.data, dense(), out, csr.indptr, csr.indices, *sizes) is None
    np.testing.assert_array_equal(out, plain(A=csr, B=dense()))
    odd = type("Odd", (), {"shape": [ROWS, FEAT]})()
    for wrong in (
        {"A": csr},
        {"A": csr, "B": dense(), "D": 1},
        {"A": csr, "B": dense()[1:]},
        {"A": csr, "B": odd},
        {"A": "a.mtx", "B": dense()},
    ):
        with pytest.raises(ArgumentError) as ours:
            kernel(**wrong)
        with pytest.raises(ArgumentError) as theirs:
            plain(**wrong)
        assert str(ours.value) == str(theirs.value)


def test_the_environment_asks_for_winners(store, monkeypatch):
    monkeypatch.setenv("SPCOMP_TUNED", "1")
    assert isinstance(spcomp.compile(spmm), TunedKernel)
    assert not isinstance(spcomp.compile(spmm, tuned=False), TunedKernel)
    assert not isinstance(spcomp.compile(spmm, trace=Trace()), TunedKernel)
    schedule = spcomp.Schedule(spmm).lower_sparse_iter().parallel("i")
    assert not isinstance(spcomp.compile(schedule), TunedKernel)
    monkeypatch.setenv("SPCOMP_TUNED", "0")
    assert not isinstance(spcomp.compile(spmm), TunedKernel)


def test_where_steps_or_formats_are_given_tuned_is_refused(store):
    schedule = spcomp.Schedule(spmm).lower_sparse_iter().parallel("i")
    for program, options in (
        (spmm, {"trace": Trace()}),
        (schedule, {}),
        (spcomp.decompose(spmm, A=F.ell()), {}),
    ):
        with pytest.raises(ArgumentError, match="given already") as caught:
            spcomp.compile(program, **options, tuned=True)
        assert "index notation, on CPUs" in caught.value.hint
    for target in ("cuda:sm_90", "cuda:sm_90,emulate"):
        with pytest.raises(ArgumentError, match=f"on CPUs only, got {target}"):
            spcomp.compile(spmm, target=target, tuned=True)
    with pytest.raises(ArgumentError, match="tuned"):
        spcomp.compile(spmm, tuned="yes")


def test_without_a_store_nothing_changes(store):
    kernel = spcomp.compile(spmm, tuned=True)
    np.testing.assert_array_equal(
        kernel(A=matrix(), B=dense()), spcomp.compile(spmm)(A=matrix(), B=dense())
    )
    assert NONE in kernel.explain()
    assert isinstance(StoredWinners(), Tuner)


def test_one_choice_for_all_matrices():
    kernel = spcomp.compile(spmm, tuned=FixedWinner(Choice((("A", "ell()"),))))
    np.testing.assert_allclose(kernel(A=matrix(), B=dense()), matrix() @ dense(), rtol=1e-4)
    assert "A in ell()" in kernel.explain()


def test_a_suggestion_is_the_winner_or_the_default(store):
    assert spcomp.tune.suggest(spmm, A=matrix(), B=dense()).source == "default"
    keep(store, prefetching(4), "any")
    found = spcomp.tune.suggest(spmm, A=matrix(seed=7), B=dense())
    assert (found.source, found.choice) == ("store", prefetching(4))
    np.testing.assert_allclose(
        found.compile()(A=matrix(), B=dense()), matrix() @ dense(), rtol=1e-4
    )


def test_a_record_without_statistics_does_not_speak_of_the_same_matrices():
    known = Record("any", "p", "{}", "{}", "m", "v", Choice().to_json(), 1e-3, 1.5, 1.4, 1.6)
    assert "with tensors of which no statistics are known" in known.told(0.0)
    assert "with the same matrices" in replace(known, matrices='{"A": {}}').told(0.0)
