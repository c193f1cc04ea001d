"""The learnt way of a call: it does what the full way does, for every argument, good or bad."""

import gc
import os
import subprocess
import sys
import threading
import time
import tracemalloc
import weakref

import numpy as np
import pytest
import scipy.sparse as sps

import spcomp
from spcomp.errors import ArgumentError
from spcomp.kernels.kernel import Kernel
from spcomp.runtime.replay import entry
from tests.entry_programs import CASES, copy_pattern, csr, powers, raw_args, spmm_args
from tests.mutations import ARRAYS, BAD_ARRAYS, BAD_SPARSE, SPARSE, Evil, mutate
from tests.test_api import scale, spmm

pytestmark = pytest.mark.skipif(not entry.available(), reason="no call entry on this Python")


def learnt(kernel, args, times=3):
    """Call *kernel* until it has learnt the call; return it."""
    for _ in range(times):
        kernel(**args())
    assert kernel._calls.repeats
    return kernel


def plain(value):
    """*value* as something that can be compared, sparse or not."""
    if isinstance(value, sps.sparray | sps.spmatrix):
        names = ("data", "indices", "indptr", "coords")
        return type(value), *(plain(getattr(value, name, None)) for name in names)
    if isinstance(value, spcomp.Tensor):
        return "tensor", value.shape, plain(value.values)
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    return repr(value)


def outcome(call, args):
    """What a call gives or raises, and what it leaves in its arguments."""
    try:
        result = plain(call(**args))
    except (ArgumentError, TypeError, AttributeError, ValueError, RuntimeError) as error:
        result = type(error).__name__, str(error)
    return result, {name: plain(arg) for name, arg in args.items() if not isinstance(arg, Evil)}


def full_way(kernel):
    """A kernel like *kernel* that has learnt nothing."""
    return Kernel(kernel._compiled, kernel._options, kernel._program)


@pytest.mark.filterwarnings("ignore::scipy.sparse.SparseEfficiencyWarning")
@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")
@pytest.mark.parametrize("check", ["full", "bind", "off"])
@pytest.mark.parametrize("case", CASES)
def test_any_change_of_the_arguments_has_the_outcome_of_the_full_way(case, check):
    program, make = CASES[case]
    kernel = spcomp.compile(program, check=check)
    if check != "full" and case == "raw":
        pytest.skip("wrong index arrays are the caller's affair then")
    lists = (BAD_ARRAYS, BAD_SPARSE) if check == "full" else (ARRAYS, SPARSE)
    for seed in range(400 if check == "full" else 100):
        learnt(kernel, lambda: make(np.random.default_rng(5)), 3 if seed == 0 else 1)
        pair = []
        for _ in range(2):
            args = make(np.random.default_rng(5))
            mutate(args, np.random.default_rng(seed), *lists)
            pair.append(args)
        assert outcome(kernel, pair[0]) == outcome(full_way(kernel), pair[1]), seed


@pytest.mark.parametrize("case", ["spmm", "scale", "tensor"])
def test_any_change_of_the_arguments_of_a_bound_call_has_the_outcome_of_the_full_way(case):
    program, make = CASES[case]
    args = make(np.random.default_rng(5))
    a = args.pop("A")
    kernel = spcomp.compile(program)
    bound = kernel.bind(A=a)
    for seed in range(150):
        pair = []
        for _ in range(2):
            args = make(np.random.default_rng(5))
            del args["A"]
            bound(**args)
            mutate(args, np.random.default_rng(seed), BAD_ARRAYS, BAD_SPARSE)
            pair.append(args)
        assert outcome(bound, pair[0]) == outcome(kernel.bind(A=a), pair[1]), seed
    assert bound._calls.repeats


def test_any_change_of_the_arguments_by_position_has_the_outcome_of_the_full_way():
    kernel = spcomp.compile(spmm)
    names = kernel._face.params

    def make():
        made = raw_args(np.random.default_rng(5))
        sizes = {"m": 30, "feat": 8, "nnz": made["A"].size}
        handles = {"a": made["A"], "b": made["B"].reshape(-1), "c": np.full(240, 7, "float32")}
        every = made | sizes | handles
        return {name: every[name] for name in names}

    for seed in range(300):
        for _ in range(3 if seed == 0 else 1):
            assert kernel(*make().values()) is None
        pair = []
        for _ in range(2):
            args = make()
            mutate(args, np.random.default_rng(seed), BAD_ARRAYS, BAD_SPARSE)
            pair.append({name: args[name] for name in names if name in args})
        got, want = (
            outcome(lambda one=one, **args: one(*args.values()), args)
            for one, args in zip((kernel, full_way(kernel)), pair, strict=True)
        )
        assert got == want, seed
    assert kernel._in_place.repeats


def test_a_plan_can_be_read():
    kernel = learnt(spcomp.compile(spmm), lambda: spmm_args(np.random.default_rng(0)))
    (repeat,) = kernel._calls.repeats
    lines = str(repeat.plan).splitlines()
    assert lines[0] == "take 0, A"
    assert "typed 0, csr_array" in lines
    assert any(line.startswith("indices32") for line in lines)
    assert lines[-1].startswith("return 1")


@pytest.mark.parametrize("count", [2, 6, 7, 40])
def test_any_number_of_results_is_returned_in_order(count):
    a = csr(np.random.default_rng(1))
    kernel = learnt(spcomp.compile(powers(count)), lambda: {"A": a})
    assert count < 40 or len(kernel._calls.repeats[0].plan.steps) > 64
    found = kernel(A=a)
    assert len(found) == count
    for power, (name, sums) in enumerate(zip(found._fields, found, strict=True)):
        assert name == f"Y{power}"
        np.testing.assert_allclose(
            sums, (a ** (power + 1)).sum(axis=1) if power else a.sum(axis=1), rtol=1e-4
        )


def test_other_sizes_get_a_plan_of_their_own():
    kernel = spcomp.compile(spmm)
    rng = np.random.default_rng(1)
    problems = [(csr(rng, (m, 20)), rng.random((20, 3)).astype("float32")) for m in range(1, 6)]
    for _ in range(4):
        for a, b in problems:
            np.testing.assert_allclose(kernel(A=a, B=b), a @ b, rtol=1e-5)
    assert len(kernel._calls.repeats) == len(problems)
    for m in range(6, 30):
        a = csr(rng, (m, 20))
        for _ in range(2):
            np.testing.assert_allclose(kernel(A=a, B=b), a @ b, rtol=1e-5)
    assert len(kernel._calls.repeats) == 8


def test_arguments_may_be_changed_in_place_between_calls():
    args = spmm_args(np.random.default_rng(2))
    kernel = learnt(spcomp.compile(spmm), lambda: args)
    args["A"].data *= 2
    args["B"] += 1
    kernel(**args)
    np.testing.assert_allclose(args["C"], args["A"] @ args["B"], rtol=1e-5)
    args["A"].indices[0] = 10**6
    with pytest.raises(ArgumentError, match="1000000"):
        kernel(**args)
    args["A"].indices[0] = -1
    with pytest.raises(ArgumentError, match="-1"):
        kernel(**args)


def test_coordinates_that_got_out_of_order_are_seen():
    a = sps.csr_array(np.arange(1, 31, dtype="float32").reshape(5, 6))
    b = np.eye(6, dtype="float32")
    kernel = learnt(spcomp.compile(spmm), lambda: {"A": a, "B": b})
    for row in range(5):
        swapped = a.copy()
        swapped.indices[[6 * row, 6 * row + 1]] = swapped.indices[[6 * row + 1, 6 * row]]
        np.testing.assert_allclose(kernel(A=swapped, B=b), swapped.toarray())
        doubled = a.copy()
        doubled.indices[6 * row + 5] = 4
        np.testing.assert_allclose(kernel(A=doubled, B=b), doubled.toarray())


@pytest.mark.parametrize("check", ["full", "off"])
@pytest.mark.parametrize(("raw", "feat"), [(False, 4), (True, 4), (False, 131)])
def test_a_matrix_of_the_same_sizes_with_one_long_row_has_the_code_made_for_it(check, raw, feat):
    rng = np.random.default_rng(12)
    b = rng.random((50_000, feat), np.float32)
    kernel = spcomp.compile(spmm, check=check)
    args = []
    for lengths in ([802] * 50, [3] * 49 + [39_953]):
        cols = np.concatenate([np.sort(rng.choice(50_000, n, replace=False)) for n in lengths])
        ptr = np.concatenate([[0], np.cumsum(lengths)]).astype("int32")
        parts = (rng.random(len(cols), np.float32), cols.astype("int32"), ptr)
        named = dict(zip(("A", "indices", "indptr"), parts, strict=True)) | {"n": 50_000}
        args.append({**(named if raw else {"A": sps.csr_array(parts, (50, 50_000))}), "B": b})
    learnt(kernel, lambda: args[0])
    assert outcome(kernel, args[1])[0] == outcome(full_way(kernel), args[1])[0]
    assert outcome(kernel, args[0])[0] == outcome(full_way(kernel), args[0])[0]
    assert len(kernel._calls.repeats) == 1


def test_bound_arguments_may_not_be_resized():
    rng = np.random.default_rng(3)
    b = rng.random((20, 8)).astype("float32")
    a = csr(rng)
    bound = spcomp.compile(spmm).bind(B=b)
    for _ in range(3):
        bound(A=a)
    assert bound._calls.repeats
    b.resize((1, 8), refcheck=False)
    with pytest.raises(ArgumentError, match="was bound with"):
        bound(A=a)


def test_a_bound_call_is_learnt_and_sees_new_values():
    args = spmm_args(np.random.default_rng(4))
    a = args.pop("A")
    bound = spcomp.compile(spmm).bind(A=a)
    for factor in (1, 2, 3, 4):
        a.data *= factor
        assert bound(**args) is args["C"]
        np.testing.assert_allclose(args["C"], a @ args["B"], rtol=1e-5)
        np.testing.assert_allclose(bound(B=args["B"]), args["C"])
    assert len(bound._calls.repeats) == 2
    with pytest.raises(ArgumentError, match="is bound already"):
        bound(A=a, **args)


def test_numbers_may_differ_from_call_to_call():
    a = csr(np.random.default_rng(5))
    kernel = spcomp.compile(scale)
    for alpha in (1.5, -2.0, float("inf"), 1e-50, 1e300, 3, True, 0.25):
        if alpha is True:
            with pytest.raises(ArgumentError):
                kernel(A=a, alpha=alpha)
            continue
        with np.errstate(over="ignore", invalid="ignore"):
            expected = a.data * np.float32(alpha)
        result = kernel(A=a, alpha=alpha)
        assert type(result) is sps.csr_array
        assert result.has_canonical_format
        np.testing.assert_array_equal(result.data, expected)
    assert kernel._calls.repeats


@pytest.mark.parametrize("case", CASES)
@pytest.mark.sample(3)
def test_no_reference_is_kept_or_lost(case):
    program, make = CASES[case]
    args = make(np.random.default_rng(6))
    args.pop("C", None)
    args.pop("Y1", None)
    kernel = learnt(spcomp.compile(program), lambda: args)
    watched = [*args.values(), None, NotImplemented, args["A"].dtype]
    watched += [getattr(args["A"], n) for n in ("indptr", "values") if hasattr(args["A"], n)]
    bad = {**args, "A": None}
    gc.collect()
    before = [sys.getrefcount(value) for value in watched]
    for call in kernel._calls.repeats:
        for _ in range(1000):
            call.entry(args)
            call.entry(bad)
    after = [sys.getrefcount(value) for value in watched]
    assert max(abs(b - a) for a, b in zip(before, after, strict=True)) < 20


@pytest.mark.parametrize("case", ["spmm", "sum", "product"])
def test_calls_leave_no_memory_behind(case):
    program, make = CASES[case]
    args = make(np.random.default_rng(7))
    args.pop("C", None)
    kernel = learnt(spcomp.compile(program), lambda: args)
    tracemalloc.start()
    try:
        for _ in range(50):
            kernel(**args)
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(2000):
            kernel(**args)
        assert tracemalloc.get_traced_memory()[0] - before < 10_000
    finally:
        tracemalloc.stop()


def test_the_entry_takes_only_a_dict():
    kernel = learnt(spcomp.compile(spmm), lambda: spmm_args(np.random.default_rng(8)))
    call = kernel._calls.repeats[0].entry
    for bad in (None, 1, [], "A"):
        with pytest.raises(SystemError):
            call(bad)
    assert call({}) is NotImplemented
    assert call({"A": 1, "B": 2, "D": 3}) is NotImplemented


def test_other_threads_run_while_a_kernel_does():
    a = csr(np.random.default_rng(9), (3000, 3000), 0.02)
    b = np.ones((3000, 256), "float32")
    out = np.empty((3000, 256), "float32")
    kernel = learnt(spcomp.compile(spmm, threads=1), lambda: {"A": a, "B": b, "C": out})
    done, ticks = threading.Event(), []

    def work():
        for _ in range(20):
            kernel(A=a, B=b, out=out)
        done.set()

    thread = threading.Thread(target=work)
    thread.start()
    while not done.is_set():
        ticks.append(time.perf_counter())
        time.sleep(0.0005)
    thread.join()
    assert len(ticks) > 5


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_repeats_and_learns():
    args = spmm_args(np.random.default_rng(11))
    kernel = learnt(spcomp.compile(spmm), lambda: args)
    expected = args["A"] @ args["B"]
    child = os.fork()
    if child == 0:
        same = [np.allclose(kernel(**args), expected) for _ in range(5)]
        same += [np.allclose(kernel(A=args["A"], B=args["B"]), expected) for _ in range(5)]
        os._exit(0 if all(same) and len(kernel._calls.repeats) == 2 else 1)
    assert os.waitpid(child, 0)[1] == 0
    np.testing.assert_allclose(kernel(**args), expected, rtol=1e-5)


def test_a_program_that_fails_says_so_in_a_repeated_call():
    a = sps.csr_array(np.eye(4, dtype="float32"))
    kernel = spcomp.compile(copy_pattern)
    for _ in range(3):
        np.testing.assert_array_equal(kernel(A=a, B=a.copy()).toarray(), a.toarray())
    assert kernel._calls.repeats
    a.indices[0] = 1
    messages = []
    for call in (kernel, full_way(kernel)):
        with pytest.raises(ArgumentError) as caught:
            call(A=a, B=sps.csr_array(np.eye(4, dtype="float32")))
        messages.append(str(caught.value))
    assert messages[0] == messages[1]
    assert "not stored" in messages[0]


def test_many_threads_may_learn_and_repeat_at_once():
    kernel = spcomp.compile(spmm)
    rng = np.random.default_rng(10)
    problems = [(csr(rng, (m, 20)), rng.random((20, m)).astype("float32")) for m in range(1, 13)]
    wrong = []

    def work(number):
        for turn in range(60):
            a, b = problems[(number * turn) % 12]
            if not np.allclose(kernel(A=a, B=b), a @ b, rtol=1e-4):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("coo", [False, True])
def test_a_bound_matrix_that_was_put_in_order_keeps_its_pattern_to_itself(coo):
    """Results of bound calls, learnt or not, go with the pattern that was computed along."""
    parts = np.arange(1, 6, dtype="float32"), [3, 1, 3, 0, 2], [0, 3, 5]
    a = sps.csr_array(parts, (2, 4))
    given = sps.coo_array((a.data, ([0, 0, 0, 1, 1], a.indices)), a.shape) if coo else a
    bound = spcomp.compile(scale).bind(A=given)
    want = 2 * a.toarray()
    for _ in range(4):
        result = bound(alpha=2.0)
        np.testing.assert_array_equal(result.toarray(), want)
        for array in (result.indices, result.indptr):
            with pytest.raises(ValueError, match="read-only"):
                array[:] = 10**9


def test_what_was_learnt_does_not_keep_the_arguments_alive():
    args = {"A": csr(np.random.default_rng(14)), "alpha": 2.0}
    kernel = learnt(spcomp.compile(scale), lambda: args)
    last = weakref.ref(args.pop("A"))
    gc.collect()
    assert last() is None
    assert kernel._calls.repeats


def test_an_object_of_a_class_without_a_module_can_be_given_again():
    class Lost(sps.csr_array):
        __module__ = None

    a = Lost(csr(np.random.default_rng(15)))
    kernel = spcomp.compile(scale)
    for _ in range(3):
        np.testing.assert_array_equal(kernel(A=a, alpha=2.0).data, 2 * a.data)


def test_a_few_elements_that_became_many_are_not_taken_for_few():
    """Raw arrays with room to spare: how many elements are used decides which code they get."""
    rng = np.random.default_rng(16)
    args = {
        "A": rng.random(20_000, np.float32),
        "indices": np.tile(np.arange(10_000, dtype="int32"), 2),
        "n": 10_000,
        "B": rng.random((10_000, 4), np.float32),
    }
    few = np.array([0, 100, 200, 300], "int32")
    many = np.array([0, 10_000, 10_000, 10_000], "int32")
    kernel = learnt(spcomp.compile(spmm), lambda: args | {"indptr": few})
    args["indptr"] = many
    assert outcome(kernel, args)[0] == outcome(full_way(kernel), args)[0]


def test_nothing_is_left_to_import_when_a_call_is_learnt():
    """A child forked during an import in another thread could never finish that import."""
    text = "import sys, spcomp.kernels.compile; assert 'spcomp.kernels.learn' in sys.modules"
    assert subprocess.run([sys.executable, "-c", text], check=False).returncode == 0


@pytest.mark.parametrize("check", ["full", "bind"])
@pytest.mark.parametrize("sizes", [{}, {"m": 30, "n": 20, "feat": 8}])
def test_raw_index_arrays_are_checked_where_they_are_bound(check, sizes):
    args = raw_args(np.random.default_rng(22))
    sizes = sizes and {**sizes, "nnz": args["A"].size}
    kernel = spcomp.compile(spmm, check=check)
    parts = {name: args.pop(name) for name in ("indptr", "indices")}
    rest = {**args, "n": 20}
    want = kernel.bind(**parts)(**rest)
    wrong = parts | {"indices": np.where(np.arange(args["A"].size) == 3, 10**6, parts["indices"])}
    with pytest.raises(ArgumentError, match="got 1000000 at position 3"):
        kernel.bind(**wrong, **sizes)(**rest)
    if sizes:
        with pytest.raises(ArgumentError, match="got 1000000 at position 3"):
            kernel.bind(**wrong, **sizes)
        del rest["n"]
    np.testing.assert_array_equal(kernel.bind(**parts, **sizes)(**rest), want)
