"""Beside calls on a GPU: how long launches take by the device's clock, and launches as graphs."""

from __future__ import annotations

import statistics
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from spcomp.errors import ArgumentError
from spcomp.runtime.cuda import memory
from spcomp.runtime.cuda.driver import LEGACY, current_device, device_properties, on, start

Work = Callable[[int], Any]  # puts work on the stream with this handle, and does not wait


@dataclass(frozen=True, slots=True)
class DeviceTiming:
    """Seconds of each repetition, by events on the stream; *flushed*: L2 was cold each time."""

    results: tuple[float, ...]
    flushed: bool

    @property
    def median(self) -> float:
        """The median of the results, in seconds."""
        return statistics.median(self.results)

    @property
    def min(self) -> float:
        """The least result, in seconds."""
        return min(self.results)


def time_on_device(
    work: Work,
    *,
    stream: int = LEGACY,
    device: int | None = None,
    warm_ups: int = 10,
    repeat: int = 100,
    number: int = 1,
    flush: bool = False,
) -> DeviceTiming:
    """Return how long *work* takes on the device: *repeat* results, each the mean of *number*.

    *flush* overwrites twice the size of the L2 cache before each result, so that nothing of the
    operands is in it. Nothing waits before all results are queued, so that the time of the host is
    not measured, unless the work of the host takes longer than that of the device.
    """
    if min(warm_ups, repeat - 1, number - 1) < 0 or (flush and number > 1):
        raise ArgumentError("time_on_device: counts are positive, and flush measures one at a time")
    where = current_device() if device is None else device
    size = 2 * device_properties(where).l2_bytes if flush else 0
    scratch = memory.allocate((size,), "uint8", where) if size else None
    with on(where, "timing") as numba:
        from numba.cuda import current_context

        context, record = current_context(), numba.driver.cuEventRecord
        events = [(context.create_event(), context.create_event()) for _ in range(repeat)]
        for _ in range(warm_ups):
            work(stream)
        for begin, end in events:
            if scratch is not None:
                pointer = scratch.__cuda_array_interface__["data"][0]
                memory.clear(pointer, size, where, stream)
            record(int(begin.handle), stream)
            for _ in range(number):
                work(stream)
            record(int(end.handle), stream)
        events[-1][1].synchronize()
        elapsed = (begin.elapsed_time(end) for begin, end in events)
        return DeviceTiming(tuple(ms / 1e3 / number for ms in elapsed), flush)


class Graph:
    """Work that was recorded once: a launch of all of it costs the host one call.

    Pointers and numbers are those at the time of recording.
    """

    def __init__(self, executable: Any, device: int, context: int, numba: Any) -> None:
        self._executable, self._numba, self._context = executable, numba, context
        self.device = device
        weakref.finalize(self, numba.driver.cuGraphExecDestroy, executable).atexit = False

    def launch(self, stream: int = LEGACY) -> None:
        """Start the work on *stream*, without waiting."""
        call, args = self._numba.driver.cuGraphLaunch, (self._executable, stream or LEGACY)
        start(self._numba, self._context, self.device, "a graph", call, *args)


def capture(work: Work, device: int | None = None) -> Graph:
    """Return the graph of what *work* puts on the stream that it is given; nothing runs.

    Work that waits or copies from the host cannot be recorded: BackendError.
    """
    where = current_device() if device is None else device
    with on(where, "recording a graph") as numba:
        driver, codes = numba.driver, numba.binding
        stream = driver.cuStreamCreate(codes.CUstream_flags.CU_STREAM_NON_BLOCKING.value)
        try:
            driver.cuStreamBeginCapture(
                stream, codes.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
            )
            try:
                work(int(stream))
            finally:
                graph = driver.cuStreamEndCapture(stream)
            try:
                executable = driver.cuGraphInstantiate(graph, 0)
                return Graph(executable, where, int(driver.cuCtxGetCurrent()), numba)
            finally:
                driver.cuGraphDestroy(graph)
        finally:
            driver.cuStreamDestroy(stream)
