"""Sums of 16-bit floats, which are made in float32 and rounded once."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import pytest

import spcomp
from spcomp.errors import ArgumentError

LONG = 5000  # ones, the sum of which float16 holds, but not 2048 + 1


@pytest.mark.parametrize("columns", [1, 8, 64])
def test_sums_of_16_bit_floats_are_rounded_once(columns):
    ones = np.ones(LONG, np.float16)
    row = spcomp.Tensor((1, LONG), [None, ("compressed", [0, LONG], np.arange(LONG))], ones)
    many = np.ones((LONG, columns), np.float16)
    for a in (row, ones[None]):
        assert np.all(spcomp.compile("C[i, k] = A[i, j] * B[j, k]")(A=a, B=many) == LONG)
        assert spcomp.compile("y[i] = A[i, j] * x[j]")(A=a, x=ones) == LONG
    assert spcomp.compile("s = x[i] * x[i]")(x=ones) == LONG
    large = np.float16([300, -300, 1])
    apart = spcomp.Tensor((1, 3), [None, ("compressed", [0, 3], [0, 1, 2])], large)
    b = np.tile(np.float16([[300], [300], [1]]), columns)
    assert np.all(spcomp.compile("C[i, k] = A[i, j] * B[j, k]")(A=apart, B=b) == 1)


@pytest.mark.torch
@pytest.mark.parametrize("name", ["float16", "bfloat16"])
@pytest.mark.parametrize("columns", [1, 8])
def test_sums_of_16_bit_tensors_are_rounded_once(name, columns):
    torch = pytest.importorskip("torch")
    from spcomp.torch import gather_scatter, scatter, spmm

    dtype = getattr(torch, name)
    ones, index = torch.ones(LONG, columns, dtype=dtype), torch.zeros(LONG, dtype=torch.long)
    expected = torch.full((columns,), LONG).to(dtype)
    row = torch.ones(1, LONG, dtype=dtype).to_sparse_coo()
    edges = torch.stack([torch.arange(LONG), index])
    down = spcomp.compile("y[j] = A[i, j] * x[i]")
    for result in (
        *(spmm(row, ones)[0], scatter(ones, index, dim=0)[0], down(A=ones, x=ones[:, 0])),
        gather_scatter(ones, edges, dim_size=1)[0],
    ):
        assert result.dtype == dtype
        assert torch.equal(result, expected)


def test_parts_of_16_bit_floats_are_arguments_like_others():
    w = np.kron(np.eye(4), np.ones((4, 4))).astype(np.float16)
    parts, x = spcomp.convert(w, spcomp.formats.bsr(4)), np.ones((16, 2), np.float16)
    for options in ({}, {"formats": {"A": spcomp.formats.bsr(4)}}):
        kernel = spcomp.compile("C[i, b] = A[i, j] * B[j, b]", **options)
        assert np.all(kernel(A=parts, B=x) == 4)
        assert np.all(kernel.bind(A=parts)(B=x) == 4)


@pytest.mark.torch
@pytest.mark.skipif("ml_dtypes" in sys.modules, reason="then numpy knows bfloat16")
def test_bfloat16_of_torch_needs_a_package_to_be_converted():
    torch = pytest.importorskip("torch")
    with pytest.raises(ArgumentError, match=r"numpy has no torch\.bfloat16") as error:
        spcomp.convert(torch.ones(2, 2).bfloat16(), "csr")
    assert "import ml_dtypes first" in error.value.hint


@pytest.mark.torch
@pytest.mark.skipif(find_spec("ml_dtypes") is None, reason="needs ml_dtypes")
def test_bfloat16_of_torch_is_converted_and_comes_back():
    pytest.importorskip("torch")
    text = """
import ml_dtypes, spcomp, torch, warnings
warnings.simplefilter("ignore")
x = torch.tensor([[1, 0, 2.5], [0, -3, 0]]).bfloat16()
for given in (x, x.to_sparse_coo(), x.to_sparse_csr(), x.to_sparse_bsr((2, 3)), x.T):
    for name in ("csr", "ell", "coo"):
        found = spcomp.convert(given, name)
        assert found.dtype == ml_dtypes.bfloat16
        assert torch.equal(found.to_torch().to_dense(), given.to_dense())
    back = spcomp.Tensor.from_torch(given).to_torch()
    assert back.dtype == torch.bfloat16 and torch.equal(back.to_dense(), given.to_dense())
"""
    subprocess.run([sys.executable, "-c", text], check=True, timeout=120)
