"""Arrays of every library are read where they lie on a GPU, and results are made there, too."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from spcomp.dtypes import SCALARS, bfloat16, bfloat16_bits, float32, int64
from spcomp.errors import ArgumentError, BackendError, OutOfMemoryError
from spcomp.runtime.cuda.arrays import (
    DeviceArray,
    Place,
    array_of,
    empty,
    full,
    place_of,
    to_host,
    zeros,
)
from spcomp.runtime.cuda.driver import LEGACY
from spcomp.runtime.cuda.sparse import sparse_of, with_data
from spcomp.runtime.cuda.streams import handle_of
from tests import fake_cuda, fake_libraries
from tests.fake_cuda import BASE, SPAN
from tests.fake_libraries import Matrix, Ndarray, SparseTensor, Tensor

HERE = Place(0, LEGACY, "host")


@pytest.fixture
def gpu():
    with fake_cuda.installed(devices=2) as gpu:
        yield gpu


@pytest.fixture
def streams(monkeypatch, gpu):
    return fake_libraries.install(monkeypatch, gpu)


class Exported:
    """An array that only has DLPack."""

    def __init__(self, pointer, shape, dtype, *, strides=None, readonly=False, device=(2, 0)):
        self.pointer, self.shape, self.dtype, self.strides = pointer, shape, dtype, strides
        self.readonly, self.device, self.asked = readonly, device, []

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, stream=None):
        self.asked.append(stream)


def shown(array: DeviceArray) -> tuple[object, ...]:
    return array.pointer, str(array.dtype), array.shape, array.strides, array.library


def interface(**changes):
    face = {"shape": (4, 6), "typestr": "<f4", "data": (BASE + 512, False), "version": 2}
    return SimpleNamespace(__cuda_array_interface__={**face, **changes})


def test_tensors_of_torch_are_read_by_their_pointer(gpu, streams):
    pointer = gpu.allocate(96, 0)
    place = place_of([Tensor(pointer, (4, 6), "float32")])
    assert place == Place(0, LEGACY, "torch")
    tensor = Tensor(pointer, (4, 6), "float32")
    array = array_of(tensor, place)
    assert shown(array) == (pointer, "float32", (4, 6), (24, 4), "torch")
    assert array.owner is tensor
    assert array_of(Tensor(pointer, (7,), "bfloat16"), place).dtype == bfloat16
    assert not gpu.log


def test_what_a_tensor_of_torch_cannot_be_is_said(gpu, streams):
    place = place_of([Tensor(BASE, (4, 6), "float32")])
    cases = [
        (Tensor(BASE, (4, 6), "float32", strides=(1, 4)), "not C-contiguous", ".contiguous()"),
        (Tensor(BASE, (4,), "complex64"), "complex64, which no program", ""),
        (Tensor(BASE, (4,), "float32", device=1), "lies on GPU 1, and other arguments on 0", ""),
        (Tensor(BASE + 2, (4,), "float32"), "is not aligned to its float32", ""),
        (SparseTensor("csr", (4, 4), ()), "got SparseTensor, expected a dense array", ""),
    ]
    for name, says in (("requires_grad", "requires gradients"), ("negative", "negated")):
        tensor = Tensor(BASE, (4,), "float32")
        setattr(tensor, name, True)
        cases.append((tensor, says, "detach" if name == "requires_grad" else "resolve_neg"))
    for tensor, says, hint in cases:
        with pytest.raises(ArgumentError, match=f"argument A: .*{says}") as caught:
            array_of(tensor, place, "A")
        assert hint in caught.value.hint


@pytest.mark.parametrize("strides", [None, (24, 4), (999, 4)])
def test_strides_of_extents_that_are_one_do_not_matter(gpu, strides):
    shape = (1, 6) if strides == (999, 4) else (4, 6)
    gpu.put(np.zeros(4096, np.uint8))
    array = array_of(interface(shape=shape, strides=strides), HERE)
    assert (array.shape, array.strides, array.nbytes) == (shape, (24, 4), 4 * 6 * shape[0])


def test_arrays_of_the_interface_of_version_2_and_3_are_read(gpu):
    pointer = gpu.put(np.zeros(4096, np.uint8))
    old = interface()
    assert place_of([old]) == Place(0, LEGACY, "numba")
    assert shown(array_of(old, HERE)) == (pointer + 512, "float32", (4, 6), (24, 4), "numba")
    new = interface(version=3, stream=5, typestr="|b1", shape=())
    assert place_of([new]) == Place(0, 5, "numba")
    assert array_of(new, place_of([new])).shape == ()
    assert not gpu.log
    array_of(new, Place(0, 9, "numba"))
    assert [entry[0::2] for entry in gpu.log] == [("record", 5), ("wait", 9)]
    assert array_of(interface(data=(0, False), shape=(0, 3)), HERE).pointer == 0


@pytest.mark.parametrize(
    ("changes", "written", "says"),
    [
        ({"mask": object()}, False, "has a mask"),
        ({"typestr": ">f4"}, False, "native byte order"),
        ({"typestr": "<c8"}, False, "complex64"),
        ({"data": (BASE, True)}, True, "is read-only, and the program writes it"),
        ({"strides": (4, 16)}, False, "not C-contiguous"),
    ],
)
def test_arrays_of_the_interface_that_cannot_be_used_are_refused(gpu, changes, written, says):
    gpu.put(np.zeros(4096, np.uint8))
    with pytest.raises(ArgumentError, match=f"argument B: .*{says}"):
        array_of(interface(**changes), HERE, "B", written=written)


def test_a_pointer_to_no_memory_of_a_GPU_is_refused(gpu):
    with pytest.raises(BackendError, match=r"address 0x1000: .*INVALID_VALUE"):
        array_of(interface(data=(4096, False)), HERE)


def test_arrays_of_dlpack_are_read_and_told_the_stream(gpu):
    pointer = gpu.put(np.zeros(64, np.float64))
    exported = Exported(pointer, (8, 8), "float64", strides=(8, 1))
    place = place_of([exported], stream=12)
    array = array_of(exported, place)
    assert shown(array) == (pointer, "float64", (8, 8), (64, 8), "numba")
    assert exported.asked == [12]
    with pytest.raises(ArgumentError, match="read-only"):
        array_of(Exported(pointer, (8,), "float64", readonly=True), place, written=True)
    with pytest.raises(ArgumentError, match="not C-contiguous"):
        array_of(Exported(pointer, (8, 8), "float64", strides=(1, 8)), place)

    class Broken(Exported):
        def __dlpack__(self, stream=None):
            raise BufferError("cannot export a lazy array")

    with pytest.raises(ArgumentError, match="argument Q: gives no array of DLPack: cannot export"):
        array_of(Broken(pointer, (8,), "float64"), place, "Q")
    assert place_of([Exported(0, (8,), "float64", device=(1, 0))]).library == "host"


def test_a_call_runs_on_the_stream_that_the_library_works_on(gpu, streams):
    tensor, array = Tensor(BASE, (4,), "float32"), Ndarray(BASE + SPAN, (4,), "float32", device=1)
    streams.torch, streams.cupy = 0x70, 0xC0
    assert place_of([np.zeros(3), tensor]) == Place(0, 0x70, "torch")
    assert place_of([array, 2.5]) == Place(1, 0xC0, "cupy")
    assert place_of([array, tensor]) == Place(1, 0xC0, "torch")
    assert place_of([tensor], stream=7) == Place(0, 7, "torch")
    assert place_of([np.zeros(3), 1]) == HERE
    array_of(tensor, Place(0, 0x70, "torch"))
    assert not gpu.log
    array_of(tensor, Place(0, 7, "torch"))
    assert [entry[0::2] for entry in gpu.log] == [("record", 0x70), ("wait", 7)]
    assert gpu.log[0][1] == gpu.log[1][1]


def test_streams_of_every_library_are_handles():
    class Protocol:
        def __cuda_stream__(self):
            return 0, 77

    assert handle_of(None) == handle_of(0) == handle_of(1) == LEGACY
    assert handle_of(SimpleNamespace(cuda_stream=5)) == 5
    assert handle_of(SimpleNamespace(cuda_stream=0)) == LEGACY
    assert handle_of(SimpleNamespace(ptr=6)) == 6
    assert handle_of(SimpleNamespace(__cuda_stream__=(0, 8))) == 8
    assert handle_of(Protocol()) == 77
    for wrong in ("cuda:0", True, -1, 2.0, object()):
        with pytest.raises(ArgumentError, match="argument stream"):
            handle_of(wrong)


@pytest.mark.parametrize(
    "array",
    [
        np.arange(12, dtype=np.float32).reshape(3, 4),
        np.arange(12, dtype=np.int64).reshape(3, 4).T,
        np.arange(9, dtype=np.uint8)[::-2],
        np.float64(2.5),
        np.zeros((0, 3), np.int32),
    ],
)
def test_host_arrays_are_copied_there_and_back(gpu, array):
    copy = array_of(array, Place(1, 9, "host"))
    assert (copy.library, copy.shape, copy.device) == ("host", array.shape, 1)
    assert str(copy.dtype) == array.dtype.name
    assert place_of([copy]).device == 1
    np.testing.assert_array_equal(to_host(copy, 9), array)
    assert {entry[-1] for entry in gpu.log} <= {9}
    assert array_of(copy, Place(1, 9, "host")) is copy
    if array.nbytes:
        assert gpu.log[:2] == [("upload", array.nbytes, 9), ("synchronize", 9)]


def test_host_arrays_that_no_program_takes_are_refused(gpu):
    for array in (np.zeros(3, complex), np.zeros(3, object), np.zeros(3, ">f4")):
        with pytest.raises(ArgumentError, match="argument x: got"):
            array_of(array, HERE)
    with pytest.raises(ArgumentError, match="got list, expected a dense array"):
        array_of([1, 2], HERE)
    odd = type("Stream", (), {"__module__": "cupy.cuda"})()
    assert place_of([odd, 1, "x", None]) == HERE


def test_a_host_array_is_filled_with_what_was_written(gpu):
    copy = array_of(np.arange(6, dtype=np.float32).reshape(2, 3), HERE, written=True)
    for out in (np.zeros((2, 3), np.float32), np.zeros((3, 2), np.float32).T, np.zeros((2, 3))):
        assert to_host(copy, LEGACY, out) is out
        np.testing.assert_array_equal(out, [[0, 1, 2], [3, 4, 5]])


@pytest.mark.torch
def test_tensors_of_torch_on_the_host_are_copied_there(gpu):
    import torch

    values = torch.tensor([[1.0, 2.5], [3.0, -4.0]])
    np.testing.assert_array_equal(to_host(array_of(values, HERE), LEGACY), values.numpy())
    bits = array_of(values.bfloat16(), HERE)
    assert bits.dtype == bfloat16
    np.testing.assert_array_equal(to_host(bits, LEGACY), values.numpy().view(np.uint32) >> 16)
    with pytest.raises(ArgumentError, match="requires gradients"):
        array_of(values.requires_grad_(), HERE)
    with pytest.raises(ArgumentError, match="lies on meta, expected the CPU or a GPU"):
        array_of(values.to("meta"), HERE)
    with pytest.raises(ArgumentError, match="got Tensor, expected a dense array"):
        array_of(values.detach().to_sparse_coo(), HERE)


@pytest.mark.parametrize("library", ["torch", "cupy", "numba", "host"])
def test_results_are_arrays_of_the_library_and_zero_if_asked(gpu, streams, library):
    place = Place(0, 0x33, library)
    result = zeros((2, 3), int64, place)
    kinds = {"torch": Tensor, "cupy": Ndarray}
    assert isinstance(result.owner, kinds.get(library, fake_cuda.DeviceNDArray))
    assert (result.library, result.shape, result.dtype) == (library, (2, 3), int64)
    assert not gpu.array(result.pointer, (2, 3), np.int64).any()
    assert ("clear", 48, 0x33) in gpu.log
    assert gpu.array(empty((5,), float32, place).pointer, (5,), np.uint32)[0] == 0xABABABAB
    half = empty((4,), bfloat16, place)
    assert (half.dtype, half.nbytes) == (bfloat16, 8)
    assert empty((0, 3), float32, place).size == 0


@pytest.mark.parametrize("dtype", SCALARS, ids=str)
@pytest.mark.parametrize("value", [1, 0, float("inf"), -2.5])
def test_results_start_at_any_value(gpu, dtype, value):
    if not dtype.is_float:
        value = max(int(min(value, 100)), 0) if dtype.kind in ("uint", "bool") else 3
    array = full((3, 5), dtype, value, Place(1, 7, "host"))
    if dtype == bfloat16:
        expected = np.full((3, 5), bfloat16_bits(value), np.uint16)
    else:
        expected = np.full((3, 5), value, dtype.numpy_name)
    np.testing.assert_array_equal(to_host(array, 7), expected)


def test_a_result_is_allocated_on_the_stream_of_the_call(gpu, streams):
    for library in ("torch", "cupy"):
        empty((4,), float32, Place(0, 0x44, library))
        assert streams.made == [(library, 0x44)]
        setattr(streams, library, 0x55)
        empty((4,), float32, Place(0, 0x55, library))
        assert streams.made == [(library, 0x44), (library, 0x55)]
        streams.made.clear()
    assert not gpu.log


def test_a_GPU_without_room_is_an_error_of_ours(gpu, streams):
    gpu.free = 10
    for library in ("torch", "numba"):
        with pytest.raises(OutOfMemoryError, match="GPU is out of memory"):
            empty((100,), float32, Place(0, LEGACY, library))


CSR = (np.array([0, 2, 3], np.int32), np.array([0, 2, 1], np.int32), np.ones(3, np.float32))


def test_sparse_matrices_of_cupy_are_their_arrays(gpu, streams):
    indptr, indices, data = (Ndarray(gpu.put(a), a.shape, a.dtype) for a in CSR)
    place = place_of([Matrix((data, indices, indptr), (2, 3))])
    assert place == Place(0, LEGACY, "cupy")
    for kind in ("csr", "csc"):
        parts = sparse_of(Matrix((data, indices, indptr), (2, 3), kind), place, "A")
        assert (parts.format, parts.shape, parts.unique) == (kind, (2, 3), False)
        assert [part.owner for part in (parts.indptr, *parts.indices, parts.data)] == [
            *(indptr, indices, data)
        ]
    coo = Matrix((data, (indices, indices)), (3, 3), "coo")
    parts = sparse_of(coo, place)
    assert (parts.indptr, len(parts.indices), parts.unique) == (None, 2, True)
    again = with_data(parts, empty((3,), float32, place))
    assert isinstance(again, Matrix)
    assert again.row is indices
    with pytest.raises(ArgumentError, match="got the format dia"):
        sparse_of(Matrix((data, indices, indptr), (2, 3), "dia"), place)


def test_sparse_tensors_of_torch_are_their_arrays(gpu, streams):
    indptr, indices, data = (Tensor(gpu.put(a), a.shape, a.dtype.name) for a in CSR)
    place = Place(0, LEGACY, "torch")
    for kind in ("csr", "csc"):
        parts = sparse_of(SparseTensor(kind, (2, 3), (indptr, indices, data)), place, "A")
        assert (parts.format, parts.indptr.owner, parts.indices[0].owner) == (kind, indptr, indices)
    made, args, named = with_data(parts, empty((3,), float32, place))
    assert (made, args[:2], args[3]) == ("compressed", (indptr, indices), (2, 3))
    assert named["layout"] == "torch.sparse_csc"
    blocks = Tensor(gpu.put(np.ones((3, 2, 2), np.float32)), (3, 2, 2), "float32")
    assert sparse_of(SparseTensor("bsr", (4, 6), (indptr, indices, blocks)), place).data.shape == (
        *(3, 2, 2),
    )
    with pytest.raises(ArgumentError, match="dense dimensions inside"):
        sparse_of(SparseTensor("csr", (2, 3), (indptr, indices, blocks)), place)
    pairs = Tensor(gpu.put(np.array([[0, 0, 1], [0, 2, 1]])), (2, 3), "int64")
    coo = SparseTensor("coo", (2, 3), (pairs, data), coalesced=False)
    parts = sparse_of(coo, place)
    assert [part.pointer - pairs.pointer for part in parts.indices] == [0, 24]
    assert not parts.unique
    assert with_data(parts, parts.data)[2] == {"is_coalesced": False, "check_invariants": False}
    coo.requires_grad = True
    with pytest.raises(ArgumentError, match="requires gradients"):
        sparse_of(coo, place)
    with pytest.raises(ArgumentError, match="expected a sparse matrix on a GPU"):
        sparse_of(data, place)
