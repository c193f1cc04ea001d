"""Binsparse files: read right in every format, written so that they are read again, or refused."""

from __future__ import annotations

import json

import numpy as np
import pytest
import scipy.sparse as sps

import spcomp
from spcomp.errors import ArgumentError, FileError
from spcomp.io import hdf5

MATRIX = np.array([[0, 1.5, 0, 2], [0, 0, 0, 0], [3, 0, 0, -4]])
ROWS, COLUMNS = (own.astype(np.uint64) for own in MATRIX.nonzero())
VALUES = MATRIX[MATRIX != 0]
BY_COLUMN = np.lexsort((ROWS, COLUMNS))
ELEMENT = {"level_desc": "element"}


@pytest.fixture
def h5py():
    return pytest.importorskip("h5py", reason="binsparse files need h5py")


@pytest.fixture
def stored(tmp_path, monkeypatch):
    """Makes the path of a file that has a descriptor and arrays; what is in it is not written."""

    def store(about, **arrays):
        path = tmp_path / "a.bsp.h5"
        path.write_bytes(b"")
        types = {name: str(np.asarray(own).dtype) for name, own in arrays.items()}
        about = {"shape": list(MATRIX.shape), "data_types": types} | about
        result = {"binsparse": np.array(json.dumps({"binsparse": about})), **arrays}
        monkeypatch.setattr(hdf5, "arrays", lambda *_: result)
        return path

    return store


def csr(**changes):
    """The arrays of the matrix in CSR, with *changes*; None leaves one out."""
    arrays = {"pointers_to_1": np.array([0, 2, 2, 4]), "indices_1": COLUMNS, "values": VALUES}
    return {name: own for name, own in (arrays | changes).items() if own is not None}


def by_column(**arrays):
    """The arrays with rows, columns and values in the order of columns."""
    listed = {"rows": ROWS, "columns": COLUMNS, "values": VALUES}
    return {n: listed[a][BY_COLUMN] if isinstance(a, str) else a for n, a in arrays.items()}


def custom(level, **more):
    return {"format": "custom", "custom": {"level": level} | more}


@pytest.mark.parametrize(
    ("name", "arrays"),
    [("CSR", csr()), ("COO", {"indices_0": ROWS, "indices_1": COLUMNS, "values": VALUES}),
     ("COOR", {"indices_0": ROWS, "indices_1": COLUMNS, "values": VALUES}),
     ("COOC", by_column(indices_0="columns", indices_1="rows", values="values")),
     ("CSC", by_column(pointers_to_1=np.array([0, 1, 2, 2, 4]), indices_1="rows", values="values")),
     ("DCSR", csr(indices_0=np.array([0, 2]), pointers_to_1=np.array([0, 2, 4]))),
     ("DCSC", by_column(indices_0=np.array([0, 1, 3]), pointers_to_1=np.array([0, 1, 2, 4]),
                        indices_1="rows", values="values")),
     ("DMATR", {"values": MATRIX.reshape(-1)}), ("DMATC", {"values": MATRIX.T.reshape(-1)})],
)  # fmt: skip
def test_a_matrix_is_read_in_every_predefined_format(stored, name, arrays):
    result = spcomp.read(
        stored({"format": name, "number_of_stored_values": arrays["values"].size}, **arrays)
    )
    assert isinstance(result, np.ndarray if name.startswith("DM") else sps.csr_array)
    assert np.array_equal(result if isinstance(result, np.ndarray) else result.toarray(), MATRIX)


def test_vectors_are_arrays_or_tensors(stored):
    dense = spcomp.read(stored({"format": "DVEC", "shape": [3]}, values=np.arange(3)))
    assert np.array_equal(dense, [0, 1, 2])
    at = np.array([1, 3])
    sparse = spcomp.read(stored({"format": "CVEC", "shape": [4]}, values=at * 2.0, indices_0=at))
    assert np.array_equal(sparse.to_dense(), [0, 2, 0, 6])


def test_levels_of_a_custom_format_are_read(stored):
    level = {"level_desc": "dense", "rank": 1,
             "level": {"level_desc": "sparse", "rank": 2, "level": ELEMENT}}  # fmt: skip
    about = {"format": "custom", "shape": [2, 3, 4],
             "custom": {"transpose": [2, 0, 1], "level": level}}  # fmt: skip
    want = np.zeros((2, 3, 4))
    want[1, 2, 0], want[0, 1, 3], want[1, 0, 3] = 5, 6, 7
    result = spcomp.read(stored(
        about, pointers_to_1=np.array([0, 1, 1, 1, 3]), indices_1=np.array([1, 0, 1]),
        indices_2=np.array([2, 1, 0]), values=np.array([5.0, 6, 7]),
    ))  # fmt: skip
    assert isinstance(result, spcomp.Tensor)
    assert np.array_equal(result.to_dense(), want)


def test_values_that_are_all_the_same_are_stored_once(stored):
    path = stored({"format": "CSR", "data_types": {
        "pointers_to_1": "int64", "indices_1": "uint64", "values": "iso[float32]"}},
        **csr(values=np.array([7], np.float32)))  # fmt: skip
    result = spcomp.read(path)
    assert result.dtype == np.float32
    assert np.array_equal(result.toarray(), 7 * (MATRIX != 0))


@pytest.mark.parametrize(("structure", "sign"), [("symmetric", 1), ("skew_symmetric", -1)])
@pytest.mark.parametrize("half", ["lower", "upper"])
def test_the_other_triangle_is_filled_in(stored, structure, sign, half):
    low = np.array([[0, 0, 0], [2, 0, 0], [0, 3, 0]])
    low = low if half == "lower" else low.T
    listed = sps.csr_array(low)
    about = {"format": "CSR", "shape": [3, 3], "structure": f"{structure}_{half}"}
    path = stored(about, pointers_to_1=listed.indptr, indices_1=listed.indices, values=listed.data)
    assert np.array_equal(spcomp.read(path).toarray(), low + sign * low.T)


@pytest.mark.parametrize("kind", ["csr", "csc", "csf", "empty", "array", "vector"])
def test_what_is_written_is_read_again(tmp_path, h5py, kind):
    path, matrix = tmp_path / "a.bsp.h5", sps.csr_array(MATRIX)
    cube = (np.arange(24) % 5 == 0).reshape(2, 3, 4)
    value = {
        "csr": matrix, "csc": matrix.astype(np.float32).tocsc(), "csf": spcomp.convert(cube, "csf"),
        "empty": sps.csr_array((0, 3), dtype=np.uint64), "array": MATRIX.astype(np.int8),
        "vector": MATRIX[0] != 0,
    }[kind]  # fmt: skip
    spcomp.write(path, value)
    result = spcomp.read(path)
    assert result.dtype == value.dtype
    assert np.array_equal(dense(result), dense(value))
    with h5py.File(path) as file:
        about = json.loads(file.attrs["binsparse"])["binsparse"]
    assert about["version"] == "0.1"
    assert about["shape"] == list(value.shape)
    assert about["format"] == {"csf": "custom", "array": "DMATR", "vector": "DVEC"}.get(kind, "CSR")


def dense(value):
    if isinstance(value, np.ndarray):
        return value
    return value.to_dense() if isinstance(value, spcomp.Tensor) else value.toarray()


@pytest.mark.parametrize(
    ("about", "arrays", "reason"),
    [({"format": "XYZ"}, csr(), "the format 'XYZ' is unknown"),
     ({"format": ["CSR"]}, csr(), "is unknown"),
     ({"format": "CVEC"}, csr(), "does not fit the 2 dimensions"),
     ({"shape": [3]}, csr(), "does not fit the 1 dimensions"),
     ({"shape": [3, -1]}, csr(), "expected 1 to 32 extents"),
     ({"shape": "34"}, csr(), "expected 1 to 32 extents"),
     ({"shape": [3, 2**62]}, csr(indices_1=None), "data_types does not say what indices_1 is"),
     ({"data_types": 3}, csr(), "has no data_types"),
     ({"data_types": {"indices_1": "int32"}}, csr(), "indices_1 is uint64, declared as int32"),
     ({"number_of_stored_values": 5}, csr(), "4 stored values, the descriptor says 5"),
     ({}, csr(values=VALUES[:3]), "array values has 3 elements, expected 4"),
     ({}, csr(values=VALUES + 1j), "declared as complex128, which is not supported"),
     ({}, csr(values=VALUES.reshape(2, 2)), "no array values of one dimension"),
     ({}, csr(indices_1=COLUMNS + np.uint64(3)), "indices: got"),
     ({}, csr(indices_1=COLUMNS.astype(float)), "expected integers"),
     ({}, csr(pointers_to_1=np.array([0, 3, 2, 4])), "decreases from 3 to 2"),
     ({}, csr(pointers_to_1=np.array([0, 4])), "got 2 elements, expected 4"),
     ({}, csr(indices_1=np.zeros(4, int)), "has the coordinates of the stored value"),
     ({"fill": True}, csr(fill_value=np.ones(1)), "fill value is not 0"),
     ({"structure": "hermitian_lower"}, csr(), "the structure 'hermitian_lower' is not supported"),
     ({"structure": "symmetric_lower"}, csr(), "cannot be symmetric_lower"),
     ({"structure": "symmetric_lower", "shape": [3, 3], "format": "DMATR"},
      {"values": np.arange(9)}, "entries outside of the triangle"),
     ({"structure": "skew_symmetric_lower", "shape": [2, 2], "format": "DMATR"},
      {"values": np.array([0, 0, 1, 0], np.uint8)}, "does not hold the negative"),
     (custom({"level_desc": "odd"}), csr(), "a level is unknown"),
     (custom({"level_desc": "dense", "rank": 0}), csr(), "rank 0"),
     (custom({"level_desc": "dense", "rank": 2, "level": ELEMENT}, transpose=[0, 0]), csr(),
      "does not fit")],
)  # fmt: skip
def test_a_malformed_file_is_refused_with_its_reason(stored, about, arrays, reason):
    path = stored({"format": "CSR"} | about, **arrays)
    with pytest.raises(FileError) as caught:
        spcomp.read(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert reason in str(caught.value)


def test_repeated_entries_are_added_up_if_asked(stored):
    path = stored({"format": "CSR"}, **csr(indices_1=np.array([1, 1, 0, 3])))
    assert np.array_equal(spcomp.read(path, duplicates="sum").toarray()[0], [0, 3.5, 0, 0])


@pytest.mark.parametrize("content", [b"", b"\x89HDF\r\n\x1a\n" + b"\0" * 500, b"nothing"])
def test_what_is_no_container_is_refused(tmp_path, h5py, content):
    path = tmp_path / "a.bsp.h5"
    path.write_bytes(content)
    with pytest.raises(FileError, match=r"a\.bsp\.h5: it is damaged or no HDF5 file: \S"):
        spcomp.read(path)


@pytest.mark.parametrize("text", ["{", "[]", "3", "[" * 100_000, '{"binsparse": 3}', None])
def test_what_is_no_descriptor_is_refused(stored, monkeypatch, text):
    path = stored({})
    result = {} if text is None else {"binsparse": np.array(text)}
    monkeypatch.setattr(hdf5, "arrays", lambda *_: result)
    with pytest.raises(FileError, match=r"a\.bsp\.h5: .*(descriptor|shape)"):
        spcomp.read(path)


def test_a_file_on_which_the_library_crashes_is_refused(tmp_path, h5py, monkeypatch):
    path = tmp_path / "a.bsp.h5"
    path.write_bytes(b"")
    monkeypatch.setattr(hdf5, "READER", "import os; os.abort()")
    with pytest.raises(FileError, match="the HDF5 library crashes on it"):
        spcomp.read(path)
    monkeypatch.setattr(hdf5, "READER", "import time; time.sleep(60)")
    monkeypatch.setattr(hdf5, "SECONDS", 0.2)
    with pytest.raises(FileError, match="reading it does not end"):
        spcomp.read(path)


def test_arrays_of_other_files_are_not_followed(h5py, tmp_path):
    path = tmp_path / "a.bsp.h5"
    spcomp.write(path, sps.csr_array(MATRIX))
    spcomp.write(tmp_path / "b.bsp.h5", sps.csr_array(MATRIX))
    with h5py.File(path, "a") as file:
        del file["values"]
        file["values"] = h5py.ExternalLink("b.bsp.h5", "values")
    with pytest.raises(FileError, match="no array values"):
        spcomp.read(path)


def test_without_h5py_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "h5py", None)
    for call in (lambda p: spcomp.read(p), lambda p: spcomp.write(p, np.ones(3))):
        path = tmp_path / "a.bsp.h5"
        path.write_bytes(b"")
        with pytest.raises(ArgumentError, match="need h5py") as caught:
            call(path)
        assert "spcomp[binsparse]" in caught.value.hint
