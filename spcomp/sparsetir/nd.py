"""Beside the route: ``tvm.nd`` and devices. All arrays are in host memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class Device:
    """The requested device of an array; only a label, as all arrays are in host memory."""

    device_type: str
    device_id: int = 0


class NDArray(np.ndarray[Any, np.dtype[Any]]):
    """A numpy array with TVM's ``numpy()``."""

    def numpy(self) -> np.ndarray[Any, np.dtype[Any]]:
        """Return a copy as a plain numpy array."""
        return np.array(self, subok=False)

    asnumpy = numpy


def array(arr: Any, device: Device | None = None) -> NDArray:
    """Return a copy of *arr*, anything that numpy takes, in C order; *device* is ignored."""
    del device
    return np.array(np.asarray(arr), order="C").view(NDArray)


def empty(shape: Any, dtype: str = "float32", device: Device | None = None) -> NDArray:
    """Return an array of zeros; *device* is ignored."""
    del device
    return np.zeros(shape, dtype).view(NDArray)


def cpu(device_id: int = 0) -> Device:
    """Return the host."""
    return Device("cpu", device_id)


def cuda(device_id: int = 0) -> Device:
    """Return the label of a GPU."""
    return Device("cuda", device_id)
