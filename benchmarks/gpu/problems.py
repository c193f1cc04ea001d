"""What a line computes: its operands, what memory allows, and the right answer in float64.

Results are compared at some rows only (the first, the last, the longest, and others by chance), in
float64 on the host: the whole reference of a large graph would take longer than the measurement.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.gpu.graphs import Csr, Relations
from benchmarks.problem import SLACK, Array, WrongResultError

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.gpu.devices import Device
    from benchmarks.gpu.lines import Line

ROWS = 24  # of a result that are compared
MOST = 200_000  # elements of these rows, at most
HEADS, TINY_HEADS = 12, 2
TF32 = 2.0**-11  # the rounding of operands that the tensor cores read


@dataclass(slots=True, eq=False)
class Problem:
    """The operands of a line by name, on the device; *out* is the shape of the result.

    *cold*: bytes that must move if each is read once; *gather*: if rows are fetched for every
    element. *reference* returns where in the result (index arrays, or a slice of it), what it is
    there in float64, and the sum of the magnitudes of the terms; *terms*: how many are added up.
    """

    line: Line
    device: Device
    pattern: Any
    arrays: dict[str, Any]
    out: tuple[int, ...]
    cold: float
    gather: float
    reference: Callable[[], tuple[Any, Array, Array]]
    terms: int
    _known: tuple[Any, Array, Array] | None = field(default=None)

    def check(self, result: Any, who: str, rounding: float = 0.0) -> None:
        """Raise WrongResultError unless *result* is right; *rounding* of the operands before."""
        if self._known is None:
            self._known = self.reference()
        at, want, scale = self._known
        if tuple(result.shape) != self.out:
            raise WrongResultError(f"{who}: shape {tuple(result.shape)}, expected {self.out}")
        got = self.device.host(
            result[self.device.array(at)] if isinstance(at, np.ndarray) else result
        )
        eps = max(float(np.finfo(np.float32).eps), rounding) * (SLACK + np.sqrt(self.terms))
        bad = ~(np.abs(got - want) <= eps * scale)
        if bad.any():
            first = tuple(int(i) for i in np.argwhere(bad)[0])
            raise WrongResultError(
                f"{who}: {int(bad.sum())} of {bad.size} compared are wrong, the first is"
                f" {got[first]!r}, expected {want[first]!r}"
            )


def problem(line: Line, pattern: Any, device: Device) -> Problem:
    """Return the operands and the right answer of *line* on *pattern*."""
    return _PROBLEMS[line.operation](line, pattern, device)


def csr_bytes(csr: Csr) -> float:
    """Return how large the index arrays and values are."""
    return 8.0 * csr.nnz + 4 * (csr.shape[0] + 1)


def sampled(csr: Csr, device: Device) -> tuple[Array, Array, Array]:
    """Return some rows, where their elements begin in what follows, and the elements' positions."""
    indptr = device.host(csr.indptr).astype(np.int64)
    lengths, rng = np.diff(indptr), np.random.default_rng(12)
    some = [0, len(lengths) - 1, int(lengths.argmax()), int(lengths.argmin())]
    rows = np.unique([*some, *rng.integers(0, len(lengths), ROWS - len(some))])
    rows = rows[np.cumsum(lengths[rows]) <= max(MOST, lengths.max())]
    begins = np.append(0, np.cumsum(lengths[rows]))
    inside = np.arange(begins[-1]) - np.repeat(begins[:-1], lengths[rows])
    return rows, begins, np.repeat(indptr[rows], lengths[rows]) + inside


def fibers(ufunc: np.ufunc, terms: Array, begins: Array, empty: float = 0.0) -> Array:
    """Return the rows of *terms* reduced from each of *begins* to the next; *empty* for none."""
    result = np.full((len(begins) - 1, *terms.shape[1:]), empty)
    filled = np.flatnonzero(np.diff(begins))
    if len(filled):
        result[filled] = ufunc.reduceat(terms, begins[:-1][filled], axis=0)
    return result


def softmax(scores: Array, begins: Array) -> Array:
    """Return the softmax of the elements of each fiber."""
    lengths = np.diff(begins)
    shifted = np.exp(scores - np.repeat(fibers(np.maximum, scores, begins), lengths))
    weights: Array = shifted / np.repeat(fibers(np.add, shifted, begins), lengths)
    return weights


def _longest(begins: Array) -> int:
    return int(np.diff(begins).max(initial=1))


def _product(line: Line, csr: Csr, device: Device) -> Problem:
    """SpMM and SpMV, also with the softmax of a row's values in their place."""
    (m, n), feat = csr.shape, line.feat
    vector, weighted = line.operation == "spmv", line.operation == "softmax_spmm"
    b = device.random((n,) if vector else (n, feat), 21)
    rows, begins, at = sampled(csr, device)

    def reference() -> tuple[Any, Array, Array]:
        positions = device.array(at)
        values = device.host(csr.values[positions]).astype(float)
        found = device.host(b[csr.indices[positions]]).astype(float)
        values = softmax(values, begins) if weighted else values
        terms = values.reshape(-1, *[1] * (found.ndim - 1)) * found
        return rows, fibers(np.add, terms, begins), fibers(np.add, np.abs(terms), begins)

    dense = 4.0 * feat
    cold = csr_bytes(csr) + dense * (m + n)
    gather = csr_bytes(csr) + dense * (m + csr.nnz)
    out = (m,) if vector else (m, feat)
    return Problem(line, device, csr, {"B": b}, out, cold, gather, reference, _longest(begins))


def _sampled_product(line: Line, csr: Csr, device: Device) -> Problem:
    (m, n), feat = csr.shape, line.feat
    x, y = device.random((m, feat), 22), device.random((n, feat), 23)
    rows, begins, at = sampled(csr, device)

    def reference() -> tuple[Any, Array, Array]:
        left = device.host(x[device.array(np.repeat(rows, np.diff(begins)))]).astype(float)
        right = device.host(y[csr.indices[device.array(at)]]).astype(float)
        return at, (left * right).sum(1), np.abs(left * right).sum(1)

    row_of = device.row_of(csr)
    cold = csr_bytes(csr) + 4.0 * feat * (m + n)
    gather = csr_bytes(csr) + 4.0 * feat * (m + csr.nnz)
    arrays = {"X": x, "Y": y, "rows": row_of}
    return Problem(line, device, csr, arrays, (csr.nnz,), cold, gather, reference, feat)


def _segments(line: Line, csr: Csr, device: Device) -> Problem:
    """Sums of the rows of X, one for each element, over the rows of the matrix."""
    m, feat = csr.shape[0], line.feat
    x = device.random((csr.nnz, feat), 24)
    rows, begins, at = sampled(csr, device)

    def reference() -> tuple[Any, Array, Array]:
        terms = device.host(x[device.array(at)]).astype(float)
        return rows, fibers(np.add, terms, begins), fibers(np.add, np.abs(terms), begins)

    size = 4.0 * (csr.nnz * (feat + 1) + m * feat)
    arrays = {"X": x, "rows": device.row_of(csr)}
    return Problem(line, device, csr, arrays, (m, feat), size, size, reference, _longest(begins))


def _softmax(line: Line, csr: Csr, device: Device) -> Problem:
    _, begins, at = sampled(csr, device)

    def reference() -> tuple[Any, Array, Array]:
        want = softmax(device.host(csr.values[device.array(at)]).astype(float), begins)
        return at, want, want

    size = 8.0 * csr.nnz + 4 * (csr.shape[0] + 1)
    arrays = {"rows": device.row_of(csr)}
    out, terms = (csr.nnz,), _longest(begins)
    return Problem(line, device, csr, arrays, out, size, size, reference, terms)


def _attention(line: Line, mask: Csr, device: Device) -> Problem:
    """Attention of several heads; queries see the keys that *mask* stores."""
    size, width = mask.shape[0], line.feat if device.is_gpu else 16
    heads = HEADS if device.is_gpu else TINY_HEADS
    q, k, v = (device.random((heads, size, width), 25 + i) for i in range(3))
    q = q * width**-0.5  # the scale of the scores
    rows, begins, at = sampled(mask, device)

    def reference() -> tuple[Any, Array, Array]:
        columns = mask.indices[device.array(at)]
        ours = device.host(q[:, device.array(rows)]).astype(float)
        keys, seen = (device.host(x[:, columns]).astype(float) for x in (k, v))
        lengths = np.diff(begins)
        want, scale = np.zeros((2, heads, len(rows), width))
        for head in range(heads):
            scores = (np.repeat(ours[head], lengths, axis=0) * keys[head]).sum(1)
            terms = softmax(scores, begins)[:, None] * seen[head]
            want[head], scale[head] = (fibers(np.add, t, begins) for t in (terms, np.abs(terms)))
        return rows, want.swapaxes(0, 1), scale.swapaxes(0, 1)

    cold = 4.0 * mask.nnz + 4 * (size + 1) + 16.0 * heads * size * width
    gather = cold + 8.0 * heads * width * mask.nnz
    out, arrays = (size, heads, width), {"Q": q, "K": k, "V": v}
    return Problem(line, device, mask, arrays, out, cold, gather, reference, _longest(begins))


def _square(line: Line, csr: Csr, device: Device) -> Problem:
    """The product of a matrix with itself; a result is compared as the sums of its rows."""
    rows, begins, at = sampled(csr, device)
    indptr = device.host(csr.indptr).astype(np.int64)
    sums = fibers(np.add, device.host(csr.values).astype(float), indptr)

    def reference() -> tuple[Any, Array, Array]:
        positions = device.array(at)
        values = device.host(csr.values[positions]).astype(float)
        want = fibers(np.add, values * sums[device.host(csr.indices[positions])], begins)
        return rows, want, np.abs(want)

    products = float(np.diff(indptr)[device.host(csr.indices)].sum())
    gather = csr_bytes(csr) + 8.0 * products
    out, terms = (csr.shape[0],), 64 + _longest(begins)
    return Problem(line, device, csr, {}, out, 2 * csr_bytes(csr), gather, reference, terms)


def _rgcn(line: Line, edges: Relations, device: Device) -> Problem:
    """Y[i] = the sum over relations r and their edges (i, j) of A[r, i, j] * X[j] @ W[r]."""
    feat, count = line.feat if device.is_gpu else 16, len(edges.column)
    x = device.random((edges.nodes, feat), 28)
    w = device.random((edges.count, feat, feat), 29)
    row = device.host(edges.row)
    some = np.random.default_rng(13).integers(0, count, ROWS)
    rows = np.unique([0, edges.nodes - 1, *row[some]])
    at = np.flatnonzero(np.isin(row, rows))
    at = at[np.argsort(row[at], kind="stable")]

    def reference() -> tuple[Any, Array, Array]:
        p, weights = device.array(at), device.host(w).astype(float)
        source = device.host(x[edges.column[p]]).astype(float)
        values, kind = device.host(edges.values[p]).astype(float), device.host(edges.relation[p])
        parts = weights[kind]
        terms = values[:, None] * np.einsum("pk,pkl->pl", source, parts)
        sizes = values[:, None] * np.einsum("pk,pkl->pl", np.abs(source), np.abs(parts))
        begins = np.searchsorted(row[at], np.append(rows, edges.nodes))
        return rows, fibers(np.add, terms, begins), fibers(np.add, sizes, begins)

    size = 8.0 * count + 8.0 * len(edges.levels[1]) + 4.0 * edges.count * feat * feat
    cold, gather = size + 8.0 * edges.nodes * feat, size + 4.0 * feat * (edges.nodes + count)
    out, arrays = (edges.nodes, feat), {"X": x, "W": w}
    return Problem(line, device, edges, arrays, out, cold, gather, reference, feat * 64)


_PROBLEMS: dict[str, Callable[[Line, Any, Device], Problem]] = {
    "spmm": _product,
    "spmv": _product,
    "softmax_spmm": _product,
    "sddmm": _sampled_product,
    "segments": _segments,
    "softmax": _softmax,
    "attention": _attention,
    "spgemm": _square,
    "rgcn": _rgcn,
}
