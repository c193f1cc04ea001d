"""Conversions on a GPU: coo, csr and csc of PyTorch and CuPy, as the host converts them."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import scipy.sparse as sps

import spcomp
from spcomp.errors import ArgumentError
from spcomp.tensors.conversions import digits
from tests.fake_libraries import Matrix, SparseTensor
from tests.test_cuda_kernels import Cupy, Torch, kinds

SHAPE = (300, 5000)


def elements(seed=0, n=900, *, distinct=True, shape=SHAPE, dtype="float32"):
    """Rows, columns and values; some rows are empty, some elements in one column."""
    rng = np.random.default_rng(seed)
    flat = rng.choice(shape[0] * shape[1], n, replace=False)
    rows, columns = np.divmod(flat, shape[1])
    columns[: n // 5] = columns[0]
    if not distinct:
        rows[n // 2 :], columns[n // 2 :] = rows[: n - n // 2], columns[: n - n // 2]
    values = rng.integers(-9, 9, n) if dtype != "float32" else rng.standard_normal(n)
    if distinct:
        _, kept = np.unique(rows * shape[1] + columns, return_index=True)
        kept = rng.permutation(kept)
        rows, columns, values = rows[kept], columns[kept], values[kept]
    return rows.astype("int32"), columns.astype("int32"), values.astype(dtype)


def there(kind, matrix):
    """The scipy *matrix* on the GPU, in its format and with its index arrays."""
    if matrix.format == "coo":
        arrays = (matrix.row, matrix.col)
        if kind.name == "torch":
            at = kind.put(np.array(arrays, np.int64))
            return SparseTensor("coo", matrix.shape, (at, kind.put(matrix.data)))
        return Matrix((kind.put(matrix.data), tuple(map(kind.put, arrays))), matrix.shape)
    arrays = matrix.indptr, matrix.indices, matrix.data
    if kind.name == "torch":
        return SparseTensor(matrix.format, matrix.shape, tuple(map(kind.put, arrays)))
    return Matrix(tuple(map(kind.put, arrays[::-1])), matrix.shape, matrix.format)


def here(kind, made, layout):
    """The arrays of a result on the GPU, by scipy's names, and its shape."""
    if kind.name == "torch":
        what, args, _ = made
        assert what == ("coo" if layout == "coo" else "compressed")
        if layout == "coo":
            (row, col), data, shape = args
            return {"row": kind.get(row), "col": kind.get(col), "data": kind.get(data)}, shape
        names = ("indptr", "indices", "data")
        return dict(zip(names, map(kind.get, args[:3]), strict=True)), args[3]
    assert made.format == layout
    names = ("row", "col", "data") if layout == "coo" else ("indptr", "indices", "data")
    return {name: kind.get(getattr(made, name)) for name in names}, made.shape


@pytest.mark.parametrize("kind", [Torch, Cupy], ids=lambda kind: kind.name)
def test_results_are_those_of_the_host(gpu, kind):
    kind = kind(gpu)
    for source, layout in product(("coo", "csr", "csc"), repeat=2):
        rows, columns, values = elements(distinct=source != "coo")
        matrix = sps.coo_array((values, (rows, columns)), shape=SHAPE).asformat(source)
        given = there(kind, matrix)
        gpu.log.clear()
        arrays, shape = here(kind, spcomp.convert(given, layout), layout)
        expected = spcomp.convert(matrix, layout)
        assert tuple(shape) == SHAPE
        for name, array in arrays.items():
            np.testing.assert_array_equal(array, getattr(expected, name), f"{source} {layout}")
        assert not kinds(gpu, "upload")
        assert sum(size for _, size, _ in kinds(gpu, "download")) <= 24  # words and a count


@pytest.mark.parametrize("dtype", ["float64", "int64", "int8", "bool"])
def test_repeated_elements_are_added_up_in_their_order(gpu, dtype):
    rows, columns, values = elements(3, distinct=False, dtype=dtype)
    kind = Cupy(gpu)
    matrix = sps.coo_array((values, (rows, columns)), shape=SHAPE)
    arrays, _ = here(kind, spcomp.convert(there(kind, matrix), "csr"), "csr")
    expected = spcomp.convert(matrix, "csr")
    np.testing.assert_array_equal(arrays["data"], expected.data)
    np.testing.assert_array_equal(arrays["indices"], expected.indices)
    kept, _ = here(kind, spcomp.convert(there(kind, matrix), "csr", duplicates="keep"), "csr")
    order = np.lexsort((columns, rows))  # stable
    np.testing.assert_array_equal(kept["data"], values[order])
    with pytest.raises(ArgumentError, match="has an element twice, at") as caught:
        spcomp.convert(there(kind, matrix), "csc", duplicates="error")
    with pytest.raises(ArgumentError) as on_host:
        spcomp.convert(matrix, "csc", duplicates="error")
    assert str(caught.value) == str(on_host.value)


def test_matrices_without_elements_and_with_one(gpu):
    kind = Cupy(gpu)
    for shape, n in product([(0, 0), (5, 0), (0, 5), (1, 1), (7, 3)], (0, 1)):
        if n > shape[0] * shape[1]:
            continue
        values = np.ones(n, np.float32), (np.zeros(n, np.int32), np.zeros(n, np.int32))
        matrix = sps.coo_array(values, shape=shape)
        for source in ("coo", "csr", "csc"):
            given = there(kind, matrix.asformat(source))
            for layout in ("coo", "csr", "csc"):
                arrays, _ = here(kind, spcomp.convert(given, layout), layout)
                expected = matrix.asformat(layout)
                for name, array in arrays.items():
                    np.testing.assert_array_equal(array, getattr(expected, name))


@pytest.mark.parametrize("source", ["coo", "csc"])
def test_index_notation_converts_operands_there(gpu, source):
    rng, kind = np.random.default_rng(2), Cupy(gpu)
    A = sps.random_array((20, 30), density=0.2, format=source, dtype=np.float32, rng=rng)
    B = rng.random((30, 8), np.float32)
    product = spcomp.compile("C[i, k] = A[i, j] * B[j, k]", target="cuda:sm_90")
    given, dense, out = there(kind, A), kind.put(B), kind.put(np.zeros((20, 8), np.float32))
    np.testing.assert_allclose(kind.get(product(A=given, B=dense)), A @ B, rtol=1e-5)
    bound = product.bind(A=given)
    bound(B=dense, out=out)
    gpu.launches.clear()
    bound(B=dense, out=out)
    assert len(gpu.launches) == 1  # it was converted once
    np.testing.assert_allclose(kind.get(out), A @ B, rtol=1e-5)


def test_what_is_sorted_already_is_not_moved(gpu):
    rows, columns, values = elements()
    matrix = sps.csr_array((values, (rows, columns)), shape=SHAPE)
    kind = Cupy(gpu)
    spcomp.convert(there(kind, matrix), "coo")
    assert "move" not in {launch.name for launch in gpu.launches}


def test_wrong_index_arrays_are_refused_as_on_the_host(gpu):
    kind = Cupy(gpu)
    rows, columns, values = elements()
    rows[33] = 300
    arrays = kind.put(values), (kind.put(rows), kind.put(columns))
    with pytest.raises(ArgumentError, match=r"axis 0: got 300 at position 33, expected 0\.\.299"):
        spcomp.convert(Matrix(arrays, SHAPE), "csr")
    rows, columns, values = elements()
    matrix = sps.csr_array((values, (rows, columns)), shape=SHAPE)
    for name, value in (("indptr", -1), ("indptr", 5000), ("indices", -1)):
        wrong = matrix.copy()
        getattr(wrong, name)[7] = value
        with pytest.raises(ArgumentError, match=r"decreases|got -1 at position 7"):
            spcomp.convert(there(kind, wrong), "csc")
    with pytest.raises(ArgumentError, match="on a GPU there are csr, csc, coo"):
        spcomp.convert(there(kind, matrix), "hyb")
    with pytest.raises(ArgumentError, match="on a GPU, expected a sparse matrix"):
        spcomp.convert(kind.put(np.ones((3, 3), np.float32)), "csr")


def test_the_programs_have_no_races_and_read_nothing_outside():
    """In the emulator, which would say so, with more than a chunk of everything."""
    where = "cuda:sm_90,emulate"
    rng = np.random.default_rng(1)
    n, digit = 3 * digits.CHUNK + 5, digits.VALUES
    chunks = -(-n // digits.CHUNK)
    keys = rng.integers(0, 1 << 11, n)
    counts = np.zeros(chunks * digit, np.int32)
    digits.count("int32", target=where)(keys, counts, n, chunks, 3)
    by_chunk = [np.bincount(part >> 3 & 255, minlength=digit) for part in np.split(
        keys, range(digits.CHUNK, n, digits.CHUNK))]  # fmt: skip
    np.testing.assert_array_equal(counts.reshape(digit, chunks).T, by_chunk)
    size, sums = len(counts), np.zeros(-(-len(counts) // digits.CHUNK), np.int32)
    digits.totals("int32", target=where)(counts, sums, size, len(sums))
    before = np.cumsum(sums) - sums
    digits.running("int32", True, target=where)(sums, sums[:1].copy(), len(sums), 1)
    np.testing.assert_array_equal(sums, before)
    expected = np.cumsum(counts) - counts
    digits.running("int32", False, target=where)(counts, sums, size, len(sums))
    np.testing.assert_array_equal(counts, expected)
    moved, ids = np.zeros_like(keys), np.zeros(n, np.int32)
    digits.move("int32", True, target=where)(keys, ids.copy(), counts, moved, ids, n, chunks, 3)
    order = np.argsort(keys >> 3 & 255, kind="stable")
    np.testing.assert_array_equal(ids, order)
    np.testing.assert_array_equal(moved, keys[order])
