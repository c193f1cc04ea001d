"""Files that are well formed: what is read is what is there, and what is written comes back."""

import gzip
import io
import json
import subprocess
import sys

import numpy as np
import pytest
import scipy.io
import scipy.sparse as sps

import spcomp
from spcomp.errors import ArgumentError, FileError, OutOfMemoryError
from spcomp.io import coordinates, frostt, grammar, matrix_market, progress

HEAD = "%%MatrixMarket matrix coordinate real general\n"


@pytest.fixture(params=["careful", "fast"])
def way(request, monkeypatch):
    """Both ways to read a text file, whatever its size; they must not differ."""
    if request.param == "fast":
        for module in (matrix_market, frostt):
            monkeypatch.setattr(module, "WHOLE", 0)
    return request.param


def put(tmp_path, text, name="a.mtx"):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def same(a, b):
    return a.shape == b.shape and a.dtype == b.dtype and np.array_equal(a, b, equal_nan=True)


def test_a_coordinate_file_is_a_canonical_csr_array(tmp_path, way):
    path = put(tmp_path, HEAD + "2 3 3\n2 3 1.5\n2 1 -2e1\n1 1 .25\n")
    got = spcomp.read(path)
    assert isinstance(got, sps.csr_array)
    assert got.has_canonical_format
    assert same(got.toarray(), np.array([[0.25, 0, 0], [-20, 0, 1.5]]))


@pytest.mark.parametrize(
    ("field", "value", "want"),
    [("pattern", "", 1.0), ("integer", "-7", -7), ("integer", str(-(2**63)), -(2**63)),
     ("unsigned-integer", str(2**64 - 1), 2**64 - 1), ("real", "1e-400", 0.0),
     ("real", "0.1", 0.1), ("real", "NaN", np.nan), ("real", "-inf", -np.inf),
     ("real", "+infinity", np.inf), ("real", "+1.5E+3", 1500.0), ("integer", "+3", 3)],
)  # fmt: skip
def test_a_field_gives_its_type(tmp_path, way, field, value, want):
    path = put(tmp_path, f"%%MatrixMarket MATRIX Coordinate {field} General\n1 1 1\n1 1 {value}\n")
    dtype = {"integer": np.int64, "unsigned-integer": np.uint64}.get(field, np.float64)
    assert same(spcomp.read(path).toarray(), np.array([[want]], dtype))


@pytest.mark.parametrize("field", ["real", "integer"])
@pytest.mark.parametrize("symmetry", ["symmetric", "skew-symmetric"])
def test_the_other_half_of_a_symmetric_matrix_is_filled_in(tmp_path, way, field, symmetry):
    body = "3 3 2\n2 1 4\n3 2 5\n" if "skew" in symmetry else "3 3 3\n1 1 3\n2 1 4\n3 2 5\n"
    path = put(tmp_path, f"%%MatrixMarket matrix coordinate {field} {symmetry}\n{body}")
    sign = -1 if "skew" in symmetry else 1
    want = [[3 if sign > 0 else 0, 4 * sign, 0], [4, 0, 5 * sign], [0, 5, 0]]
    assert np.array_equal(spcomp.read(path).toarray(), want)


@pytest.mark.parametrize(
    ("symmetry", "values", "want"),
    [("general", "1 2 3 4 5 6 7 8 9", [[1, 4, 7], [2, 5, 8], [3, 6, 9]]),
     ("symmetric", "1 2 3 4 5 6", [[1, 2, 3], [2, 4, 5], [3, 5, 6]]),
     ("skew-symmetric", "1 2 3", [[0, -1, -2], [1, 0, -3], [2, 3, 0]])],
)  # fmt: skip
@pytest.mark.parametrize("field", ["real", "integer"])
def test_an_array_file_goes_down_the_columns(tmp_path, way, field, symmetry, values, want):
    lines = values.replace(" ", "\n\n")
    path = put(tmp_path, f"%%MatrixMarket matrix array {field} {symmetry}\n3 3\n{lines}\n")
    assert same(spcomp.read(path), np.array(want, np.int64 if field == "integer" else np.float64))


@pytest.mark.parametrize("text", [
    "{0}%a\n\n % b\n\n2 2 2\n\n1 1 1\n \t\n2 2 2\n\n", "{0}2 2 2\n1\t1   1 \n  2 2\t2\t\n",
    "{0}2 2 2\n1 1 1\n2 2 2", "{0}2 2 2\n1 1 1\n2 2 2 ", "{0}2 2 2\n1 1 1\n2 2 2\t\r",
    "\ufeff{0}2 2 2\n1 1 1\n2 2 2\n", "{0}  2   2\t2  \n1 1 1\n2 2 2\n\n\n",
    "{0}2 2 2\n01 001 1\n2 2 2.\n", "{0}%" + "x" * 9000 + "\n2 2 2\n1 1 1\n2 2 2",
])  # fmt: skip
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_blanks_comments_and_line_ends_are_read_over(tmp_path, way, text, end):
    path = put(tmp_path, text.format(HEAD).replace("\n", end))
    assert np.array_equal(spcomp.read(path).toarray(), [[1, 0], [0, 2]])


@pytest.mark.parametrize("sizes", ["0 0 0", "0 3 0", "3 0 0", "2 2 0"])
def test_a_matrix_may_have_no_entries(tmp_path, way, sizes):
    got = spcomp.read(put(tmp_path, HEAD + sizes + "\n"))
    assert (*got.shape, got.nnz) == tuple(map(int, sizes.split()))


def test_repeated_entries_are_added_up_if_that_is_asked_for(tmp_path, way):
    path = put(tmp_path, HEAD + "2 2 3\n2 2 1\n1 1 5\n2 2 3\n")
    assert np.array_equal(spcomp.read(path, duplicates="sum").toarray(), [[5, 0], [0, 4]])
    text = "%%MatrixMarket matrix coordinate integer symmetric\n2 2 2\n2 1 1\n2 1 3\n"
    got = spcomp.read(put(tmp_path, text), duplicates="sum")
    assert np.array_equal(got.toarray(), [[0, 4], [4, 0]])


@pytest.mark.parametrize("sizes", ["0 0", "0 3", "3 0"])
def test_an_array_may_have_no_values(tmp_path, way, sizes):
    path = put(tmp_path, f"%%MatrixMarket matrix array real general\n{sizes}\n")
    assert spcomp.read(path).shape == tuple(map(int, sizes.split()))


def test_stored_zeros_stay(tmp_path, way):
    assert spcomp.read(put(tmp_path, HEAD + "2 2 1\n1 2 0\n")).nnz == 1


def test_what_scipy_reads_from_a_random_file_is_read(tmp_path, way):
    rng = np.random.default_rng(5)
    for density in (0.0, 0.02, 0.7):
        want = sps.random_array((60, 41), density=density, rng=rng, format="csr")
        scipy.io.mmwrite(tmp_path / "r.mtx", want)
        got = spcomp.read(tmp_path / "r.mtx")
        assert (got.indptr == want.indptr).all()
        assert (got.indices == want.indices).all()
        assert (got.data == want.data).all()


def test_a_tensor_comes_in_order_as_csf(tmp_path, way):
    path = put(tmp_path, "# c\n\n2 1 3 -4\n1 2 1 .5\n# d\n2 1 1 1e2\n1 2 4 nan\n", "t.tns")
    got = spcomp.read(path)
    assert isinstance(got, spcomp.Tensor)
    assert (got.shape, got.nnz, got.format) == ((2, 2, 4), 4, "dense,compressed,compressed")
    assert np.stack(got.coordinates(), 1).tolist() == [[0, 1, 0], [0, 1, 3], [1, 0, 0], [1, 0, 2]]
    assert same(got.values, np.array([0.5, np.nan, 100, -4]))
    assert all(got.ascending(axis, unique=True) for axis in range(3))


def test_the_order_of_a_tensor_is_that_of_its_columns(tmp_path, way):
    assert spcomp.read(put(tmp_path, "3 1.5\n1 2\n", "a.tns")).to_dense().tolist() == [2, 0, 1.5]
    two = spcomp.read(put(tmp_path, "3 1 1.5\n1 2 2\n", "a.tns"))
    assert isinstance(two, sps.csr_array)
    assert two.toarray().tolist() == [[0, 2], [0, 0], [1.5, 0]]
    five = spcomp.read(put(tmp_path, "1 2 1 2 1 7\n1 2 1 2 2 8\n", "a.tns"))
    assert five.to_dense().shape == (1, 2, 1, 2, 2)
    assert five.to_dense()[0, 1, 0, 1].tolist() == [7, 8]


def test_the_shape_of_a_tensor_may_be_given(tmp_path, way):
    path = put(tmp_path, "1 1 2 5\n", "a.tns")
    assert spcomp.read(path, shape=(4, 5, 6)).shape == (4, 5, 6)
    empty = spcomp.read(put(tmp_path, "# nothing\n", "e.tns"), shape=(2, 3, 4))
    assert (empty.shape, empty.nnz) == ((2, 3, 4), 0)
    with pytest.raises(FileError, match=r"a\.tns:1: coordinate 3 2 is out of range"):
        spcomp.read(path, shape=(1, 1, 1))
    with pytest.raises(FileError, match=r"a\.tns:1: got 3 coordinates for the shape \(4, 5\)"):
        spcomp.read(path, shape=(4, 5))
    for wrong in ((), (1.5, 2, 2), (-1, 2, 2), 3, (2**63, 1, 1)):
        with pytest.raises(ArgumentError, match="argument shape"):
            spcomp.read(path, shape=wrong)
    with pytest.raises(ArgumentError, match="argument shape"):
        spcomp.read(put(tmp_path, HEAD + "1 1 0\n"), shape=(1, 1))


def test_repeated_tensor_entries_are_added_up_if_that_is_asked_for(tmp_path, way):
    path = put(tmp_path, "1 1 2 5\n1 1 1 1\n1 1 2 3\n", "a.tns")
    assert spcomp.read(path, duplicates="sum").to_dense().tolist() == [[[1, 8]]]
    with pytest.raises(FileError, match=r"a\.tns:3: the entry of line 1 is repeated"):
        spcomp.read(path)


def test_random_tensors_come_back(tmp_path, way):
    rng = np.random.default_rng(3)
    for order in (1, 2, 3, 4):
        dense = np.where(rng.random((4, 3, 5, 2)[:order]) < 0.4, rng.standard_normal(), 0.0)
        dense.flat[-1] = 3.0
        coords = tuple(rng.permutation(np.argwhere(dense)).T)
        entries = coordinates.Entries(dense.shape, coords, dense[coords])
        result, repeats = coordinates.tensor(entries)
        assert not repeats
        assert np.array_equal(result.to_dense(), dense)
        for name in ("t.tns", "t.tns.gz", "t.npz"):
            spcomp.write(tmp_path / name, result)
            got = spcomp.read(tmp_path / name)
            got = got.toarray() if order == 2 and name != "t.npz" else got.to_dense()
            assert np.array_equal(got, dense)


@pytest.mark.parametrize("kind", ["csr", "csc", "coo", "bsr", "dia", "lil", "dok"])
@pytest.mark.parametrize("name", ["m.mtx", "m.mtx.gz", "m.npz", "m.tns"])
def test_a_matrix_of_any_kind_comes_back(tmp_path, way, kind, name):
    want = np.zeros((6, 4))
    want[[0, 3, 5], [1, 0, 3]] = [1 / 3, -1e300, 5e-324]
    spcomp.write(tmp_path / name, sps.coo_array(want).asformat(kind))
    assert same(spcomp.read(tmp_path / name).toarray(), want)
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("kind", ["csr", "csc", "coo", "bsr", "dia"])
def test_an_archive_of_scipy_is_read(tmp_path, kind):
    want = sps.random_array((8, 6), density=0.3, rng=np.random.default_rng(1))
    sps.save_npz(tmp_path / "s.npz", want.asformat(kind))
    got = spcomp.read(tmp_path / "s.npz")
    assert got.has_canonical_format
    assert np.array_equal(got.toarray(), want.toarray())


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int64", "uint64", "float32"])
@pytest.mark.parametrize("name", ["d.mtx", "d.npz", "d.tns"])
def test_narrow_types_come_back_by_dtype(tmp_path, way, name, dtype):
    want = sps.csr_array(np.array([[0, 1], [1, 0]]).astype(dtype))
    if dtype == "float32":
        want.data[:] = [1 / 3, np.nan]
    spcomp.write(tmp_path / name, want)
    assert same(spcomp.read(tmp_path / name, dtype=dtype).toarray(), want.toarray())


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint64", "float32", "float64"])
def test_a_dense_array_comes_back(tmp_path, way, dtype):
    want = np.arange(6).reshape(2, 3).astype(dtype)
    spcomp.write(tmp_path / "a.mtx", want)
    assert same(spcomp.read(tmp_path / "a.mtx", dtype=dtype), want)


@pytest.mark.parametrize("levels", [
    [None, ("ragged", np.array([0, 2, 3]))], [None, ("fixed", np.array([[2, 0], [1, 2]]))],
    [("compressed", np.array([0, 2]), np.array([1, 0])), None], [None, None],
])  # fmt: skip
def test_an_archive_keeps_every_level_of_a_tensor(tmp_path, levels):
    count = 3 if levels[1] and levels[1][0] == "ragged" else 6 if levels[1] is None else 4
    want = spcomp.Tensor((2, 3), levels, np.arange(float(count)))
    spcomp.write(tmp_path / "t.npz", want)
    got = spcomp.read(tmp_path / "t.npz")
    assert got.format == want.format
    assert same(got.to_dense(), want.to_dense())


@pytest.mark.parametrize("form", [
    "csr", "dcsr", "hash", "bitmap", "rle", "ell", "bsr(1)", "csc", "coo", "dia", "sell(2)",
])  # fmt: skip
@pytest.mark.parametrize("name", ["t.mtx", "t.tns", "t.bsp.h5", "t.npz"])
def test_a_tensor_is_written_without_its_padding(tmp_path, form, name):
    if name.endswith(".h5"):
        pytest.importorskip("h5py")
    want = np.array([[1.0, 1, 0, 5], [0, 3, 0, 0], [0, 0, 0, 0], [0, 0, 0, 2]])
    tensor = spcomp.convert(want, spcomp.Format.parse(form, 2))
    spcomp.write(tmp_path / name, tensor)
    got = spcomp.read(tmp_path / name)
    assert got.nnz == tensor.nnz
    assert np.array_equal(got.to_dense() if name == "t.npz" else got.toarray(), want)


def test_the_zeros_that_a_bitmap_stores_are_written(tmp_path):
    mask = np.array([[True, True, False]])
    tensor = spcomp.Tensor((1, 3), (None, ("bitmap", mask)), np.arange(3.0))
    spcomp.write(tmp_path / "b.tns", tensor)
    assert (tmp_path / "b.tns").read_text() == "1 1 0.0\n1 2 1.0\n"


@pytest.mark.parametrize("shape", [(1 << 40, 1 << 34), (1 << 32, 1 << 32, 1 << 32)])
def test_a_tensor_of_more_rows_than_memory_holds_is_written_as_a_list(tmp_path, shape):
    tensor = spcomp.Tensor.from_coo([[0, 5]] * len(shape), [1.0, 2.0], shape)
    spcomp.write(tmp_path / "t.tns", tensor)
    lines = [line.split() for line in (tmp_path / "t.tns").read_text().splitlines()]
    assert lines == [["1"] * len(shape) + ["1.0"], ["6"] * len(shape) + ["2.0"]]
    if len(shape) == 2:
        spcomp.write(tmp_path / "t.mtx", tensor)
        assert scipy.io.mmread(tmp_path / "t.mtx", spmatrix=False).shape == shape
    with pytest.raises(OutOfMemoryError, match=r"the pointers of its \d+ rows do not fit"):
        spcomp.write(tmp_path / "t.bsp.h5", tensor)


def test_written_duplicates_are_added_up(tmp_path):
    coo = sps.coo_array(([1.0, 2.0], ([0, 0], [1, 1])), shape=(1, 2))
    for name in ("d.mtx", "d.npz", "d.tns"):
        spcomp.write(tmp_path / name, coo)
        assert spcomp.read(tmp_path / name).toarray().tolist() == [[0, 3]]


@pytest.mark.parametrize("dtype", [np.bool_, np.int16, np.float32])
def test_entries_that_are_added_up_keep_their_type(dtype):
    coords = np.array([0, 0, 1]), np.array([2, 2, 0]), np.array([0, 0, 0])
    entries = coordinates.Entries((2, 3, 1), coords, np.ones(3, dtype))
    result, repeats = coordinates.tensor(entries)
    assert repeats
    assert result.values.dtype == dtype
    assert result.values.tolist() == [dtype(2), 1]


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [("a.mtx", np.zeros(3), "1 dimensions"), ("a.mtx", np.zeros((2, 2), complex), "complex128"),
     ("a.npz", np.zeros((2, 2)), "expected a sparse matrix"), ("a.tns", 3, "got int"),
     ("a.tns", sps.csr_array(np.array([[2**60]])), "beyond 2"), ("a.txt", 3, "no known kind"),
     ("a.mtx", sps.csr_array(np.array([[1j]])), "complex128"),
     ("a.mtx", spcomp.Tensor((1, 1, 1), [None] * 3, np.ones(1)), "3 axes"),
     ("a\0.mtx", np.zeros((2, 2)), "zero byte"),
     ("no/such/folder.mtx", np.zeros((2, 2)), "cannot be written: no such file")],
)  # fmt: skip
def test_what_cannot_be_written_is_refused_and_leaves_nothing(tmp_path, name, value, reason):
    with pytest.raises(ArgumentError, match=reason):
        spcomp.write(tmp_path / name, value)
    assert not list(tmp_path.iterdir())


def test_a_matrix_with_bad_indices_is_not_written(tmp_path):
    bad, listed = sps.csr_array(np.eye(3)), sps.coo_array(np.eye(3))
    bad.indices[1] = listed.row[1] = 99
    short = sps.csc_array(np.eye(3))
    short.indptr[-1] = 9999
    for matrix, reason in ((bad, "99"), (bad.T, "99"), (listed, "99"), (short, "9999")):
        with pytest.raises(ArgumentError, match=reason):
            spcomp.write(tmp_path / "a.mtx", matrix)


def test_room_behind_the_entries_of_a_matrix_is_not_written(tmp_path):
    want = sps.csr_array(np.eye(2))
    want.data, want.indices = np.array([1.0, 1, 7]), np.array([0, 1, 9], np.int32)
    spcomp.write(tmp_path / "a.npz", want)
    assert np.array_equal(spcomp.read(tmp_path / "a.npz").toarray(), np.eye(2))


@pytest.mark.parametrize(
    ("dtype", "value"), [("int8", "200"), ("int8", "1.5"), ("uint8", "-1"), ("bool", "2"),
                         ("float32", "1e300"), ("int64", "9.3e18"), ("int64", "nan")],
)  # fmt: skip
def test_a_value_that_the_asked_type_cannot_hold_is_refused(tmp_path, way, dtype, value):
    with pytest.raises(FileError, match=f"does not fit {dtype}"):
        spcomp.read(put(tmp_path, HEAD + f"1 1 1\n1 1 {value}\n"), dtype=dtype)


@pytest.mark.parametrize(
    ("options", "argument"),
    [({"dtype": "complex64"}, "dtype"), ({"dtype": "nonsense"}, "dtype"),
     ({"dtype": "M8"}, "dtype"), ({"duplicates": "keep"}, "duplicates")],
)  # fmt: skip
def test_arguments_are_checked(tmp_path, options, argument):
    with pytest.raises(ArgumentError, match=f"argument {argument}"):
        spcomp.read(put(tmp_path, HEAD + "1 1 0\n"), **options)


def test_gzip_is_read_as_what_is_in_it(tmp_path, way):
    path = tmp_path / "a.mtx.gz"
    path.write_bytes(gzip.compress((HEAD + "1 2 1\n1 2 3\n").encode()))
    assert spcomp.read(path).toarray().tolist() == [[0, 3]]


def test_a_large_file_is_read_the_fast_way(tmp_path, monkeypatch):
    monkeypatch.setattr(grammar, "BLOCK", 1 << 14)  # several blocks, lines cut at their ends
    monkeypatch.setattr(grammar, "LONGEST", 1 << 10)
    want = sps.random_array((300, 200), density=0.2, rng=np.random.default_rng(2), format="csr")
    spcomp.write(tmp_path / "a.mtx", want)
    spcomp.write(tmp_path / "a.tns", want)
    for module in (matrix_market, frostt):
        monkeypatch.setattr(module, "_careful", None)  # would raise TypeError
    assert (spcomp.read(tmp_path / "a.mtx") != want).nnz == 0
    got = spcomp.read(tmp_path / "a.tns", shape=want.shape)
    assert (got != want).nnz == 0


def test_progress_is_shown_on_a_terminal_only(tmp_path, monkeypatch, capsys):
    path = put(tmp_path, HEAD + "1 1 1\n1 1 1\n")
    monkeypatch.setattr(progress, "LARGE", 0)
    monkeypatch.setattr(matrix_market, "WHOLE", 0)
    spcomp.read(path)
    assert capsys.readouterr() == ("", "")
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr(sys, "stderr", terminal)
    spcomp.read(path)
    assert "reading a.mtx" in terminal.getvalue()


def test_the_import_is_lazy():
    code = "import spcomp, sys, json; spcomp.write; print(json.dumps([m in sys.modules for m in"
    result = subprocess.run(
        [sys.executable, "-c", code + "('scipy', 'llvmlite', 'rich')]))"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert json.loads(result.stdout) == [False, False, False]


@pytest.mark.shared_data
@pytest.mark.parametrize("name", ["bcsstk13", "cora", "cryg2500", "p2p-Gnutella31", "west0067"])
def test_real_matrices_are_what_scipy_reads(shared_data, way, name):
    path = shared_data / f"{name}.mtx"
    got, want = spcomp.read(path), scipy.io.mmread(path, spmatrix=False).tocsr()
    assert got.shape == want.shape
    assert got.nnz == want.nnz
    assert (got != want).nnz == 0


@pytest.mark.shared_data
def test_real_tensors_and_features_are_read(shared_data, way):
    got = spcomp.read(shared_data / "wn18rr.tns")
    want = np.loadtxt(shared_data / "wn18rr.tns")
    want = want[np.lexsort(want[:, 2::-1].T)]
    assert np.array_equal(np.stack(got.coordinates(), 1) + 1, want[:, :3])
    assert np.array_equal(got.values, want[:, 3])
    features = spcomp.read(shared_data / "cora_features.npz")
    assert (features.shape, features.nnz) == ((2708, 1433), 49216)


def test_a_scipy_array_of_any_rank_is_written(tmp_path):
    cube = np.zeros((2, 3, 4))
    cube[1, 0, 3], cube[0, 2, 1] = 5, 6
    for array in (cube, cube[1, 0]):
        for name in ("a.tns", "a.npz"):
            spcomp.write(tmp_path / name, sps.coo_array(array))
            shape = {"shape": array.shape} if name == "a.tns" else {}
            assert np.array_equal(spcomp.read(tmp_path / name, **shape).to_dense(), array)


def test_a_value_in_the_place_of_the_path_is_refused_in_a_few_words(tmp_path):
    with pytest.raises(
        ArgumentError, match="argument path: got csr_array, expected a path"
    ) as told:
        spcomp.write(sps.csr_array(np.eye(3)), tmp_path / "a.mtx")
    assert "the path comes first" in str(told.value)
