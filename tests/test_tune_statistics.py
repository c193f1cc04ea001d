"""Statistics of a matrix: against plain numpy, and against what the formats then store."""

from __future__ import annotations

import pickle
from collections import OrderedDict

import numpy as np
import pytest
import scipy.sparse as sps

import spcomp
from spcomp.errors import ArgumentError
from spcomp.formats import ell, hyb, sell, sliced_diagonal
from spcomp.tune import statistics
from spcomp.tune.statistics import MatrixStatistics, matrix_statistics

RNG = np.random.default_rng(7)


def of(dense):
    return sps.csr_array(np.asarray(dense, np.float32))


def power_law(rows, columns, count):
    popular = np.minimum((RNG.pareto(1.0, count) * 4).astype(int), columns - 1)
    lengths = np.minimum((RNG.pareto(1.0, count) * 3).astype(int), rows - 1)
    return sps.csr_array((np.ones(count, np.float32), (lengths, popular)), shape=(rows, columns))


def matrices():
    uniform = sps.random_array((300, 200), density=0.05, rng=1, dtype=np.float32, format="csr")
    hub = uniform.copy().tolil()
    hub[17, :] = 1
    spread = sps.csr_array((uniform.data, uniform.indices, uniform.indptr), shape=(300, 10000))
    blocks = sps.kron(sps.random_array((20, 25), density=0.1, rng=2), np.ones((8, 8)), "csr")
    return {
        "uniform": uniform,
        "hub": hub.tocsr(),
        "wide": spread,
        "tall": sps.csr_array(uniform.T),
        "band": sps.diags_array([1.0] * 5, offsets=[-20, -1, 0, 1, 20], shape=(333, 333)).tocsr(),
        "diagonal": sps.eye_array(100, format="csr", dtype=np.float32),
        "blocks": sps.csr_array(blocks.astype(np.float32)),
        "power_law": power_law(500, 600, 4000),
        "full": of(np.ones((40, 70))),
        "one": of([[0, 0], [0, 1]]),
        "row": of(np.ones((1, 99))),
        "column": of(np.ones((99, 1))),
        "many": sps.random_array((900, 900), density=0.06, rng=3, dtype=np.float32, format="csr"),
    }


MATRICES = matrices()


def coordinates(matrix):
    rows = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
    return rows, matrix.indices[matrix.indptr[0] : matrix.indptr[-1]].astype(np.int64)


def pairs(*axes):
    return len(set(zip(*(axis.tolist() for axis in axes), strict=True)))


def lru_distances(columns):
    """How many other columns were used since the last use, by a list in the order of use."""
    used, result = OrderedDict(), []
    for column in columns.tolist():
        keys = list(used)
        result.append(len(keys) - 1 - keys.index(column) if column in used else -1)
        used.pop(column, None)
        used[column] = None
    return np.array(result)


@pytest.mark.parametrize("name", MATRICES)
def test_the_numbers_are_those_of_numpy(name):
    matrix = MATRICES[name]
    s = matrix_statistics(matrix)
    rows, columns = coordinates(matrix)
    lengths = np.diff(matrix.indptr).astype(float)
    m, n = matrix.shape
    assert (s.rows, s.columns, s.nnz) == (m, n, len(columns))
    assert s.longest == lengths.max()
    assert s.empty == (lengths == 0).sum()
    assert s.mean == pytest.approx(lengths.mean())
    assert s.spread == pytest.approx(lengths.std(), abs=1e-12)
    moment = ((lengths - lengths.mean()) ** 3).mean()
    assert s.skew == pytest.approx(moment / lengths.std() ** 3 if lengths.std() else 0.0)
    assert s.bandwidth == np.abs(rows - columns).max()
    assert s.offset == pytest.approx(np.abs(rows - columns).mean())
    assert s.diagonals == len(np.unique(columns - rows))
    for size, fill, stored in zip((2, 4, 8, 16, 32), s.block_fill, s.bsr, strict=True):
        assert fill == pytest.approx(s.nnz / pairs(rows // size, columns // size) / size**2)
        assert stored == pytest.approx(1 / fill)
    assert s.dia == pytest.approx(s.diagonals * m / s.nnz)


@pytest.mark.shared_data
@pytest.mark.parametrize("name", ["cora", "p2p-Gnutella31", "cryg2500", "bcsstk13", "west0067"])
def test_the_numbers_of_real_matrices_are_those_of_numpy(name, shared_data, monkeypatch):
    real = spcomp.convert(spcomp.read(shared_data / f"{name}.mtx"), "csr")
    monkeypatch.setitem(MATRICES, name, sps.csr_array(real))
    test_the_numbers_are_those_of_numpy(name)
    if real.nnz < 20000:
        test_reuse_is_exact_for_small_matrices(name)


@pytest.mark.parametrize("name", MATRICES)
def test_the_paddings_are_those_of_the_formats(name):
    matrix = MATRICES[name]
    s = matrix_statistics(matrix)
    layouts = {
        "ell": ell(),
        "hyb": hyb(1, [1, 2, 4, 8, 16, 32], padded=True),
        "sell": sell(16),
        "windows": sell(16, 512),
        "slices": sell(16, 1),
        "sliced": sliced_diagonal(16),
    }
    for field, layout in layouts.items():
        parts = spcomp.convert(matrix, layout)
        stored = sum(part["values"].size for part in parts.parts.values())
        assert getattr(s, field) * s.nnz == pytest.approx(stored), field
    loose = parts.parts["rest"]["values"].size
    assert s.loose * s.nnz == pytest.approx(loose)


@pytest.mark.parametrize("name", [name for name in MATRICES if MATRICES[name].nnz < 20000])
def test_reuse_is_exact_for_small_matrices(name):
    s = matrix_statistics(MATRICES[name])
    distances = lru_distances(coordinates(MATRICES[name])[1])
    for k, share in enumerate(s.reuse):
        assert share == pytest.approx(((distances >= 0) & (distances < 1 << k)).mean())
    assert 1 << len(s.reuse) - 1 >= s.columns  # the last is for all columns
    assert list(s.reuse) == sorted(s.reuse)


@pytest.mark.parametrize("kind", ["uniform", "band", "popular"])
def test_reuse_of_large_matrices_is_estimated(kind):
    count, n = 400_000, 20_000
    rows = np.sort(RNG.integers(0, n, count))
    columns = {
        "uniform": RNG.integers(0, n, count),
        "band": np.clip(rows + RNG.integers(-300, 300, count), 0, n - 1),
        "popular": np.minimum((RNG.pareto(0.8, count) * 10).astype(int), n - 1),
    }[kind]
    matrix = sps.csr_array((np.ones(count, np.float32), (rows, columns)), shape=(n, n))
    s = matrix_statistics(matrix)
    exact = statistics._shares(statistics._distances(matrix.indices[None])[0], 0, len(s.reuse))
    np.testing.assert_allclose(s.reuse, exact, atol=0.04)
    assert list(s.reuse) == sorted(s.reuse)
    assert s.hits(0) == 0
    assert s.hits(1 << 9) == s.reuse[9]
    assert s.reuse[9] < s.hits(700) < s.reuse[10]
    assert s.hits(1 << 40) == s.reuse[-1]


def test_the_format_and_the_order_of_the_matrix_do_not_matter():
    matrix = MATRICES["power_law"]
    want = matrix_statistics(matrix)
    for other in (matrix.tocoo(), matrix.tocsc(), matrix.toarray(), spcomp.convert(matrix, "dcsr")):
        assert matrix_statistics(other) == want
    wide = sps.csr_array(
        (matrix.data, matrix.indices.astype(np.int64), matrix.indptr), matrix.shape
    )
    assert matrix_statistics(wide) == want
    assert matrix_statistics(spcomp.Tensor.from_scipy(matrix)) == want
    half = spcomp.convert(matrix, "csr").astype(np.float64)
    assert matrix_statistics(half) == want


def test_pointers_may_start_behind_zero_and_indices_be_out_of_order():
    matrix = MATRICES["uniform"]
    indices = matrix.indices.copy()
    for begin, end in zip(matrix.indptr[:-1], matrix.indptr[1:], strict=True):
        RNG.shuffle(indices[begin:end])
    shuffled = sps.csr_array(matrix.shape, dtype=np.float32)
    junk = np.full(3, -99, np.int32)  # is never read
    shuffled.indices = np.concatenate([junk, indices])
    shuffled.data = np.ones(len(indices) + 3, np.float32)
    shuffled.indptr = matrix.indptr + 3
    got, want = matrix_statistics(shuffled).numbers, matrix_statistics(matrix).numbers
    assert {k: v for k, v in got.items() if "reuse" not in k} == {
        k: v for k, v in want.items() if "reuse" not in k
    }


@pytest.mark.parametrize("shape", [(0, 0), (0, 5), (5, 0), (4, 6)])
def test_a_matrix_without_elements_has_statistics(shape):
    s = matrix_statistics(sps.csr_array(shape, dtype=np.float32))
    assert (s.rows, s.columns, s.nnz, s.empty) == (*shape, 0, shape[0])
    assert s.hits(100) == 0


def test_the_number_of_threads_does_not_matter():
    matrix = MATRICES["many"]
    want = matrix_statistics(matrix)
    with spcomp.num_threads(1):
        assert matrix_statistics(matrix) == want


def test_statistics_print_and_pickle():
    s = matrix_statistics(MATRICES["band"])
    assert pickle.loads(pickle.dumps(s)) == s
    assert "bandwidth   20\n" in str(s)
    assert str(s).splitlines()[0] == "rows        333"
    assert len(str(s).splitlines()) == len(MatrixStatistics.__dataclass_fields__)
    assert s.numbers["block_fill_0"] == s.block_fill[0]
    assert all(isinstance(number, int | float) for number in s.numbers.values())


def test_wrong_matrices_are_refused():
    with pytest.raises(ArgumentError, match="3 dimensions"):
        matrix_statistics(np.zeros((2, 2, 2), np.float32))
    broken = MATRICES["uniform"].copy()
    broken.indices[5] = 200
    broken.indices[6] = -1
    with pytest.raises(ArgumentError, match=r"2 column indices are not in 0\.\.199"):
        matrix_statistics(broken)
    broken = MATRICES["uniform"].copy()
    broken.indptr[3] = 10**6
    with pytest.raises(ArgumentError, match="decreases"):
        matrix_statistics(broken)
    with pytest.raises(ArgumentError):
        matrix_statistics("A")
