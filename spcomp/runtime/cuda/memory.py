"""Under arrays on a GPU: memory of numba.cuda, copies from and to numpy, streams that wait."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from spcomp.arrays import Array
from spcomp.runtime.cuda.driver import (
    LEGACY,
    driver_function,
    errors,
    on,
    refusal,
    refusals,
    require,
)


def allocate(shape: tuple[int, ...], dtype: str, device: int) -> Any:
    """Return an array of numba.cuda with any content; *dtype* is numpy's name."""
    with on(device, f"an array of shape {shape}"):
        from numba.cuda import device_array

        return device_array(shape, dtype)


def upload(array: Array, device: int, stream: int) -> Any:
    """Return a copy of the contiguous *array* on *device*, as an array of numba.cuda; it waits.

    Without waiting, memory that is pinned could be changed before it is read.
    """
    copy = allocate(array.shape, array.dtype.str, device)
    write(copy.__cuda_array_interface__["data"][0], array, device, stream)
    return copy


def write(pointer: int, array: Array, device: int, stream: int) -> None:
    """Copy the contiguous *array* to *pointer*, in the order of *stream*; it waits."""
    if array.nbytes:
        with on(device, "copying to the GPU") as numba:
            numba.driver.cuMemcpyHtoDAsync(pointer, array.ctypes.data, array.nbytes, stream)
            numba.driver.cuStreamSynchronize(stream)


def download(pointer: int, array: Array, device: int, stream: int) -> None:
    """Fill the contiguous *array* from *pointer*, after what *stream* was given; it waits."""
    with on(device, "copying from the GPU") as numba:
        if array.nbytes:
            numba.driver.cuMemcpyDtoHAsync(array.ctypes.data, pointer, array.nbytes, stream)
        numba.driver.cuStreamSynchronize(stream)


def pinned(shape: tuple[int, ...], dtype: str, device: int) -> Array:
    """Return an array of the host with any content that the GPU copies to without waiting."""
    with on(device, f"an array of shape {shape}"):
        from numba.cuda import pinned_array

        array: Array = pinned_array(shape, dtype)
        return array


def copy(pointer: int, source: int, count: int, device: int, stream: int) -> None:
    """Copy *count* bytes of the GPU from *source* to *pointer*, in the order of *stream*."""
    if count:
        with on(device, "copying on the GPU") as numba:
            numba.driver.cuMemcpyDtoDAsync(pointer, source, count, stream)


def clear(pointer: int, count: int, device: int, stream: int) -> None:
    """Set *count* bytes from *pointer* to zero, in the order of *stream*, without waiting."""
    fill(pointer, b"\0", count, device, stream)


def fill(pointer: int, pattern: bytes, count: int, device: int, stream: int) -> None:
    """Write *pattern*, of 1, 2 or 4 bytes, *count* times, in the order of *stream*; no waiting."""
    if count:
        with on(device, "memory of the GPU") as numba:
            call = getattr(numba.driver, f"cuMemsetD{8 * len(pattern)}Async")
            call(pointer, int.from_bytes(pattern, "little"), count, stream)


def view(arg: Any, stream: int) -> Any:
    """Return cuda.core's view of *arg*, of any library with DLPack, which lets *stream* wait."""
    with refusals("an array of DLPack"):
        from cuda.core.utils import StridedMemoryView

        return StridedMemoryView.from_dlpack(arg, stream)


def device_of(pointer: int) -> int:
    """Return the device whose memory *pointer* points to; raises BackendError if none is."""
    numba = require()
    try:
        return int(driver_function(numba, "cuPointerGetAttribute")(_ordinal(numba), pointer))
    except errors(numba) as error:  # not refusals(): this is on the way of every call
        raise refusal(f"address {pointer:#x}", error) from None


@lru_cache(maxsize=1)
def _ordinal(numba: Any) -> Any:
    """Return the driver's code for the number of the device of a pointer."""
    return numba.binding.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL


def wait(stream: int, producer: int, device: int) -> None:
    """Let *stream* wait for what *producer*, another stream of *device*, was given so far."""
    if (stream or LEGACY) == (producer or LEGACY):
        return
    with on(device, "streams") as numba:
        from numba.cuda import current_context

        event = current_context().create_event(timing=False)
        numba.driver.cuEventRecord(int(event.handle), producer or LEGACY)
        numba.driver.cuStreamWaitEvent(stream or LEGACY, int(event.handle), 0)


def synchronize_device(device: int) -> None:
    """Wait until *device* has done all that it was given; raises what failed there."""
    with on(device, "the GPU") as numba:
        numba.driver.cuCtxSynchronize()


def synchronize(stream: int, device: int) -> None:
    """Wait until *stream* of *device* has done what it was given; raises what failed there."""
    with on(device, "the GPU") as numba:
        numba.driver.cuStreamSynchronize(stream or LEGACY)
