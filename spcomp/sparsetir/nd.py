"""Beside the route: ``tvm.nd`` and devices. All arrays lie in the memory of the host."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class Device:
    """Where an array is asked to be; a label, as there is no other memory than the host's yet."""

    device_type: str
    device_id: int = 0


class NDArray(np.ndarray[Any, np.dtype[Any]]):
    """A numpy array with TVM's way to get at its elements."""

    def numpy(self) -> np.ndarray[Any, np.dtype[Any]]:
        """Return the elements as an array of their own."""
        return np.array(self, subok=False)

    asnumpy = numpy


def array(arr: Any, device: Device | None = None) -> NDArray:
    """Return a copy of *arr*, anything that numpy takes, in C order; *device* is not looked at."""
    del device
    return np.array(np.asarray(arr), order="C").view(NDArray)


def empty(shape: Any, dtype: str = "float32", device: Device | None = None) -> NDArray:
    """Return an array whose elements are zero; *device* is not looked at."""
    del device
    return np.zeros(shape, dtype).view(NDArray)


def cpu(device_id: int = 0) -> Device:
    """Return the host."""
    return Device("cpu", device_id)


def cuda(device_id: int = 0) -> Device:
    """Return the label of a GPU; ``build`` says whether code for it can be had."""
    return Device("cuda", device_id)
