"""What numba.cuda raises, and what spcomp uses of cuda.core, for a GPU that is not there."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np


class CudaSupportError(RuntimeError):
    """The driver cannot be used."""


class CudaDriverError(Exception):
    """The driver refuses."""


class CudaAPIError(CudaDriverError):
    """A driver call that failed, as numba reports it."""

    def __init__(self, code: Any, msg: str) -> None:
        self.code, self.msg = code, msg
        super().__init__(msg)


def failed(call: str, name: str) -> CudaAPIError:
    """Return the error of *call* that the driver calls *name*."""
    code = SimpleNamespace(name=f"CUDA_ERROR_{name}")
    return CudaAPIError(code, f"Call to {call} results in {code.name}")


class CUDAError(Exception):
    """What cuda.core raises."""


def with_status(driver: Any, name: str) -> Any:
    """Return the function *name* of *driver* as cuda.bindings has it: a status, then the result."""

    def call(*args: Any) -> Any:
        try:
            return 0, getattr(driver, name)(*args)
        except CudaAPIError as error:
            return (error.code,)

    return call


class Event:
    """An event of numba.cuda: when it was recorded, in milliseconds."""

    def __init__(self, gpu: Any, *, timing: bool) -> None:
        self.gpu, self.timing, self.handle = gpu, timing, gpu.handle(self)
        self.time: float | None = None

    def synchronize(self) -> None:
        self.gpu.log.append(("synchronize event", int(self.handle)))

    def elapsed_time(self, end: Event) -> float:
        assert self.timing
        assert end.timing
        assert self.time is not None
        assert end.time is not None
        return end.time - self.time


class StridedMemoryView:
    """cuda.core's view of what DLPack exports, for objects that say it by attributes."""

    def __init__(self, obj: Any, stream: int) -> None:
        obj.__dlpack__(stream=stream)
        self.ptr, self.shape, self.strides = obj.pointer, obj.shape, obj.strides
        self.dtype, self.device_id = np.dtype(obj.dtype), obj.__dlpack_device__()[1]
        self.readonly, self.exporting_obj = obj.readonly, obj

    from_dlpack = classmethod(lambda cls, obj, stream: cls(obj, stream))
