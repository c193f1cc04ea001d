"""Between the kernels of a repeated call on a GPU: the memory in which they leave partial results.

It is allocated once for each stream, on which one call runs after the other.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from itertools import accumulate
from typing import Any

from spcomp.ir.analysis.sizes import evaluate
from spcomp.ir.module import HostAlloc
from spcomp.runtime.cuda import memory
from spcomp.runtime.cuda.streams import is_recorded

LINE = 256  # bytes: each buffer begins at a multiple, as those of the driver do
MOST_BYTES = 64 << 20  # that a call may keep on a stream: larger ones take longer than to allocate
MOST_STREAMS = 8  # that have memory of their own
PER_THREAD = 2  # the handle of a stream that is another one in each thread


class Temporaries:
    """The memory of the buffers *allocs* on *device*, whose sizes are those for *values*.

    Whoever starts kernels that use it holds *lock* until all of a call have started.
    """

    def __init__(self, allocs: Iterable[HostAlloc], values: Mapping[str, Any], device: int) -> None:
        self.allocs, self.device, self.lock = tuple(allocs), device, threading.Lock()
        buffers = [op.buffer for op in self.allocs]
        counts = (max(0, int(evaluate(b.shape[0], values))) for b in buffers)
        self.sizes = [n * b.dtype.itemsize for n, b in zip(counts, buffers, strict=True)]
        rooms = (-(-size // LINE) * LINE for size in self.sizes)
        *self.offsets, self.total = accumulate(rooms, initial=0)
        self._arrays: dict[tuple[int, int], tuple[Any, tuple[int, ...]]] = {}

    def on(self, stream: int) -> tuple[int, ...] | None:
        """Return where the buffers begin for a call on *stream*.

        None if another call should allocate them: a graph that is recorded there may run later at
        the same time as anything else, and keeps what it uses.
        """
        if is_recorded(stream):
            return None
        key = stream, threading.get_ident() if stream == PER_THREAD else 0
        if (found := self._arrays.get(key)) is not None:
            return found[1]
        if len(self._arrays) == MOST_STREAMS:
            return None
        array = memory.allocate((max(1, self.total),), "uint8", self.device)
        begin = int(array.__cuda_array_interface__["data"][0])
        return self._arrays.setdefault(key, (array, tuple(begin + at for at in self.offsets)))[1]

    def clear(self, begins: Iterable[int], stream: int) -> None:
        """Let the buffers at *begins* hold zeros where the program asks for it."""
        for op, begin, size in zip(self.allocs, begins, self.sizes, strict=True):
            if op.fill is not None:
                memory.clear(begin, size, self.device, stream)


def temporaries_of(
    host: Iterable[Any], values: Mapping[str, Any], device: int
) -> Temporaries | None:
    """Return the memory that the host program *host* allocates; None if no call should keep it.

    Its sizes are those for *values*, of all calls.
    """
    allocs = [op for op in host if isinstance(op, HostAlloc)]
    if any(op.fill for op in allocs):
        return None
    found = Temporaries(allocs, values, device)
    return found if found.total <= MOST_BYTES else None
