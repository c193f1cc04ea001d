"""Distributed tensors in folders: written whole or not at all, and read as they were."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import spcomp
from tests.test_standard_list import full

pytest.importorskip("distributed", reason="needs Dask and distributed")
import dask.array as da

import spcomp.dask as sd
from spcomp.errors import ArgumentError, FileError
from tests.test_dask import _in_turn, csr

__all__ = ["_in_turn"]  # runs for each test here, too
pytestmark = pytest.mark.dask


@pytest.mark.parametrize("wave", [None, 1, 2])
@pytest.mark.parametrize("kind", ["csr", "csc", "csf", "array"])
def test_collections_in_folders_come_back(tmp_path, kind, wave):
    A = csr(dtype=np.float32)
    x = {"array": lambda: da.from_array(A.toarray(), chunks=(9, 6))}.get(
        kind, lambda: sd.from_scipy(spcomp.convert(A, kind), (9, 6))
    )()
    sd.write(tmp_path / "x", x, wave=wave)
    back = sd.read(tmp_path / "x")
    assert (type(back), back.chunks, back.dtype) == (type(x), x.chunks, x.dtype)
    np.testing.assert_array_equal(full(back.compute()), A.toarray())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x"]


def test_numbers_in_the_other_order_of_bytes_are_written_and_others_than_numbers_are_not(tmp_path):
    x = np.arange(12, dtype=">f8").reshape(4, 3)
    sd.write(tmp_path / "x", da.from_array(x, chunks=2))
    np.testing.assert_array_equal(sd.read(tmp_path / "x").compute(), x)
    for words in (np.array(["a", "bc"]), np.array([1, None])):
        with pytest.raises(ArgumentError, match="no numbers"):
            sd.write(tmp_path / "y", da.from_array(words, chunks=1))


def test_a_bar_shows_how_much_is_written(tmp_path, capsys):
    sd.write(tmp_path / "x", sd.from_scipy(csr(), 9), wave=2, progress=True)
    assert "3/3" in (told := capsys.readouterr()).err
    assert "B/s" in told.err


def test_a_folder_is_written_completely_or_not_at_all(tmp_path):
    broken = da.from_array(np.ones((4, 2)), chunks=2).map_blocks(fails, dtype=float)
    with pytest.raises(ArithmeticError):
        sd.write(tmp_path / "x", broken)
    assert not list(tmp_path.iterdir())
    sd.write(tmp_path / "x", A := sd.from_scipy(csr(), 9))
    with pytest.raises(ArgumentError, match="is there already"):
        sd.write(tmp_path / "x", A)
    with pytest.raises(ArgumentError, match="argument wave"):
        sd.write(tmp_path / "y", A, wave=0)
    with pytest.raises(ArgumentError, match="argument collection"):
        sd.write(tmp_path / "y", csr())


def fails(block: np.ndarray, block_id: Any = None) -> np.ndarray:
    if block_id == (1, 0):
        raise ArithmeticError
    return block


def test_a_damaged_part_of_a_folder_is_an_error_with_its_name(tmp_path):
    sd.write(tmp_path / "x", sd.from_scipy(csr(), 9))
    sd.write(tmp_path / "y", da.ones((4, 2), chunks=2))
    for file in (tmp_path / "x" / "part-1-0.npz", tmp_path / "y" / "part-1-0.npy"):
        file.write_bytes(file.read_bytes()[:-20])
        with pytest.raises(FileError, match=file.name):
            sd.read(file.parent).compute()
    spcomp.write(tmp_path / "x" / "part-1-0.npz", csr())
    with pytest.raises(FileError, match=r"part-1-0\.npz: it has"):
        sd.read(tmp_path / "x").compute()
    for path in (tmp_path, tmp_path / "z"):
        with pytest.raises(FileError, match="no tensor in blocks"):
            sd.read(path)
