"""Tensors of PyTorch at the door of kernels: what is taken, what is written, what is returned."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sps

import spcomp
from spcomp.errors import ArgumentError
from tests.test_api import A, B, scale, spmm
from tests.test_arguments import halves

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore:Sparse")]
DENSE = np.array([[1, 0, 2, 0], [0, 3, 0, 0], [4, 0, 0, 5]], np.float32)
CSR = sps.csr_array(DENSE)
SPMV = "y[i] = A[i, j] * x[j]"


@pytest.fixture(scope="module")
def torch() -> Any:
    import torch

    return torch


def layouts(matrix: Any) -> list[Any]:
    """The *matrix* in every layout that torch has for it."""
    blocks = matrix.to_sparse_bsr((3, 2)), matrix.to_sparse_bsc((1, 2))
    return [matrix, matrix.to_sparse(), matrix.to_sparse_csr(), matrix.to_sparse_csc(), *blocks]


def test_results_are_written_to_a_given_tensor(torch: Any) -> None:
    spmv, x = spcomp.compile(SPMV), torch.arange(4.0)
    bound = spmv.bind(A=CSR)
    for call in (lambda **more: spmv(A=CSR, **more), bound):
        for vector in (x, x.numpy()):
            out = torch.full((3,), 7.0)
            assert call(x=vector, out=out) is out
            assert out.tolist() == (DENSE @ x.numpy()).tolist()
    named = torch.empty(3)
    assert spmv(A=CSR, x=x, out={"y": named}) is named
    added = torch.ones(3, 4)
    assert spcomp.compile("C[i, j] += A[i, j]")(A=CSR, C=added) is added
    assert added.tolist() == (DENSE + 1).tolist()
    number = torch.empty(())
    assert spcomp.compile("s = x[i] * x[i]")(x=x, out=number) is number
    assert number.item() == 14


@pytest.mark.parametrize("layout", ["sparse_csr", "sparse_csc"])
@pytest.mark.parametrize("width", ["int32", "int64"])
def test_a_bound_matrix_shares_its_values_and_keeps_its_indices(
    torch: Any, layout: str, width: str
) -> None:
    matrix = torch.from_numpy(DENSE).to_sparse(layout=getattr(torch, layout))
    names = (
        ("crow_indices", "col_indices")
        if layout == "sparse_csr"
        else ("ccol_indices", "row_indices")
    )
    indices = [getattr(matrix, name)().to(getattr(torch, width)) for name in names]
    make = getattr(torch, f"{layout}_tensor")
    matrix = make(*indices, matrix.values(), tuple(matrix.shape))
    x, bound = torch.arange(4.0), spcomp.compile(SPMV).bind(A=matrix)
    for _ in range(4):
        assert bound(x=x).tolist() == (matrix.to_dense() @ x).tolist()
        matrix.values().mul_(3)
    want = bound(x=x)
    for array in indices:
        array.zero_()
    assert bound(x=x).tolist() == want.tolist()


def test_a_tensor_that_cannot_be_written_is_refused(torch: Any) -> None:
    spmv, x = spcomp.compile(SPMV), torch.arange(4.0)
    square = spcomp.compile("y[i] = A[i, j] * x[j]").bind(A=np.ones((4, 4), np.float32))
    for out, message in (
        (torch.empty(3, requires_grad=True), "requires gradients"),
        (torch.empty(6)[::2], "is not contiguous"),
        (torch.empty(1).expand(3), "is not contiguous"),
        (torch.empty(3, device="meta"), "lies on meta"),
        (torch.ones(3, 1).to_sparse_csr(), "is sparse"),
        (torch.empty(4), "dimension 0"),
        (torch.empty(3, dtype=torch.float64), "got float64"),
        (torch.empty(3, dtype=torch.bfloat16), "not all arguments are of that type"),
    ):
        with pytest.raises(ArgumentError, match=message):
            spmv(A=CSR, x=x, out=out)
    for vector in (x, x.bfloat16()):
        bound = square if vector is x else spmv.bind(A=torch.ones(4, 4).bfloat16())
        with pytest.raises(ArgumentError, match="shares memory"):
            bound(x=vector, out=vector)


def test_bfloat16_is_taken_in_every_layout_and_returned(torch: Any) -> None:
    matrix, x = torch.from_numpy(DENSE).bfloat16(), torch.arange(4.0).bfloat16()
    spmv, expected = spcomp.compile(SPMV), (matrix @ x)
    for stored in layouts(matrix):
        for call in (lambda stored=stored, **more: spmv(A=stored, **more), spmv.bind(A=stored)):
            found = call(x=x)
            assert found.dtype == torch.bfloat16
            assert torch.equal(found, expected)
            out = torch.empty(3, dtype=torch.bfloat16)
            assert call(x=x, out=out) is out
            assert torch.equal(out, expected)
    assert spmv(A=matrix, x=x.float()).dtype == torch.float32
    assert spmv(A=matrix, x=torch.arange(4)).dtype == torch.bfloat16
    added = torch.ones(3, 4).bfloat16()
    assert spcomp.compile("C[i, j] += A[i, j]")(A=matrix, C=added) is added
    assert torch.equal(added, matrix + 1)


def test_sums_of_bfloat16_are_rounded_once(torch: Any) -> None:
    ones = torch.ones(1000).bfloat16()
    found = spcomp.compile("y[i] = A[i, j] * x[j]")(A=ones.reshape(1, -1).to_sparse_csr(), x=ones)
    assert found.item() == 1000  # a sum in bfloat16 stays at 256
    twice = torch.sparse_coo_tensor([[0, 0], [1, 1]], [1.0, 2.0], (2, 2)).bfloat16()
    assert spcomp.compile(SPMV)(A=twice, x=ones[:2]).tolist() == [3, 0]


def test_sparse_results_of_bfloat16_keep_their_layout(torch: Any) -> None:
    rows = torch.from_numpy(DENSE).bfloat16().to_sparse_csr()
    text = "C[i, k] = A[i, j] * B[j, k] + A[i, k]"  # runs as several programs
    square = torch.eye(4).bfloat16().to_sparse_csr()
    found = spcomp.compile(text)(A=rows, B=square)
    assert (found.layout, found.dtype) == (torch.sparse_csr, torch.bfloat16)
    assert torch.equal(found.to_dense(), 2 * rows.to_dense())


def test_a_tensor_without_dimensions_is_a_number(torch: Any) -> None:
    kernel, x = spcomp.compile("y[i] = alpha * A[i, j] * x[j]"), torch.arange(4.0)
    for alpha in (torch.tensor(2.0), torch.tensor(2), torch.tensor(2.0).bfloat16()):
        found = kernel(A=CSR, x=x, alpha=alpha)
        assert torch.equal(found, kernel(A=CSR, x=x, alpha=2.0))
    assert kernel(A=CSR, x=x, alpha=torch.tensor(2.0).double()).dtype == torch.float64
    scaled = spcomp.compile(scale)
    for _ in range(4):  # calls of one kind are learnt
        found = scaled(A=A, alpha=torch.tensor(2.0))
        assert np.array_equal(found.toarray(), 2 * A.toarray())
    with pytest.raises(ArgumentError, match="alpha"):
        kernel(A=CSR, x=x, alpha=torch.ones(1))
    for odd in (torch.ones(1), torch.tensor(2.0, requires_grad=True)):
        with pytest.raises(ArgumentError, match="alpha"):
            scaled(A=A, alpha=odd)


def test_negative_views_are_resolved(torch: Any) -> None:
    x = torch.complex(torch.ones(4), torch.arange(4.0)).conj().imag
    assert x.is_neg()
    assert spcomp.compile(SPMV)(A=CSR, x=x).tolist() == (DENSE @ -np.arange(4)).tolist()
    dense = torch.complex(torch.from_numpy(B), torch.from_numpy(B)).conj().imag
    assert np.allclose(spcomp.compile(spmm)(A=A, B=dense), -(A @ B), rtol=1e-5)


def test_gradients_of_scripts_are_refused_with_a_way_out(torch: Any) -> None:
    required = torch.from_numpy(B).clone().requires_grad_()
    with pytest.raises(ArgumentError, match="argument B: requires gradients") as caught:
        spcomp.compile(spmm)(A=A, B=required)
    assert ".detach()" in str(caught.value)
    with torch.no_grad():
        assert np.allclose(spcomp.compile(spmm)(A=A, B=required), A @ B, rtol=1e-5)


def test_a_kernel_writes_to_tensors_and_takes_bfloat16_as_bits(torch: Any) -> None:
    product, copy = spcomp.compile(spmm), spcomp.compile(halves)
    values = torch.tensor([1.0, -2.5]).bfloat16()
    for _ in range(4):  # calls of one kind are learnt
        out, same = torch.empty(A.shape[0], B.shape[1]), torch.empty_like(values)
        assert product(A=A, B=torch.from_numpy(B), out=out) is out
        assert np.allclose(out.numpy(), A @ B, rtol=1e-5)
        assert copy(X=values, out=same) is same
        assert torch.equal(same, values)
    with pytest.raises(ArgumentError, match="numpy has no"):
        product(A=A, B=torch.from_numpy(B).bfloat16())
    with pytest.raises(ArgumentError, match="is not contiguous"):
        copy(X=values, out=torch.empty(4, dtype=torch.bfloat16)[::2])
    with pytest.raises(ArgumentError, match="shares memory"):
        copy(X=values, out=values)


def test_explain_and_specialize_take_tensors(torch: Any) -> None:
    spmv = spcomp.compile(SPMV)
    given = {"A": torch.from_numpy(DENSE).bfloat16().to_sparse_csr(), "x": torch.ones(4)}
    assert "x[j]: dense, float32" in spmv.explain(**given)
    assert "x: float32" in repr(spmv.specialize(**given))


def test_calls_with_arrays_do_not_load_torch() -> None:
    text = (
        "import sys, numpy as np, spcomp\n"
        "spcomp.compile('y[i] = 2 * x[i]')(x=np.ones(3))\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", text], check=True, timeout=120)


def test_a_tensor_given_to_torch_comes_without_a_warning():
    code = "import warnings; warnings.filterwarnings('error', message='Sparse invariant'); "
    code += "import numpy, spcomp; A = spcomp.convert(numpy.eye(3), spcomp.Format('coo')); "
    code += "A.to_torch(), A.to('csr').nnz, A.to(spcomp.Format('csr')).to_torch()"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("has_torch", [True, False])
def test_spcomp_torch_is_loaded_when_it_is_used(has_torch: bool) -> None:
    code = [
        "import sys, spcomp",
        "assert 'torch' not in sys.modules",
        "if sys.argv[1] == 'False': sys.modules['torch'] = None  # as if it were not installed",
        "try: print(callable(spcomp.torch.scatter))",
        "except spcomp.errors.BackendError as error: print('pip install' not in error.hint)",
    ]
    command = [sys.executable, "-c", "\n".join(code), str(has_torch)]
    result = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    assert result.stdout.strip() == str(has_torch)


@pytest.mark.parametrize("layout", ["sparse_coo", "sparse_csr"])
@pytest.mark.parametrize("other", ["sparse_coo", "sparse_csr", "sparse_csc"])
def test_a_gradient_has_the_layout_of_its_tensor_where_others_ask_for_rows(torch, layout, other):
    a = torch.tensor([[1.0, 0, 2], [0, 3, 0]]).to_sparse(layout=getattr(torch, layout))
    d = torch.tensor([[0.0, 1, 0], [0, 0, 0]]).to_sparse(layout=getattr(torch, other))
    kernel = spcomp.compile("y[j] = A[i, j] * u[i] if D[i, j] is None")
    kernel(A=a.requires_grad_(), D=d, u=torch.tensor([5.0, 7.0])).sum().backward()
    assert a.grad.layout == a.layout
    torch.testing.assert_close(a.grad.to_dense(), torch.tensor([[5.0, 0, 5], [0, 7, 0]]))


@pytest.mark.parametrize("layout", ["sparse_coo", "sparse_csr", "sparse_csc"])
def test_sparse_tensors_are_written(torch: Any, tmp_path: Any, layout: str) -> None:
    dense = torch.tensor([[0.0, 2, 0], [1, 0, 3]])
    spcomp.write(tmp_path / "t.npz", dense.to_sparse(layout=getattr(torch, layout)))
    assert np.array_equal(spcomp.read(tmp_path / "t.npz").toarray(), dense.numpy())
    with pytest.raises(ArgumentError, match="got a dense tensor of torch"):
        spcomp.write(tmp_path / "d.npz", dense)


@pytest.mark.dask
def test_distributed_programs_refuse_tensors_that_require_gradients(torch: Any) -> None:
    sd = pytest.importorskip("spcomp.dask", reason="needs Dask")
    matrix = sd.from_scipy(sps.eye_array(4, format="csr"), chunks=2)
    kernel = spcomp.compile("C[i, k] = A[i, j] * B[j, k]")
    with pytest.raises(ArgumentError, match=r"argument B: requires gradients(.|\n)*detach"):
        kernel(A=matrix, B=torch.ones(4, 2, requires_grad=True))
    assert kernel(A=matrix, B=torch.ones(4, 2)).compute().shape == (4, 2)
