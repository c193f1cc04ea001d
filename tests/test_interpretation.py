"""``kernel.interpret``: a call at any stage, and where the stages differ."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import scipy.sparse as sps

import spcomp
from spcomp.errors import ArgumentError
from spcomp.ir.expr import Const
from spcomp.ir.rewrite import Rewriter
from spcomp.kernels.frame import Frame
from spcomp.kernels.interpretation import Difference, Interpretation, _difference
from spcomp.schedule.step import Trace
from tests.programs import BY_NAME

STAGES = ("coordinate", "position", "flat", "code")
A = sps.random(5, 6, 0.5, "csr", dtype="float32", rng=np.random.default_rng(1))
B = np.arange(18, dtype="float32").reshape(6, 3)


@pytest.fixture(scope="module")
def spmm():
    return spcomp.compile(BY_NAME["csrmm"].build())


@pytest.mark.parametrize("stage", STAGES)
def test_each_stage_returns_what_the_call_returns(spmm, stage):
    np.testing.assert_allclose(spmm.interpret(stage, A=A, B=B), spmm(A=A, B=B), rtol=1e-6)


def test_assembled_results_are_matrices(spmm):
    add = spcomp.compile(BY_NAME["csr_add"].build())
    for stage in STAGES:
        result = add.interpret(stage, A=A, B=A)
        assert sps.issparse(result)
        assert abs(result - 2 * A).max() == 0
    assert add.interpret(compare=True, A=A, B=A)


def test_what_the_caller_gave_is_not_written_to(spmm):
    out = np.full((5, 3), 7, "float32")
    result = spmm.interpret("code", A=A, B=B, C=out)
    assert (out == 7).all()
    assert not np.shares_memory(result, out)
    assert result.sum() > 0


class Doubled(Rewriter):
    """Changes what a program computes: sums start at 1."""

    def visit_Const(self, node: Const) -> Const:
        return Const(1.0, node.type) if node.type.is_float and node.value == 0 else node


def test_the_first_stage_that_differs_is_named_with_its_element():
    kernel = spcomp.compile(BY_NAME["csrmm"].build(), trace=Trace())
    stages = kernel._compiled.stages
    wrong = replace(stages, flat=stages.flat.with_funcs(*map(Doubled().visit, stages.flat.funcs)))
    frame = Frame(kernel._face, {})
    for name, arg in {"A": A, "B": B}.items():
        frame.take(name, arg, verify=True)
    compiled = kernel._compiled
    wrong = replace(compiled, given=replace(compiled._lowered, stages=wrong))
    found = Interpretation(wrong, frame).comparison()
    right = (A @ B)[0, 0]
    assert not found
    assert found.stage == "flat"
    assert found.found["code"] is None
    assert str(found).splitlines()[1:] == [
        "position: the same",
        f"flat: C[0, 0] is {right + 1}, not {right}",
        "code: the same",
    ]


def test_rounding_is_no_difference_and_shapes_are():
    one, near = np.float32([1, 2]), np.float32([1, 2 + 1e-6])
    differs = partial(_difference, bits=False)
    assert differs("x", near, one) is None
    assert differs("x", one, np.float32([np.nan, 2])).index == (0,)
    assert differs("n", np.array([1, 2]), np.array([1, 3])) == Difference("n", (1,), 2, 3)
    assert "x.shape" in str(differs("x", one[:1], one))
    last_bits = np.uint16([0x3F80, 0x4080]), np.uint16([0x3F80, 0x4081])  # 4.0 and the next
    assert _difference("x", *last_bits, bits=True) is None
    assert differs("x", *last_bits).index == (1,)


def test_wrong_stages_and_arguments_are_refused(spmm):
    with pytest.raises(ArgumentError, match="argument stage: got 'llvm'"):
        spmm.interpret("llvm", A=A, B=B)
    with pytest.raises(ArgumentError, match="B"):
        spmm.interpret(A=A)
    flat = spcomp.compile(spcomp.parse(spmm.stage("flat")), check="off")
    arrays = {"A": A.data, "B": B.reshape(-1), "J_indptr": A.indptr, "J_indices": A.indices}
    with pytest.raises(ArgumentError, match="argument stage"):
        flat.interpret(**arrays, C=np.zeros(15, "float32"), m=5, n=6, nnz=A.nnz, feat=3)


def test_empty_arguments():
    kernel = spcomp.compile(BY_NAME["csrmm"].build())
    empty = sps.csr_array((0, 4), dtype="float32")
    assert kernel.interpret(A=empty, B=np.ones((4, 2), "float32")).shape == (0, 2)
    assert kernel.interpret(compare=True, A=empty, B=np.ones((4, 0), "float32"))


SPMM = "C[i, k] = A[i, j] * B[j, k]"
OUTER = {
    "index notation": spcomp.compile(SPMM),
    "parts": spcomp.compile(SPMM, formats={"A": "hyb(1)"}),
    "parts of a script": spcomp.compile(
        spcomp.decompose(BY_NAME["csrmm"].build(), A=spcomp.formats.hyb(1, [1, 2]))
    ),
    "chosen parts": spcomp.compile(
        spcomp.decompose(BY_NAME["csrmm"].build(), A=spcomp.formats.hyb())
    ),
}


@pytest.mark.parametrize("name", OUTER)
def test_kernels_around_others_interpret_and_profile_what_they_run(name):
    kernel = OUTER[name]
    want = kernel(A=A, B=B)
    for call in (kernel, kernel.bind(A=A)):
        rest = {"B": B} if call is not kernel else {"A": A, "B": B}
        np.testing.assert_allclose(call.interpret("position", **rest), want, rtol=1e-6)
        assert call.interpret(compare=True, **rest)
        assert call.profile(repeat=1, **rest).phases


def test_interpreted_results_are_stored_as_those_of_a_call():
    kernel = spcomp.compile("C[i, j] = A[j, i] + A[j, i] * 2; s = A[i, j]")
    matrix, total = kernel.interpret("flat", A=A)
    assert matrix.format == kernel(A=A).C.format
    np.testing.assert_allclose(matrix.toarray(), 3 * A.T.toarray(), rtol=1e-6)
    np.testing.assert_allclose(total, A.sum(), rtol=1e-6)
    added, before = spcomp.compile("y[i] += A[i, j]"), np.ones(5, "float32")
    want = 1 + A.toarray().sum(axis=1)
    np.testing.assert_allclose(added.interpret("position", A=A, y=before), want, rtol=1e-6)
    assert (before == 1).all()


def test_gradients_are_interpreted():
    grad = spcomp.compile(spcomp.adjoint("y[i] = A[i, j] * x[j]", wrt=("x",)))
    ones = np.ones(5, "float32")
    got = grad.interpret("position", A=A, grad_y=ones)
    np.testing.assert_allclose(got, A.toarray().sum(axis=0), rtol=1e-6)


@pytest.mark.parametrize("what", ["interpret", "profile"])
def test_several_programs_are_asked_one_by_one(what):
    kernel = spcomp.compile("C[i, j] = A[i, k] * A[j, k]; y[i] = C[i, j] * x[j]")
    with pytest.raises(ArgumentError, match="runs as 2 programs") as caught:
        getattr(kernel, what)(A=A, x=np.ones(5, "float32"))
    assert caught.value.hint.startswith("compile and ask each: C[i, j] = ")
