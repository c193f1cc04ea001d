"""Any tensor in any format: what comes out is what went in, at any number of threads."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sps
from hypothesis import given, settings
from hypothesis import strategies as st

import spcomp
from spcomp import Format, Tensor, convert
from spcomp.compiler.programs import Program
from spcomp.errors import ArgumentError, FormatError
from spcomp.tensors.conversions import order as conversions_sort
from spcomp.tensors.conversions import small as conversions_small

SCIPY = ("csr", "csc", "coo", "bsr(2)", "dia", "lil", "dok")
LEVELS = ("dcsr", "dcsc", "csf", "ell", "bitmap", "hash", "rle", "sell(3)", "dbsr(4)")
DEEP = (
    "csf",
    "coo3",
    "bitmap",
    "hash",
    "rle",
    "dense",
    "dense,dense,compressed",
    "compressed,dense,compressed",
    "hashed,compressed,bitmap",
    "dense,fixed,fixed",
    "dense,ragged,compressed",
    "compressed,offset,hashed of dimensions 1,2,0",
    "dense,compressed,dense of dimensions 2,0,1",
    "compressed,dense,dense(2),fixed of dimensions 0,1,1,2",
)
TYPES = ("bool", "int8", "uint16", "int64", "float16", "float32", "float64")


def dense_of(tensor: Any) -> Any:
    """Return the numpy array of what a conversion made."""
    if isinstance(tensor, np.ndarray):
        return tensor
    return tensor.to_dense() if isinstance(tensor, Tensor) else tensor.toarray()


def drawn(shape: tuple[int, ...], dtype: str = "float64", density: float = 0.3) -> Any:
    """Return an array with that share of elements, small integers."""
    rng = np.random.default_rng(3)
    return ((rng.random(shape) < density) * rng.integers(1, 5, shape)).astype(dtype)


def checked(tensor: Any) -> Any:
    """Return *tensor*; if it is one of ours, made again of its arrays, which checks them."""
    if not isinstance(tensor, Tensor):
        return tensor
    specs = [None if level is None else level.spec for level in tensor.levels]
    return Tensor(tensor.shape, specs, tensor.values, tensor.order)


def as_each(array: Any, names: tuple[str, ...]) -> list[tuple[str | Format, Any]]:
    """Return *array* in each format, those that scipy has also as a Tensor."""
    rank = array.ndim
    formats: list[str | Format] = list(names)
    formats += [Format.parse(n, rank) for n in names if n not in ("lil", "dok")]
    return [(layout, checked(convert(array, layout))) for layout in formats]


@pytest.mark.parametrize("shape", [(6, 8), (12, 2), (0, 4), (4, 0), (2, 2)])
def test_every_matrix_format_becomes_every_other(shape: tuple[int, int]) -> None:
    array = drawn(shape)
    forms = as_each(array, (*SCIPY, *LEVELS, "dense"))
    for (name, stored), (wanted, _) in product(forms, forms):
        found = convert(stored, wanted)
        assert dense_of(found).dtype == array.dtype
        assert np.array_equal(dense_of(found), array), (name, wanted)


@pytest.mark.parametrize("shape", [(3, 4, 5), (0, 3, 2), (7, 1, 2)])
def test_every_format_of_three_dimensions_becomes_every_other(shape: tuple[int, ...]) -> None:
    array = drawn(shape)
    forms = as_each(array, DEEP)
    for (name, stored), (wanted, _) in product(forms, forms):
        assert np.array_equal(dense_of(convert(stored, wanted)), array), (name, wanted)


def test_vectors_are_converted_too() -> None:
    array = np.array([0, 1.0, 0, 2, 2, 2, 0])
    for name in ("sparse", "coo", "hash", "rle", "bitmap", "dense"):
        assert np.array_equal(dense_of(checked(convert(array, Format.parse(name, 1)))), array)
    assert np.array_equal(dense_of(convert(array, Format(("ragged", "singleton"), (-1, 0)))), array)
    halves = checked(convert(array, Format(("compressed", "dense(2)"), (0, 0))))
    assert np.array_equal(halves.to_dense(), array)
    assert halves.values.tolist() == [0, 1, 0, 2, 2, 2]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("small", [0, 100])
def test_values_of_every_type_move_and_add_up(
    small: int, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs_from(monkeypatch, small)
    rows, columns = np.array([2, 0, 2, 1]), np.array([1, 0, 1, 3])
    values = np.array([1, 1, 1, 0], dtype)
    made = Tensor.from_coo((rows, columns), values, (3, 4))
    expected = np.zeros((3, 4), dtype)
    np.logical_or.at(expected, (rows, columns), values) if dtype == "bool" else np.add.at(
        expected, (rows, columns), values
    )
    for name in ("csr", "csc", "bitmap"):
        found = made.to(name)
        assert found.dtype == np.dtype(dtype)
        assert np.array_equal(convert(found, "dense"), expected)
    assert made.to("csr").nnz == 3  # the stored zero stays


def programs_from(monkeypatch: pytest.MonkeyPatch, count: int = 0) -> None:
    """Let programs order what has more than *count* elements, and numpy or scipy the rest."""
    monkeypatch.setattr(conversions_small, "SMALL", count)
    monkeypatch.setattr(conversions_small, "MATRIX", count)


def matrices(draw: Any) -> Any:
    rows, columns = draw(st.integers(0, 9)), draw(st.integers(0, 9))
    count = draw(st.integers(0, 30)) if rows and columns else 0
    pairs = st.tuples(st.integers(0, max(rows - 1, 0)), st.integers(0, max(columns - 1, 0)))
    at = draw(st.lists(pairs, min_size=count, max_size=count))
    values = draw(st.lists(st.integers(-3, 3), min_size=count, max_size=count))
    kind = draw(st.sampled_from(["int32", "int64"]))
    axes = np.array(at, kind).reshape(-1, 2).T
    return sps.coo_array((np.array(values, "int64"), tuple(axes)), shape=(rows, columns))


@settings(max_examples=60, deadline=None)
@given(st.composite(matrices)(), st.sampled_from([*SCIPY[:3], "dok", *LEVELS]))
def test_unsorted_and_repeated_elements_come_out_in_order(matrix: Any, name: str) -> None:
    expected = matrix.toarray()
    found = convert(matrix, name)
    assert np.array_equal(dense_of(found), expected)
    distinct = len(set(zip(*map(np.ndarray.tolist, matrix.coords), strict=True)))
    if name in ("csr", "csc", "coo", "dcsr", "hash"):
        assert found.nnz == distinct
    again = convert(matrix, "csr").tocsc(), convert(convert(matrix, "csr"), "csc")
    for ours, theirs in zip(again[1:], again[:1], strict=True):
        assert np.array_equal(ours.indptr, theirs.indptr)
        assert np.array_equal(ours.indices, theirs.indices)
        assert np.array_equal(ours.data, theirs.data)


@pytest.mark.parametrize("columns", [3, 1000, 1 << 40])
@pytest.mark.parametrize("rows", [2, 700])
@pytest.mark.parametrize("small", [0, 1 << 16])
def test_long_rows_and_many_buckets_are_sorted(
    small: int, rows: int, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs_from(monkeypatch, small)
    rng = np.random.default_rng(5)
    at = rng.integers(0, rows, 40_000), rng.integers(0, columns, 40_000)
    values = rng.integers(0, 9, 40_000)
    found = convert(sps.coo_array((values, at), shape=(rows, columns)), "csr")
    order = np.lexsort(at[::-1])
    key = at[0][order] * columns + at[1][order]
    first = np.flatnonzero(np.diff(key, prepend=-1))
    assert np.array_equal(found.indices, at[1][order][first])
    assert np.array_equal(found.indptr, np.searchsorted(at[0][order][first], range(rows + 1)))
    assert np.array_equal(found.data, np.add.reduceat(values[order], first))
    assert found.has_canonical_format


def test_the_bits_are_the_same_at_any_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    programs_from(monkeypatch)
    monkeypatch.setattr(conversions_sort, "CHUNK", 512)
    monkeypatch.setattr(conversions_sort, "BUCKET", 256)
    rng = np.random.default_rng(6)
    at = rng.integers(0, 90, 20_000), rng.integers(0, 80, 20_000)
    matrix = sps.coo_array((rng.random(20_000, np.float32), at), shape=(90, 80))
    made = []
    for threads in (1, 2, 5):
        with spcomp.num_threads(threads):
            rows = convert(matrix, "csr")
            deep = convert(matrix, "dcsc").values
            made.append([rows.data, convert(rows, "csc").data, rows.indices, deep])
    for other in made[1:]:
        assert all(a.tobytes() == b.tobytes() for a, b in zip(made[0], other, strict=True))


def band(kind: str, dtype: str) -> Any:
    """Return a matrix of 5,000 rows whose columns are near the diagonal, or 30 from it."""
    rng = np.random.default_rng(8)
    made = sps.dia_array((rng.random((5, 5000)), (-30, -1, 0, 1, 30)), shape=(5000, 5000)).tocsr()
    made.data = (made.data * 100 + 1).astype(dtype)
    made.indices, made.indptr = made.indices.astype(kind), made.indptr.astype(kind)
    return made


@pytest.mark.parametrize("dtype", ["float32", "uint16", "int64"])
@pytest.mark.parametrize("kind", ["int32", "int64"])
@pytest.mark.parametrize("near", [0, 32])  # in buckets, and at once
def test_columns_near_each_other_become_rows(
    near: int, kind: str, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs_from(monkeypatch)
    monkeypatch.setattr(conversions_sort, "NEAR", near)
    matrix = band(kind, dtype)
    expected = sps.csr_array(matrix).tocsc()
    for threads in (1, 2, 5):
        with spcomp.num_threads(threads):
            found = convert(matrix, "csc")
        for name in ("indptr", "indices", "data"):
            assert np.array_equal(getattr(found, name), getattr(expected, name))
    matrix.indices[7:9] = matrix.indices[8:6:-1]  # out of order: rows ascend in columns as before
    assert np.array_equal(convert(matrix, "csc").toarray(), matrix.toarray())
    for wrong in (-1, 5000):
        broken = band(kind, dtype)
        broken.indices[123] = wrong
        with pytest.raises(ArgumentError, match=f"got {wrong} at position 123"):
            convert(broken, "csc")


@pytest.mark.parametrize("small", [0, 1 << 16])
@pytest.mark.parametrize("dtype", TYPES)
def test_blocks_come_in_order(dtype: str, small: int, monkeypatch: pytest.MonkeyPatch) -> None:
    programs_from(monkeypatch, small)
    array = drawn((36, 60), dtype, 0.05)
    array[4:20] = 0
    for sizes in ((2, 3), (4, 4), (1, 1), (36, 1)):
        found = convert(array, f"bsr({sizes[0]}, {sizes[1]})")
        if dtype == "float16":  # of which scipy has no arrays
            assert np.array_equal(found.to_dense(), array)
            assert tuple(level.size for level in found.levels[2:]) == sizes
            continue
        assert found.blocksize == sizes
        assert found.has_canonical_format
        assert all(
            (np.diff(found.indices[a:b]) > 0).all()
            for a, b in zip(found.indptr, found.indptr[1:], strict=False)
        )
        assert np.array_equal(found.toarray(), array)
        assert len(found.data) == len(sps.csr_array(array).tobsr(sizes).data)
    assert convert(np.zeros((4, 6), dtype), "bsr(2)").nnz == 0


@pytest.mark.parametrize("small", [0, 100])
def test_rows_out_of_order_are_sorted_and_added_up(
    small: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs_from(monkeypatch, small)
    matrix = sps.csr_array((np.arange(1.0, 6), [2, 0, 2, 1, 0], [0, 3, 3, 5]), shape=(3, 4))
    expected = matrix.toarray()
    for name in ("csr", "csc"):
        found = convert(matrix, name)
        assert np.array_equal(found.toarray(), expected)
        assert found.nnz == 4
    assert np.array_equal(matrix.indices, [2, 0, 2, 1, 0])  # the argument is not changed


REPEATED = sps.coo_array(([1.0, 2, 3, 4, 5], ([2, 0, 2, 0, 2], [1, 3, 1, 0, 0])), shape=(3, 4))


@pytest.mark.parametrize("name", [*SCIPY[:3], "bsr(1)", *SCIPY[4:], *LEVELS, "dense"])
def test_a_repeated_element_is_refused_by_its_coordinates(name: str) -> None:
    with pytest.raises(ArgumentError, match=r"has an element twice, at \(2, 1\)"):
        convert(REPEATED, name, duplicates="refuse")


def test_repeated_elements_are_kept_where_there_is_place_for_them() -> None:
    loose = Format("dense,compressed(nonunique)")
    for layout in ("csr", "csc", "coo", Format("coo"), loose):
        found = convert(REPEATED, layout, duplicates="keep")
        assert found.nnz == 5
        assert np.array_equal(dense_of(found), REPEATED.toarray())
    for layout in ("dok", "dia", Format("csr"), Format("hash"), "dense"):
        with pytest.raises(ArgumentError, match="place for repeated elements"):
            convert(REPEATED, layout, duplicates="keep")
    unsorted = convert(REPEATED, "csr", duplicates="keep", sort=False)
    assert unsorted.indices.tolist() == [3, 0, 1, 1, 0]


def test_nan_and_stored_zeros_stay_elements() -> None:
    found = convert(np.array([[np.nan, 0.0], [-0.0, 1.0]]), "coo")
    assert found.nnz == 2
    assert np.isnan(found.data[0])
    stored = convert(sps.csr_array(([0.0, np.nan], [1, 0], [0, 1, 2])), "csc")
    assert stored.nnz == 2


def test_index_arrays_are_wide_where_they_have_to_be() -> None:
    rows = np.array([1 << 40, 3, 1 << 35])
    matrix = sps.coo_array(([1.0, 2, 3], (rows, [2, 1, 0])), shape=(1 << 41, 4))
    for name in ("coo", "dcsr"):
        found = convert(matrix, name)
        at = found.coords[0] if name == "coo" else found.levels[0].indices
        assert at.dtype == np.int64
        assert at.tolist() == sorted(rows.tolist())
    assert convert(np.eye(3), Format("csr", idtype="int64")).levels[1].indices.dtype == np.int64
    assert convert(np.eye(3), Format("csr")).levels[1].indices.dtype == np.int32
    huge = sps.coo_array(([1.0, 2, 4], ([1 << 50, 0, 1 << 50],) * 2), shape=(1 << 60, 1 << 60))
    assert convert(huge, "dcsr").values.tolist() == [2.0, 5.0]  # its keys have 120 bits
    long = sps.coo_array(([1.0, 2, 4], ([2, 0, 2], [1 << 61, 5, 1 << 61])), shape=(3, 1 << 62))
    for name, count in (("sum", 2), ("keep", 3)):
        found = convert(long, "csr", duplicates=name)
        assert found.indices.tolist() == [5, *([1 << 61] * (count - 1))]
    with pytest.raises(ArgumentError, match="positions"):
        convert(long, "csc")


def test_the_kind_that_comes_out_follows_one_rule() -> None:
    matrix = sps.csr_matrix(np.eye(4))
    assert isinstance(convert(matrix, "csc"), sps.csc_matrix)
    assert isinstance(convert(np.eye(4), "csc"), sps.csc_array)
    assert isinstance(convert(matrix, Format("csc")), Tensor)
    assert isinstance(convert(np.ones((2, 2, 2)), "coo"), Tensor)
    assert convert(matrix, "bsr(2)").blocksize == (2, 2)
    assert convert(matrix, Format("csc")).to_scipy().format == "csc"
    assert convert(matrix, "hash").to_scipy().format == "csr"
    assert np.array_equal(convert(matrix, "hash").to_numpy(), np.eye(4))


def test_a_tensor_does_not_share_index_arrays_with_what_it_was_made_of() -> None:
    matrix = sps.csr_array(np.eye(3))
    made = convert(matrix, Format("csr"))
    matrix.indices[0] = 2
    matrix.indptr[1] = 0
    assert np.array_equal(made.to_dense(), np.eye(3))


def test_a_tensor_is_made_of_coordinates() -> None:
    made = Tensor.from_coo(([0, 1, 0], [2, 1, 2], [0, 0, 0]), [1.0, 2, 3], format="csf")
    assert made.shape == (2, 3, 1)
    assert made.values.tolist() == [4.0, 2.0]
    with pytest.raises(ArgumentError, match="got -1 at position 1"):
        Tensor.from_coo(([0, -1], [1, 1]), [1.0, 2])
    with pytest.raises(ArgumentError, match=r"got 3 at position 1, expected 0\.\.2"):
        Tensor.from_coo(([0, 3], [1, 1]), [1.0, 2], (3, 3))
    with pytest.raises(ArgumentError, match="not as many coordinates"):
        Tensor.from_coo(([0, 1], [1]), [1.0, 2])
    with pytest.raises(ArgumentError, match="got dtype float64, expected integers"):
        Tensor.from_coo(([0.5], [1]), [1.0])


class Lent:
    """What has ``__dlpack__`` and nothing else."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()


def test_what_has_dlpack_is_a_dense_array() -> None:
    array = drawn((5, 4), "float32")
    assert np.array_equal(convert(Lent(array), "csr").toarray(), array)


@pytest.mark.parametrize(
    ("given", "layout", "message"),
    [
        ([1, 2], "csr", "got list, expected a tensor"),
        (np.eye(2) * 1j, "csr", "got dtype complex128"),
        (np.array([[None]]), "csr", "got dtype object"),
        (np.eye(2, dtype="f2"), "dok", "got float16, which scipy's dok does not hold"),
        (np.float64(3), "csr", "expected a tensor"),
        (np.eye(3), "bsr(2)", "do not fill the shape"),
        (np.eye(3), 3, "got int, expected a Format"),
        (sps.csr_array(sps.eye_array(3000))[::-1], "dia", "the format does not fit"),
    ],
)
def test_what_cannot_be_converted_is_refused(given: Any, layout: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        convert(given, layout)


def test_formats_of_other_ranks_and_no_formats_are_refused() -> None:
    for name in ("csr", "nonsense", "csr(3)", "lil(2)"):
        with pytest.raises(FormatError):
            convert(np.ones((2, 2, 2) if name == "csr" else (2, 2)), name)


def test_index_arrays_that_scipy_would_trust_are_checked() -> None:
    matrix = sps.csr_array(np.eye(3))
    matrix.indices[1] = 7
    with pytest.raises(ArgumentError, match="got 7 at position 1"):
        convert(matrix, "csc")
    matrix = sps.csr_array(np.eye(3))
    matrix.indptr[1] = 9
    with pytest.raises(ArgumentError, match="indptr"):
        convert(matrix, "csc")

    matrix = sps.csr_array(np.eye(3))
    matrix.indices = matrix.indices + 0.5
    with pytest.raises(ArgumentError, match="got dtype float64, expected integers"):
        convert(matrix, "csc")
    listed = sps.coo_array(np.eye(3))
    listed.data = np.ones(2)
    with pytest.raises(ArgumentError, match="data: got 2 elements, not one per coordinate"):
        convert(listed, "csr")


def test_rows_that_begin_later_in_their_arrays_are_taken_from_there() -> None:
    matrix = sps.csr_array(np.eye(3))
    matrix.indptr = np.array([1, 2, 2, 3], np.int32)  # the first element is in no row
    expected = [[0, 1, 0], [0, 0, 0], [0, 0, 1]]
    for name in ("csr", "csc", "coo", "dcsr", "hash"):
        assert dense_of(convert(matrix, name)).tolist() == expected


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore:Sparse")
def test_torch_tensors_go_in_and_come_out() -> None:
    import torch

    array = drawn((6, 8), "float32")
    strided = torch.from_numpy(array)
    every = [
        (strided, "dense"),
        (strided.to_sparse(), "coo"),
        (strided.to_sparse_csr(), "csr"),
        (strided.to_sparse_csc(), "csc"),
        (strided.to_sparse_bsr((2, 4)), "bsr(2, 4)"),
        (strided.to_sparse_bsc((3, 2)), "bsr(3, 2)"),
    ]
    for tensor, name in every:
        made = Tensor.from_torch(tensor)
        assert made.layout.name == name
        back = made.to_torch()
        assert torch.equal(back if name == "dense" else back.to_dense(), strided)
        for layout in ("csr", "csc", "dia", Format("hash")):
            assert np.array_equal(dense_of(convert(tensor, layout)), array)
    twice = torch.sparse_coo_tensor([[0, 0, 1], [1, 1, 0]], [1.0, 2, 3], (2, 2))
    assert convert(twice, "csr").toarray().tolist() == [[0, 3], [3, 0]]


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore:Sparse")
def test_torch_tensors_that_have_no_place_here_are_refused() -> None:
    import torch

    with pytest.raises(ArgumentError, match="dense dimensions inside"):
        convert(torch.ones(3, 4).to_sparse(1), "csr")
    with pytest.raises(ArgumentError, match="batches"):
        convert(torch.eye(4).expand(2, 4, 4).to_sparse_csr(), "csf")
    with pytest.raises(ArgumentError, match="numpy has no"):
        convert(torch.ones(2, 2).bfloat16(), "csr")
    with pytest.raises(ArgumentError, match="complex64"):
        convert(torch.ones(2, 2).to(torch.complex64), "csr")


def test_arrays_of_pydata_go_in() -> None:
    sparse = pytest.importorskip("sparse")
    array = drawn((4, 5))
    assert np.array_equal(Tensor.from_pydata(sparse.COO.from_numpy(array)).to_dense(), array)
    assert np.array_equal(convert(sparse.GCXS.from_numpy(array), "csc").toarray(), array)
    with pytest.raises(ArgumentError, match="fill value"):
        convert(sparse.COO.from_numpy(array, fill_value=1), "csr")


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore:Sparse")
def test_torch_arguments_of_notation_give_torch_results() -> None:
    import torch

    array = drawn((6, 8), "float32")
    matrix, x = torch.from_numpy(array), torch.arange(8, dtype=torch.float32)
    product = spcomp.compile("y[i] = A[i, j] * x[j]")
    for stored in (matrix.to_sparse_csr(), matrix.to_sparse_csc(), matrix.to_sparse()):
        assert torch.equal(product(A=stored, x=x), matrix @ x)
        assert torch.equal(product.bind(A=stored)(x=x), matrix @ x)
    both = spcomp.compile("C[i, j] = A[i, j] + B[i, j]")
    rows = matrix.to_sparse_csr()
    found = both(A=rows, B=rows)
    assert found.layout == torch.sparse_csr
    assert torch.equal(found.to_dense(), 2 * matrix)
    out = np.zeros(6, np.float32)
    assert product(A=rows, x=x, out=out) is out
    assert isinstance(product(A=sps.csr_array(array), x=x.numpy()), np.ndarray)


def test_few_elements_need_no_program(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("a program is compiled")

    monkeypatch.setattr(Program, "__call__", refuse)
    rng = np.random.default_rng(2)
    at = rng.integers(0, 4000, (2, 50_000))
    rows = convert(sps.coo_array((rng.random(50_000), tuple(at)), shape=(4000, 4000)), "csr")
    for name in ("csc", "coo", "bsr(4)"):
        assert np.array_equal(convert(rows, name).toarray(), rows.toarray())
