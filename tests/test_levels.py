"""Level formats: their properties, how they are stored, what is refused, and index notation."""

import itertools
import pickle

import numpy as np
import pytest

import spcomp
from spcomp import Format, Tensor
from spcomp.errors import ArgumentError, FormatError
from spcomp.formats.levels import LEVELS, home, level
from tests.level_tensors import CUBES, MATRICES, present, random, tensor

# -- data ----------------------------------------------------------------------------------------


def test_properties_are_those_of_the_literature():
    rows = {
        name: (
            "".join(
                letter if getattr(kind, what) else "."
                for letter, what in zip(
                    "oufbc", ("ordered", "unique", "full", "branchless", "compact"), strict=True
                )
            ),
            kind.axis,
            kind.iterates,
            kind.locates,
        )
        for name, kind in LEVELS.items()
    }
    assert rows == {
        "dense": ("ouf.c", "dense_fixed", "coordinate", "direct"),
        "compressed": ("ou..c", "sparse_variable", "position", "search"),
        "singleton": ("ou.bc", "sparse_fixed", "position", "search"),
        "ragged": ("ou..c", "dense_variable", "coordinate", "direct"),
        "fixed": ("ou...", "sparse_fixed", "position", "search"),
        "bitmap": ("ou...", "dense_fixed", "coordinate", "direct"),
        "hashed": (".u...", "sparse_variable", "position", "probe"),
        "offset": ("ou...", "sparse_fixed", "position", "search"),
        "runs": ("ou..c", "sparse_variable", "position", "search"),
    }


def test_a_level_prints_what_differs_from_the_usual():
    for text in ("dense(4)", "compressed(nonunique)", "fixed(nonunique, unordered)", "hashed"):
        assert str(level(text)) == text
    assert level("compressed(unordered)").locates == "none"
    for text in ("sparse", "dense(0)", "hashed(nonunique)", "dense(2, 3)", "compressed(4)"):
        with pytest.raises(FormatError, match="is no level"):
            level(text)


@pytest.mark.parametrize("layout", [*MATRICES, *CUBES], ids=str)
def test_what_a_format_prints_can_be_parsed(layout):
    assert Format.parse(str(layout), layout.rank) == layout
    assert eval(repr(layout)) == layout
    assert hash(pickle.loads(pickle.dumps(layout))) == hash(layout)


def test_names_of_any_rank_and_with_sizes():
    assert str(Format.parse("hash", 3)) == "hash"
    assert Format.parse("coo", 3) == Format("coo3")
    assert Format("bsr(2, 3)").extents((5, 7)) == (3, 3, 2, 3)
    assert Format("sell(4)").extents((5, 7)) == (2, None, 4, 7)
    assert Format("csc", idtype="int64") == Format(("dense", "compressed"), (1, 0), "int64")
    assert repr(Format("csc")) == "Format(('dense', 'compressed'), order=(1, 0))"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Format("cssr"), "'cssr' is no format"),
        (lambda: Format("csr(3)"), r"'csr\(3\)' is no format"),
        (lambda: Format.parse("csr", 3), "is no format of 3 dimensions"),
        (lambda: Format("csr", (0, 0)), "level 1 stores dimension 0 as compressed"),
        (lambda: Format("csr", (0, 2)), "does not say which dimensions 2 levels store"),
        (lambda: Format("csr", (1 << 62, 0)), "does not say which dimensions 2 levels store"),
        (lambda: Format("csr", (0,)), "does not say which dimensions 2 levels store"),
        (lambda: Format("dense,dense(4)"), r"level 1 stores dimension 1 as dense\(4\)"),
        (lambda: Format("offset"), "stands below the dimension it follows"),
        (lambda: Format(("compressed", "dense"), (-1, 0)), "that stores no dimension is ragged"),
        (lambda: Format("csr", idtype="float32"), "index arrays cannot be float32"),
        (lambda: Format("csr", "ab"), "the order 'ab' is no tuple of integers"),
        (lambda: Format("csr", idtype="int3"), "index arrays cannot be int3"),
        (lambda: Format(5), "levels are int, expected a tuple"),
        (lambda: Format((5, None)), "'5' is no level"),
        (lambda: Format.parse("dense of dimensions x"), "dimensions are numbers"),
    ],
)
def test_levels_that_make_no_format_are_refused(make, message):
    with pytest.raises(FormatError, match=message):
        make()


# -- tensors -------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(6, 7), (5, 1), (0, 3), (3, 0)], ids=str)
@pytest.mark.parametrize("layout", MATRICES, ids=str)
def test_a_matrix_of_any_format_holds_what_went_in(layout, shape):
    array, stored = random(shape)
    result = tensor(array, stored, layout)
    assert (result.to_dense() == array).all()
    assert result.nnz == present(result).sum()
    assert (present(result) | ~stored).all()
    again = pickle.loads(pickle.dumps(result))
    assert (again.format, again.order) == (result.format, result.order)
    assert (again.to_dense() == array).all()
    assert (result.with_values(result.values * 2).to_dense() == 2 * array).all()


def test_any_nest_of_three_levels_holds_what_went_in():
    kinds = ("dense", "compressed", "hashed", "bitmap", "runs", "fixed")
    array, stored = random((3, 4, 2))
    orders = itertools.cycle(itertools.permutations(range(3)))
    for kind, order in zip(itertools.product(kinds, repeat=3), orders, strict=False):
        result = tensor(array, stored, Format(kind, order))
        assert (result.to_dense() == array).all(), result.format


def test_the_layout_says_what_order_coordinates_turned_out_to_be_in():
    def made(*columns: int) -> Format:
        level = ("compressed", [0, 3, 3], list(columns))
        return Tensor((2, 5), [None, level], np.zeros(3)).layout

    assert made(0, 1, 4) == Format("csr", idtype="int64")
    assert made(0, 0, 4).levels[1] == "compressed(nonunique)"
    assert made(4, 1, 0).levels[1] == "compressed(nonunique, unordered)"
    coo = Tensor((2, 5), [("compressed", [0, 2], [0, 1]), ("singleton", [4, 2])], np.zeros(2))
    assert (str(coo.layout), coo.format) == ("coo", "compressed,singleton")


def hashed(indptr, indices, shape=(1, 90)):
    level = ("hashed", np.array(indptr), np.array(indices))
    return Tensor(shape, [None, level], np.zeros(len(indices)))


def runs(indices, ends, indptr=(0, 2, 3)):
    return Tensor((2, 9), [None, ("runs", list(indptr), indices, ends)], np.zeros(3))


def swapped() -> list[int]:
    """A table of four slots, with one coordinate that lies at the home of another."""
    first, second = (next(c for c in range(90) if home(c, 4) == slot) for slot in (0, 2))
    return [second, -1, first, -1]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: hashed([0, 3], [-1, -1, -1]), "table 0 has 3 slots, expected a power of two"),
        (lambda: hashed([0, 4], swapped()), "position 0, where it would not be found"),
        (lambda: hashed([0, 4], [7, 7, 7, 7]), "got 7 twice in a table"),
        (lambda: hashed([0, 2], [-2, -1]), r"got -2 at position 0, expected -1\.\.89"),
        (lambda: hashed([0, 2], [90, -1]), r"got 90 at position 0"),
        (lambda: runs([0, 3, 5], [4, 5, 6]), "got 4 at position 0, but the next run"),
        (lambda: runs([0, 3, 5], [0, 5, 6]), r"ends: got 0 at position 0, expected 1\.\.9"),
        (lambda: runs([2, 3, 5], [2, 5, 6]), "got 2 at position 0, expected more than 2"),
        (lambda: runs([0, 3, 5], [2, 5, 10]), r"ends: got 10 at position 2, expected 1\.\.9"),
        (lambda: runs([0, 3, 5], [2, 5]), "ends: got 2 elements, expected 3"),
        (
            lambda: Tensor((2, 3), [None, ("bitmap", [1, 0, 1])], np.zeros(6)),
            r"mask: got 3 elements, expected 6 \(3 for each of 2 fibers\)",
        ),
        (
            lambda: Tensor((2, 3), [None, ("bitmap", np.zeros(6))], np.zeros(6)),
            "mask: got dtype float64, expected bool or integers",
        ),
        (
            lambda: Tensor((2, 3), [None, ("singleton", [0])], np.zeros(1)),
            r"indices: got shape \(1,\), expected \(2,\)",
        ),
        (
            lambda: Tensor((2, 3), [None, ("singleton", [0, 3])], np.zeros(2)),
            r"got 3 at position 1, expected -1\.\.2",
        ),
        (
            lambda: Tensor((2, 3), [None, ("offset", [1, 0])], np.zeros(4)),
            "offsets: got coordinates out of order",
        ),
        (
            lambda: Tensor((2, 3), [None, ("offset", [-2, 0])], np.zeros(4)),
            r"offsets: got -2 at position 0, expected -1\.\.2",
        ),
        (lambda: Tensor((3,), [("offset", [0])], np.zeros(1)), "stands below the dimension"),
        (
            lambda: Tensor((4,), [None, ("dense", 2)], np.zeros(4), order=(0, 1)),
            r"level 1 stores dimension 1 as dense\(2\)",
        ),
        (
            lambda: Tensor((4, 4), [None, None], np.zeros(4), order=(0, 0)),
            "level 1 stores dimension 0 as dense",
        ),
        (lambda: Tensor((4, 4), [None], np.zeros(4), order=(0,)), "got .0,. for 2 dimensions"),
        (lambda: Tensor((4,), [("dense", 0)], np.zeros(4)), "entry 0 is not a level"),
        (lambda: Tensor((4,), [("hashed", [0, 0])], np.zeros(4)), "entry 0 is not a level"),
    ],
)
def test_arrays_that_describe_no_tensor_are_refused(make, message):
    with pytest.raises(ArgumentError, match=message):
        make()


def test_every_hash_table_is_checked_as_probing_would_find_it():
    rng = np.random.default_rng(1)
    verdicts = set()
    for _ in range(150):
        array = rng.random((1, 90)) * (rng.random((1, 90)) < 0.06)
        result = tensor(array, array != 0, Format("hash")).levels[1]
        table = result.indices.copy()
        if len(table) < 2:
            continue
        a, b = rng.choice(len(table), 2, replace=False)
        table[[a, b]] = table[[b, a]]

        def found(coordinate: int, table: np.ndarray = table) -> bool:
            slots = np.roll(table, -home(coordinate, len(table)))
            before = slots[: int(np.flatnonzero(slots == coordinate)[0])]
            return -1 not in before

        right = all(found(int(c)) for c in table if c >= 0)
        verdicts.add(right)
        if right:
            hashed([0, len(table)], table)
        else:
            with pytest.raises(ArgumentError, match="would not be found"):
                hashed([0, len(table)], table)
    assert verdicts == {True, False}


@pytest.mark.parametrize("layout", [Format("sell(2)"), Format("hash"), Format("csc")], ids=str)
def test_a_tensor_of_any_levels_can_be_written_and_read(layout, tmp_path):
    array, stored = random((6, 7))
    spcomp.write(tmp_path / "t.npz", tensor(array, stored, layout))
    again = spcomp.read(tmp_path / "t.npz")
    assert again.layout == tensor(array, stored, layout).layout
    assert (again.to_dense() == array).all()
