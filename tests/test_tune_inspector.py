"""``bind(calls=...)`` and ``bind(inspect=True)``: another format where it is expected to pay."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sps

import spcomp
from spcomp import formats as F
from spcomp.errors import ArgumentError
from spcomp.kernels.kernel import BoundKernel
from spcomp.kernels.notation.runner import Runner
from spcomp.target import Target
from spcomp.tune import suggestion, winners
from spcomp.tune.choice import Choice
from spcomp.tune.suggestion import pays
from spcomp.tune.weights import Tree, Weights, file_for, of_any_name, weights
from tests.layers import source
from tests.tune_helpers import ROWS, dense, keep, matrix, prefetching
from tests.tune_helpers import store as store

spmm, spmv = source("csrmm"), source("spmv")


@pytest.fixture
def diagonal(store, monkeypatch):
    """A model that expects sliced_diagonal to be three times as fast as all others."""
    faster = Tree((0, -1, -1), (1.5, 1.0986, 0.0), (1, 0, 0), (2, 0, 0), (2, 0, 0))
    slower = Tree((0, -1, -1), (0.5, -1.0986, 0.0), (1, 0, 0), (2, 0, 0), (2, 0, 0))
    trees = Weights(("format",), (faster, slower), 0.0, 1.2)
    monkeypatch.setattr(suggestion, "weights", lambda _kind: trees)
    return store


def band(rows: int = ROWS, dtype: str = "float32", idtype: str = "int32") -> sps.csr_array:
    values = [np.arange(1.0, rows + 1) % 7 + k for k in (1, 2, 3)]
    csr = sps.diags_array(values, offsets=[-1, 0, 1], shape=(rows, rows)).tocsr().astype(dtype)
    csr.indices, csr.indptr = csr.indices.astype(idtype), csr.indptr.astype(idtype)
    return csr


def vector(rows: int = ROWS, dtype: str = "float32") -> np.ndarray:
    return (np.arange(rows) % 5).astype(dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("idtype", ["int32", "int64"])
def test_the_format_that_is_expected_to_be_fast_is_made_at_once(diagonal, dtype, idtype):
    csr, x = band(512, dtype, idtype), vector(512, dtype)
    kernel = spcomp.compile(source("spmv", dtype, idtype))
    bound = kernel.bind(A=csr, inspect=True)
    text = bound.explain()
    assert "inspected for many calls: A in sliced_diagonal" in text
    assert "expected to be 3.00 times as fast as the default" in text
    want = csr @ x
    np.testing.assert_array_equal(bound(X=x), want)
    out = np.full(512, 7, dtype)
    assert bound(X=x, out=out) is out
    np.testing.assert_array_equal(out, want)
    csr.data[:] = 0  # the matrix is that of the bind
    np.testing.assert_array_equal(bound(X=x), want)
    other = kernel.bind(A=band(512, dtype, idtype), inspect=True)
    np.testing.assert_array_equal(other(X=2 * x), 2 * want)
    np.testing.assert_array_equal(kernel(A=csr, X=x), np.zeros(512))
    assert "inspected" not in kernel.bind(A=csr).explain(X=x)
    with pytest.raises(ArgumentError, match="bound"):
        bound(A=csr, X=x)
    with pytest.raises(ArgumentError, match="X"):
        bound(X=x[1:])


def test_learned_calls_in_another_format_refuse_what_the_first_one_refuses(diagonal):
    csr, x, out = band(512), vector(512), np.zeros(512, np.float32)
    straight = spcomp.convert(csr, F.sliced_diagonal())
    inspected = spcomp.compile(spmv).bind(A=csr, inspect=True)
    converted = spcomp.decompose(spmv, A=F.sliced_diagonal()).compile().bind(A=straight)
    for bound in (inspected, converted):
        for factor in range(1, 6):
            assert bound(X=factor * x, out=out) is out
            np.testing.assert_array_equal(out, csr @ (factor * x))
            np.testing.assert_array_equal(bound(X=x), csr @ x)
        with pytest.raises(ArgumentError, match="A: is bound already"):
            bound(A=csr, X=x)
        with pytest.raises(ArgumentError, match="Y: given twice"):
            bound(X=x, Y=out, out=out)
        with pytest.raises(ArgumentError, match="X"):
            bound(X=x[1:], out=out)


def test_a_conversion_has_to_pay_off_in_the_calls_that_are_expected(diagonal):
    csr, x = band(512), vector(512)
    few = spcomp.compile(spmv).bind(A=csr, calls=3)
    assert "inspected for 3 calls: the default is kept" in few.explain()
    np.testing.assert_array_equal(few(X=x), csr @ x)
    assert "sliced_diagonal" in spcomp.compile(spmv).bind(A=csr, calls=1000).explain()
    assert pays(1.5, 100, None)
    assert pays(1.5, 100, 201)
    assert not pays(1.5, 100, 200)


def test_sizes_that_come_with_the_call_decide_at_the_call(diagonal):
    csr, kernel = band(), spcomp.compile(spmm)
    bound = kernel.bind(A=csr, inspect=True)
    for b in (dense(), np.ones((ROWS, 24), np.float32), dense()):
        np.testing.assert_allclose(bound(B=b), csr @ b, rtol=1e-5)
        assert "sliced_diagonal" in bound.explain(B=b)
    assert "sliced_diagonal" in bound.explain()


def test_index_notation_is_inspected_too(diagonal):
    csr, x = band(512), vector(512)
    bound = spcomp.compile("y[i] = A[i, j] * x[j]").bind(A=csr, calls=1000)
    np.testing.assert_array_equal(bound(x=x), csr @ x)
    assert "A in sliced_diagonal" in bound.explain()
    assert "A in sliced_diagonal" in bound.explain(x=x)


@pytest.mark.parametrize("program", [spmv, "Y[i] = A[i, j] * X[j]"])
def test_what_is_told_is_of_the_kernel_that_runs(diagonal, program):
    csr, x = band(512), vector(512)
    bound = spcomp.compile(program).bind(A=csr, inspect=True)
    if program is spmv:  # it is chosen at the bind
        assert "A_diagonal" in bound.stage("coordinate")
    else:
        with pytest.raises(ArgumentError, match="not known yet"):
            bound.explain()
        assert "A in sliced_diagonal" in bound.explain(X=x).splitlines()[0]
    np.testing.assert_array_equal(bound(X=x), csr @ x)
    assert "A in sliced_diagonal" in bound.explain().splitlines()[0]
    assert "A[i, j]: csr" not in bound.explain() + bound.explain(X=x)
    assert "A_diagonal" in bound.stage("coordinate")
    assert "parallel('s')" in str(bound.trace)
    special = bound.specialize(X=x)
    assert "A_diagonal" in special.stage("coordinate")
    if program is not spmv:
        assert "A_diagonal" in str(bound.signature)
        np.testing.assert_array_equal(special(A=csr, X=x), csr @ x)
    assert "loop s" in str(bound.profile(X=x, repeat=1))
    np.testing.assert_array_equal(bound.interpret("code", X=x), csr @ x)


def test_two_bound_kernels_tell_each_its_own(diagonal):
    kernel = spcomp.compile(spmv)
    first = kernel.bind(A=band(512), inspect=True)
    second = kernel.bind(A=band(512), calls=1)
    assert "sliced_diagonal" in first.explain()
    assert second.explain().startswith("inspected for 1 call: the default is kept")
    assert "diagonal" not in second.stage("coordinate")


def test_calls_in_a_format_that_was_suggested_go_straight(diagonal, monkeypatch):
    csr, x, out = band(512), vector(512), np.zeros(512, np.float32)
    bound = spcomp.compile("y[i] = A[i, j] * x[j]").bind(A=csr, calls=1000)
    for _ in range(4):
        bound(x=x, out=out)
    assert "A in sliced_diagonal" in bound.explain()
    monkeypatch.delattr(Runner, "call")  # the full way
    for factor in (2, 3):
        assert bound(x=factor * x, out=out) is out
        np.testing.assert_array_equal(out, csr @ (factor * x))


@pytest.mark.parametrize("is_csr", [True, False])
def test_a_matrix_of_index_notation_is_that_of_the_bind(diagonal, is_csr):
    matrix, x = band(512) if is_csr else band(512).tocoo(), vector(512)
    want = matrix @ x
    bound = spcomp.compile("y[i] = A[i, j] * x[j]").bind(A=matrix, calls=1000)
    for column in (x, x.astype(np.float64)):  # the format is made at the first call of a kind
        matrix.data[:] = 0
        np.testing.assert_allclose(bound(x=column), want, rtol=1e-6)


def _tensor(csr):
    return spcomp.convert(csr, "csr")


@pytest.mark.parametrize("kind", [sps.csr_matrix, sps.coo_array, _tensor])
def test_matrices_of_any_kind_are_copied(diagonal, kind):
    b, arg = dense(), kind(band())
    want = band() @ b
    bound = spcomp.compile(spmm).bind(A=arg, inspect=True)  # the choice comes with the call
    (arg.values if isinstance(arg, spcomp.Tensor) else arg.data)[:] = 0
    np.testing.assert_allclose(bound(B=b), want, rtol=1e-5)
    again = bound.bind(B=b)
    np.testing.assert_allclose(again(), want, rtol=1e-5)
    few = bound.bind(B=b, calls=2)
    np.testing.assert_allclose(few(), want, rtol=1e-5)
    assert "inspected for 2 calls: the default is kept" in few.explain()


@pytest.mark.parametrize(
    "csr",
    [sps.csr_array((6, 6), dtype=np.float32), sps.csr_array((0, 6), dtype=np.float32), band(2)],
    ids=["no elements", "no rows", "two rows"],
)
def test_small_and_empty_matrices_stay_as_they_are(store, csr):
    x = vector(csr.shape[1])
    bound = spcomp.compile(spmv).bind(A=csr, inspect=True)
    np.testing.assert_array_equal(bound(X=x), csr @ x)


def test_what_was_measured_for_such_a_matrix_goes_before_expectations(store):
    keep(store, prefetching(4), "any")
    bound = spcomp.compile(spmm).bind(A=matrix(), calls=1000)
    np.testing.assert_allclose(bound(B=dense()), matrix() @ dense(), rtol=1e-4, atol=1e-5)
    assert "measured with such matrices to be 1.50 times" in bound.explain()
    assert "prefetch('j', 4)" in bound.explain(B=dense())


def test_a_format_that_does_not_fit_leaves_the_default(diagonal, monkeypatch):
    unfit = winners.Winner(Choice((("A", "bsr((7, 7))"),)), "inspected")
    monkeypatch.setattr("spcomp.tune.inspector.Inspector.find", lambda *_: unfit)
    bound = spcomp.compile(spmv).bind(A=band(512), inspect=True)
    np.testing.assert_array_equal(bound(X=vector(512)), band(512) @ vector(512))


def test_without_the_question_nothing_is_inspected(diagonal):
    assert type(spcomp.compile(spmv).bind(A=band())) is BoundKernel
    assert type(spcomp.compile(spmv).bind(A=band(), inspect=False)) is BoundKernel


def test_what_cannot_be_inspected_is_refused(store):
    kernel = spcomp.compile(spmv)
    for wrong in ({"calls": 0}, {"calls": "many"}, {"inspect": 1}):
        with pytest.raises(ArgumentError, match="argument"):
            kernel.bind(A=band(), **wrong)
    decided = spcomp.compile(spmv, trace=kernel.trace)
    schedule = spcomp.compile(spcomp.Schedule(spmv).lower_sparse_iter().parallel("i"))
    for other in (decided, schedule):
        with pytest.raises(ArgumentError, match="decided already"):
            other.bind(A=band(), inspect=True)
    adjoint = spcomp.compile(spcomp.adjoint("y[i] = A[i, j] * x[j]", wrt=("A",)))
    for asked in ({"calls": 1000}, {"inspect": True}):
        with pytest.raises(ArgumentError, match="gradients are not inspected"):
            adjoint.bind(A=band(), **asked)
    with pytest.raises(ArgumentError):
        spcomp.compile(spcomp.decompose(spmv, A=F.ell())).bind(A=band(), inspect=True)
    for layout in ("hyb", "bsr", "csr", F.ell()):
        notation = spcomp.compile("y[i] = A[i, j] * x[j]", formats={"A": layout})
        with pytest.raises(ArgumentError, match="format of A is decided already"):
            notation.bind(A=band(), inspect=True)


def test_what_nothing_is_chosen_for_says_so(store):
    csr, x, program = band(), vector(), "y[i] = A[i, j] * x[j]"
    parts = spcomp.convert(csr, F.hyb(1, [1, 2, 4]))
    inspected = spcomp.compile(program).bind(A=parts, inspect=True)
    changing = spcomp.compile(program, tuned=True).bind(A=spcomp.convert(csr, "dcsr"))
    for bound, why in ((inspected, "A comes in a format that is kept"), (changing, "may change")):
        np.testing.assert_allclose(bound(x=x), csr @ x, rtol=1e-6)
        for text in (bound.explain(), bound.explain(x=x)):
            assert text.startswith("nothing is chosen: ")
            assert why in text.splitlines()[0]


def test_weights_are_read_as_they_were_written():
    tree = Tree((1, -1, -1), (0.5, 0.25, -0.5), (1, 0, 0), (2, 0, 0), (2, 0, 0))
    written = Weights(("a", "b"), (tree, tree), 0.125, 1.3, "nothing")
    read = Weights.from_json(written.to_json())
    assert read == written
    rows = [{"a": 1.0, "b": 0.0}, {"b": 0.5}, {"a": 2.0}]
    np.testing.assert_allclose(read.predict(rows), np.exp([0.625, -0.875, -0.875]))


@pytest.mark.parametrize("cpu", ["native", "znver4", "x86-64-v4", "neoverse-n1"])
def test_weights_for_all_processors_are_small(cpu):
    target = Target("cpu", cpu)
    shipped = weights(target)
    assert shipped is not None
    assert len(file_for(target).read_bytes()) < 200_000
    assert "measurements" in shipped.trained
    assert (file_for(target).stem == "weights_gather") == (cpu == "x86-64-v4") or cpu == "native"
    assert weights(Target("cuda", "sm_90")) is None


def test_the_model_that_comes_with_spcomp_knows_stencils(store):
    """Measured at 2.7 to 6.5 times the default; the program calls its matrix by another name."""
    shipped = weights(Target())
    assert shipped is not None
    csr, x = band(20_000), vector(20_000)
    found = spcomp.tune.suggest("y[i] = M[i, j] * x[j]", M=csr, x=x)
    assert found.source == "model"
    assert found.formats["M"].startswith("sliced_diagonal")
    assert found.speedup >= shipped.sure
    assert spcomp.tune.suggest(spmv, A=csr, X=x, calls=1).source == "default"
    bound = spcomp.compile(spmv).bind(A=csr, calls=1000)
    np.testing.assert_array_equal(bound(X=x), csr @ x)
    assert "A in sliced_diagonal" in bound.explain()


def test_features_are_those_of_the_largest_matrix_by_no_name():
    features = {"B.nnz": 3.0, "B.mean": 1.0, "A.nnz": 4.0, "A.mean": 2.0, "lanes": 8.0}
    assert of_any_name(features) == {"matrix.nnz": 4.0, "matrix.mean": 2.0, "lanes": 8.0}
    assert of_any_name({"lanes": 8.0}) == {"lanes": 8.0}


def test_a_matrix_with_billions_of_columns_is_bound_as_it_is():
    columns = 5 * 10**9
    at = np.array([0, columns // 2, columns - 1]), np.array([0, 1, 3])
    wide = sps.csr_array((np.array([1.0, 2, 3]), *at), shape=(2, columns))
    bound = spcomp.compile("y[i] = sum(j, A[i, j])").bind(A=wide, calls=100)
    np.testing.assert_array_equal(bound(), [1, 5])


def test_coordinates_out_of_range_are_named_like_those_of_a_plain_bind():
    matrix = sps.coo_array(np.eye(4))
    matrix.coords[0][1] = 1 << 30
    kernel = spcomp.compile("y[i] = A[i, j] * x[j]")
    for how in ({}, {"inspect": True}):
        with pytest.raises(ArgumentError, match=r"argument A.coords\[0\]: got 1073741824"):
            kernel.bind(A=matrix, **how)(x=np.ones(4))
