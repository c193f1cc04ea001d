"""Rival: PyTorch on the CPU, CSR tensors over the same memory, ``out=`` where it is taken."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import scipy.sparse as sps

from benchmarks.contenders import Prepared, contender, need
from benchmarks.elementwise import spelled

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.problem import Problem


def set_threads(count: int) -> None:
    """Let PyTorch use *count* threads."""
    need("torch").set_num_threads(count)


def _csr(csr: Any, values: Any = None) -> Any:
    torch = need("torch")
    arrays = [torch.from_numpy(a) for a in (csr.indptr, csr.indices)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that its CSR support is in beta
        kept = torch.from_numpy(csr.data) if values is None else values
        return torch.sparse_csr_tensor(*arrays, kept, size=csr.shape)


def _tensors(problem: Problem, *names: str) -> list[Any]:
    torch = need("torch")
    return [torch.from_numpy(problem.dense[n]) for n in names] + [torch.from_numpy(problem.out)]


@contender("torch", "spmm", "spmm_hub", "spmv", "spmv_compressed")
def _product(problem: Problem) -> Callable[[], object]:
    torch, a = need("torch"), _csr(problem.sparse)
    b, out = _tensors(problem, "B")
    if b.ndim == 1:
        return lambda: torch.mv(a, b, out=out)
    return lambda: torch.mm(a, b, out=out)


@contender("torch_reduce", "spmm", "spmm_max", "spmm_mean")
def _reduce(problem: Problem) -> Callable[[], object]:
    torch, a = need("torch"), _csr(problem.sparse)
    b, _ = _tensors(problem, "B")
    how = {"spmm": "sum", "spmm_max": "amax", "spmm_mean": "mean"}[problem.case.operator]
    return lambda: torch.sparse.mm(a, b, how)


@contender("torch", "csrmm_t")
def _transposed(problem: Problem) -> Callable[[], object]:
    torch, a = need("torch"), _csr(problem.sparse).t()
    x, out = _tensors(problem, "X")
    return lambda: torch.mm(a, x, out=out)


@contender("torch_kept", "csrmm_t", handle=True)
def _transposed_before(problem: Problem) -> Callable[[], object]:
    torch, a = need("torch"), _csr(problem.sparse.T.tocsr())
    x, out = _tensors(problem, "X")
    return lambda: torch.mm(a, x, out=out)


@contender("torch", "sddmm")
def _sampled(problem: Problem) -> Prepared:
    torch = need("torch")
    x, y, out = _tensors(problem, "X", "Y")
    a = _csr(problem.sparse, torch.ones_like(out))
    result, y_t = _csr(problem.sparse, out), y.t()

    def call() -> Any:
        return torch.sparse.sampled_addmm(a, x, y_t, beta=0.0, out=result)

    return Prepared(call, value=lambda tensor: tensor.values().numpy())


@contender("torch", "mttkrp")
def _mttkrp(problem: Problem) -> Callable[[], object]:
    torch = need("torch")
    b, c, out = _tensors(problem, "B", "C")
    i, j, k = (torch.from_numpy(at.astype("int64")) for at in problem.sparse.coordinates)
    values = torch.from_numpy(problem.sparse.values)[:, None]

    def call() -> Any:
        return out.zero_().index_add_(0, i, values * b[j] * c[k])

    return call


@contender("torch", "segment_ragged", "segment_csr")
def _offsets(problem: Problem) -> Callable[[], object]:
    torch = need("torch")
    x, _ = _tensors(problem, "X")
    offsets = torch.from_numpy(problem.sparse.indptr.astype("int64"))
    return lambda: torch.segment_reduce(x, "sum", offsets=offsets, axis=0, unsafe=True)


@contender("torch_csr", "segment_ragged", "segment_csr", "segment_coo")
def _ones(problem: Problem) -> Callable[[], object]:
    """A product with a matrix of ones that sums the rows; for COO too it is built beforehand."""
    torch, csr = need("torch"), problem.sparse
    x, out = _tensors(problem, "X")
    arrays = torch.from_numpy(csr.indptr), torch.arange(csr.nnz, dtype=torch.int32)
    a = torch.sparse_csr_tensor(*arrays, torch.ones(csr.nnz), size=(csr.shape[0], csr.nnz))
    return lambda: torch.mm(a, x, out=out)


@contender("torch", "segment_coo")
def _index_add(problem: Problem) -> Callable[[], object]:
    x, out = _tensors(problem, "X")
    keys = need("torch").from_numpy(problem.dense["S"])
    return lambda: out.zero_().index_add_(0, keys, x)


@contender("torch_scatter", "segment_coo")
def _scatter_add(problem: Problem) -> Callable[[], object]:
    x, out = _tensors(problem, "X")
    keys = need("torch").from_numpy(problem.dense["S"].astype("int64"))[:, None].expand_as(x)
    return lambda: out.zero_().scatter_add_(0, keys, x)


@contender("torch", "spadd", "hadamard")
def _elementwise(problem: Problem) -> Prepared:
    a, b = _csr(problem.sparse), _csr(problem.dense["B"])
    call = (lambda: a + b) if problem.case.operator == "spadd" else (lambda: a * b)
    shape = problem.sparse.shape

    def value(result: Any) -> Any:
        parts = result.values(), result.col_indices(), result.crow_indices()
        return spelled(sps.csr_matrix(tuple(part.numpy() for part in parts), shape))

    return Prepared(call, value)
