"""Matrices in blocks and by rows, and the programs that make them: what scipy and levels say."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sps

from spcomp import Format, Tensor, convert, num_threads
from spcomp.compiler.programs import Program
from spcomp.errors import ArgumentError
from spcomp.ir.func import Func
from spcomp.ir.interpret.program import interpret
from spcomp.tensors.conversions import blocks, programs
from spcomp.tensors.conversions import order as conversions_sort
from spcomp.tensors.conversions.elements import elements_of
from spcomp.tensors.conversions.levels import build
from tests.test_conversions import band, checked, dense_of, drawn, programs_from


@pytest.fixture
def interpreter(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The programs of conversions are run by the interpreter."""

    def run(func: Func, *args: Any) -> None:
        interpret(func, dict(zip((param.name for param in func.params), args, strict=True)))

    def forget() -> None:
        for make in (*vars(programs).values(), *vars(blocks).values()):
            getattr(make, "cache_clear", int)()

    forget()
    monkeypatch.setattr(Program, "of", lambda func, _target: partial(run, func))
    yield
    forget()


@pytest.mark.usefixtures("interpreter")
def test_programs_read_and_write_their_arrays_only(monkeypatch: pytest.MonkeyPatch) -> None:
    programs_from(monkeypatch)
    monkeypatch.setattr(conversions_sort, "BUCKET", 2)
    monkeypatch.setattr(conversions_sort, "NEAR", 512)
    monkeypatch.setattr(conversions_sort, "WINDOW", 1)
    array = drawn((5, 9), "float32", 0.4)  # the last of some buckets begin behind all rows
    coo = sps.coo_array(array)
    twice = sps.coo_array((coo.data.repeat(2), np.repeat(coo.coords, 2, axis=1)), shape=(5, 9))
    rows = sps.csr_array(array)
    back = rows.data[::-1], rows.indices[::-1], rows.indptr[-1] - rows.indptr[::-1]
    loose = sps.csr_array(back, shape=(5, 9))
    names = "csr", "csc", "coo", "dcsr", "bsr(5, 3)"
    for matrix, name in product((array, rows, twice, loose), names):
        expected = dense_of(matrix)
        assert np.array_equal(dense_of(convert(convert(matrix, name), "csr")), expected)


@pytest.mark.sample(4, long=3)
@pytest.mark.parametrize("small", [0, 1 << 16])
@pytest.mark.parametrize("name", ["bsr(2, 3)", "dbsr(2, 3)", "bsr(4)", "dbsr(7, 1)", "bsr(300, 2)"])
@pytest.mark.parametrize("shape", [(36, 60), (37, 61), (0, 6), (6, 0), (600, 2)])
def test_tensors_in_blocks_are_what_level_by_level_makes(
    shape: tuple[int, int], name: str, small: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs_from(monkeypatch, small)
    array = drawn(shape, "float32", 0.1)
    array[4:20] = 0
    for kind in ("int32", "int64"):
        layout = Format(Format.parse(name, 2).kinds, (0, 1, 0, 1), kind)
        found, rows = checked(convert(array, layout)), sps.csr_array(array)
        expected = build(elements_of(rows), layout, "sum")
        assert found.values.tobytes() == expected.values.tobytes()
        for ours, theirs in zip(found.levels, expected.levels, strict=True):
            assert (ours is None) == (theirs is None)
            if ours is not None and theirs is not None:
                for own, other in zip(ours.arrays, theirs.arrays, strict=True):
                    assert own.dtype == other.dtype
                    assert np.array_equal(own, other)
        for back in ("csr", "csc", Format("dcsr")):
            assert np.array_equal(dense_of(convert(found, back)), array)


@pytest.mark.parametrize("name", ["dbsr(4)", "bsr(2, 3)", "dbsr(1, 4)"])
def test_few_elements_far_apart_need_no_array_of_all_columns(name: str) -> None:
    at = np.array([[0, 0, 1, 1, 1], [5, (1 << 40) - 1, 7, 4, 1 << 20]])
    layout = Format.parse(name, 2)
    given = Tensor.from_coo(at, np.arange(1.0, 6), (2, 1 << 40))
    found, expected = convert(given, layout), build(elements_of(given), layout, "sum")
    assert found.values.tobytes() == expected.values.tobytes()
    for at in range(2):
        ours, theirs = found.levels[at], expected.levels[at]
        assert (ours is None) == (theirs is None)
        if ours is not None and theirs is not None:
            for own, other in zip(ours.arrays, theirs.arrays, strict=True):
                assert own.dtype == other.dtype
                assert np.array_equal(own, other)


@pytest.mark.parametrize("name", ["sell(100000000)", "bsr(3000)", "dbsr(1, 5000000)"])
def test_blocks_that_are_larger_than_the_matrix_and_mostly_padding_are_refused(name: str) -> None:
    given = sps.csr_array(([1.0, 2], ([0, 1], [1, 2])), shape=(3, 4))
    with pytest.raises(ArgumentError, match=r"would have \d+ positions"):
        convert(given, Format.parse(name, 2))


@pytest.mark.parametrize("small", [0, 1 << 16])
def test_blocks_in_any_order_and_twice_become_rows(
    small: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs_from(monkeypatch, small)
    values = np.arange(1.0, 25).reshape(4, 2, 3)
    given = sps.bsr_array((values, [2, 0, 1, 2], [0, 2, 4]), shape=(4, 9))
    found = convert(given, "csr")
    assert found.nnz == 24
    assert found.has_canonical_format
    assert np.array_equal(found.toarray(), given.toarray())
    assert np.array_equal(convert(given, "csc").toarray(), given.toarray())
    given.indices[1] = 2  # twice the same
    assert np.array_equal(convert(given, "csr").toarray(), given.toarray())
    assert convert(given, "csr", duplicates="keep").nnz == 24
    with pytest.raises(ArgumentError, match=r"twice, at \(0, 6\)"):
        convert(given, "csr", duplicates="refuse")
    given.indices[1] = 3
    with pytest.raises(ArgumentError, match="got 3 at position 1"):
        convert(given, "csr")


def test_whether_columns_are_near_each_other_is_seen_in_a_sample() -> None:
    near, rng = conversions_sort._is_near, np.random.default_rng(1)
    rows = np.arange(100_000)
    stencil = np.repeat(rows[:25_000], 4) + np.tile([0, 5, 900, 999], 25_000)
    for columns in (rows, rows // 2, rows[::-1], stencil):
        assert near(columns.astype(np.int32), 100_000)
    for columns in (rng.permutation(rows), rng.integers(0, 100_000, 100_000)):
        assert not near(columns.astype(np.int32), 100_000)
    assert not near(rows[:50_000], 100_000)  # fewer elements than columns


@pytest.mark.parametrize("near", [0, 512])  # in buckets, and at once
@pytest.mark.parametrize("kind", ["int32", "int64"])
def test_a_list_by_columns_becomes_rows(
    kind: str, near: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs_from(monkeypatch)
    monkeypatch.setattr(conversions_sort, "NEAR", near)
    monkeypatch.setattr(conversions_sort, "CHUNK", 64)
    columns = band("int32", "float32").tocsc()[:700, :700].tocoo()
    for times in (1, 2):  # the second time each element is there twice
        at = [np.repeat(own.astype(kind), times) for own in columns.coords]
        given = sps.coo_array((np.repeat(columns.data, times), at), shape=(700, 700))
        assert (np.diff(given.coords[1]) >= 0).all()
        for threads in (1, 3):
            with num_threads(threads):
                found, kept = convert(given, "csr"), convert(given, "csr", duplicates="keep")
            assert found.has_canonical_format
            assert np.array_equal(found.toarray(), given.toarray())
            assert kept.nnz == given.nnz
            assert np.array_equal(kept.toarray(), given.toarray())
    given.coords[0][77] = 700
    with pytest.raises(ArgumentError, match="got 700 at position 77"):
        convert(given, "csr")


def test_elements_in_order_already_are_copied_all_the_same() -> None:
    rows, values = np.arange(6000), np.ones(6000)
    made = Tensor.from_coo((rows, rows), values, (6000, 6000))
    values[5] = rows[5] = 0
    assert made.values[5] == 1
    assert made.coordinates()[0][5] == 5
    rows[6] = 1  # writable as before
