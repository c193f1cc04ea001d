"""PyTorch and CuPy with arrays on a GPU that is not there: what spcomp reads of them."""

from __future__ import annotations

import sys
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from importlib import import_module
from math import prod
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from tests.fake_cuda import FakeGPU


class TorchDtype(str):
    """A dtype of torch, whose text starts with ``torch.``."""

    __slots__ = ()

    @property
    def itemsize(self) -> int:
        name = self.removeprefix("torch.")
        return 2 if name == "bfloat16" else np.dtype(name).itemsize


def contiguous(shape):
    return tuple(prod(shape[at + 1 :]) for at in range(len(shape)))


class Device(NamedTuple):
    """A device of torch."""

    type: str
    index: int


class Tensor:
    """A strided tensor of torch on a GPU, with only the attributes that are there for it."""

    __module__ = "torch"
    layout = "torch.strided"
    is_cuda = True
    requires_grad = negative = False

    def __init__(self, pointer, shape, dtype, device=0, strides=None):
        self.pointer, self.shape, self.dtype = pointer, shape, TorchDtype(f"torch.{dtype}")
        self.device = Device("cuda", device)
        self.strides = strides or contiguous(shape)
        self.plain = self.strides == contiguous(shape)

    @property
    def __cuda_array_interface__(self):
        raise AssertionError("it refuses bfloat16 and gradients: data_ptr is read")

    def data_ptr(self):
        return self.pointer

    def stride(self):
        return self.strides

    def is_neg(self):
        return self.negative

    def is_conj(self):
        return False

    def is_contiguous(self):
        return self.plain

    @property
    def ndim(self):
        return len(self.shape)

    def __getitem__(self, at):
        if isinstance(at, slice):
            name = self.dtype.removeprefix("torch.")
            return Tensor(self.pointer, (at.stop, *self.shape[1:]), name, self.device.index)
        step = prod(self.shape[1:]) * self.dtype.itemsize
        name = self.dtype.removeprefix("torch.")
        return Tensor(self.pointer + at * step, self.shape[1:], name, self.device.index)

    def contiguous(self):
        return self


class SparseTensor(Tensor):
    """A sparse tensor of torch on a GPU."""

    def __init__(self, layout, shape, arrays, *, coalesced=True):
        super().__init__(0, shape, "float32")
        self.layout, self.arrays, self.coalesced = f"torch.sparse_{layout}", arrays, coalesced

    def _nnz(self):
        return self.arrays[-1].shape[0]

    def is_coalesced(self):
        return self.coalesced

    def _indices(self):
        return self.arrays[0]

    def crow_indices(self):
        return self.arrays[0]

    ccol_indices = crow_indices

    def col_indices(self):
        return self.arrays[1]

    row_indices = col_indices

    def values(self):
        return self.arrays[-1]

    _values = values


class Ndarray:
    """An array of CuPy."""

    __module__ = "cupy"

    def __init__(self, pointer, shape, dtype, device=0, strides=None, stream=1):
        self.device, self.ndim = SimpleNamespace(id=device), len(shape)
        self.shape, self.dtype = shape, np.dtype(dtype)
        self.data = SimpleNamespace(ptr=pointer, device_id=device)
        self.flags = SimpleNamespace(c_contiguous=strides is None)
        face = {"shape": shape, "typestr": np.dtype(dtype).str, "data": (pointer, False)}
        self.__cuda_array_interface__ = {**face, "strides": strides, "stream": stream, "version": 3}

    def __getitem__(self, at):
        face = self.__cuda_array_interface__
        count = (at.stop,) if isinstance(at, slice) else ()
        return Ndarray(face["data"][0], (*count, *face["shape"][1:]), face["typestr"])


class Matrix:
    """A sparse matrix of CuPy, of the class for *format*."""

    __module__ = "cupyx.scipy.sparse._base"
    requires_grad = False
    has_canonical_format = True

    def __init__(self, arrays, shape, format=""):
        self.shape, self.format = shape, format or ("coo" if len(arrays) == 2 else "csr")
        if self.format == "coo":
            self.data, (self.row, self.col) = arrays
        else:
            self.data, self.indices, self.indptr = arrays
        self.dtype = getattr(self.data, "dtype", None)
        self.nnz = getattr(self.data, "shape", (0,))[0]


def import_with_torch() -> None:
    """Import now what is imported once, with the PyTorch that later tests use, if it is there."""
    with suppress(ImportError):
        import_module("spcomp.tensors.libraries.torch")


def install(patch: Any, gpu: FakeGPU) -> SimpleNamespace:
    """Put PyTorch and CuPy on *gpu* among the modules; return their streams, which tests change."""
    import_with_torch()
    now = SimpleNamespace(torch=1, cupy=1, made=[])
    torch, cupy = ModuleType("torch"), ModuleType("cupy")

    @contextmanager
    def on_torch(stream):
        before, now.torch = now.torch, stream.cuda_stream
        yield
        now.torch = before

    class External:
        def __init__(self, ptr, device):
            self.cuda_stream = self.ptr = ptr

        def __enter__(self):
            self.before, now.cupy = now.cupy, self.ptr

        def __exit__(self, *_):
            now.cupy = self.before

    def empty_of_torch(shape, dtype, device):
        number = int(device.removeprefix("cuda:"))
        now.made.append(("torch", now.torch))
        if prod(shape) * dtype.itemsize > gpu.free:
            raise RuntimeError("CUDA out of memory. Tried to allocate")
        pointer = gpu.allocate(prod(shape) * dtype.itemsize, number)
        return Tensor(pointer, shape, dtype.removeprefix("torch."), number)

    def empty_of_cupy(shape, dtype):
        now.made.append(("cupy", now.cupy))
        return Ndarray(gpu.allocate(prod(shape) * np.dtype(dtype).itemsize, 0), shape, dtype)

    names = "float16 bfloat16 float32 float64 int8 int16 int32 int64 uint8 uint64 bool"
    vars(torch).update({name: TorchDtype(f"torch.{name}") for name in names.split()})
    torch.Tensor, torch.empty = Tensor, empty_of_torch
    torch.strided, torch.sparse_csr = Tensor.layout, "torch.sparse_csr"
    torch.sparse_csc, torch.stack = "torch.sparse_csc", tuple
    torch.sparse_coo_tensor = lambda *args, **named: ("coo", args, named)
    torch.sparse_compressed_tensor = lambda *args, **named: ("compressed", args, named)
    torch.cuda = SimpleNamespace(
        current_stream=lambda device: SimpleNamespace(cuda_stream=now.torch),
        stream=on_torch, ExternalStream=External,
    )  # fmt: skip
    graph = SimpleNamespace(increment_version=lambda _: None)
    torch.autograd = SimpleNamespace(graph=graph)
    cupy.ndarray, cupy.empty = Ndarray, empty_of_cupy
    cupy.cuda = SimpleNamespace(
        get_current_stream=lambda device: SimpleNamespace(ptr=now.cupy),
        ExternalStream=External, Device=nullcontext,
    )  # fmt: skip
    patch.setitem(sys.modules, "torch", torch)
    patch.setitem(sys.modules, "cupy", cupy)
    for name in ("cupyx", "cupyx.scipy", "cupyx.scipy.sparse"):
        patch.setitem(sys.modules, name, ModuleType(name))
    makes = {f"{kind}_matrix": partial(Matrix, format=kind) for kind in ("csr", "csc", "coo")}
    vars(sys.modules["cupyx.scipy.sparse"]).update(makes)
    return now
