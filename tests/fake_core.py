"""What numba.cuda raises, and what spcomp uses of cuda.core, for a GPU that is not there."""

from __future__ import annotations

from typing import Any

import numpy as np


class CudaSupportError(RuntimeError):
    """The driver cannot be used."""


class CudaDriverError(Exception):
    """The driver refuses."""


class CudaAPIError(CudaDriverError):
    """A driver call that failed, as numba reports it."""

    def __init__(self, call: str, name: str) -> None:
        self.msg = f"Call to {call} results in CUDA_ERROR_{name}"
        super().__init__(self.msg)


class CUDAError(Exception):
    """What cuda.core raises."""


class StridedMemoryView:
    """cuda.core's view of what DLPack exports, for objects that say it by attributes."""

    def __init__(self, obj: Any, stream: int) -> None:
        obj.__dlpack__(stream=stream)
        self.ptr, self.shape, self.strides = obj.pointer, obj.shape, obj.strides
        self.dtype, self.device_id = np.dtype(obj.dtype), obj.__dlpack_device__()[1]
        self.readonly, self.exporting_obj = obj.readonly, obj

    from_dlpack = classmethod(lambda cls, obj, stream: cls(obj, stream))
