"""Calls of a Kernel: what a program takes and gives back, and in which kind."""

import pickle

import numpy as np
import pytest
import scipy.sparse as sps

import spcomp
from spcomp import script as T
from spcomp.errors import ArgumentError

RNG = np.random.default_rng(7)


@T.prim_func
def spmm(
    a: T.handle,
    b: T.handle,
    c: T.handle,
    indptr: T.handle,
    indices: T.handle,
    m: T.int32,
    n: T.int32,
    feat: T.int32,
    nnz: T.int32,
) -> None:
    I = T.dense_fixed(m)
    J = T.sparse_variable(I, (n, nnz), (indptr, indices), "int32")
    J_detach = T.dense_fixed(n)
    K = T.dense_fixed(feat)
    A = T.match_sparse_buffer(a, (I, J), "float32")
    B = T.match_sparse_buffer(b, (J_detach, K), "float32")
    C = T.match_sparse_buffer(c, (I, K), "float32")
    with T.sp_iter([I, J, K], "SRS", "spmm") as [i, j, k]:
        with T.init():
            C[i, k] = 0.0
        C[i, k] = C[i, k] + A[i, j] * B[j, k]


@T.prim_func
def scale(
    a: T.handle,
    b: T.handle,
    indptr: T.handle,
    indices: T.handle,
    m: T.int32,
    n: T.int32,
    nnz: T.int32,
    alpha: T.float32,
) -> None:
    I = T.dense_fixed(m)
    J = T.sparse_variable(I, (n, nnz), (indptr, indices), "int32")
    A = T.match_sparse_buffer(a, (I, J), "float32")
    B = T.match_sparse_buffer(b, (I, J), "float32")
    with T.sp_iter([I, J], "SS", "scale") as [i, j]:
        B[i, j] = A[i, j] * alpha


@T.prim_func
def scale_blocks(
    a: T.handle,
    b: T.handle,
    indptr: T.handle,
    indices: T.handle,
    m: T.int32,
    n: T.int32,
    nnz: T.int32,
    h: T.int32,
    w: T.int32,
) -> None:
    I = T.dense_fixed(m)
    J = T.sparse_variable(I, (n, nnz), (indptr, indices), "int32")
    II = T.dense_fixed(h)
    JJ = T.dense_fixed(w)
    A = T.match_sparse_buffer(a, (I, J, II, JJ), "float64")
    B = T.match_sparse_buffer(b, (I, J, II, JJ), "float64")
    with T.sp_iter([I, J, II, JJ], "SSSS", "scale_blocks") as [i, j, ii, jj]:
        B[i, j, ii, jj] = A[i, j, ii, jj] * 2.0


@T.prim_func
def row_stats(
    a: T.handle,
    s: T.handle,
    p: T.handle,
    indptr: T.handle,
    m: T.int32,
    longest: T.int32,
    nnz: T.int32,
) -> None:
    I = T.dense_fixed(m)
    J = T.dense_variable(I, (longest, nnz), indptr)
    A = T.match_sparse_buffer(a, (I, J), "float32")
    S = T.match_sparse_buffer(s, (I,), "float32")
    P = T.match_sparse_buffer(p, (I,), "float32", fill=1.0)
    with T.sp_iter([I, J], "SR", "sums") as [i, j]:
        S[i] += A[i, j]
    with T.sp_iter([I, J], "SR", "products") as [i, j]:
        P[i] = P[i] * A[i, j]


@T.prim_func
def relu(x: T.handle, n: T.int32) -> None:
    I = T.dense_fixed(n)
    X = T.match_sparse_buffer(x, (I,), "float32")
    with T.sp_iter([I], "S", "relu") as [i]:
        X[i] = T.max(X[i], T.float32(0))


@T.prim_func
def total(x: T.handle, y: T.handle, n: T.int32) -> None:
    I = T.dense_fixed(n)
    X = T.match_sparse_buffer(x, (I,), "float64")
    Y = T.match_buffer(y, (), "float64")
    with T.sp_iter([I], "R", "total") as [i]:
        with T.init():
            Y[()] = 0.0
        Y[()] = Y[()] + X[i]


@T.prim_func
def pairs(x: T.handle, y: T.handle, n: T.int32) -> None:
    I = T.dense_fixed(n)
    I2 = T.dense_fixed(n * 2)
    X = T.match_sparse_buffer(x, (I2,), "int32")
    Y = T.match_sparse_buffer(y, (I,), "int32")
    with T.sp_iter([I], "S", "pairs") as [i]:
        Y[i] = X[i * 2] + X[i * 2 + 1]


@T.prim_func
def divide(x: T.handle, y: T.handle, z: T.handle, n: T.int32) -> None:
    I = T.dense_fixed(n)
    X = T.match_sparse_buffer(x, (I,), "int32")
    Y = T.match_sparse_buffer(y, (I,), "int32")
    Z = T.match_sparse_buffer(z, (I,), "int32")
    with T.sp_iter([I], "S", "divide") as [i]:
        Z[i] = X[i] // Y[i]


@T.prim_func
def spread(
    a: T.handle,
    b: T.handle,
    indptr_a: T.handle,
    indices_a: T.handle,
    indptr_b: T.handle,
    indices_b: T.handle,
    m: T.int32,
    n: T.int32,
    nnz_a: T.int32,
    nnz_b: T.int32,
) -> None:
    I = T.dense_fixed(m)
    JA = T.sparse_variable(I, (n, nnz_a), (indptr_a, indices_a), "int32")
    JB = T.sparse_variable(I, (n, nnz_b), (indptr_b, indices_b), "int32")
    A = T.match_sparse_buffer(a, (I, JA), "float32")
    B = T.match_sparse_buffer(b, (I, JB), "float32")
    with T.sp_iter([I, JA], "SS", "spread") as [i, j]:
        B[i, j] = A[i, j]


@T.prim_func
def add(
    a: T.handle,
    b: T.handle,
    c: T.handle,
    a_indptr: T.handle,
    a_indices: T.handle,
    b_indptr: T.handle,
    b_indices: T.handle,
    m: T.int32,
    n: T.int32,
    nnz_a: T.int32,
    nnz_b: T.int32,
) -> None:
    I = T.dense_fixed(m)
    JA = T.sparse_variable(I, (n, nnz_a), (a_indptr, a_indices), "int32")
    JB = T.sparse_variable(I, (n, nnz_b), (b_indptr, b_indices), "int32")
    JC = T.sparse_variable(I, (n, None), (None, None), "int32")
    A = T.match_sparse_buffer(a, (I, JA), "float32")
    B = T.match_sparse_buffer(b, (I, JB), "float32")
    C = T.match_sparse_buffer(c, (I, JC), "float32")
    with T.sp_iter([I, T.union(JA, JB)], "SS", "add") as [i, j]:
        C[i, j] = A[i, j] + B[i, j]


def random_csr(m=6, n=7, dtype="float32", kind="array"):
    make = sps.csr_array if kind == "array" else sps.csr_matrix
    dense = RNG.uniform(-1, 1, (m, n)) * (RNG.random((m, n)) < 0.4)
    return make(dense.astype(dtype))


A = random_csr()
B = RNG.uniform(-1, 1, (7, 3)).astype("float32")


@pytest.mark.parametrize("make", [sps.csr_array, sps.csr_matrix, sps.coo_array, sps.coo_matrix])
def test_an_spmm_takes_every_row_order_of_scipy_and_returns_a_dense_array(make):
    C = spcomp.compile(spmm)(A=make(A), B=B)
    assert type(C) is np.ndarray
    np.testing.assert_allclose(C, A @ B, rtol=1e-5)


@pytest.mark.parametrize("make", [sps.coo_array, sps.coo_matrix])
@pytest.mark.parametrize("count", [(1 << 15) - 1, 1 << 15, 50_000])
def test_a_coo_of_any_size_is_sorted_and_summed(make, count):
    rng = np.random.default_rng(count)
    at = rng.integers(300, size=count), rng.integers(7, size=count)
    coo = make((rng.random(count, "float32"), at), shape=(300, 7))
    want = coo.toarray() @ B
    kernel = spcomp.compile(spmm)
    np.testing.assert_allclose(kernel(A=coo, B=B), want, rtol=1e-4)
    np.testing.assert_allclose(kernel.bind(A=coo)(B=B), want, rtol=1e-4)


def test_an_unsorted_coo_with_repeated_coordinates_is_summed():
    coo = sps.coo_array(
        (np.array([1, 2, 4, 8], "float32"), ([1, 0, 1, 1], [2, 1, 0, 2])), shape=(6, 7)
    )
    np.testing.assert_allclose(spcomp.compile(spmm)(A=coo, B=B), coo.toarray() @ B, rtol=1e-5)


def test_a_csr_with_repeated_and_unsorted_coordinates_is_summed_on_a_copy():
    arrays = np.array([1, 2, 4], "float32"), np.array([3, 1, 3]), np.array([0, 3, 3])
    csr = sps.csr_array(arrays, shape=(2, 7))
    csr.has_canonical_format = True  # a stale claim must not be believed
    np.testing.assert_allclose(spcomp.compile(spmm)(A=csr, B=B), csr.toarray() @ B, rtol=1e-5)
    assert csr.indices.tolist() == [3, 1, 3]


def test_index_arrays_of_another_width_are_converted():
    wide = sps.csr_array((A.data, A.indices.astype("int64"), A.indptr.astype("int64")), A.shape)
    wide.indices, wide.indptr = wide.indices.astype("int64"), wide.indptr.astype("int64")
    np.testing.assert_allclose(spcomp.compile(spmm)(A=wide, B=B), A @ B, rtol=1e-5)


def test_a_csr_whose_first_positions_are_unused_is_understood():
    shifted = sps.csr_array(A.shape, dtype="float32")
    shifted.data = np.append(np.float32([9, 9]), A.data)
    shifted.indices = np.append(np.int32([5, 0]), A.indices)
    shifted.indptr = A.indptr + np.int32(2)
    np.testing.assert_allclose(spcomp.compile(spmm)(A=shifted, B=B), A @ B, rtol=1e-5)
    scaled = spcomp.compile(scale)(A=shifted, alpha=2.0)
    np.testing.assert_allclose(scaled.toarray(), A.toarray() * 2)


def test_out_receives_the_result_and_is_returned():
    out = np.full((6, 3), 77, "float32")
    assert spcomp.compile(spmm)(A=A, B=B, out=out) is out
    np.testing.assert_allclose(out, A @ B, rtol=1e-5)


def test_an_output_given_by_its_name_is_written_in_place():
    C = np.full((6, 3), 77, "float32")
    assert spcomp.compile(spmm)(A=A, B=B, C=C) is C
    np.testing.assert_allclose(C, A @ B, rtol=1e-5)


def test_a_call_by_position_writes_in_place_and_returns_none():
    C = np.full(18, 77, "float32")
    kernel = spcomp.compile(spmm)
    assert kernel(A.data, B.reshape(-1), C, A.indptr, A.indices, 6, 7, 3, A.nnz) is None
    np.testing.assert_allclose(C.reshape(6, 3), A @ B, rtol=1e-5)


def test_raw_arrays_may_be_given_by_the_names_of_their_handles():
    kernel = spcomp.compile(spmm)
    C = kernel(a=A.data, indptr=A.indptr, indices=A.indices, B=B)
    np.testing.assert_allclose(C, A @ B, rtol=1e-5)


def test_a_pattern_may_be_given_by_the_name_of_its_axis():
    np.testing.assert_allclose(spcomp.compile(spmm)(A=A.data, J=A, B=B), A @ B, rtol=1e-5)


@pytest.mark.parametrize("kind", ["array", "matrix"])
def test_an_output_along_the_axes_of_an_input_shares_its_index_arrays_and_its_class(kind):
    a = random_csr(kind=kind)
    b = spcomp.compile(scale)(A=a, alpha=2.5)
    assert type(b) is type(a)
    assert b.shape == a.shape
    assert np.shares_memory(b.indices, a.indices)
    assert np.shares_memory(b.indptr, a.indptr)
    np.testing.assert_allclose(b.toarray(), a.toarray() * np.float32(2.5))


def test_a_sparse_out_is_written_in_place():
    out = A.copy()
    assert spcomp.compile(scale)(A=A, alpha=3, out=out) is out
    np.testing.assert_allclose(out.toarray(), A.toarray() * 3)


def test_blocks_come_back_as_bsr():
    dense = np.kron(RNG.random((3, 4)) < 0.5, np.ones((2, 3))) * RNG.random((6, 12))
    a = sps.bsr_array(dense, blocksize=(2, 3))
    b = spcomp.compile(scale_blocks)(A=a)
    assert isinstance(b, sps.bsr_array)
    assert b.shape == a.shape
    assert b.blocksize == (2, 3)
    np.testing.assert_allclose(b.toarray(), dense * 2)


def test_several_outputs_come_in_the_order_of_parameters_and_start_at_fill():
    ragged = spcomp.Tensor((3, 2), [None, ("ragged", [0, 2, 2, 3])], np.float32([2, 3, 5]))
    result = spcomp.compile(row_stats)(A=ragged)
    assert result.S.tolist() == [5, 0, 5]
    assert result.P.tolist() == [6, 1, 5]
    s, p = result
    assert s is result.S
    assert p is result[1]
    again = pickle.loads(pickle.dumps(result))
    assert again.P.tolist() == [6, 1, 5]
    assert "S=array" in repr(again)
    with pytest.raises(AttributeError, match="no result called Q"):
        _ = result.Q


def test_out_may_be_a_dict_or_a_tuple():
    ragged = spcomp.Tensor((2, 2), [None, ("ragged", [0, 2, 2])], np.float32([2, 3]))
    s, p = np.zeros(2, "float32"), np.ones(2, "float32")
    kernel = spcomp.compile(row_stats)
    assert kernel(A=ragged, out={"P": p}).P is p
    assert kernel(A=ragged, out=(s, None)).S is s
    assert s.tolist() == [5, 0]


def test_a_reduction_without_init_adds_to_what_out_holds():
    ragged = spcomp.Tensor((2, 2), [None, ("ragged", [0, 2, 2])], np.float32([2, 3]))
    s = np.float32([10, 20])
    spcomp.compile(row_stats)(A=ragged, S=s)
    assert s.tolist() == [15, 20]


def test_a_buffer_that_is_read_first_must_be_given():
    kernel = spcomp.compile(relu)
    x = np.float32([-1, 2])
    assert kernel(X=x) is x
    assert x.tolist() == [0, 2]
    with pytest.raises(ArgumentError, match="missing argument X of relu"):
        kernel()


def test_scalars_and_buffers_of_no_dimension_work():
    result = spcomp.compile(total)(X=np.arange(4.0))
    assert result.shape == ()
    assert result == 6
    assert spcomp.compile(total)(X=np.zeros(0)) == 0


def test_a_size_is_solved_from_a_product():
    kernel = spcomp.compile(pairs)
    assert kernel(X=np.arange(6, dtype="int32")).tolist() == [1, 5, 9]
    with pytest.raises(ArgumentError, match=r"missing argument n of pairs"):
        kernel(X=np.arange(5, dtype="int32"))


@pytest.mark.parametrize(
    ("m", "n", "feat"), [(0, 7, 3), (6, 0, 3), (6, 7, 0), (0, 0, 0), (1, 1, 1)]
)
def test_empty_sizes_work(m, n, feat):
    a = sps.csr_array((m, n), dtype="float32")
    C = spcomp.compile(spmm)(A=a, B=np.ones((n, feat), "float32"))
    assert C.shape == (m, feat)
    assert not C.any()


def test_an_input_that_is_not_contiguous_is_copied():
    wide = np.repeat(B, 2, axis=1)
    np.testing.assert_allclose(spcomp.compile(spmm)(A=A, B=wide[:, ::2]), A @ B, rtol=1e-5)
    np.testing.assert_allclose(spcomp.compile(spmm)(A=A, B=np.asfortranarray(B)), A @ B, rtol=1e-5)


def test_an_assembled_output_is_a_csr_of_the_inputs_kind():
    a, b = random_csr(), random_csr()
    c = spcomp.compile(add)(A=a, B=b)
    assert isinstance(c, sps.csr_array)
    np.testing.assert_allclose(c.toarray(), (a + b).toarray())
    matrices = spcomp.compile(add)(A=random_csr(kind="matrix"), B=random_csr(kind="matrix"))
    assert isinstance(matrices, sps.csr_matrix)


def test_an_assembled_output_can_neither_be_given_nor_written_by_position():
    kernel = spcomp.compile(add)
    with pytest.raises(ArgumentError, match="C: its pattern is a result of add"):
        kernel(A=A, B=A, out=A.copy())
    with pytest.raises(ArgumentError, match="its result C is assembled"):
        kernel(*range(11))
    assert any(param.kind == "assembled" for param in kernel.signature.params)


def test_bind_fixes_arguments_and_sees_new_values():
    a = A.copy()
    bound = spcomp.compile(spmm).bind(A=a)
    np.testing.assert_allclose(bound(B=B), a @ B, rtol=1e-5)
    a.data *= 2
    np.testing.assert_allclose(bound(B=B), a @ B, rtol=1e-5)
    out = np.zeros((6, 3), "float32")
    assert bound(B=B, out=out) is out
    assert repr(bound) == "<spmm with A bound>"
    with pytest.raises(ArgumentError, match="A: is bound already"):
        bound(A=a, B=B)


def test_bind_does_not_see_later_changes_of_index_arrays():
    a = A.copy()
    want = a @ B
    bound = spcomp.compile(spmm).bind(A=a)
    a.indices[:] = 10**6
    np.testing.assert_allclose(bound(B=B), want, rtol=1e-5)


def test_bind_copies_raw_index_arrays():
    indptr, indices = A.indptr.copy(), A.indices.copy()
    bound = spcomp.compile(spmm).bind(A=A.data, indptr=indptr, indices=indices)
    indices[:] = 10**6
    indptr[:] = 10**6
    np.testing.assert_allclose(bound(B=B), A @ B, rtol=1e-5)


def test_bind_checks_at_once():
    bad = A.copy()
    bad.indices[0] = 7
    with pytest.raises(ArgumentError, match=r"A\.indices: got 7"):
        spcomp.compile(spmm).bind(A=bad)


def test_a_division_by_zero_raises_and_leaves_the_kernel_usable():
    kernel = spcomp.compile(divide)
    one = np.ones(2, "int32")
    with pytest.raises(ArgumentError, match="integer division by zero"):
        kernel(X=one, Y=np.zeros(2, "int32"))
    assert kernel(X=one, Y=one).tolist() == [1, 1]


def test_a_write_to_a_coordinate_that_is_not_stored_raises():
    kernel = spcomp.compile(spread)
    wide = sps.csr_array(np.ones((2, 3), "float32"))
    narrow = sps.csr_array(np.eye(2, 3, dtype="float32"))
    assert kernel(A=narrow, out=wide.copy()).toarray()[0, 0] == 1
    with pytest.raises(ArgumentError, match="spread"):
        kernel(A=wide, out=narrow)


@T.prim_func
def chunks_of_rows(x: T.handle, y: T.handle, n: T.int32):
    X = T.match_buffer(x, (n, 4), "float32")
    Y = T.match_buffer(y, (4,), "float32")
    for j in T.serial(n):
        for c in T.serial(2):
            for i in T.serial(c * 2, c * 2 + 2):
                with T.block("sum"):
                    vj, vi = T.axis.remap("RS", [j, i])
                    with T.init():
                        Y[vi] = 0.0
                    Y[vi] = Y[vi] + X[vj, vi]


@pytest.mark.parametrize("n", [0, 3])
def test_init_runs_in_the_loops_that_say_where_a_spatial_loop_begins_and_ends(n):
    x, y = np.arange(4 * n, dtype="float32").reshape(n, 4), np.full(4, 7, "float32")
    spcomp.compile(chunks_of_rows)(x, y, n)
    assert y.tolist() == x.sum(0).tolist()
