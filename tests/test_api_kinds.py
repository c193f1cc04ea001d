"""Programs over formats that scipy lacks, odd declarations, and the kind of what they return."""

import numpy as np
import pytest
import scipy.sparse as sps

import spcomp
from spcomp import script as T
from spcomp.errors import ArgumentError, BackendError
from tests.test_api import A, B, add, scale, spmm

F32 = np.float32


@T.prim_func
def scale_csf(
    a: T.handle,
    b: T.handle,
    jp: T.handle,
    ji: T.handle,
    kp: T.handle,
    ki: T.handle,
    m: T.int32,
    n: T.int32,
    o: T.int32,
    nj: T.int32,
    nk: T.int32,
) -> None:
    I = T.dense_fixed(m)
    J = T.sparse_variable(I, (n, nj), (jp, ji), "int32")
    K = T.sparse_variable(J, (o, nk), (kp, ki), "int32")
    A = T.match_sparse_buffer(a, (I, J, K), "float32")
    B = T.match_sparse_buffer(b, (I, J, K), "float32")
    with T.sp_iter([I, J, K], "SSS", "scale_csf") as [i, j, k]:
        B[i, j, k] = A[i, j, k] * 2.0


@T.prim_func
def repeat(
    a: T.handle,
    b: T.handle,
    indptr: T.handle,
    indices: T.handle,
    m: T.int32,
    n: T.int32,
    nnz: T.int32,
    feat: T.int32,
) -> None:
    I = T.dense_fixed(m)
    J = T.sparse_variable(I, (n, nnz), (indptr, indices), "int32")
    K = T.dense_fixed(feat)
    A = T.match_sparse_buffer(a, (I, J), "float32")
    B = T.match_sparse_buffer(b, (I, J, K), "float32")
    with T.sp_iter([I, J, K], "SSS", "repeat") as [i, j, k]:
        B[i, j, k] = A[i, j]


@T.prim_func
def ragged_copy(a: T.handle, b: T.handle, indptr: T.handle, m: T.int32, longest: T.int32) -> None:
    I = T.dense_fixed(m)
    J = T.dense_variable(I, longest, indptr)
    A = T.match_sparse_buffer(a, (I, J), "float32")
    B = T.match_sparse_buffer(b, (I, J), "float32")
    with T.sp_iter([I, J], "SS", "ragged_copy") as [i, j]:
        B[i, j] = A[i, j]


@T.prim_func
def ell_copy(
    a: T.handle, b: T.handle, indices: T.handle, m: T.int32, n: T.int32, width: T.int32
) -> None:
    I = T.dense_fixed(m)
    J = T.sparse_fixed(I, (n, width), indices, "int32")
    A = T.match_sparse_buffer(a, (I, J), "float16")
    B = T.match_sparse_buffer(b, (I, J), "float16")
    with T.sp_iter([I, J], "SS", "ell_copy") as [i, j]:
        B[i, j] = A[i, j]


@T.prim_func
def half_copy(
    a: T.handle,
    b: T.handle,
    indptr: T.handle,
    indices: T.handle,
    m: T.int32,
    n: T.int64,
    nnz: T.int32,
) -> None:
    I = T.dense_fixed(m)
    J = T.sparse_variable(I, (n, nnz), (indptr, indices), "int32")
    A = T.match_sparse_buffer(a, (I, J), "float16")
    B = T.match_sparse_buffer(b, (I, J), "float16")
    with T.sp_iter([I, J], "SS", "half_copy") as [i, j]:
        B[i, j] = A[i, j]


@T.prim_func
def some_rows(y: T.handle, unused: T.handle, n: T.int32, step: T.int32) -> None:
    I = T.dense_fixed(n)
    H = T.dense_fixed(n // step)
    Y = T.match_sparse_buffer(y, (I,), "float32", fill=-1.0)
    with T.sp_iter([H], "S", "some_rows") as [i]:
        Y[i * step] = T.float32(1)


@T.prim_func
def one_per_step(y: T.handle, n: T.int32, step: T.int32) -> None:
    I = T.dense_fixed(n // step)
    Y = T.match_sparse_buffer(y, (I,), "float32")
    with T.sp_iter([I], "S", "one_per_step") as [i]:
        Y[i] = T.float32(1)


@T.prim_func
def view(x: T.handle, y: T.handle, n: T.int32) -> None:
    X = T.match_buffer(x, (n,), "float32", strides=(2,))
    Y = T.match_buffer(y, (n,), "float32")
    I = T.dense_fixed(n)
    with T.sp_iter([I], "S", "view") as [i]:
        Y[i] = X[i]


@T.prim_func
def negate(flag: T.bool, x: T.handle, y: T.handle, n: T.int32) -> None:
    I = T.dense_fixed(n)
    X = T.match_sparse_buffer(x, (I,), "uint8")
    Y = T.match_sparse_buffer(y, (I,), "uint8")
    with T.sp_iter([I], "S", "negate") as [i]:
        Y[i] = T.if_then_else(flag, T.uint8(255) - X[i], X[i])


CSF = spcomp.Tensor(
    (2, 3, 4),
    [None, ("compressed", [0, 1, 3], [2, 0, 1]), ("compressed", [0, 2, 2, 3], [0, 3, 1])],
    F32([1, 2, 3]),
)


def test_a_tensor_comes_back_as_a_tensor_with_the_same_levels():
    result = spcomp.compile(scale_csf)(A=CSF)
    assert result.levels is CSF.levels
    assert (result.to_dense() == CSF.to_dense() * 2).all()


def test_a_tensor_is_an_output_too():
    out = CSF.with_values(np.zeros(3, F32))
    assert spcomp.compile(scale_csf)(A=CSF, out=out) is out
    assert out.values.tolist() == [2, 4, 6]


def test_bind_takes_a_tensor():
    bound = spcomp.compile(scale_csf).bind(A=CSF)
    assert bound().values.tolist() == [2, 4, 6]


def test_raw_arrays_give_a_raw_array():
    j, k = CSF.levels[1], CSF.levels[2]
    values = spcomp.compile(scale_csf)(
        A=CSF.values, jp=j.indptr.astype("i4"), ji=j.indices.astype("i4"),
        kp=k.indptr.astype("i4"), ki=k.indices.astype("i4"), n=3, o=4,
    )  # fmt: skip
    assert values.tolist() == [2, 4, 6]


def test_a_result_of_higher_rank_along_a_csr_is_a_tensor():
    result = spcomp.compile(repeat)(A=A, feat=2)
    assert result.format == "dense,compressed,dense"
    assert (result.to_dense() == A.toarray()[:, :, None].repeat(2, axis=2)).all()


def test_a_ragged_axis_may_leave_out_how_many_elements_it_has():
    ragged = spcomp.Tensor((2, 3), [None, ("ragged", [0, 1, 4])], F32([1, 2, 3, 4]))
    kernel = spcomp.compile(ragged_copy)
    assert (kernel(A=ragged).to_dense() == ragged.to_dense()).all()
    with pytest.raises(ArgumentError, match=r"A: number of elements .* is 5, expected 4"):
        kernel(A=np.zeros(5, F32), indptr=np.int32([0, 1, 4]), longest=3)


def test_float16_and_fixed_levels_work():
    ell = spcomp.Tensor((2, 3), [None, ("fixed", [[0, 2], [1, 2]])], np.float16([1, 2, 3, 4]))
    assert (spcomp.compile(ell_copy)(A=ell).to_dense() == ell.to_dense()).all()
    again = spcomp.compile(ell_copy)(A=ell.values, indices=np.int32([0, 2, 1, 2]), m=2, n=3)
    assert again.tolist() == [1, 2, 3, 4]


def test_a_dtype_that_scipy_does_not_compute_with_travels_all_the_same():
    a = A.copy()
    a.data = a.data.astype(np.float16)
    result = spcomp.compile(half_copy)(A=a)
    assert isinstance(result, spcomp.Tensor)
    assert result.format == "dense,compressed"
    assert result.dtype == np.float16
    assert (result.values == a.data).all()


def test_an_index_that_the_axis_cannot_hold_is_refused():
    a = sps.csr_array((1, 2**40), dtype="float32")
    a.data, a.indices = np.ones(1, np.float16), np.int64([2**35])
    a.indptr = np.int64([0, 1])
    with pytest.raises(ArgumentError, match=r"A\.indices: got 34359738368, expected") as caught:
        spcomp.compile(half_copy)(A=a)
    assert "int64" in caught.value.hint


def test_an_index_array_of_floats_is_refused():
    a = A.copy()
    a.indices = a.indices.astype("float64")
    with pytest.raises(ArgumentError, match=r"A\.indices: got dtype float64"):
        spcomp.compile(scale, check="off")(A=a, alpha=1)


@pytest.mark.filterwarnings("ignore:.*declared spatial")
def test_elements_that_are_not_written_hold_the_fill_value():
    kernel = spcomp.compile(some_rows)
    assert kernel(n=5, step=2).tolist() == [1, -1, 1, -1, -1]
    y = np.zeros(4, F32)
    kernel(y, None, 4, 3)
    assert y.tolist() == [1, 0, 0, 0]
    assert "unused: handle unused" in str(kernel.signature)


@pytest.mark.filterwarnings("ignore:.*declared spatial")
def test_sizes_that_make_no_sense_are_refused():
    kernel = spcomp.compile(some_rows)
    with pytest.raises(ArgumentError, match=r"argument Y: its shape \(-3,\) is negative"):
        kernel(n=-3, step=1)
    assert kernel(n=0, step=1).tolist() == []
    with pytest.raises(ArgumentError, match="the size n // step divides by zero"):
        spcomp.compile(one_per_step)(n=4, step=0)


def test_bool_and_byte_scalars_are_checked():
    kernel = spcomp.compile(negate)
    x = np.uint8([0, 5])
    assert kernel(X=x, flag=True).tolist() == [255, 250]
    assert kernel(X=x, flag=np.bool_(False)).tolist() == [0, 5]
    with pytest.raises(ArgumentError, match="flag: got int, expected bool"):
        kernel(X=x, flag=1)


def test_a_subclass_of_an_array_and_what_converts_to_one_are_inputs():
    class Lazy:
        def __array__(self, dtype=None, copy=None):
            return B

    class Named(np.ndarray):
        pass

    kernel = spcomp.compile(spmm)
    np.testing.assert_allclose(kernel(A=A, B=B.view(Named)), A @ B, rtol=1e-5)
    np.testing.assert_allclose(kernel(A=A, B=Lazy()), A @ B, rtol=1e-5)


def test_a_dense_tensor_is_a_dense_argument():
    dense = spcomp.Tensor(B.shape, [None, None], B)
    np.testing.assert_allclose(spcomp.compile(spmm)(A=A, B=dense), A @ B, rtol=1e-5)
    with pytest.raises(ArgumentError, match="levels dense,compressed, expected dense,dense"):
        spcomp.compile(spmm)(A=A, B=spcomp.Tensor.from_scipy(A))


def test_a_position_program_takes_its_index_buffers_by_either_name():
    position = spcomp.compile(spcomp.compile(spmm)._compiled.stages.position.funcs[0])
    C = position(A=A.data, J_indptr=A.indptr, J_indices=A.indices, B=B)
    np.testing.assert_allclose(C, A @ B, rtol=1e-5)


@pytest.mark.filterwarnings("ignore:.* is not proved to be parallel")
def test_a_program_has_no_stage_above_its_own():
    flat = spcomp.compile(spcomp.compile(spmm)._compiled.stages.flat.funcs[0])
    C = np.zeros(18, F32)
    flat(A=A.data, J_indptr=A.indptr, J_indices=A.indices, B=B, C=C, m=6, n=7, feat=3, nnz=A.nnz)
    np.testing.assert_allclose(C.reshape(6, 3), A @ B, rtol=1e-5)
    with pytest.raises(ArgumentError, match="has no position stage"):
        flat.stage("position")


def test_the_coordinate_stage_of_a_schedule_is_the_program_that_it_began_as():
    written = spcomp.compile(spmm).stage("coordinate")
    begun = spcomp.Schedule(spmm)
    for schedule in (begun.lower_sparse_iter().parallel("i"), begun.lower_sparse_buffer()):
        assert spcomp.compile(schedule).stage("coordinate") == written
    fixed = spcomp.compile(schedule, constants={"feat": 4}).stage("coordinate")
    assert fixed == spcomp.compile(spmm, constants={"feat": 4}).stage("coordinate")
    with pytest.raises(ArgumentError, match="no position stage, its schedule is at the flat level"):
        spcomp.compile(schedule).stage("position")
    position = spcomp.Schedule(begun.lower_sparse_iter().func)
    with pytest.raises(ArgumentError, match=r"no coordinate stage.* is at the position level"):
        spcomp.compile(position).stage("coordinate")


def test_a_view_takes_an_array_with_room_for_its_strides():
    kernel = spcomp.compile(view)
    assert kernel(X=np.arange(6, dtype=F32), n=3).tolist() == [0, 2, 4]
    with pytest.raises(ArgumentError, match=r"X: room .* is 4, expected at least 5"):
        kernel(X=np.arange(4, dtype=F32), n=3)


def test_code_for_another_machine_can_be_read_but_not_run():
    kernel = spcomp.compile(spmm, target="cpu:aarch64")
    assert "ret" in kernel.source("asm")
    assert kernel.object_bytes[:4] == b"\x7fELF"
    with pytest.raises(BackendError, match="cannot run code for cpu:aarch64"):
        kernel(A=A, B=B)


def test_constants_that_name_no_parameter_are_refused():
    with pytest.raises(ArgumentError, match="'width', it is no parameter of spmm"):
        spcomp.compile(spmm, constants={"width": 3})


def test_an_assembled_result_too_large_for_its_index_arrays_is_refused(monkeypatch):
    from spcomp.runtime import host

    with pytest.raises(ArgumentError, match="more than int8 index arrays can hold"):
        host.HOST.scan(np.full(5, 100, "int8"))
    spcomp.compile(add)(A=A, B=A)


def test_the_memory_of_compiled_programs_is_bounded(monkeypatch):
    from spcomp.compiler import compiled

    monkeypatch.setattr(compiled, "CACHE_SIZE", 1)
    first = spcomp.compile(spmm, constants={"feat": 11})
    spcomp.compile(spmm, constants={"feat": 12})
    assert len(compiled._cache) == 1
    assert spcomp.compile(spmm, constants={"feat": 11})._compiled is not first._compiled
