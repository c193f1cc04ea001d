"""Matrices in formats: what their Kernels compute, take, keep and refuse."""

import pickle

import numpy as np
import pytest
import scipy.sparse as sps
from hypothesis import given
from hypothesis import strategies as st

import spcomp
from spcomp.errors import ArgumentError, FormatError
from spcomp.tune.frozen import frozen
from tests.format_helpers import (
    BODIES,
    HEADER,
    interpreted_parts,
    kernels,
    matrices,
    others,
    output,
    parse,
    program,
)

MATRICES = matrices()


def both(name, csr, dense=None, **options):
    """Return what the program *name* computes in CSR, and over the parts."""
    dtype = str(csr.dtype)
    plain, parts = kernels(name, dtype=dtype, **options)
    dense = dense or others(name, csr.shape, dtype=dtype)
    outs = [output(name, csr.shape, dtype=dtype) for _ in range(2)]
    plain(A=csr, **dense, out=outs[0])
    parts(A=csr, **dense, out=outs[1])
    return outs


@pytest.mark.sample(8, long=3)
@pytest.mark.parametrize("which", MATRICES)
@pytest.mark.parametrize("name", BODIES)
def test_a_program_over_parts_computes_what_it_does_over_csr(name, which):
    want, got = both(name, MATRICES[which])
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("which", MATRICES)
@pytest.mark.parametrize("name", BODIES)
def test_the_interpreter_agrees_on_what_the_parts_mean(name, which):
    csr = MATRICES[which]
    plain, parts = kernels(name)
    dense, start = others(name, csr.shape), output(name, csr.shape)
    want = start.copy()
    plain(A=csr, **dense, out=want)
    np.testing.assert_array_equal(interpreted_parts(parts, csr, dense["B"], start), want)


@pytest.mark.parametrize("dtype", ["float64", "int32"])
@pytest.mark.parametrize("name", ["spmv", "transposed"])
def test_other_dtypes_work(name, dtype):
    func = parse(HEADER + BODIES[name].replace("1.0", "1").replace("0.0", "0"), dtype)
    plain = spcomp.compile(func)
    parts = spcomp.decompose(func, A=spcomp.formats.sliced_diagonal()).compile()
    for csr in MATRICES.values():
        csr, dense = csr.astype(dtype), others(name, csr.shape, dtype=dtype)
        np.testing.assert_array_equal(parts(A=csr, **dense), plain(A=csr, **dense))


def test_indices_of_64_bits_work():
    func = program("spmv", idtype="int64")
    kernel = spcomp.decompose(func, A=spcomp.formats.sliced_diagonal(4)).compile()
    for csr in MATRICES.values():
        dense = others("spmv", csr.shape)["B"]
        np.testing.assert_array_equal(kernel(A=csr, B=dense), csr @ dense)


@given(st.data())
def test_any_matrix_works_with_any_number_of_lanes(data):
    m, n = data.draw(st.integers(0, 20)), data.draw(st.integers(0, 20))
    seed, density = data.draw(st.integers(0, 99)), data.draw(st.sampled_from([0.1, 0.5, 0.9]))
    options = {
        "lanes": data.draw(st.sampled_from([1, 3, 4, 16])),
        "min_fill": data.draw(st.sampled_from([0.01, 0.5, 1.0])),
    }
    rng = np.random.default_rng(seed)
    csr = sps.csr_array((rng.random((m, n)) < density) * rng.integers(1, 9, (m, n)) * 1.0)
    want, got = both("spmv", csr.astype(np.float32), **options)
    np.testing.assert_array_equal(got, want)


def test_no_access_to_a_segment_is_guarded():
    whole = kernels("spmv")[1].stage("position")
    segments = whole[whole.index('T.block("f_diagonal0")') : whole.index('T.block("f_rest0")')]
    assert "C[vs * 4 + vlane, " in segments
    assert "T.fail" not in segments
    assert "_in" not in segments.replace("_indptr", "").replace("_indices", "")


def test_padding_reads_no_infinity_and_no_nan_of_the_operand():
    csr = MATRICES["rows that are no multiple"]
    dense = others("spmv", csr.shape)
    dense["B"][5], dense["B"][14] = np.inf, np.nan
    want, got = both("spmv", csr, dense)
    np.testing.assert_array_equal(got, want)
    assert np.isfinite(got).sum() > np.isfinite(got).size // 2


def test_a_stored_zero_times_infinity_is_nan_as_it_is_in_csr():
    csr = MATRICES["stored zeros"]
    dense = {"B": np.full((20, 2), np.inf, np.float32)}
    want, got = both("spmv", csr, dense)
    np.testing.assert_array_equal(got, want)
    assert np.isnan(got).any()


@pytest.mark.parametrize("which", MATRICES)
def test_every_element_is_in_one_part_once(which):
    csr, (_, kernel) = MATRICES[which], kernels("spmv")
    result = kernel.convert(A=csr)
    segments, rest = result.parts["diagonal"], result.parts["rest"]
    slices = np.repeat(np.arange(len(segments["P_indptr"]) - 1), np.diff(segments["P_indptr"]))
    values = segments["values"].reshape(-1, 4)
    at, lane = np.nonzero(values)
    rows = np.repeat(rest["R_indices"], np.diff(rest["J_indptr"]))
    results = np.concatenate(
        [
            np.stack([slices[at] * 4 + lane, segments["P_indices"][at] + lane, values[at, lane]]),
            np.stack([rows, rest["J_indices"], rest["values"]]),
        ],
        axis=1,
    )
    want = np.stack([*csr.tocoo().coords, csr.data])
    assert sorted(results.T.tolist()) == sorted(want.T.tolist())


def test_short_segments_go_to_the_rest_and_a_stencil_leaves_nothing_there():
    stencil, scattered = MATRICES["a stencil"], MATRICES["scattered"]
    for fraction, least in ((1.0, 4), (0.75, 3)):
        kernel = kernels("spmv", min_fill=fraction)[1]
        lanes = kernel.convert(A=scattered).parts["diagonal"]["values"].reshape(-1, 4)
        assert (np.count_nonzero(lanes, axis=1) >= least).all()
    parts = kernels("spmv")[1].convert(A=stencil[8:24]).parts
    assert parts["rest"]["values"].size == 0
    assert parts["diagonal"]["values"].size == 5 * 16


def test_repeated_elements_are_summed_and_unsorted_rows_are_taken():
    coo = sps.coo_array(([1.0, 2.0, 4.0], ([1, 1, 2], [3, 3, 0])), (6, 6)).astype(np.float32)
    kernel, dense = kernels("spmv")[1], others("spmv", (6, 6))
    np.testing.assert_array_equal(kernel(A=coo, **dense), coo @ dense["B"])
    level = ("compressed", np.array([0, 3, 3, 5]), np.array([4, 0, 2, 5, 1]))
    tensor = spcomp.Tensor((3, 6), (None, level), np.arange(1, 6, dtype=np.float32))
    np.testing.assert_array_equal(kernel(A=tensor, **dense), tensor.to_dense() @ dense["B"])


def test_the_same_bits_come_from_any_number_of_threads():
    rng = np.random.default_rng(3)
    csr = sps.random_array((3000, 3000), density=0.003, rng=rng, dtype=np.float32)
    csr = sps.csr_array(
        csr + sps.diags_array([np.ones(3000)] * 3, offsets=[-1, 0, 1], shape=(3000, 3000))
    )
    csr, dense = csr.astype(np.float32), rng.random((3000, 2), np.float32)
    kernel, result = kernels("spmv")[1], set()
    for threads in (1, 2, 5):
        with spcomp.num_threads(threads):
            result.add(kernel(A=csr, B=dense).tobytes())
    assert len(result) == 1


def test_a_bound_matrix_is_converted_once_and_does_not_follow_changes():
    csr = MATRICES["a stencil"].copy()
    dense = others("spmv", csr.shape)["B"]
    bound = kernels("spmv")[1].bind(A=csr)
    want = csr @ dense
    csr.data *= 3
    np.testing.assert_array_equal(bound(B=dense), want)
    np.testing.assert_array_equal(bound(B=dense, m=32), want)
    with pytest.raises(ArgumentError, match="argument n: got 31, expected 32 as the matrix says"):
        bound(B=dense, n=31)


def test_a_matrix_that_can_change_is_converted_at_every_call():
    csr = MATRICES["a stencil"].copy()
    dense, kernel = others("spmv", csr.shape)["B"], kernels("spmv")[1]
    for _ in range(2):
        np.testing.assert_array_equal(kernel(A=csr, B=dense), csr @ dense)
        csr.data *= 3


def test_what_was_made_of_a_matrix_that_cannot_change_is_kept(monkeypatch):
    csr, kernel = frozen(MATRICES["a stencil"]), kernels("spmv")[1]
    dense = others("spmv", csr.shape)["B"]
    want = kernel(A=csr, B=dense)
    monkeypatch.setattr(kernel, "bind", None)  # which a second conversion would call
    np.testing.assert_array_equal(kernel(A=csr, B=dense), want)
    monkeypatch.undo()
    other = frozen(csr * 2)
    np.testing.assert_array_equal(kernel(A=other, B=dense), 2 * want)


def test_a_converted_matrix_is_taken_in_its_place():
    csr, kernel = MATRICES["jitter"], kernels("spmv")[1]
    dense = others("spmv", csr.shape)["B"]
    result = kernel.convert(A=csr)
    assert result.shape == csr.shape
    assert result.nbytes > 0
    assert "(24, 40) float32 in SlicedDiagonal" in repr(result)
    for call in (kernel, kernel, kernel.bind(A=result)):
        matrix = {} if call is not kernel else {"A": result}
        np.testing.assert_array_equal(call(**matrix, B=dense), csr @ dense)
    with pytest.raises(ValueError, match="read-only"):
        result.parts["diagonal"]["values"][:] = 0
    np.testing.assert_array_equal(kernels("spmv", lanes=8)[1](A=result, B=dense), csr @ dense)
    with pytest.raises(ArgumentError, match="argument A: got float32, expected float64"):
        kernels("spmv", dtype="float64")[1](A=result, B=dense.astype(np.float64))


def test_a_kernel_over_formats_is_pickled():
    csr = MATRICES["wide"]
    kernel = pickle.loads(pickle.dumps(kernels("spmv")[1]))
    dense = others("spmv", csr.shape)["B"]
    np.testing.assert_array_equal(kernel(A=csr, B=dense), csr @ dense)
    assert repr(kernel) == "<Kernel f with A in SlicedDiagonal(lanes=4, min_fill=0.25)>"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"A": np.ones(3, np.float32)}, "argument A: got an array, expected a csr array"),
        ({"A": MATRICES["wide"].astype(float)}, "argument A: got float64, expected float32"),
        ({"A": MATRICES["wide"], "B": np.ones((3, 2), np.float32)}, "argument B: dimension 0"),
        ({"A": MATRICES["wide"].tocsc()}, "argument A: got csc, expected csr"),
        ({"A": MATRICES["wide"], "x": 1}, "unexpected argument x"),
        ({}, "missing argument A of f"),
        ({"A": MATRICES["wide"], "out": 1}, "argument C: got int"),
    ],
)
def test_wrong_arguments_are_refused(arguments, message):
    with pytest.raises(ArgumentError, match=message):
        kernels("spmv")[1](**arguments)


def test_arguments_by_position_are_refused():
    with pytest.raises(ArgumentError, match="got arguments by position"):
        kernels("spmv")[1](MATRICES["wide"], np.ones((50, 2), np.float32))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: spcomp.formats.sliced_diagonal(0), r"lanes is 0, expected an integer in 1..64"),
        (lambda: spcomp.formats.sliced_diagonal(2.5), "lanes is 2.5"),
        (lambda: spcomp.formats.sell(65), r"lanes is 65, expected an integer in 1..64"),
        (lambda: spcomp.formats.sell(window=0), "window is 0, expected a positive integer"),
        (lambda: spcomp.formats.sliced_diagonal(min_fill=0), "min_fill is 0"),
    ],
)
def test_a_format_out_of_range_is_refused(make, message):
    with pytest.raises(FormatError, match=message):
        make()


def test_what_is_no_program_or_no_format_is_refused():
    with pytest.raises(ArgumentError, match="argument func: got int"):
        spcomp.decompose(3)
    with pytest.raises(ArgumentError, match="argument A: got 'diagonal', expected a format"):
        spcomp.decompose(program("spmv"), A="diagonal")
    with pytest.raises(FormatError, match="f has no sparse buffer 'Z'"):
        spcomp.decompose(program("spmv"), Z=spcomp.formats.sliced_diagonal())
    with pytest.raises(FormatError, match="B cannot be stored in diagonal segments"):
        spcomp.decompose(program("spmv"), B=spcomp.formats.sliced_diagonal())


def test_a_transpose_that_shares_its_arrays_is_no_matrix_of_before():
    csr = frozen(sps.random_array((40, 40), density=0.1, format="csr", dtype="float32", rng=2))
    kernel = spcomp.compile("C[i, k] = A[i, j] * B[j, k]", formats={"A": "hyb"})
    b = np.ones((40, 3), "float32")
    tensor = spcomp.Tensor.from_scipy(csr)
    for matrix, want in ((tensor, csr @ b), (tensor.T, csr.T @ b)) * 2:
        np.testing.assert_allclose(kernel(A=matrix, B=b), want, rtol=1e-5)
    by_columns = sps.csc_array((csr.data, csr.indices, csr.indptr), csr.shape)
    for matrix in (csr, by_columns) * 2:
        np.testing.assert_allclose(kernel(A=matrix, B=b), matrix @ b, rtol=1e-5)
