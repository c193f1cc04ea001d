"""What every kernel can do, whatever it was compiled of: the methods of Runnable mean the same."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import scipy.sparse as sps

import spcomp
from spcomp.errors import ArgumentError
from spcomp.kernels.protocol import Bound, Runnable
from tests.layers import source

A = sps.random_array((12, 9), density=0.4, format="csr", dtype=np.float32, rng=3)
B = np.arange(9 * 4, dtype=np.float32).reshape(9, 4)
TEXT = "C[i, k] = A[i, j] * B[j, k]"
KERNELS = {
    "program": lambda: spcomp.compile(source("csrmm")),
    "parts": lambda: spcomp.compile(spcomp.decompose(source("csrmm"), A=spcomp.formats.bsr(2))),
    "chosen": lambda: spcomp.compile(spcomp.decompose(source("csrmm"), A="hyb")),
    "notation": lambda: spcomp.compile(TEXT),
}
CALLS = {"all": {}, "one bound": {"A": A}}


@pytest.fixture(params=[(kind, call) for kind in KERNELS for call in CALLS], ids="-".join)
def runnable(request):
    """A kernel that has been called, or one with arguments bound; and what else a call takes."""
    kind, call = request.param
    kernel, bound = KERNELS[kind](), CALLS[call]
    arguments = {name: arg for name, arg in (("A", A), ("B", B)) if name not in bound}
    subject = kernel.bind(**bound) if bound else kernel
    assert np.allclose(subject(**arguments), A @ B)
    return subject, arguments


def test_a_specialized_kernel_computes_the_same_and_shows_its_code(runnable):
    subject, arguments = runnable
    special = subject.specialize(**arguments)
    assert isinstance(special, Runnable)
    assert "T.prim_func" in special.stage("flat")
    assert "define" in special.source("llvm")
    assert len(special.trace) >= 1


def test_stages_sources_traces_and_explanations_are_of_what_ran(runnable):
    subject, arguments = runnable
    assert "T.prim_func" in subject.stage("position")
    assert "define" in subject.source()
    assert len(subject.trace) >= 1
    assert subject.explain(**arguments)
    with pytest.raises(ArgumentError, match=r"got .nonsense."):
        subject.stage("nonsense")


def test_a_schedule_is_made_of_what_ran(runnable):
    subject, _ = runnable
    assert subject.timings
    if len(subject.kernels()) > 1:
        with pytest.raises(ArgumentError, match="runs as"):
            spcomp.Schedule(subject)
        return
    sch = spcomp.Schedule(subject)
    assert not sch.trace
    assert spcomp.Schedule(spcomp.compile(sch.lower_sparse_iter())).func.name == sch.func.name


def test_a_schedule_is_made_of_what_decompose_returns():
    parts = spcomp.decompose(source("csrmm"), A=spcomp.formats.bsr(2))
    assert spcomp.Schedule(parts).func.script() == parts.script()


def test_kernels_can_be_pickled_after_calls(runnable):
    subject, arguments = runnable
    again = pickle.loads(pickle.dumps(subject))
    assert type(again) is type(subject)
    np.testing.assert_array_equal(again(**arguments), subject(**arguments))


@pytest.mark.parametrize("asked", [{}, {"calls": 1000}])
@pytest.mark.parametrize("made", ["program", "notation"])
def test_a_pickled_bound_kernel_has_what_was_bound(made, asked):
    matrix = A.copy()
    bound = KERNELS[made]().bind(A=matrix, **asked)
    matrix.indices[:] = matrix.indices[::-1].copy()
    for _ in range(2):  # before and after calls
        np.testing.assert_allclose(pickle.loads(pickle.dumps(bound))(B=B), A @ B, rtol=1e-5)
        np.testing.assert_allclose(bound(B=B), A @ B, rtol=1e-5)


def test_a_pickled_bound_kernel_has_its_index_vectors():
    bound = spcomp.compile("Y[d[e]] = w[e] * v[d[e]]").bind(d=np.array([0, 1, 1]))
    args = {"w": np.ones(3), "v": np.array([1.0, 10])}
    for _ in range(2):
        np.testing.assert_array_equal(pickle.loads(pickle.dumps(bound))(**args), [1, 20])
        np.testing.assert_array_equal(bound(**args), [1, 20])


def test_names_signatures_and_timings(runnable):
    subject, arguments = runnable
    assert subject.name.isidentifier()
    names = {param.name for param in subject.signature.params}
    assert set(arguments) <= names
    assert not isinstance(subject, Bound) or "A" not in names
    assert subject.time_evaluator(number=1)(**arguments).mean > 0


def test_the_rest_can_be_bound_later_and_nothing_twice(runnable):
    subject, arguments = runnable
    if "A" in arguments:
        return
    both = subject.bind(B=B)
    assert np.allclose(both(), A @ B)
    for again in (subject, both):
        with pytest.raises(ArgumentError, match="argument A: is bound already"):
            again.bind(A=A)
        with pytest.raises(ArgumentError, match="argument A: is bound already"):
            again(A=A)


def test_the_version_for_known_sizes_is_a_kernel_without_them():
    kernel = spcomp.compile(source("csrmm"))
    special = kernel.specialize(A=A, B=B)
    assert "feat" not in {param.name for param in special.signature.params}
    assert np.array_equal(special(A=A, B=B), kernel(A=A, B=B))
    assert special.explain() == kernel.explain(A=A, B=B)


def test_what_runs_as_several_programs_has_no_trace_of_its_own():
    kernel = spcomp.compile("C[i, j] = A[i, k] * A[k, l] * A[l, j]", formats={"C": "csr"})
    square = sps.csr_array(A[:9])
    kernel(A=square)
    if len(kernel.kernels()) > 1:
        with pytest.raises(ArgumentError, match="programs, one after the other"):
            _ = kernel.trace


def test_a_notation_kernel_that_nothing_was_given_to_says_so():
    for ask in (lambda k: k.trace, lambda k: k.signature, lambda k: k.stage("flat")):
        with pytest.raises(ArgumentError, match="formats and dtypes are not known yet"):
            ask(spcomp.compile(TEXT))
