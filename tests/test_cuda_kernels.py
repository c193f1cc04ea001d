"""Kernels on a GPU take arrays of every library and return results where the operands are."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse as sps

import spcomp
from spcomp.errors import ArgumentError, BackendError
from spcomp.runtime.cuda.timing import capture
from tests import fake_cuda, fake_libraries
from tests.fake_launches import emulate
from tests.fake_libraries import Matrix, Ndarray, SparseTensor, Tensor
from tests.layers import called
from tests.programs import BY_NAME, PROGRAMS, fresh, variants

TARGET = "cuda:sm_90"
WAITS = ("synchronize", "download", "synchronize event")


@pytest.fixture
def gpu(monkeypatch):
    with fake_cuda.installed(devices=2) as gpu:
        emulate(gpu, monkeypatch)
        yield gpu


@pytest.fixture
def libraries(monkeypatch, gpu):
    """The current streams of PyTorch and CuPy."""
    return fake_libraries.install(monkeypatch, gpu)


class Torch:
    """Makes and reads the tensors of PyTorch on a fake GPU; CuPy is another one."""

    array, name = Tensor, "torch"

    def __init__(self, gpu):
        self.gpu = gpu

    def put(self, array, device=0):
        return self.array(self.gpu.put(array, device), array.shape, str(array.dtype), device)

    def get(self, array):
        return self.gpu.array(array.data_ptr(), array.shape, array.dtype.removeprefix("torch."))

    def csr(self, matrix):
        arrays = map(self.put, (matrix.indptr, matrix.indices, matrix.data))
        return SparseTensor("csr", matrix.shape, tuple(arrays))

    def arrays_of(self, made):
        kind, arrays, _ = made
        assert kind == "compressed"
        return tuple(map(self.get, arrays[:3])), arrays[3]


class Cupy(Torch):
    array, name = Ndarray, "cupy"

    def get(self, array):
        face = array.__cuda_array_interface__
        return self.gpu.array(face["data"][0], face["shape"], face["typestr"])

    def csr(self, matrix):
        return Matrix(
            tuple(map(self.put, (matrix.data, matrix.indices, matrix.indptr))), matrix.shape
        )

    def arrays_of(self, made):
        return tuple(map(self.get, (made.indptr, made.indices, made.data))), made.shape


both = pytest.mark.parametrize("kind", [Torch, Cupy], ids=lambda kind: kind.name)


def operands(seed=7):
    rng = np.random.default_rng(seed)
    A = sps.random_array((20, 30), density=0.2, format="csr", dtype=np.float32, rng=rng)
    return A, rng.random((30, 8), np.float32), rng.random((20, 8), np.float32)


def compiled(name, **options):
    return spcomp.compile(BY_NAME[name].build("float32", "int32"), target=TARGET, **options)


def kinds(gpu, *names):
    return [entry for entry in gpu.log if entry[0] in names]


def test_arrays_of_the_host_are_copied_there_and_results_back(gpu):
    A, B, _ = operands()
    kernel = compiled("csrmm")
    C = kernel(A=A, B=B)
    np.testing.assert_allclose(C, A @ B, rtol=1e-5)
    out = np.empty_like(C)
    assert kernel(A=A, B=B, out=out) is out
    np.testing.assert_array_equal(out, C)
    uploads = [size for _, size, _ in kinds(gpu, "upload")]
    assert sorted(uploads[: len(uploads) // 2]) == sorted(
        a.nbytes for a in (A.data, A.indices, A.indptr, B)
    )


@pytest.mark.parametrize("of", PROGRAMS, ids=lambda p: p.name)
@pytest.mark.filterwarnings("ignore::spcomp.errors.SpcompWarning")
@pytest.mark.sample(8, long=4)
def test_every_program_means_on_a_gpu_what_the_oracle_says(gpu, of):
    dtype, idtype = next(iter(variants(of)))
    kernel = spcomp.compile(of.build(dtype, idtype), target=TARGET)
    case = next(iter(of.cases))
    inputs = of.inputs(case, dtype, idtype)
    results = called(of.name, fresh(inputs), dtype, idtype, compiled=kernel)
    of.check(inputs, results, dtype, f"on a GPU, {case}")


def test_elements_before_the_first_fiber_keep_their_values(gpu):
    of = BY_NAME["csr_element_wise"]
    inputs = of.inputs("indptr_offset", "float32", "int32")
    kernel = spcomp.compile(of.build("float32", "int32"), target=TARGET)
    given = called(of.name, fresh(inputs), compiled=kernel)
    of.check(inputs, given, "float32", "on a GPU")
    names = {"A": "a", "indptr": "indptr", "indices": "indices", "m": "m", "n": "n"}
    made = kernel(**{name: inputs[its] for name, its in names.items()})
    first = inputs["indptr"][0]
    assert not made[:first].any()
    np.testing.assert_array_equal(made[first:], given["b"][first:])


@both
def test_arrays_of_a_gpu_are_used_in_place_and_results_are_there(gpu, libraries, kind):
    there, (A, B, _) = kind(gpu), operands()
    C = compiled("csrmm")(A=there.csr(A), B=there.put(B))
    assert isinstance(C, kind.array)
    np.testing.assert_allclose(there.get(C), A @ B, rtol=1e-5)
    assert not kinds(gpu, "upload")
    sizes = [size for _, size, _ in kinds(gpu, "download")]
    assert sorted(sizes) == sorted([4, A.indptr.nbytes])  # a verdict, and what decides a version


@both
def test_results_with_the_pattern_of_an_operand_are_like_it(gpu, libraries, kind):
    there, (A, _, _) = kind(gpu), operands()
    made = compiled("csr_element_wise")(A=there.csr(A))
    (indptr, indices, data), shape = there.arrays_of(made)
    np.testing.assert_array_equal(indptr, A.indptr)
    np.testing.assert_array_equal(indices, A.indices)
    np.testing.assert_array_equal(data, A.data * np.float32(2.5))
    assert shape == A.shape


@both
def test_assembled_results_are_sparse_matrices_there(gpu, libraries, kind):
    there, (A, _, _) = kind(gpu), operands()
    B = operands(8)[0]
    made = compiled("csr_add")(A=there.csr(A), B=there.csr(B))
    (indptr, indices, data), shape = there.arrays_of(made)
    expected = (A + B).sorted_indices()
    np.testing.assert_array_equal(indptr, expected.indptr)
    np.testing.assert_array_equal(indices, expected.indices)
    np.testing.assert_allclose(data, expected.data, rtol=1e-6)
    assert tuple(shape) == A.shape


def test_the_host_reads_one_number_of_an_assembled_result(gpu, libraries):
    """How many elements it has; and that its index arrays hold as many."""
    there, (A, _, _), (B, _, _) = Torch(gpu), operands(), operands(8)
    bound = compiled("csr_add").bind(A=there.csr(A), B=there.csr(B))
    gpu.log.clear()
    bound()
    assert [size for _, size, _ in kinds(gpu, "download")] == [4, 4]
    assert not kinds(gpu, "upload")


def test_operands_of_the_host_and_the_gpu_may_be_mixed(gpu, libraries):
    there, (A, B, _) = Torch(gpu), operands()
    C = compiled("csrmm")(A=A, B=there.put(B))
    np.testing.assert_allclose(there.get(C), A @ B, rtol=1e-5)
    again = compiled("csrmm")(A=there.csr(A), B=B)
    np.testing.assert_array_equal(there.get(again), there.get(C))
    assert isinstance(compiled("csr_add")(A=there.csr(A), B=A), tuple)  # torch's, in the fake
    doubled = compiled("csr_element_wise")(A=A, indptr=there.put(A.indptr))
    assert isinstance(doubled, sps.csr_array)  # along a pattern of the host


@both
def test_outputs_that_are_given_are_written_in_place(gpu, libraries, kind):
    there, (A, B, _) = kind(gpu), operands()
    C = there.put(np.full((20, 8), np.nan, np.float32))
    assert compiled("csrmm")(A=there.csr(A), B=there.put(B), out=C) is C
    np.testing.assert_allclose(there.get(C), A @ B, rtol=1e-5)
    host = np.empty((20, 8), np.float32)
    assert compiled("csrmm")(A=there.csr(A), B=there.put(B), out=host) is host
    np.testing.assert_array_equal(host, there.get(C))


def test_calls_by_position_write_in_place(gpu, libraries):
    there, (A, B, _) = Torch(gpu), operands()
    C = there.put(np.empty((20, 8), np.float32))
    arrays = A.data, B.reshape(-1)
    arrays = *map(there.put, arrays), C, there.put(A.indptr), there.put(A.indices)
    assert compiled("csrmm")(*arrays, 20, 30, 8, A.nnz) is None
    np.testing.assert_allclose(there.get(C), A @ B, rtol=1e-5)


@both
def test_calls_with_bound_matrices_and_out_neither_allocate_nor_wait(gpu, libraries, kind):
    there, (A, B, _) = kind(gpu), operands()
    for matrix in (A, there.csr(A)):
        kernel = compiled("csrmm").bind(A=matrix)
        other, out = there.put(B), there.put(np.empty((20, 8), np.float32))
        kernel(B=other, out=out)
        gpu.log.clear()
        before = len(gpu.memory)
        assert kernel(B=other, out=out) is out
        assert not gpu.log
        assert len(gpu.memory) == before
        np.testing.assert_allclose(there.get(out), A @ B, rtol=1e-5)


def test_a_stream_waits_for_bound_arrays_that_are_used_in_place(gpu, libraries):
    there, (A, B, _) = Torch(gpu), operands()
    libraries.torch = 0x55
    kernel = compiled("csrmm").bind(A=there.csr(A), B=there.put(B))
    gpu.log.clear()
    kernel(stream=0x77)
    assert [(what, stream) for what, _, stream in kinds(gpu, "record", "wait")] == [
        ("record", 0x55),
        ("wait", 0x77),
    ]


@both
def test_a_bound_matrix_keeps_its_pattern_and_follows_values_on_the_gpu(gpu, libraries, kind):
    there, (A, B, _) = kind(gpu), operands()
    matrix = there.csr(A)
    kernel, scale = compiled("csrmm").bind(A=matrix), compiled("csr_element_wise").bind(A=matrix)
    parts = matrix.arrays if kind is Torch else (matrix.indptr, matrix.indices, matrix.data)
    there.get(parts[1])[:] = 0  # a pattern that changes is not seen
    there.get(parts[2])[:] *= 2
    C = kernel(B=there.put(B))
    np.testing.assert_allclose(there.get(C), 2 * (A @ B), rtol=1e-5)
    for _ in range(2):
        (_, indices, _), _ = there.arrays_of(scale())
        np.testing.assert_array_equal(indices, A.indices)
        indices[:] = 0  # nor is one of a result


def test_calls_run_on_the_stream_of_the_library_or_the_one_given(gpu, libraries):
    there, (A, B, _) = Torch(gpu), operands()
    kernel, given = compiled("csrmm").bind(A=A), SimpleNamespace(cuda_stream=0x77)
    libraries.torch = 0x55
    kernel(B=there.put(B))
    kernel(B=there.put(B), stream=given)
    kernel(B=there.put(B), stream=0x99)
    assert [launch.stream for launch in gpu.launches] == [0x55, 0x77, 0x99]
    waits = [entry[-1] for entry in kinds(gpu, "wait")]
    assert waits == [0x77, 0x99]  # for what torch computes on its own stream
    with pytest.raises(ArgumentError, match="argument stream: got str, expected a CUDA stream"):
        kernel(B=there.put(B), stream="fast")


def test_a_bound_call_can_be_recorded_as_a_graph(gpu, libraries):
    there, (A, B, _) = Torch(gpu), operands()
    kernel, dense = compiled("csrmm").bind(A=A), there.put(B)
    out = there.put(np.zeros((20, 8), np.float32))
    kernel(B=dense, out=out)
    there.get(out)[:] = 0

    def work(stream):
        libraries.torch = stream
        kernel(B=dense, out=out, stream=stream)

    graph = capture(work)
    assert not there.get(out).any()  # recorded, not run
    graph.launch()
    np.testing.assert_allclose(there.get(out), A @ B, rtol=1e-5)
    with pytest.raises(BackendError, match="STREAM_CAPTURE_UNSUPPORTED"):
        capture(lambda stream: compiled("csrmm")(A=A, B=dense, out=out, stream=stream))


def test_a_failure_in_a_kernel_is_reported(gpu):
    kernel = spcomp.compile(BY_NAME["floor_division"].build("int32", "int32"), target=TARGET)
    a, d = np.arange(7, dtype=np.int32), 2
    q, r = np.empty_like(a), np.empty_like(a)
    kernel(a, q, r, 7, d)
    np.testing.assert_array_equal(q, a // d)
    with pytest.raises(ArgumentError, match="integer division by zero"):
        kernel(a, q, r, 7, 0)


@both
def test_index_notation_takes_arrays_on_a_gpu(gpu, libraries, kind):
    there, (A, B, X) = kind(gpu), operands()
    product = spcomp.compile("C[i, k] = A[i, j] * B[j, k]", target=TARGET)
    matrix, dense = there.csr(A), there.put(B)
    np.testing.assert_allclose(there.get(product(A=matrix, B=dense)), A @ B, rtol=1e-5)
    np.testing.assert_allclose(product(A=A, B=B), A @ B, rtol=1e-5)
    out = there.put(np.empty((20, 8), np.float32))
    bound = product.bind(A=matrix)
    assert bound(B=dense, out=out, stream=0x77) is out
    assert gpu.launches[-1].stream == 0x77
    np.testing.assert_allclose(there.get(out), A @ B, rtol=1e-5)
    masked = spcomp.compile("D[i, j] = A[i, j] * X[i, k] * B[j, k]", target=TARGET)
    (_, indices, data), _ = there.arrays_of(masked(A=matrix, X=there.put(X), B=dense))
    expected = A * (X @ B.T)
    np.testing.assert_array_equal(indices, A.indices)
    np.testing.assert_allclose(data, expected.tocsr().data, rtol=1e-4)
    total = spcomp.compile("s = A[i, j] * A[i, j]", target=TARGET)
    np.testing.assert_allclose(there.get(total(A=matrix)), (A.data**2).sum(), rtol=1e-5)


def test_index_notation_takes_objects_with_nothing_but_the_interface(gpu):
    class Bare:
        def __init__(self, array):
            face = {"shape": array.shape, "typestr": array.dtype.str, "strides": None}
            self.__cuda_array_interface__ = {**face, "data": (gpu.put(array), False), "version": 3}

    rng = np.random.default_rng(2)
    x, y, out = rng.random((2, 3, 4), np.float32)[:1].repeat(3, 0)
    add = spcomp.compile("C[i, j] = A[i, j] + B[i, j]", target=TARGET)
    a, b, c = map(Bare, (x, y, np.zeros_like(out)))
    for kernel, named in (
        (add, {"A": a, "B": b}),
        (add.bind(A=a), {"B": b}),
        (add.bind(A=a), {"B": b}),
    ):
        kernel(**named, out=c)
        kernel(**named, out=c)
        got = gpu.array(c.__cuda_array_interface__["data"][0], x.shape, x.dtype)
        np.testing.assert_array_equal(got, x + y)


def test_index_notation_refuses_what_it_cannot_convert_on_a_gpu(gpu, libraries):
    there, (A, B, _) = Torch(gpu), operands()
    product = spcomp.compile("C[i, k] = A[i, j] * B[j, k]", target=TARGET)
    with pytest.raises(ArgumentError, match="A: got bsr, expected csr, csc, coo"):
        product(A=SparseTensor("bsr", A.shape, there.csr(A).arrays), B=there.put(B))
    wanted = spcomp.compile("C[i, k] = A[i, j] * B[j, k]", target=TARGET, formats={"A": "dcsr"})
    with pytest.raises(ArgumentError, match="A: lies on a GPU as csr"):
        wanted(A=there.csr(A), B=there.put(B))
    with pytest.raises(ArgumentError, match=r"A: got .*, expected a csr array"):
        spcomp.compile("C[i, k] = A[i, j] * B[j, k]", target=TARGET, formats={"A": "hyb"})(
            A=there.csr(A), B=there.put(B)
        )
    part = spcomp.compile("y[i] = A[i(0, 4), j] * v[j]", target=TARGET)
    with pytest.raises(ArgumentError, match="A: lies on a GPU, where no windows are cut"):
        part(A=there.csr(A), v=there.put(np.ones(30, np.float32)))
    for dtype in ("bfloat16", "complex64"):
        dense = Tensor(there.put(B).pointer, B.shape, dtype)
        with pytest.raises(ArgumentError, match=f"B: got dtype {dtype}"):
            product(A=there.csr(A), B=dense)
    with pytest.raises(ArgumentError, match="unexpected argument stream"):
        spcomp.compile("C[i, k] = A[i, j] * B[j, k]")(A=A, B=B, stream=5)


def test_composable_formats_run_on_a_gpu_with_a_matrix_of_the_host(gpu, libraries):
    there, (A, B, _) = Torch(gpu), operands()
    kernel = spcomp.compile("C[i, k] = A[i, j] * B[j, k]", target=TARGET, formats={"A": "hyb"})
    np.testing.assert_allclose(kernel(A=A, B=B), A @ B, rtol=1e-5)
    bound = kernel.bind(A=A)
    np.testing.assert_allclose(there.get(bound(B=there.put(B))), A @ B, rtol=1e-5)


def test_what_index_arrays_on_a_gpu_hold_is_checked(gpu, libraries):
    there, (A, B, _) = Torch(gpu), operands()
    kernel, dense = compiled("csrmm"), there.put(B)
    wrong = A.copy()
    wrong.indices = A.indices.copy()
    wrong.indices[3] = 30
    with pytest.raises(ArgumentError, match=r"A\.indices: got 30 at position 3, expected 0..29"):
        kernel(A=there.csr(wrong), B=dense)
    wrong.indices = A.indices.copy()[::-1].copy()
    with pytest.raises(ArgumentError, match="out of order"):
        kernel.bind(A=there.csr(wrong))
    wrong.indptr = A.indptr.copy()
    wrong.indptr[1] = 1000
    with pytest.raises(ArgumentError, match=r"A\.indptr: decreases"):
        compiled("csrmm", check="off")(A=there.csr(wrong), B=dense)
    gpu.log.clear()
    gpu.launches.clear()
    compiled("csrmm", check="off")(A=there.csr(A), B=dense)
    assert [size for _, size, _ in kinds(gpu, "download")] == [4, A.indptr.nbytes]
    assert [launch.name for launch in gpu.launches] == ["delimiting", "csrmm"]


def test_wrong_arguments_on_a_gpu_are_refused(gpu, libraries):
    there, (A, B, _) = Torch(gpu), operands()
    kernel, matrix, dense = compiled("csrmm"), there.csr(A), there.put(B)
    part = Tensor(dense.pointer + 4, (3, 8), "float32")
    output = there.put(np.empty((20, 8), np.float32))
    inside = Tensor(dense.pointer, (20, 8), "float32")
    cases = [
        ({"A": matrix, "B": there.put(B.astype(np.float64))}, "B: got float64, expected float32"),
        ({"A": matrix, "B": there.put(B.reshape(-1))}, "B: got Tensor of shape .*2 dimensions"),
        ({"A": matrix, "B": part}, "B: begins at address .*, expected a multiple of 16"),
        ({"A": matrix, "B": matrix}, "B: got SparseTensor, expected a dense array"),
        ({"A": SparseTensor("csc", A.shape, matrix.arrays), "B": dense}, "A: got .* of csc"),
        ({"A": matrix, "B": there.put(B[:29].copy())}, "dimension 0 .* is 29, expected 30"),
        ({"A": matrix, "B": there.put(B, 1)}, "B: lies on GPU 1, and other arguments on 0"),
        ({"A": matrix, "B": dense, "out": inside}, "C: shares memory with B"),
        ({"A": matrix, "B": dense, "D": output}, "unexpected argument D"),
    ]
    for named, message in cases:
        with pytest.raises(ArgumentError, match=message):
            kernel(**named)
    assert "csrmm" not in {launch.name for launch in gpu.launches}


def test_without_a_gpu_a_call_says_what_is_missing(monkeypatch):
    A, B, _ = operands()
    with fake_cuda.installed(devices=0) as gpu:
        emulate(gpu, monkeypatch)
        kernel = compiled("csrmm")
        assert ".entry csrmm" in kernel.source("asm")
        with pytest.raises(BackendError, match="there is no NVIDIA GPU") as caught:
            kernel(A=A, B=B)
    assert "emulate" in caught.value.hint


def test_the_environment_lets_code_for_gpus_run_on_the_cpu(monkeypatch):
    monkeypatch.setenv("SPCOMP_CUDA_EMULATE", "1")
    A, B, _ = operands()
    kernel = compiled("csrmm")
    assert str(kernel.target) == f"{TARGET},emulate"
    np.testing.assert_allclose(kernel(A=A, B=B), A @ B, rtol=1e-5)


def test_the_emulator_takes_a_stream_and_ignores_it():
    A, B, _ = operands()
    where = f"{TARGET},emulate"
    for kernel in (
        spcomp.compile(BY_NAME["csrmm"].build("float32", "int32"), target=where),
        spcomp.compile("C[i, k] = A[i, j] * B[j, k]", target=where),
        spcomp.compile("C[i, k] = A[i, j] * B[j, k]", target=where, formats={"A": "ell"}),
    ):
        for call in (kernel, kernel.bind(A=A)):
            named = {"B": B} if call is not kernel else {"A": A, "B": B}
            for _ in range(3):  # the third repeats the second
                np.testing.assert_allclose(call(**named, stream=7), A @ B, rtol=1e-5)
    own = spcomp.compile("y[i] = stream[i] + x[i]", target=where)
    np.testing.assert_array_equal(own(stream=B[0], x=B[0]), 2 * B[0])
    with pytest.raises(ArgumentError, match="unexpected argument stream"):
        spcomp.compile("y[i] = x[i]")(x=B[0], stream=7)
