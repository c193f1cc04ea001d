"""``compile``: its options, what is shared, and what can be read of a Kernel."""

import re
import subprocess
import sys

import numpy as np
import pytest

import spcomp
from spcomp.errors import ArgumentError, BackendError, FormatError
from tests.test_api import A, B, random_csr, scale, spmm


def test_constants_are_compiled_in():
    kernel = spcomp.compile(spmm, constants={"feat": 3})
    np.testing.assert_allclose(kernel(A=A, B=B), A @ B, rtol=1e-5)
    with pytest.raises(ArgumentError, match="argument B: dimension 1"):
        kernel(A=A, B=B[:, :2].copy())


@pytest.mark.parametrize("target", ["cpu:x86-64", "cpu:x86-64-v3", "cpu:x86-64-v4"])
def test_a_constant_extent_of_zero_is_compiled_for_every_target(target):
    assert "float32[m, 0] out" in repr(spcomp.compile(spmm, constants={"feat": 0}, target=target))


def test_a_result_without_columns_has_none():
    for kernel in (spcomp.compile(spmm, constants={"feat": 0}), spcomp.compile(spmm)):
        assert kernel(A=A, B=B[:, :0].copy()).shape == (A.shape[0], 0)


@pytest.mark.parametrize("extent", [-1, -64, -(2**31)])
def test_a_negative_constant_extent_is_refused_where_the_axis_is_declared(extent):
    with pytest.raises(FormatError, match=f"has the extent {extent}") as caught:
        spcomp.compile(spmm, constants={"feat": extent})
    assert "T.dense_fixed(feat)" in str(caught.value)


def test_equal_programs_share_their_code():
    first, second = spcomp.compile(spmm), spcomp.compile(spmm, name="other")
    assert first._compiled is second._compiled
    assert second.name == "other"
    assert spcomp.compile(spmm, constants={"feat": 4})._compiled is not first._compiled


def test_the_zeros_of_both_signs_are_different_constants():
    signs = [
        np.signbit(spcomp.compile(scale, constants={"alpha": zero})(A=A).data)
        for zero in (0.0, -0.0)
    ]
    assert (signs[0] != signs[1]).all()


def test_a_kernel_can_be_read():
    kernel = spcomp.compile(spmm)
    assert kernel.name == "spmm"
    assert str(kernel.target) == "cpu"
    assert "T.sp_iter" in kernel.stage("coordinate")
    assert "T.block" in kernel.stage("position")
    assert "T.block" not in kernel.stage("flat")
    assert "define" in kernel.source("llvm")
    assert "spmm" in kernel.source("asm")
    assert kernel.object_bytes
    assert {func for func, _ in kernel.trace} <= {"spmm"}
    assert all(seconds >= 0 for seconds in kernel.timings.values())
    assert repr(kernel).startswith("<Kernel spmm for cpu: A: float32[m, n] in")


def test_the_signature_names_roles_dtypes_and_shapes():
    signature = spcomp.compile(spmm).signature
    kinds = {param.name: param.kind for param in signature.params}
    assert kinds == {
        "A": "in", "B": "in", "C": "out", "indptr": "index", "indices": "index",
        "m": "scalar", "n": "scalar", "feat": "scalar", "nnz": "scalar",
    }  # fmt: skip
    assert signature.results == ("C",)
    assert signature.params[0].shape == ("m", "n")
    text = str(signature)
    assert "A: float32[m, n] in along I dense_fixed, J sparse_variable (parameter a)" in text
    assert text.endswith(") -> C")


@pytest.mark.filterwarnings("ignore:.* is not proved to be parallel")
def test_every_stage_compiles_again_and_gives_the_same_result():
    kernel = spcomp.compile(spmm)
    position = spcomp.compile(kernel._compiled.stages.position)
    np.testing.assert_allclose(position(A=A, B=B), A @ B, rtol=1e-5)
    flat = spcomp.compile(kernel._compiled.stages.flat)
    C = np.zeros(18, "float32")
    flat(A.data, B, C, A.indptr, A.indices, 6, 7, 3, A.nnz)
    np.testing.assert_allclose(C.reshape(6, 3), A @ B, rtol=1e-5)


def test_stages_and_sources_that_do_not_exist_are_refused():
    kernel = spcomp.compile(spmm)
    with pytest.raises(ArgumentError, match="got 'ptx'"):
        kernel.source("ptx")
    with pytest.raises(ArgumentError, match="got 'sparse'"):
        kernel.stage("sparse")


def test_what_is_no_program_is_refused():
    with pytest.raises(ArgumentError, match="program: got int"):
        spcomp.compile(3)
    with pytest.raises(ArgumentError, match="program: got function") as caught:
        spcomp.compile(random_csr)
    assert "prim_func" in caught.value.hint


def test_options_that_do_not_exist_are_refused(monkeypatch):
    with pytest.raises(ArgumentError, match="check: got 'some'"):
        spcomp.compile(spmm, check="some")
    with pytest.raises(ArgumentError, match="threads: got 0"):
        spcomp.compile(spmm, threads=0)
    with pytest.raises(BackendError, match="unknown target 'tpu'"):
        spcomp.compile(spmm, target="tpu")
    with pytest.raises(BackendError, match="unknown GPU 'sm_1'"):
        spcomp.compile(spmm, target="cuda:sm_1")
    monkeypatch.setenv("SPCOMP_CHECK", "none")
    with pytest.raises(ArgumentError, match="check: got 'none'"):
        spcomp.compile(spmm)


def test_the_environment_chooses_the_level_of_checks(monkeypatch):
    monkeypatch.setenv("SPCOMP_CHECK", "bind")
    kernel = spcomp.compile(spmm)
    falls = A.copy()
    falls.indices[:2] = falls.indices[1::-1]
    falls.has_canonical_format = True  # a stale claim is believed where checks are off
    kernel(A=falls, B=B)
    with pytest.raises(ArgumentError, match="float64"):
        kernel(A=A, B=B.astype("float64"))
    broken = A.copy()
    broken.indptr = broken.indptr[:-1]
    with pytest.raises(ArgumentError, match="sizes"):
        kernel(A=broken, B=B)
    falls.indices[0] = 99
    with pytest.raises(ArgumentError, match="got 99"):
        kernel.bind(A=falls)


def test_public_names_are_there_and_import_nothing_heavy():
    code = (
        "import sys, spcomp\n"
        "heavy = {'llvmlite', 'networkx', 'numba', 'scipy', 'rich', 'click'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
        "assert 'compile' in dir(spcomp)\n"
        "for name in spcomp.__all__: getattr(spcomp, name)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert re.fullmatch(r"\d+\.\d+\.\d+", spcomp.__version__)
    with pytest.raises(AttributeError, match="no attribute 'compiel'"):
        _ = spcomp.compiel


@pytest.mark.parametrize("target", ["cuda:sm_91", "cpu:foo"])
def test_unknown_machines_are_refused_when_index_notation_is_compiled(target):
    with pytest.raises(BackendError, match="unknown"):
        spcomp.compile("y[i] = A[i, j] * x[j]", target=target)
