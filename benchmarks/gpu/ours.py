"""Our own forms on a GPU: programs without a schedule, the sparse operand bound, into ``out=``."""

from __future__ import annotations

from functools import cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sps

import spcomp
from benchmarks import programs
from benchmarks.contenders import MissingError
from benchmarks.gpu.devices import Ready

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.gpu.problems import Problem

Contenders = dict[str, "Callable[[Problem], Any]"]
CONVERTIBLE = 20_000_000  # elements: converting more on the host would take the time of the run
SLOW_BUCKETS = 1_000_000  # edges
WIDTHS = [1, 2, 4, 8, 16, 32, 64, 128]  # of the buckets of hyb

_SOFTMAX = """
from spcomp import script as T

@T.prim_func
def {name}(a: T.handle, {handles}, indptr: T.handle, indices: T.handle,
           m: T.int32, n: T.int32, {feat}nnz: T.int32) -> None:
    T.func_attr({{"fuse_rows": True}})
    I = T.dense_fixed(m)
    J = T.sparse_variable(I, (n, nnz), (indptr, indices), "int32")
    A = T.match_sparse_buffer(a, (I, J), "float32")
    TOP = T.alloc_sparse_buffer((I,), "float32")
    SUM = T.alloc_sparse_buffer((I,), "float32")
    with T.sp_iter([I, J], "SR", "top") as [i, j]:
        with T.init():
            TOP[i] = T.min_value("float32")
        TOP[i] = T.max(TOP[i], A[i, j])
    with T.sp_iter([I, J], "SR", "total") as [i, j]:
        with T.init():
            SUM[i] = 0.0
        SUM[i] = SUM[i] + T.exp(A[i, j] - TOP[i])
"""

SOFTMAX = (
    _SOFTMAX.format(name="softmax", handles="p: T.handle", feat="")
    + """
    P = T.match_sparse_buffer(p, (I, J), "float32")
    with T.sp_iter([I, J], "SS", "divide") as [i, j]:
        P[i, j] = T.exp(A[i, j] - TOP[i]) / SUM[i]
"""
)

SOFTMAX_SPMM = (
    _SOFTMAX.format(name="softmax_spmm", handles="b: T.handle, c: T.handle", feat="feat: T.int32, ")
    + """
    N = T.dense_fixed(n)
    K = T.dense_fixed(feat)
    B = T.match_sparse_buffer(b, (N, K), "float32")
    C = T.match_sparse_buffer(c, (I, K), "float32")
    with T.sp_iter([I, J, K], "SRS", "mix") as [i, j, k]:
        with T.init():
            C[i, k] = 0.0
        C[i, k] = C[i, k] + T.exp(A[i, j] - TOP[i]) / SUM[i] * B[j, k]
"""
)

ATTENTION = """
from spcomp import script as T

@T.prim_func
def attention(q: T.handle, k: T.handle, v: T.handle, o: T.handle, indptr: T.handle,
              indices: T.handle, heads: T.int32, m: T.int32, n: T.int32, feat: T.int32,
              nnz: T.int32) -> None:
    T.func_attr({"fuse_rows": True})
    H = T.dense_fixed(heads)
    I = T.dense_fixed(m)
    J = T.sparse_variable(I, (n, nnz), (indptr, indices), "int32")
    N = T.dense_fixed(n)
    F = T.dense_fixed(feat)
    Q = T.match_sparse_buffer(q, (H, I, F), "float32")
    K = T.match_sparse_buffer(k, (H, N, F), "float32")
    V = T.match_sparse_buffer(v, (H, N, F), "float32")
    O = T.match_sparse_buffer(o, (H, I, F), "float32")
    S = T.alloc_sparse_buffer((H, I, J), "float32")
    TOP = T.alloc_sparse_buffer((H, I), "float32")
    SUM = T.alloc_sparse_buffer((H, I), "float32")
    with T.sp_iter([H, I, J, F], "SSSR", "score") as [h, i, j, f]:
        with T.init():
            S[h, i, j] = 0.0
        S[h, i, j] = S[h, i, j] + Q[h, i, f] * K[h, j, f]
    with T.sp_iter([H, I, J], "SSR", "top") as [h, i, j]:
        with T.init():
            TOP[h, i] = T.min_value("float32")
        TOP[h, i] = T.max(TOP[h, i], S[h, i, j])
    with T.sp_iter([H, I, J], "SSR", "total") as [h, i, j]:
        with T.init():
            SUM[h, i] = 0.0
        SUM[h, i] = SUM[h, i] + T.exp(S[h, i, j] - TOP[h, i])
    with T.sp_iter([H, I, J, F], "SSRS", "mix") as [h, i, j, f]:
        with T.init():
            O[h, i, f] = 0.0
        O[h, i, f] = O[h, i, f] + T.exp(S[h, i, j] - TOP[h, i]) / SUM[h, i] * V[h, j, f]
"""

RGCN = """
from spcomp import script as T

@T.prim_func
def rgcn(a: T.handle, w: T.handle, x: T.handle, y: T.handle, indptr_i: T.handle,
         indices_i: T.handle, indptr_j: T.handle, indices_j: T.handle, m: T.int32, n: T.int32,
         relations: T.int32, feat: T.int32, feat_out: T.int32, nnz_i: T.int32,
         nnz_j: T.int32) -> None:
    R = T.dense_fixed(relations)
    I = T.sparse_variable(R, (m, nnz_i), (indptr_i, indices_i), "int32")
    J = T.sparse_variable(I, (n, nnz_j), (indptr_j, indices_j), "int32")
    M = T.dense_fixed(m)
    N = T.dense_fixed(n)
    K = T.dense_fixed(feat)
    L = T.dense_fixed(feat_out)
    A = T.match_sparse_buffer(a, (R, I, J), "float32")
    W = T.match_sparse_buffer(w, (R, K, L), "float32")
    X = T.match_sparse_buffer(x, (N, K), "float32")
    Y = T.match_sparse_buffer(y, (M, L), "float32")
    with T.sp_iter([R, I, J, K, L], "RSRRS", "rgcn") as [r, i, j, k, l]:
        with T.init():
            Y[i, l] = 0.0
        Y[i, l] = Y[i, l] + A[r, i, j] * W[r, k, l] * X[j, k]
"""


@cache
def kernel(source: str, target: str) -> Any:
    """Return the Kernel of the program in *source*."""
    return spcomp.compile(programs.parse(source), target=target)


def matrix(work: Problem) -> Any:
    """Return the sparse operand as a user has it: a CSR tensor on the GPU, or of scipy."""
    csr = work.pattern
    if work.device.is_gpu:
        torch = work.device.torch
        return torch.sparse_csr_tensor(csr.indptr, csr.indices, csr.values, csr.shape)
    return sps.csr_array((csr.values, csr.indices, csr.indptr), shape=csr.shape)


def _bound(
    work: Problem, source: str, fixed: dict[str, Any], rest: dict[str, Any], **sizes: int
) -> Any:
    """Return a call with *fixed* bound and the *rest* and the result passed."""
    out = work.device.empty(work.out)
    bound = kernel(source, work.device.target).bind(**fixed, **sizes)
    call = partial(bound, **rest, out=out)
    return Ready(call, lambda _: out)


def _of_matrix(source: str, **names: str) -> Callable[[Problem], Any]:
    """Return a contender that binds A, and takes the operands with these *names*."""

    def prepare(work: Problem) -> Any:
        rest = {ours: work.arrays[its] for ours, its in names.items()}
        return _bound(work, source, {"A": matrix(work)}, rest)

    return prepare


def _sddmm(work: Problem) -> Any:
    arrays = work.arrays
    rest = {"A": arrays["X"], "B": arrays["Y"]}
    return _bound(work, programs.SDDMM, {"J": matrix(work)}, rest)


def _segments_by_rows(work: Problem) -> Any:
    csr, x = work.pattern, work.arrays["X"]
    fixed = {"indptr": csr.indptr, "indices": csr.indices}
    return _bound(work, programs.SEGMENT_CSR, fixed, {"X": x.reshape(-1)}, n=csr.shape[1])


def _segments_by_keys(work: Problem) -> Any:
    return _bound(
        work,
        programs.SEGMENT_COO,
        {"rows": work.arrays["rows"]},
        {"X": work.arrays["X"].reshape(-1)},
    )


def _attention(work: Problem) -> Any:
    mask, device = work.pattern, work.device
    size, heads, width = work.out
    out = device.empty((heads, size, width))
    pattern = {"indptr": mask.indptr, "indices": mask.indices}
    bound = kernel(ATTENTION, device.target).bind(**pattern)
    return Ready(partial(bound, **work.arrays, out=out), lambda _: out.swapaxes(0, 1))


def _hyb(work: Problem) -> Any:
    if work.pattern.nnz > CONVERTIBLE or work.line.feat not in (32, 128):
        raise MissingError("takes part at F = 32 and 128, where the conversion does not take long")
    layout = spcomp.formats.hyb(1, WIDTHS)
    program = programs.parse(programs.SPMM)
    made = spcomp.decompose(program, A=layout).compile(target=work.device.target)
    out = work.device.empty(work.out)
    bound = made.bind(A=_on_host(work))
    return Ready(partial(bound, B=work.arrays["B"], out=out), lambda _: out)


def _spgemm(work: Problem) -> Any:
    made = spcomp.compile(
        "C[i, j] = A[i, k] * B[k, j]", formats={"C": "csr"}, target=work.device.target
    )
    a = matrix(work)
    return Ready(partial(made, A=a, B=a), lambda c: row_sums(work, c))


def _rgcn(work: Problem) -> Any:
    edges = work.pattern
    names = ("indptr_i", "indices_i", "indptr_j", "indices_j")
    fixed = {**dict(zip(names, edges.levels, strict=True)), "A": edges.values}
    return _bound(work, RGCN, fixed, work.arrays)


def _rgcn_in_buckets(work: Problem) -> Any:
    edges, device = work.pattern, work.device
    if len(edges.values) > SLOW_BUCKETS:
        raise MissingError("takes part with few edges: its default schedule takes a second")
    indptr_i, indices_i, indptr_j, indices_j = map(device.host, edges.levels)
    levels = None, ("compressed", indptr_i, indices_i), ("compressed", indptr_j, indices_j)
    shape = edges.count, edges.nodes, edges.nodes
    tensor = spcomp.Tensor(shape, levels, device.host(edges.values))
    layout = spcomp.formats.ell3d([(16, 1), (8, 2), (4, 4), (2, 8), (1, 16)])
    layer = spcomp.decompose(programs.parse(RGCN), A=layout).compile(target=device.target)
    out = device.empty(work.out)
    bound = layer.bind(A=layer.convert(A=tensor))
    return Ready(partial(bound, **work.arrays, out=out), lambda _: out)


def row_sums(work: Problem, product: Any) -> Any:
    """Return the sums of the rows of a CSR matrix of PyTorch, CuPy or scipy, as float32."""
    if hasattr(product, "crow_indices"):
        torch = work.device.torch
        lengths = product.crow_indices().diff()
        return torch.segment_reduce(product.values().double(), "sum", lengths=lengths.long())
    return work.device.array(np.asarray(product.sum(axis=1)).reshape(-1))


def _on_host(work: Problem) -> Any:
    csr, host = work.pattern, work.device.host
    return sps.csr_array((host(csr.values), host(csr.indices), host(csr.indptr)), shape=csr.shape)


CONTENDERS: dict[str, Contenders] = {
    "spmm": {"spcomp": _of_matrix(programs.SPMM, B="B"), "spcomp hyb": _hyb},
    "spmv": {"spcomp": _of_matrix(programs.SPMV, X="B")},
    "sddmm": {"spcomp": _sddmm},
    "segments": {"spcomp": _segments_by_rows, "spcomp by keys": _segments_by_keys},
    "softmax": {"spcomp": _of_matrix(SOFTMAX)},
    "softmax_spmm": {"spcomp": _of_matrix(SOFTMAX_SPMM, B="B")},
    "attention": {"spcomp": _attention},
    "spgemm": {"spcomp": _spgemm},
    "rgcn": {"spcomp": _rgcn, "spcomp ell3d": _rgcn_in_buckets},
}
