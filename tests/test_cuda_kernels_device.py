"""On a real GPU: kernels with arrays of the host, of PyTorch and of CuPy.

``pytest -m gpu tests/test_cuda_kernels_device.py`` runs them where there is one.
"""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import scipy.sparse as sps

import spcomp
from spcomp.errors import ArgumentError
from spcomp.runtime.cuda.driver import device_properties
from spcomp.runtime.cuda.memory import synchronize
from spcomp.runtime.cuda.timing import capture
from tests.layers import called
from tests.programs import BY_NAME, PROGRAMS, fresh, variants

pytestmark = pytest.mark.gpu


def compiled(name, dtype="float32", idtype="int32"):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        target = f"cuda:{device_properties().target}"
        return spcomp.compile(BY_NAME[name].build(dtype, idtype), target=target)


def operands(rows=2000, columns=3000, width=64):
    rng = np.random.default_rng(5)
    A = sps.random_array((rows, columns), density=0.01, format="csr", dtype=np.float32, rng=rng)
    return A, rng.random((columns, width), np.float32)


@pytest.mark.parametrize("of", PROGRAMS, ids=lambda p: p.name)
@pytest.mark.filterwarnings("ignore::spcomp.errors.SpcompWarning")
def test_every_program_means_on_a_gpu_what_the_oracle_says(of):
    for dtype, idtype in variants(of):
        kernel = compiled(of.name, dtype, idtype)
        for case in of.cases:
            inputs = of.inputs(case, dtype, idtype)
            results = called(of.name, fresh(inputs), dtype, idtype, compiled=kernel)
            of.check(inputs, results, dtype, f"on a GPU, {dtype} {idtype} {case}")


def test_tensors_of_torch_are_used_in_place():
    torch = pytest.importorskip("torch")
    A, B = operands()
    arrays = (torch.from_numpy(part).cuda() for part in (A.indptr, A.indices, A.data))
    matrix, dense = torch.sparse_csr_tensor(*arrays, A.shape), torch.from_numpy(B).cuda()
    C = compiled("csrmm")(A=matrix, B=dense)
    assert C.is_cuda
    np.testing.assert_allclose(C.cpu().numpy(), A @ B, rtol=1e-4)
    scaled = compiled("csr_element_wise")(A=matrix)
    assert scaled.layout == torch.sparse_csr
    np.testing.assert_array_equal(scaled.values().cpu().numpy(), A.data * np.float32(2.5))
    total = compiled("csr_add")(A=matrix, B=matrix)
    np.testing.assert_allclose(total.values().cpu().numpy(), 2 * A.data, rtol=1e-6)
    notation = spcomp.compile(
        "C[i, k] = A[i, j] * B[j, k]", target=f"cuda:{device_properties().target}"
    )
    np.testing.assert_allclose(notation(A=matrix, B=dense).cpu().numpy(), A @ B, rtol=1e-4)


def test_arrays_of_cupy_are_used_in_place():
    cupy = pytest.importorskip("cupy")
    sparse = pytest.importorskip("cupyx.scipy.sparse")
    A, B = operands()
    C = compiled("csrmm")(A=sparse.csr_matrix(sps.csr_matrix(A)), B=cupy.asarray(B))
    np.testing.assert_allclose(cupy.asnumpy(C), A @ B, rtol=1e-4)


def test_a_bound_call_is_recorded_as_a_graph():
    A, B = operands()
    from numba import cuda

    kernel, dense = compiled("csrmm").bind(A=A), cuda.to_device(B)
    out = cuda.device_array((A.shape[0], B.shape[1]), np.float32)
    kernel(B=dense, out=out)
    expected = out.copy_to_host()
    np.testing.assert_allclose(expected, A @ B, rtol=1e-4)
    out.copy_to_device(np.zeros_like(expected))
    graph = capture(lambda stream: kernel(B=dense, out=out, stream=stream))
    assert not out.copy_to_host().any()
    graph.launch()
    synchronize(1, 0)
    np.testing.assert_array_equal(out.copy_to_host(), expected)


def test_a_failure_in_a_kernel_is_reported():
    kernel, a = compiled("floor_division", "int32"), np.arange(7, dtype=np.int32)
    q, r = np.empty_like(a), np.empty_like(a)
    with pytest.raises(ArgumentError, match="integer division by zero"):
        kernel(a, q, r, 7, 0)
    kernel(a, q, r, 7, 2)
    np.testing.assert_array_equal(q, a // 2)


def test_resources_of_the_driver(monkeypatch):
    monkeypatch.setattr("spcomp.runtime.gpu.tool", lambda name: None)
    (used,) = compiled("csrmm").resources.values()
    assert used.source == "driver"
    assert 8 <= used.registers <= 255
