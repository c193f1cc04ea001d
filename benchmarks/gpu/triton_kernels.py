"""The kernels in Triton themselves; it reads them from this file, and needs to be there."""
# ruff: noqa: ANN001, ANN201, N803

import triton
import triton.language as tl


@triton.jit
def spmm_rows(
    indptr, indices, values, b, c, F: tl.constexpr, WIDE: tl.constexpr, TOGETHER: tl.constexpr
):
    """C[row, :] of A @ B: a program for each row, WIDE columns of it, TOGETHER elements a trip."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * WIDE + tl.arange(0, WIDE)
    begin = tl.load(indptr + row)
    end = tl.load(indptr + row + 1)
    total = tl.zeros((WIDE,), tl.float32)
    for first in range(begin, end, TOGETHER):
        p = first + tl.arange(0, TOGETHER)
        inside = p < end
        j = tl.load(indices + p, mask=inside, other=0).to(tl.int64)
        a = tl.load(values + p, mask=inside, other=0.0)
        rows = tl.load(b + j[:, None] * F + column[None, :], mask=inside[:, None], other=0.0)
        total += tl.sum(a[:, None] * rows, 0)
    tl.store(c + row * F + column, total)


@triton.jit
def sddmm_elements(rows, columns, x, y, out, nnz, F: tl.constexpr, TOGETHER: tl.constexpr):
    """out[p] = X[rows[p], :] . Y[columns[p], :]: TOGETHER elements for each program."""
    p = tl.program_id(0).to(tl.int64) * TOGETHER + tl.arange(0, TOGETHER)
    inside = p < nnz
    feature = tl.arange(0, F)
    i = tl.load(rows + p, mask=inside, other=0).to(tl.int64)
    j = tl.load(columns + p, mask=inside, other=0).to(tl.int64)
    left = tl.load(x + i[:, None] * F + feature[None, :], mask=inside[:, None], other=0.0)
    right = tl.load(y + j[:, None] * F + feature[None, :], mask=inside[:, None], other=0.0)
    tl.store(out + p, tl.sum(left * right, 1), mask=inside)


@triton.jit
def softmax_rows(indptr, values, out, WIDE: tl.constexpr):
    """The softmax of the elements of each row, a program for each: maxima, sums, quotients."""
    row = tl.program_id(0)
    begin = tl.load(indptr + row)
    end = tl.load(indptr + row + 1)
    top = tl.full((WIDE,), -1e30, tl.float32)
    for first in range(begin, end, WIDE):
        p = first + tl.arange(0, WIDE)
        top = tl.maximum(top, tl.load(values + p, mask=p < end, other=-1e30))
    most = tl.max(top, 0)
    sums = tl.zeros((WIDE,), tl.float32)
    for first in range(begin, end, WIDE):
        p = first + tl.arange(0, WIDE)
        shifted = tl.exp(tl.load(values + p, mask=p < end, other=0.0) - most)
        sums += tl.where(p < end, shifted, 0.0)
    total = tl.sum(sums, 0)
    for first in range(begin, end, WIDE):
        p = first + tl.arange(0, WIDE)
        shifted = tl.exp(tl.load(values + p, mask=p < end, other=0.0) - most)
        tl.store(out + p, shifted / total, mask=p < end)


@triton.jit
def attention_blocks(
    q, k, v, o, indptr, indices, SIZE: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
    REACH: tl.constexpr,
):  # fmt: skip
    """Attention of BLOCK queries of a head to the stored blocks of keys, softmax as it goes.

    REACH: how far a query sees, 0 for all keys of the blocks. Every query sees a key.
    """
    block = tl.program_id(0)
    base = tl.program_id(1).to(tl.int64) * SIZE * WIDTH
    i = block * BLOCK + tl.arange(0, BLOCK)
    feature = tl.arange(0, WIDTH)
    queries = tl.load(q + base + i[:, None] * WIDTH + feature[None, :])
    top = tl.full((BLOCK,), -1e30, tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    mixed = tl.zeros((BLOCK, WIDTH), tl.float32)
    for p in range(tl.load(indptr + block), tl.load(indptr + block + 1)):
        j = tl.load(indices + p) * BLOCK + tl.arange(0, BLOCK)
        keys = tl.load(k + base + j[None, :] * WIDTH + feature[:, None])
        scores = tl.dot(queries, keys, input_precision="ieee")
        if REACH > 0:
            far = tl.abs(i[:, None] - j[None, :]) > REACH
            scores = tl.where(far, -1e30, scores)
        most = tl.maximum(top, tl.max(scores, 1))
        weights = tl.exp(scores - most[:, None])
        keep = tl.exp(top - most)
        total = total * keep + tl.sum(weights, 1)
        seen = tl.load(v + base + j[:, None] * WIDTH + feature[None, :])
        mixed = mixed * keep[:, None] + tl.dot(weights, seen, input_precision="ieee")
        top = most
    tl.store(o + base + i[:, None] * WIDTH + feature[None, :], mixed / total[:, None])
