"""Matrices in formats of several parts as values: made, read back, and taken by kernels."""

import pickle

import numpy as np
import pytest
import scipy.sparse as sps

import spcomp
from spcomp import formats
from spcomp.dtypes import SCALARS
from spcomp.errors import ArgumentError, FormatError
from tests.format_helpers import LIBRARY, in_format, in_rows, matrices, others
from tests.layers import source

MATRICES = matrices()
FORMATS = LIBRARY | {
    "hyb_rest": formats.hyb(1, [2, 4]),
    "hyb_open": formats.hyb(col_parts=2),
    "hyb_kept": formats.hyb(),
    "sliced": formats.sliced_diagonal(4),
    "sell_windows": formats.sell(3, 6),
    "sell_in_order": formats.sell(4, 1),
}
TYPES = [str(own) for own in SCALARS if own.kind != "bfloat"]


def same(found, csr):
    """Whether *found* stores exactly what *csr* does, stored zeros and their signs as well."""
    for name in ("indptr", "indices", "data"):
        own, other = getattr(found, name), getattr(csr, name)
        np.testing.assert_array_equal(own, other)
    np.testing.assert_array_equal(np.signbit(found.data), np.signbit(csr.data))
    return found.shape == csr.shape and found.dtype == csr.dtype


def wide(csr):
    found = csr.copy()
    found.indptr, found.indices = found.indptr.astype(np.int64), found.indices.astype(np.int64)
    return found


@pytest.mark.parametrize("which", FORMATS)
def test_a_matrix_comes_back_from_its_parts_element_for_element(which):
    for csr in MATRICES.values():
        for given in (csr, csr.astype(np.float64), wide(csr)):
            made = spcomp.convert(given, FORMATS[which])
            assert isinstance(made, spcomp.Parts)
            assert (made.shape, made.ndim, str(made.dtype)) == (csr.shape, 2, str(given.dtype))
            assert made.nnz == csr.nnz
            assert same(made.to_scipy(), given)
            assert same(made.to("csr"), given)
            assert same(spcomp.convert(made, "csr"), given)


@pytest.mark.sample(3, long=2)
@pytest.mark.parametrize("dtype", TYPES)
def test_values_of_every_type_are_put_in_parts_and_read_back(dtype):
    values = np.array([0, 1, 1, 0, 1, 1], dtype)
    level = ("compressed", np.array([0, 2, 4, 6]), np.array([0, 2, 1, 2, 0, 1]))
    tensor = spcomp.Tensor((3, 4), (None, level), values)
    for layout in FORMATS.values():
        back = spcomp.convert(tensor, layout).to_tensor()
        assert back.dtype == np.dtype(dtype)
        np.testing.assert_array_equal(back.values, values)
        np.testing.assert_array_equal(back.coordinates(), tensor.coordinates())


def test_anything_that_is_a_tensor_is_put_in_parts():
    csr = MATRICES["scattered"]
    given = [csr.tocsc(), csr.tocoo(), sps.csr_matrix(csr), csr.todok(), csr.toarray()]
    given += [spcomp.convert(csr, "hash"), spcomp.convert(csr, "dcsc"), wide(csr)]
    for x in given:
        assert same(spcomp.convert(x, "hyb(2)").to_scipy(), csr)


def test_torch_tensors_are_put_in_parts():
    torch = pytest.importorskip("torch")
    csr = MATRICES["scattered"]
    for x in (torch.from_numpy(csr.toarray()), torch.from_numpy(csr.toarray()).to_sparse_coo()):
        assert same(spcomp.convert(x, formats.bsr(2)).to_scipy(), csr)


def test_repeated_elements_are_summed_or_refused_and_rows_come_in_any_order():
    coo = sps.coo_array(([1.0, 2.0, 4.0, 8.0], ([1, 1, 1, 0], [3, 0, 3, 2])), (3, 4))
    csr = sps.csr_array((coo.data[:3], coo.coords[1][:3], np.array([0, 0, 3, 3])), (3, 4))
    for x in (coo, csr):
        made = spcomp.convert(x, "hyb")
        np.testing.assert_array_equal(made.to_scipy().toarray(), x.toarray())
        assert made.nnz == len(x.data) - 1
        with pytest.raises(ArgumentError, match="at \\(1, 3\\)"):
            spcomp.convert(x, "hyb", duplicates="refuse")
        with pytest.raises(ArgumentError, match="has no place for repeated elements"):
            spcomp.convert(x, formats.bsr(2), duplicates="keep")


def test_parts_share_no_memory_and_cannot_be_written():
    csr = MATRICES["a stencil"].copy()
    csr.data.flags.writeable = csr.indices.flags.writeable = False
    for layout in FORMATS.values():
        made = spcomp.convert(csr, layout)
        for arrays in made.parts.values():
            for array in arrays.values():
                assert not array.flags.writeable
                assert not np.shares_memory(array, csr.data)
        back = made.to_scipy()
        assert not any(np.shares_memory(back.data, part["values"]) for part in made.parts.values())


def test_the_name_hyb_has_one_column_part_or_as_many_as_it_says_and_buckets_by_the_matrix():
    csr = MATRICES["full"]
    assert spcomp.convert(csr, "hyb").format == formats.hyb(1, [1, 2, 4, 8])
    assert spcomp.convert(csr, " hyb ( 3 ) ").format == formats.hyb(3, [1, 2, 4])
    text = repr(spcomp.convert(csr, "hyb"))
    assert text.startswith("<(9, 13) float32 in Hyb(col_parts=1, buckets=(1, 2, 4, 8)")
    assert text.endswith("values in 0_3 72, 0_2 36, 0_1 0, 0_0 9>")


def test_what_is_in_the_format_already_is_returned_as_it_is():
    made = spcomp.convert(MATRICES["wide"], formats.bsr(2))
    assert spcomp.convert(made, formats.bsr(2)) is made
    assert made.to("hyb").format == formats.hyb(1, [1, 2, 4])
    assert same(made.to("hyb").to_scipy(), MATRICES["wide"])
    np.testing.assert_array_equal(made.to("dense"), MATRICES["wide"].toarray())
    assert spcomp.convert(made, "hash").format == "dense,hashed"


def test_parts_are_pickled():
    csr = MATRICES["jitter"]
    made = pickle.loads(pickle.dumps(spcomp.convert(csr, "hyb")))
    assert same(made.to_scipy(), csr)
    kernel = in_format("spmv", made.format)
    dense = others("spmv", csr.shape)
    np.testing.assert_array_equal(kernel(A=made, **dense), csr @ dense["B"])


def test_relations_of_three_dimensions_come_back():
    rng = np.random.default_rng(0)
    array = rng.integers(0, 3, (3, 5, 6)) * (rng.random((3, 5, 6)) < 0.4)
    made = spcomp.convert(array, formats.ell3d([(2, 2), (1, 4)]))
    np.testing.assert_array_equal(made.to("dense"), array)
    assert made.to_scipy().shape == (3, 5, 6)
    assert made.nnz == np.count_nonzero(array)


@pytest.mark.sample(3, long=2)
@pytest.mark.parametrize("which", FORMATS)
def test_a_kernel_over_the_same_format_takes_parts_as_they_are(which):
    csr = MATRICES["scattered"]
    made = spcomp.convert(csr, FORMATS[which])
    kernel = in_format("spmv", made.format)
    dense = others("spmv", csr.shape)
    assert kernel.convert(A=made) is made
    for found in (kernel(A=made, **dense), kernel.bind(A=made)(**dense)):
        np.testing.assert_array_equal(found, csr @ dense["B"])


def test_all_other_kernels_take_parts_as_the_matrix_that_they_hold():
    csr = MATRICES["scattered"]
    made = spcomp.convert(csr, formats.bsr(2))
    dense = others("spmv", csr.shape)
    want = csr @ dense["B"]
    kernels = [in_rows("spmv"), in_rows("spmv", idtype="int64"), in_format("spmv", formats.dia())]
    kernels.append(in_format("spmv", formats.bsr(2), idtype="int64"))
    for kernel in kernels:
        np.testing.assert_array_equal(kernel(A=made, **dense), want)
        np.testing.assert_array_equal(kernel.bind(A=made)(**dense), want)
    stored = in_format("spmv", formats.bsr(2), idtype="int64").convert(A=wide(csr))
    assert stored.parts["blocks"]["JO_indices"].dtype == np.int64
    np.testing.assert_array_equal(in_format("spmv", formats.bsr(2))(A=stored, **dense), want)


def test_a_part_of_long_rows_has_the_widest_bucket():
    count = 50_000  # squares of which 32 bits do not hold
    csr = sps.csr_array((np.ones(count), np.arange(count), np.array([0, count])), (1, count))
    assert spcomp.convert(csr, "hyb").format.buckets == (1, 2, 4, 8, 16, 32)


def test_a_decomposed_program_is_shown_in_a_line_and_printed_as_its_script():
    found = spcomp.decompose(source("csrmm"), A=formats.bsr(2))
    assert repr(found) == f"<Decomposed csrmm with A in {formats.bsr(2)}>"
    assert str(found) == found.script()


def test_a_matrix_that_a_program_has_for_its_pattern_alone_can_be_decomposed():
    text = "C[i, j] = X[i, k] * Y[k, j] if A[i, j]"
    csr = MATRICES["stored zeros"].astype(np.float64)
    X, Y = np.arange(40.0).reshape(20, 2), np.arange(40.0).reshape(2, 20)
    func = spcomp.compile(text).planned({"A": csr, "X": X, "Y": Y}).func
    for layout in (formats.bsr(2), formats.hyb(2, [1, 2])):
        found = spcomp.decompose(func, A=layout).compile()(A=csr, X=X, Y=Y)
        want = csr.copy()
        want.data[:] = (X @ Y)[csr.tocoo().coords]
        np.testing.assert_array_equal(found.toarray(), want.toarray())


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda: spcomp.convert(np.ones(3), "hyb"), "cannot be stored in hyb"),
        (lambda: spcomp.convert(np.ones((2, 2, 2)), formats.bsr(2)), "stored in blocks"),
        (lambda: spcomp.convert(np.eye(2), formats.ell3d([(1, 1)])), "rows of relations"),
        (lambda: spcomp.convert(np.eye(2), "hyb(0)"), "col_parts is 0, expected a positive"),
        (lambda: spcomp.convert(np.eye(2), "hyb(2, 4)"), r"'hyb\(2, 4\)' is no format of 2"),
        (lambda: spcomp.Format("hyb"), r'formats=\{"A": "hyb"\} of compile, or spcomp.convert'),
    ],
)
def test_what_is_no_format_of_parts_is_refused(act, message):
    with pytest.raises(FormatError, match=message):
        act()


def test_values_are_not_written_to_a_part():
    csr = MATRICES["scattered"].astype(np.float64)
    kernel = spcomp.compile("C[i, j] = 2 * A[i, j]")
    with pytest.raises(ArgumentError, match="argument C: got Parts, expected a csr array"):
        kernel(A=csr, out=spcomp.convert(csr, "hyb"))
