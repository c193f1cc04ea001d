"""Arguments that a kernel cannot take: which error, naming what, saying what was expected."""

import numpy as np
import pytest
import scipy.sparse as sps

import spcomp
from spcomp import script as T
from spcomp.errors import ArgumentError, FormatError
from spcomp.script.parse import parse_source
from tests.test_api import A, B, add, relu, row_stats, scale, scale_blocks, spmm, total

F32 = np.float32


@T.prim_func
def row_sums_2(
    a: T.handle,
    b: T.handle,
    y: T.handle,
    indptr: T.handle,
    indices: T.handle,
    m: T.int32,
    n: T.int32,
    nnz: T.int32,
) -> None:
    I = T.dense_fixed(m)
    J = T.sparse_variable(I, (n, nnz), (indptr, indices), "int32")
    A = T.match_sparse_buffer(a, (I, J), "float32")
    B = T.match_sparse_buffer(b, (I, J), "float32")
    Y = T.match_sparse_buffer(y, (I,), "float32")
    with T.sp_iter([I, J], "SR", "row_sums_2") as [i, j]:
        with T.init():
            Y[i] = 0.0
        Y[i] = Y[i] + A[i, j] * B[i, j]


@T.prim_func
def probe(
    a: T.handle,
    x: T.handle,
    y: T.handle,
    indptr: T.handle,
    indices: T.handle,
    m: T.int32,
    n: T.int32,
    nnz: T.int32,
) -> None:
    I = T.dense_fixed(m)
    J = T.sparse_variable(I, (n, nnz), (indptr, indices), "int32")
    Jd = T.dense_fixed(n)
    A = T.match_sparse_buffer(a, (I, J), "float32")
    X = T.match_sparse_buffer(x, (Jd,), "float32")
    Y = T.match_sparse_buffer(y, (I,), "float32")
    with T.sp_iter([I, Jd], "SR", "probe") as [i, j]:
        with T.init():
            Y[i] = 0.0
        Y[i] = Y[i] + A[i, j] * X[j]


@T.prim_func
def ell_sums(
    a: T.handle, y: T.handle, indices: T.handle, m: T.int32, n: T.int32, width: T.int32
) -> None:
    I = T.dense_fixed(m)
    J = T.sparse_fixed(I, (n, width), indices, "int32")
    A = T.match_sparse_buffer(a, (I, J), "float32")
    Y = T.match_sparse_buffer(y, (I,), "float32")
    with T.sp_iter([I, J], "SR", "ell_sums") as [i, j]:
        with T.init():
            Y[i] = 0.0
        Y[i] = Y[i] + A[i, j]


@T.prim_func
def pick(e: T.handle, w: T.handle, y: T.handle, m: T.int32, r: T.int32) -> None:
    I = T.dense_fixed(m)
    R = T.dense_fixed(r)
    E = T.match_sparse_buffer(e, (I,), "int32")
    W = T.match_sparse_buffer(w, (R,), "float32")
    Y = T.match_sparse_buffer(y, (I,), "float32")
    T.assume_buffer_domain(E, [0, r - 1])
    with T.sp_iter([I], "S", "pick") as [i]:
        Y[i] = W[E[i]]


@T.prim_func
def halves(x: T.handle, y: T.handle, n: T.int32) -> None:
    I = T.dense_fixed(n)
    X = T.match_sparse_buffer(x, (I,), "bfloat16")
    Y = T.match_sparse_buffer(y, (I,), "bfloat16")
    with T.sp_iter([I], "S", "halves") as [i]:
        Y[i] = X[i]


@pytest.fixture(scope="module")
def kernel():
    return spcomp.compile(spmm)


def csr(indptr, indices, shape, data=None):
    """A csr array of exactly these arrays: scipy neither checks nor copies them."""
    made = sps.csr_array(shape, dtype="float32")
    made.indptr, made.indices = np.int32(indptr), np.int32(indices)
    made.data = np.ones(len(indices), F32) if data is None else data
    return made


def refused(call, message, hint=""):
    with pytest.raises(ArgumentError, match=message) as caught:
        call()
    assert isinstance(caught.value, ValueError)
    assert hint in caught.value.hint


OUT = np.zeros((6, 3), F32)
MISALIGNED = np.zeros(4 * OUT.size + 1, np.uint8)[1:].view(np.float32).reshape(OUT.shape)
READ_ONLY = np.zeros((6, 3), F32)
READ_ONLY.flags.writeable = False
MASKED = np.ma.masked_array(B, mask=B > 0)
BAD = {
    "missing input": ({"A": A}, "missing argument B of spmm", ""),
    "missing sparse input": ({"B": B, "m": 6, "nnz": 3}, "missing argument A of spmm", ""),
    "missing pattern": ({"A": A.data, "B": B}, "missing argument indptr of spmm", "indptr=array"),
    "missing size": (
        {"A": A.data, "indptr": A.indptr, "indices": A.indices, "B": None},
        "argument B: got NoneType, expected a dense array",
        "np.asarray",
    ),
    "surplus": ({"A": A, "B": B, "D": B}, "unexpected argument D of spmm", "A, B, C, indptr"),
    "wrong dtype": ({"A": A, "B": B.astype("f8")}, "B: got float64, expected float32", "astype"),
    "wrong sparse dtype": (
        {"A": A.astype("f8"), "B": B},
        "A: got float64, expected float32",
        "astype",
    ),
    "byte order": (
        {"A": A, "B": B, "C": np.zeros((6, 3), ">f4")},
        "C: got >f4 .not in native byte order",
        "",
    ),
    "wrong rank": ({"A": A, "B": B[0]}, r"B: got 1 dimensions \(3,\), expected 2", ""),
    "conflict": (
        {"A": A, "B": B[:5]},
        r"argument B: dimension 0 \(n\) is 5, expected 7 as A says",
        "",
    ),
    "conflict with a number": (
        {"A": A, "B": B, "m": 5},
        "argument m: got 5, expected 6 as A says",
        "",
    ),
    "number of a wrong type": ({"A": A, "B": B, "m": 6.0}, "m: got float, expected int32", ""),
    "bool for a number": ({"A": A, "B": B, "m": True}, "m: got bool, expected int32", ""),
    "number too large": ({"A": A, "B": B, "m": 2**31}, "m: 2147483648, expected a value", ""),
    "a list": ({"A": A, "B": B.tolist()}, "B: got list, expected a dense array", "np.asarray"),
    "a masked array": ({"A": A, "B": MASKED}, "B: got a masked array", "filled"),
    "sparse for dense": ({"A": A, "B": A}, "B: got csr_array, expected a dense array", ""),
    "dense for sparse": (
        {"A": A.toarray(), "B": B},
        r"A: got an array of shape \(6, 7\), expected a csr array",
        "csr_array",
    ),
    "csc": ({"A": A.tocsc(), "B": B}, "A: got csc, expected csr", "A.T"),
    "lil": ({"A": A.tolil(), "B": B}, "A: got lil, expected csr", ".tocsr()"),
    "dia": ({"A": A.todia(), "B": B}, "A: got dia, expected csr", ".tocsr()"),
    "dok": ({"A": A.todok(), "B": B}, "A: got dok, expected csr", ".tocsr()"),
    "bsr": ({"A": A.tobsr((2, 7)), "B": B}, "A: got bsr, expected csr", ".tocsr()"),
    "sparse vector": (
        {"A": sps.coo_array(np.ones(3, F32)), "B": B},
        "A: got 1 dimensions, expected 2",
        "",
    ),
    "tensor of other levels": (
        {"A": spcomp.Tensor((6, 3), [None, None], np.zeros(18, F32)), "B": B},
        "A: got a Tensor of levels dense,dense, expected dense,compressed",
        "",
    ),
    "output of another shape": (
        {"A": A, "B": B, "C": OUT[:, :2].copy()},
        r"C: dimension 1 \(feat\) is 2, expected 3 as B says",
        "",
    ),
    "read-only output": ({"A": A, "B": B, "C": READ_ONLY}, "C: is read-only", ""),
    "output not contiguous": ({"A": A, "B": B, "C": OUT.T.copy().T}, "C: is not C-contig", ""),
    "output of another dtype": ({"A": A, "B": B, "C": OUT.astype("f8")}, "C: got float64", ""),
    "output that is a list": ({"A": A, "B": B, "C": [0.0]}, "C: got list", ""),
    "index too large": ({"A": csr([0, 1], [7], (1, 7)), "B": B}, r"A\.indices: got 7 at", ""),
    "index negative": ({"A": csr([0, 1], [-1], (1, 7)), "B": B}, r"A\.indices: got -1 at", ""),
    "pointers decrease": (
        {"A": csr([0, 2, 1], [1, 2], (2, 7)), "B": B},
        r"A\.indptr: decreases from 2 to 1 at position 2",
        "",
    ),
    "pointers negative": (
        {"A": csr([-1, 0], [1], (1, 7)), "B": B},
        r"A\.indptr: starts at -1, expected >= 0",
        "",
    ),
    "pointers too far": (
        {"A": csr([0, 9], [1], (1, 7)), "B": B},
        "A: got indptr, indices and data of sizes 2, 1 and 1",
        "",
    ),
    "pointers of another size": (
        {"A": csr([0, 1], [1], (3, 7)), "B": B},
        "A: got indptr, indices and data of sizes 2, 1 and 1",
        "",
    ),
    "given twice": ({"A": A, "a": A, "B": B}, "argument a: given twice", ""),
    "pattern that is no pattern": ({"A": A.data, "J": B, "B": B}, "J: got an array of shape", ""),
    "index array of another dtype": (
        {"A": A.data, "indptr": A.indptr.astype("i8"), "indices": A.indices, "B": B},
        "indptr: got int64, expected int32",
        "astype",
    ),
    "index array that is a list": (
        {"A": A.data, "indptr": A.indptr.tolist(), "indices": A.indices, "B": B},
        "indptr: got list, expected an array",
        "",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_a_call_by_name_names_the_argument(kernel, case):
    arguments, message, hint = BAD[case]
    refused(lambda: kernel(**arguments), message, hint)


def test_a_coo_with_coordinates_out_of_range_is_refused(kernel):
    coo = A.tocoo()
    coo.coords[0][0] = 6
    refused(lambda: kernel(A=coo, B=B), r"A coords\[0\]: got 6 at position 0, expected 0\.\.5")


def test_a_wide_index_array_with_a_value_too_large_is_refused(kernel):
    wide = sps.csr_array((1, 2**40), dtype="float32")
    refused(lambda: kernel(A=wide, B=B), "argument A: n is 1099511627776, expected a value")


def test_a_result_is_refused_where_out_cannot_say_which(kernel):
    stats = spcomp.compile(row_stats)
    x = np.zeros(2, F32)
    refused(lambda: stats(out=x), r"out: got one ndarray, expected 2 outputs \(S, P\)", "dict")
    refused(lambda: stats(out=(x,)), r"out: got 1 outputs, expected 2 \(S, P\)")
    refused(lambda: stats(out={"A": x}), "out: A is no output of row_stats", "S, P")
    refused(lambda: stats(S=x, out={"S": x}), "S: given twice, by name and in out")


def test_an_output_that_overlaps_another_argument_is_refused(kernel):
    memory = np.zeros(40, F32)
    b = memory[:21].reshape(7, 3)
    c = memory[20:38].reshape(6, 3)
    refused(lambda: kernel(A=A, B=b, out=c), "argument C: shares memory with B", "of its own")
    apart = memory[22:40].reshape(6, 3)
    assert kernel(A=A, B=b, out=apart) is apart
    raw = spcomp.compile(scale)
    refused(lambda: raw(A=A, out=A, alpha=1), "argument B: shares memory with A")


def test_two_outputs_that_overlap_are_refused():
    ragged = spcomp.Tensor((2, 2), [None, ("ragged", [0, 1, 2])], np.ones(2, F32))
    x = np.zeros(2, F32)
    refused(lambda: spcomp.compile(row_stats)(A=ragged, S=x, P=x), "S: shares memory with P")


def test_an_output_that_overlaps_an_index_array_is_refused():
    data = np.ones(4, "int32").view(F32)
    a = csr([0, 4], [0, 1, 2, 3], (1, 7))
    out = csr([0, 4], [0, 1, 2, 3], (1, 7), data=a.indices.view(F32))
    refused(
        lambda: spcomp.compile(scale)(A=a, alpha=1, out=out), "B: shares memory with A .indices"
    )
    assert data.size == 4


def test_arguments_along_one_axis_must_have_one_pattern():
    both = spcomp.compile(row_sums_2)
    x = csr([0, 1, 2], [0, 1], (2, 7))
    y = csr([0, 1, 2], [0, 2], (2, 7))
    z = csr([0, 1, 1], [0], (2, 7))
    assert both(A=x, B=x.copy()).tolist() == [1, 1]
    refused(lambda: both(A=x, B=y), "B: its indices differs from that of A")
    refused(lambda: both(A=x, B=z), "argument B: its indptr differs from that of A")
    refused(lambda: both(A=x, B=np.ones(3, F32)), r"B: number of elements \(nnz\) is 3, expected 2")


def test_a_sparse_output_must_be_canonical_csr():
    kernel = spcomp.compile(scale)
    twice = csr([0, 2], [1, 1], (1, 7))
    refused(lambda: kernel(A=twice, alpha=1, out=twice), "B: has repeated or unsorted coordinates")
    refused(lambda: kernel(A=A, alpha=1, out=A.tocoo()), "B: got coo, expected csr")


def test_a_scalar_that_no_array_tells_must_be_given():
    kernel = spcomp.compile(scale)
    refused(lambda: kernel(A=A), "missing argument alpha of scale", "alpha=...")
    refused(lambda: kernel(A=A, alpha="x"), "alpha: got str, expected float32")
    assert kernel(A=A, alpha=np.float64(2)).nnz == A.nnz
    assert kernel(A=A, alpha=np.array(2)).nnz == A.nnz


def test_formats_are_refused_with_what_to_make_instead():
    blocks = spcomp.compile(scale_blocks)
    refused(lambda: blocks(A=A.astype("f8")), "A: got csr, expected bsr", ".tobsr(")
    ragged = spcomp.compile(row_stats)
    refused(lambda: ragged(A=A), "A: got csr_array, expected a Tensor", "J dense_variable")
    refused(lambda: spcomp.compile(total)(X="abc"), "X: got str, expected a dense array")


def test_order_is_asked_of_raw_arrays_only_where_a_program_relies_on_it():
    a = csr([0, 2], [3, 1], (1, 7))
    x, y = np.ones(7, F32), np.zeros(1, F32)
    tensor = spcomp.Tensor.from_scipy(a)
    search = spcomp.compile(probe)
    message = "out of order within a fiber, expected strictly ascending"
    refused(lambda: search(a.data, x, y, a.indptr, a.indices, 1, 7, 2), "indices: .*" + message)
    refused(lambda: search(A=tensor, X=x), "argument A: .*" + message, "sort")
    assert search(A=a, X=x).tolist() == [2]
    loop = spcomp.compile(spmm)
    np.testing.assert_allclose(loop(A=tensor, B=B), a.toarray() @ B, rtol=1e-5)
    c = np.zeros((1, 3), F32)
    loop(a.data, B, c, a.indptr, a.indices, 1, 7, 3, 2)
    np.testing.assert_allclose(c, a.toarray() @ B, rtol=1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"a": A.data[:-1]}, r"argument A: number of elements \(nnz\) is"),
        ({"a": A.data.tolist()}, "argument a: got list, expected an array"),
        ({"a": np.repeat(A.data, 2)[::2]}, "argument a: is not C-contiguous"),
        ({"b": B.astype("f8")}, "argument B: got float64, expected float32"),
        ({"b": B[:6]}, r"argument B: number of elements \(n \* feat\) is 18, expected 21"),
        ({"c": OUT[:5]}, r"argument C: number of elements \(m \* feat\) is 15, expected 18"),
        ({"c": OUT.T.copy().T}, "argument C: is not C-contiguous"),
        (
            {"c": MISALIGNED},
            "argument C: is at an address that is no multiple of its elements' size",
        ),
        ({"c": READ_ONLY}, "argument C: is read-only"),
        ({"indptr": A.indptr[:-1]}, r"argument indptr: number of fibers \(m\) is 5, expected 6"),
        ({"indices": A.indices[:-1]}, r"argument indices: number of elements \(nnz\)"),
        ({"indices": A.indices + 7}, r"argument indices: got \d+ at position 0, expected 0\.\.6"),
        ({"indptr": A.indptr[::-1].copy()}, "argument indptr: "),
        ({"indptr": A.indptr.astype("i8")}, "argument indptr: got int64, expected int32"),
        ({"m": "6"}, "argument m: got str, expected int32"),
        ({"m": -6}, "argument indptr: number of fibers"),
    ],
)
def test_a_call_by_position_checks_every_array(kernel, change, message):
    names = ("a", "b", "c", "indptr", "indices", "m", "n", "feat", "nnz")
    values = (A.data, B, OUT, A.indptr, A.indices, 6, 7, 3, A.nnz)
    arguments = dict(zip(names, values, strict=True)) | change
    refused(lambda: kernel(*arguments.values()), message)


def test_a_call_by_position_needs_all_and_only_them(kernel):
    refused(lambda: kernel(A, B), r"got 2 arguments by position, expected 9 \(a, b, c", "A, B, C")
    refused(lambda: kernel(A, B=B), "by position and by name")
    refused(lambda: kernel(A, out=OUT), "by position and by name")


def test_ragged_and_fixed_structures_are_checked():
    sums = spcomp.compile(row_stats)
    values, out = np.ones(3, F32), np.zeros(2, F32)
    fill = out.copy()
    refused(
        lambda: sums(values, out, fill, np.int32([0, 3, 3]), 2, 2, 3),
        "indptr: a fiber has 3 elements, expected at most 2",
    )
    ell = spcomp.compile(ell_sums)
    refused(
        lambda: ell(values, out[:1], np.int32([0, 1, 5]), 1, 3, 3), "indices: got 5 at position 2"
    )
    tensor = spcomp.Tensor((1, 3), [None, ("fixed", [[0, 2]])], np.ones(2, F32))
    assert ell(A=tensor).tolist() == [2]
    refused(lambda: ell(A=tensor, width=3), "argument width: got 3, expected 2 as A says")


def test_promised_domains_are_checked():
    kernel = spcomp.compile(pick)
    w = np.arange(3, dtype=F32)
    assert kernel(E=np.int32([2, 0]), W=w).tolist() == [2, 0]
    refused(lambda: kernel(E=np.int32([3]), W=w), r"E: got 3 at position 0, expected 0\.\.2")


def test_bfloat16_travels_as_its_bits():
    kernel = spcomp.compile(halves)
    bits = np.uint16([0x3F80, 0x4000])
    assert kernel(X=bits).tolist() == bits.tolist()
    refused(lambda: kernel(X=np.zeros(2, F32)), r"X: got float32, expected bfloat16 \(as uint16")


def test_nothing_is_checked_twice_by_checks_that_are_off():
    kernel = spcomp.compile(spmm, check="off")
    np.testing.assert_allclose(kernel(A=A, B=B), A @ B, rtol=1e-5)
    refused(lambda: kernel(A=A, B=B.astype("f8")), "B: got float64")
    refused(lambda: kernel(A=A, B=B[:3]), "B: dimension 0")


ORPHAN = """
from spcomp import script as T

@T.prim_func
def orphan(a: T.handle, p: T.handle, m: T.int32, n: T.int32, nnz: T.int32) -> None:
    I = T.dense_fixed(m)
    J = T.dense_variable(I, (n, nnz), p)
    A = T.match_sparse_buffer(a, (J,), "float32")
    with T.sp_iter([I, J], "SS", "orphan") as [i, j]:
        A[j] = 0.0
"""


def test_a_buffer_whose_axis_lacks_its_parent_is_refused():
    with pytest.raises(FormatError):
        spcomp.compile(parse_source(ORPHAN, "orphan.py")[0])


def test_in_place_programs_refuse_what_they_cannot_write():
    kernel = spcomp.compile(relu)
    refused(lambda: kernel(X=[1.0]), "X: got list")
    x = np.zeros(4, F32)
    x.flags.writeable = False
    refused(lambda: kernel(X=x), "X: is read-only")


def test_an_assembled_result_needs_its_inputs():
    refused(lambda: spcomp.compile(add)(A=A), "missing argument B of add")
    other = sps.csr_array((6, 8), dtype="float32")
    refused(lambda: spcomp.compile(add)(A=A, B=other), r"B: dimension 1 \(n\) is 8, expected 7")


@pytest.mark.parametrize("check", ["full", "off"])
def test_an_empty_indptr_is_refused(check):
    none = np.zeros(0, "int32")
    with pytest.raises(ArgumentError, match="indptr: is empty"):
        spcomp.compile(spmm, check=check)(A=np.zeros(0, "float32"), B=B, indptr=none, indices=none)
