"""Programs over distributed tensors: the same results as over local ones, and what is sent."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sps

import spcomp
from tests.test_standard_list import PROGRAMS, argument, full, operands

pytest.importorskip("distributed", reason="needs Dask and distributed")
import dask
import dask.array as da

import spcomp.dask as sd
from spcomp.dask import decide, files
from spcomp.dask.chunks import by_elements, even, grid_of, overlaps
from spcomp.errors import ArgumentError, FileError, OutOfMemoryError, ScriptError

pytestmark = pytest.mark.dask
KINDS = ("rows", "tiles", "local", "dense dask", "dense")
SPMM = "C[i, k] = A[i, j] * B[j, k]"


@pytest.fixture(autouse=True)
def _in_turn():
    with dask.config.set(scheduler="sync"):
        yield


def csr(
    rows: int = 23, columns: int = 17, seed: int = 0, density: float = 0.2, dtype: Any = float
) -> sps.csr_array:
    return sps.random_array((rows, columns), density=density, format="csr", rng=seed, dtype=dtype)


def given(array: np.ndarray, kind: str) -> Any:
    """*array* as an operand of that kind; chunks differ by dimension, and none is even."""
    if kind == "dense dask":
        return da.from_array(array, chunks=2)
    sparse = "csf" if array.ndim == 3 else "sparse" if array.ndim == 1 else "csr"
    local = argument(array, "dense" if kind == "dense" else sparse)
    if kind in ("rows", "tiles"):
        return sd.from_scipy(local, 2 if kind == "rows" else (2, 3, 2)[: array.ndim])
    return local


COMBINATIONS = [
    (name, dict(zip(program.formats, kinds, strict=True)))
    for name, program in PROGRAMS.items()
    for kinds in itertools.product(KINDS, repeat=len(program.formats))
    if {*kinds} & {"rows", "tiles"}
]
PARTS = 16


def check(name: str, kinds: dict[str, str]) -> None:
    program, arrays = PROGRAMS[name], operands(PROGRAMS[name])
    args = {n: given(a, kinds.get(n, "dense")) for n, a in arrays.items()}
    result = spcomp.compile(program.text)(**args)
    assert dask.is_dask_collection(result)
    np.testing.assert_array_equal(full(result.compute()), program.want(**arrays), f"{name} {kinds}")


@pytest.fixture
def _small(monkeypatch):
    """No array is small enough to be sent whole."""
    monkeypatch.setattr(decide, "DASK", replace(decide.DASK, broadcast_bytes=0))


@pytest.mark.sample(4, long=4)
@pytest.mark.long
@pytest.mark.parametrize("part", range(PARTS))
def test_the_standard_list_over_all_kinds_of_operands(part, request):
    assert len(COMBINATIONS) > 500
    if part % 2:
        request.getfixturevalue("_small")
    for name, kinds in COMBINATIONS[part::PARTS]:
        check(name, kinds)


@pytest.mark.usefixtures("_small")
def test_some_of_the_standard_list():
    for name, kinds in COMBINATIONS[5::50]:
        check(name, kinds)


# -- pieces of a dimension ------------------------------------------------------------------------


def test_pieces_overlap_where_their_coordinates_do():
    assert overlaps((3, 3), (2, 4)) == [[(0, 0, 2)], [(0, 2, 3), (1, 0, 3)]]
    assert overlaps((0, 2, 0), (2, 0)) == [[(1, 0, 2)], [(2, 0, 0)]]
    assert overlaps((0,), (0,)) == [[(0, 0, 0)]]


@pytest.mark.parametrize(
    ("chunks", "grid"),
    [(4, ((4, 4, 2), (6,))), ((-1, 3), ((10,), (3, 3))), (((3, 0, 7), None), ((3, 0, 7), (6,)))],
)
def test_chunks_are_what_dask_takes(chunks, grid):
    assert grid_of(chunks, (10, 6)) == grid


@pytest.mark.parametrize("chunks", [0, (3,), ((3, 3), -1), ((-3, 13), -1), "rows", (2.5, 1)])
def test_chunks_that_do_not_add_up_are_refused(chunks):
    with pytest.raises(ArgumentError, match="argument chunks"):
        sd.from_scipy(csr(10, 6), chunks)


def test_rows_of_equal_elements():
    assert by_elements(np.array([0, 10, 11, 12, 22]), 2) == (2, 2)
    assert by_elements(np.array([0, 0, 0]), 3) == (0, 0, 2)
    assert sum(by_elements(csr(100, 9).indptr, 7)) == 100
    assert even(7, 3) == (3, 2, 2)


# -- the collection -------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["csr", "csc", "coo"])
@pytest.mark.parametrize("chunks", [-1, 5, (5, 4), ("nonzeros", 4)])
def test_a_matrix_comes_back_from_its_blocks(layout, chunks):
    A = csr().asformat(layout)
    B = sd.from_scipy(A, chunks)
    back = B.compute()
    assert dask.is_dask_collection(B)
    assert (back.shape, back.dtype, B.format) == (A.shape, A.dtype, back.format)
    np.testing.assert_array_equal(back.toarray(), A.toarray())
    np.testing.assert_array_equal(B.persist().rechunk((4, 7)).compute().toarray(), A.toarray())
    np.testing.assert_array_equal(B.todense().compute(), A.toarray())
    assert B.nnz == A.nnz


def test_stored_zeros_stay_and_repeated_elements_are_summed():
    A = sps.csr_array((np.array([1.0, 2.0, 0.0]), [1, 1, 2], [0, 2, 3]), (2, 3))
    back = sd.from_scipy(A, 1).compute()
    assert (back.nnz, back.data.tolist(), back.indices.tolist()) == (2, [3.0, 0.0], [1, 2])


def test_statistics_count_rows_columns_and_elements_of_each_block():
    A = sps.csr_array(np.array([[1.0, 1, 0], [0, 0, 0], [0, 0, 5], [0, 0, 7]]))
    found = sd.from_scipy(A, 2).statistics()
    assert [tuple(found[at, 0][:3]) for at in (0, 1)] == [(1, 2, 2), (2, 1, 2)]


@pytest.mark.parametrize("kind", ["csr", "csc", "csf"])
def test_dask_knows_the_bytes_of_blocks(kind):
    block = sd.from_scipy(spcomp.convert(csr(200, 100), kind), -1).compute()
    assert dask.sizeof.sizeof(block) > 12 * csr(200, 100).nnz


@pytest.mark.parametrize("shape", [(0, 0), (0, 5), (5, 0), (1, 1), (4, 4)])
def test_matrices_without_elements(shape):
    A = sd.from_scipy(sps.csr_array(shape), 2)
    C = spcomp.compile(SPMM)(A=A, B=np.ones((shape[1], 3)))
    np.testing.assert_array_equal(C.compute(), np.zeros((shape[0], 3)))
    D = spcomp.compile("C[i, j] = A[i, j] + B[i, j]")(A=A, B=A)
    assert (D.compute().shape, D.compute().nnz) == (shape, 0)


def test_arrays_of_dask_with_sparse_chunks():
    A = csr()
    chunks = da.from_array(A.toarray(), chunks=(6, 5))
    for x in (chunks, chunks.map_blocks(sps.csr_array), chunks.map_blocks(sps.coo_array)):
        assert (sd.from_array(x).compute() != A).nnz == 0
    result = spcomp.einsum("ij,ij->i", chunks.map_blocks(sps.csr_array), chunks)
    np.testing.assert_allclose(result.compute(), (A.toarray() ** 2).sum(1))


# -- programs -------------------------------------------------------------------------------------


SOFTMAX = """
    m[i] = max(j, A[i, j])
    e[i, j] = exp(A[i, j] - m[i]) if A[i, j]
    C[i, j] = e[i, j] / sum(k, e[i, k])
"""
PROGRAMS_OF_ALL_KINDS = [
    ("d[i] = A[i, j] * x[j]", "min_plus"),
    ("d[j] = A[i, j] * x[i]", "max_times"),
    ("n = A[i, j] * A[i, j]", "plus_pair"),
    ("C[i, j] = A[i, j] * (i < j) + i", None),
    ("C[i, k] = A[i, j] * A[k, j]", None),
    ("C[i, j] = A[i, j] if A[i, j] > 0.5", None),
    ("k[i] = argmax(j, A[i, j])", None),
    ("k[j] = argmin(i, A[i, j])", None),
    ("y[i] = alpha * A[i, j] * x[j] + 2", None),
    ("C[i, j] = A[i, j] / sum(k, A[i, k])", None),
    ("C[i, j] = A[i, j] / sum((k, l), A[k, l] * x[l])", None),
    ("y[i] = sqrt(sum(j, A[i, j] * A[i, j])) + max(j, A[i, j] * x[j])", None),
    ("y[i] = x[j] if A[i, j]", None),
    ("C[i, j] = A[i, j] - 3 * sum(k, A[i, k] * A[k, j])", None),
    (SOFTMAX, None),
    ("T[i, k] = A[i, j] * X[j, k]; Y[i, k] = maximum(T[i, k] + b[k], 0); s = T[i, k]", None),
    ("X[j, k] += A[i, j] * X_old[i, k]", None),
    ("C[i, j] = A[i, j] + A[i, j] if A[j, i] is None", None),
    ("y[i] = A[i, i]", None),
]


@pytest.mark.usefixtures("_small")
@pytest.mark.parametrize(("text", "semiring"), PROGRAMS_OF_ALL_KINDS)
@pytest.mark.parametrize("chunks", [4, (5, 4)])
@pytest.mark.sample(8)
def test_programs_mean_what_they_mean_here(text, semiring, chunks):
    rng = np.random.default_rng(1)
    local = {"A": csr(13, 13, density=0.3), "x": rng.random(13), "alpha": 2, "b": rng.random(6)}
    local |= {"X": rng.random((13, 6)), "X_old": rng.random((13, 6))}
    kernel = spcomp.compile(text, **({"semiring": semiring} if semiring else {}))
    mine = {name: local[name] for name in kernel.arguments} | {"A": local["A"]}
    far = mine | {"A": sd.from_scipy(local["A"], chunks)}
    far |= {n: da.from_array(mine[n], chunks=(3, 2)) for n in ("X", "X_old") if n in mine}
    found = kernel(**far)
    want = kernel(**{n: np.array(x) if isinstance(x, np.ndarray) else x for n, x in mine.items()})
    several = isinstance(want, tuple)
    for a, b in zip(found, want, strict=True) if several else [(found, want)]:
        assert a.dtype == np.asarray(b).dtype if np.isscalar(b) else a.dtype == b.dtype
        a = a.compute()
        assert type(a) is type(b) or np.isscalar(b)
        np.testing.assert_allclose(full(a), full(b), rtol=1e-12)


@pytest.mark.usefixtures("_small")
def test_only_the_rows_that_a_block_needs_are_sent():
    A = sps.csr_array(np.eye(8))
    B = da.from_array(np.arange(16.0).reshape(8, 2), chunks=(2, 2))
    C = spcomp.compile(SPMM)(A=sd.from_scipy(A, 4), B=B)
    took = [k for k in C.dask if isinstance(k, tuple) and k[0].startswith("take-")]
    sizes = [x.shape[0] for x in dask.get(C.dask, took)]
    assert sorted(sizes) == [0, 0, 0, 0, 2, 2, 2, 2]
    np.testing.assert_array_equal(C.compute(), B.compute())


@pytest.mark.usefixtures("_small")
def test_a_plan_says_what_is_cut_and_how_operands_are_read():
    B = da.ones((17, 4), chunks=5)
    text = str(spcomp.compile(SPMM).plan(A=sd.from_scipy(csr(), 8), B=B))
    assert "i: 3 pieces of 23, as A" in text
    assert "B[j, k]: sent at those j only that a block of A has" in text
    text = str(spcomp.compile(SPMM).plan(A=sd.from_scipy(csr(), (8, 6)), B=B))
    assert "j: 3 pieces of 17, as A, partial results combined in a tree" in text


@pytest.mark.usefixtures("_small")
def test_a_plan_counts_what_is_sent():
    B = da.ones((8, 2), chunks=(4, 2))
    kernel = spcomp.compile(SPMM)
    same = kernel.plan(A=sd.from_scipy(sps.csr_array(np.eye(8)), 4), B=B, workers=2).estimate
    assert same.total == 0
    other = kernel.plan(A=sd.from_scipy(sps.csr_array(np.eye(8)[::-1]), 4), B=B, workers=2).estimate
    assert dict(other.sent) == {"coordinates of these rows": 32, "rows that blocks need": 128}
    assert other.balance == 1
    tiles = kernel.plan(A=sd.from_scipy(sps.csr_array(np.eye(8)), (8, 4)), B=B, workers=2)
    assert dict(tiles.estimate.sent) == {"partial results": 128}
    assert "sent between 2 workers: 128 B" in str(tiles)
    with pytest.raises(OutOfMemoryError, match="a worker needs"):
        kernel.plan(A=sd.from_scipy(csr(), 4), B=da.ones((17, 4), chunks=5), memory="1 kB")


@pytest.mark.usefixtures("_small")
def test_an_order_of_rows_cuts_what_is_sent():
    mesh = sps.diags_array([1.0, 1, 1], offsets=[-1, 0, 1], shape=(60, 60)).tocsr()
    p = np.random.default_rng(0).permutation(60)
    mixed = sps.csr_array(mesh[p][:, p])
    q = sd.ordering(mixed)
    assert sorted(q) == list(range(60))
    ordered = mixed[q][:, q]
    sent = [
        spcomp.compile(SPMM).plan(A=sd.from_scipy(A, 15), B=da.ones((60, 64), chunks=15), workers=4)
        for A in (mixed, ordered)
    ]
    first, second = (plan.estimate.sent["rows that blocks need"] for plan in sent)
    assert 0 < second * 5 < first
    with pytest.raises(ArgumentError, match="expected a square"):
        sd.ordering(csr())


def test_names_of_a_program_do_not_meet_those_of_its_parts():
    A = sd.from_scipy(csr(), (6, 5))
    for text in ("C_1[i, k] = A[i, j] * B[j, k]", "left[i, k] = A[i, j] * B[j, k]"):
        result = spcomp.compile(text)(A=A, B=sd.from_scipy(csr(17, 9), (5, 4))).compute()
        np.testing.assert_allclose(result.toarray(), (csr() @ csr(17, 9)).toarray())
    text = "C[i, j] += A[i, j] * C_2[i, j]"
    result = spcomp.compile(text)(A=A, C=A, C_2=A).compute()
    np.testing.assert_allclose(result.toarray(), (csr() + csr() * csr()).toarray())


def test_what_is_added_to_keeps_its_type():
    A = sd.from_scipy(csr(), 5)
    text = "y[i] += A[i, j] * x[j]"
    y = spcomp.compile(text)(A=A, x=np.ones(17), y=np.zeros(23, np.float32))
    assert y.compute().dtype == y.dtype == np.float32
    with pytest.raises(ScriptError, match="does not become an int64"):
        spcomp.compile(text)(A=A, x=np.ones(17), y=np.zeros(23, np.int64))


def test_explain_of_distributed_arguments_is_the_plan():
    text = spcomp.compile(SPMM).explain(A=sd.from_scipy(csr(), 8), B=np.ones((17, 2)))
    assert "i: 3 pieces of 23, as A" in text


def test_results_computed_together_come_in_their_order():
    A, x = sd.from_scipy(csr(), 8), da.from_array(np.arange(17.0), chunks=5)
    text = "s[i] = A[i, j] * x[j]; C[i, j] = 2 * A[i, j] * x[j]; t[j] = 3 * x[j]"
    results = spcomp.compile(text)(A=A, x=x)
    s, scaled, t = dask.compute(results.s, results.C, results.t)
    together = dask.compute(results)[0]
    assert (type(together), together._fields) == (type(results), ("s", "C", "t"))
    for found in ((s, scaled, t), together):
        np.testing.assert_allclose(found[0], csr() @ np.arange(17.0))
        np.testing.assert_allclose(found[1].toarray(), 2 * csr().toarray() * np.arange(17.0))
        np.testing.assert_array_equal(found[2], 3 * np.arange(17.0))
    assert [y.shape for y in dask.compute(x, A, x[:2], A)] == [(17,), (23, 17), (2,), (23, 17)]


def test_arguments_here_are_bound_and_distributed_ones_given():
    kernel = spcomp.compile("y[i] = alpha * A[i, j] * x[j]")
    A, x, want = sd.from_scipy(csr(), 8), np.arange(17.0), 2 * csr() @ np.arange(17.0)
    later = {"A": A, "x": x, "alpha": 2}
    for bound in ({"x": x}, {"alpha": 2}, {"x": x, "alpha": 2}):
        rest = {name: value for name, value in later.items() if name not in bound}
        np.testing.assert_allclose(kernel.bind(**bound)(**rest).compute(), want)
    found = kernel.bind(A=csr(), alpha=2)(x=da.from_array(x, chunks=5))
    assert dask.is_dask_collection(found)
    np.testing.assert_allclose(found.compute(), want)


@pytest.mark.parametrize("layout", ["coo", "dia", "bsr(2)"])
def test_results_in_blocks_are_not_in_formats_that_have_no_rows(layout):
    kernel = spcomp.compile("C[i, j] = 2 * A[i, j]", formats={"C": layout})
    with pytest.raises(ArgumentError, match=f"not stored as {layout[:3]}"):
        kernel(A=sd.from_scipy(csr(24, 18), 8))


# -- what is refused ------------------------------------------------------------------------------


def test_refusals():
    A, x = sd.from_scipy(csr(), 5), np.ones(17)
    spmv = spcomp.compile("y[i] = A[i, j] * x[j]")
    with pytest.raises(ArgumentError, match="j has the length 16"):
        spmv(A=A, x=x[1:])
    with pytest.raises(ArgumentError, match="got 1 dimensions, but A"):
        spmv(A=da.ones(3), x=x)
    with pytest.raises(ArgumentError, match="missing argument x"):
        spmv(A=A)
    with pytest.raises(ArgumentError, match="unexpected argument z"):
        spmv(A=A, x=x, z=x)
    with pytest.raises(ArgumentError, match="argument out"):
        spmv(A=A, x=x, out=np.zeros(23))
    with pytest.raises(ArgumentError, match="argument x: is bound already"):
        spmv.bind(A=A, x=x)(x=x)
    with pytest.raises(ArgumentError, match="extents of its chunks are not known"):
        spmv(A=A, x=da.from_array(x)[da.from_array(x) > 0])
    with pytest.raises(ArgumentError, match="no index vectors"):
        spcomp.compile("y[e] = A[e, f] * x[src[e]]")(A=A, x=x, src=np.zeros(23, np.int32))
    with pytest.raises(ArgumentError, match="no index vectors"):
        spcomp.compile("Y[d[e]] = x[e]")(d=np.zeros(23, int), x=da.from_array(x), sizes={"Y": 3})
    with pytest.raises(ArgumentError, match="do not cut parts"):
        spcomp.compile("y[i] = A[i(0, 3, 1), j] * x[j]")(A=A, x=x)
    with pytest.raises(ScriptError, match="k has no length"):
        spcomp.compile("C[i, k] = A[i, j] * x[j] * k")(A=A, x=x)
    with pytest.raises(ArgumentError, match="no argument is distributed"):
        spmv.plan(A=csr(), x=x)
    with pytest.raises(ArgumentError, match="complex"):
        spmv(A=A, x=da.ones(17, dtype=complex))
    with pytest.raises(ArgumentError, match="no array"):
        np.asarray(A)
    with pytest.raises(ArgumentError, match="expected a sparse matrix"):
        sd.from_scipy(np.ones((3, 3)))


# -- files ----------------------------------------------------------------------------------------


@pytest.fixture
def _short_parts(monkeypatch):
    monkeypatch.setattr(files, "DASK", replace(files.DASK, part_bytes=300))


@pytest.mark.usefixtures("_short_parts")
@pytest.mark.parametrize("chunks", [-1, 5, (6, 4), ((0, 23, 0), -1)])
def test_a_text_file_is_read_in_parts(tmp_path, chunks):
    A = csr()
    order = np.random.default_rng(0).permutation(A.nnz)
    coo = A.tocoo()
    lines = [f"{coo.row[k] + 1} {coo.col[k] + 1} {float(coo.data[k])!r}" for k in order]
    text = [f"%%MatrixMarket matrix coordinate real general\n% hello\n23 17 {A.nnz}", *lines]
    (tmp_path / "a.mtx").write_text("\n".join(text))
    B = sd.from_mtx(tmp_path / "a.mtx", chunks)
    assert len([k for k in B.dask if k[0].startswith("entries-")]) > 3
    assert B.shape == A.shape
    np.testing.assert_array_equal(B.compute().toarray(), A.toarray())


@pytest.mark.usefixtures("_short_parts")
@pytest.mark.parametrize("symmetry", ["symmetric", "skew-symmetric"])
def test_mirrored_entries_go_to_their_rows(tmp_path, symmetry):
    A = sps.tril(csr(20, 20, density=0.4), -1).tocoo()
    text = f"%%MatrixMarket matrix coordinate real {symmetry}\n20 20 {A.nnz}\n"
    text += "".join(
        f"{i + 1} {j + 1} {x!r}\n" for i, j, x in zip(A.row, A.col, A.data.tolist(), strict=True)
    )
    (tmp_path / "a.mtx").write_text(text)
    want = spcomp.read(tmp_path / "a.mtx")
    np.testing.assert_array_equal(
        sd.from_mtx(tmp_path / "a.mtx", 6).compute().toarray(), want.toarray()
    )


@pytest.mark.usefixtures("_short_parts")
@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("\n7 8 1.5\n", "\n7 80 1.5\n", "a.mtx: line .* after byte .*80"),
        ("\n7 8 1.5\n", "\n7 x 1.5\n", "a.mtx: line .* after byte"),
        ("\n7 8 1.5\n", "\n", "there are 99 entries, 100 are declared"),
        ("\n7 8 1.5\n", "\n7 7 1.5\n", "an entry is repeated"),
    ],
)
def test_a_damaged_text_file_is_an_error_with_its_place(tmp_path, old, new, message):
    text = "%%MatrixMarket matrix coordinate real general\n10 10 100\n"
    text += "".join(f"{i} {j} 1.5\n" for i in range(1, 11) for j in range(1, 11))
    (tmp_path / "a.mtx").write_text(text.replace(old, new))
    with pytest.raises(FileError, match=message):
        sd.from_mtx(tmp_path / "a.mtx", 4).compute()


def test_text_files_that_have_no_parts_are_refused(tmp_path):
    spcomp.write(tmp_path / "a.mtx.gz", csr())
    spcomp.write(tmp_path / "d.mtx", np.ones((3, 3)))
    with pytest.raises(FileError, match="compressed"):
        sd.from_mtx(tmp_path / "a.mtx.gz")
    with pytest.raises(FileError, match="dense"):
        sd.from_mtx(tmp_path / "d.mtx")
    with pytest.raises(FileError, match="no such file"):
        sd.from_mtx(tmp_path / "b.mtx")
    spcomp.write(tmp_path / "a.mtx", csr())
    with pytest.raises(ArgumentError, match="argument duplicates"):
        sd.from_mtx(tmp_path / "a.mtx", duplicates="keep")


@pytest.mark.long  # each part starts a process
@pytest.mark.parametrize("chunks", [(9, 5), ("nonzeros", 3)])
def test_a_binsparse_file_is_read_in_parts(tmp_path, chunks):
    pytest.importorskip("h5py")
    spcomp.write(tmp_path / "a.bsp.h5", A := csr())
    B = sd.from_binsparse(tmp_path / "a.bsp.h5", chunks)
    assert max(B.numblocks) == (4 if chunks == (9, 5) else 3)
    np.testing.assert_array_equal(B.compute().toarray(), A.toarray())


@pytest.mark.long
def test_a_damaged_binsparse_file_is_an_error_with_its_rows(tmp_path):
    h5py = pytest.importorskip("h5py")
    spcomp.write(tmp_path / "a.bsp.h5", csr())
    with h5py.File(tmp_path / "a.bsp.h5", "r+") as file:
        file["indices_1"][-1] = 99
    B = sd.from_binsparse(tmp_path / "a.bsp.h5", 12)
    with pytest.raises(FileError, match="rows 12 to 23"):
        B.compute()
    with h5py.File(tmp_path / "a.bsp.h5", "r+") as file:
        file["pointers_to_1"][3] = 99
    with pytest.raises(FileError, match="does not ascend"):
        sd.from_binsparse(tmp_path / "a.bsp.h5", 12)
    spcomp.write(tmp_path / "v.bsp.h5", np.ones(3))
    with pytest.raises(FileError, match="parts of DVEC"):
        sd.from_binsparse(tmp_path / "v.bsp.h5")
