"""Beside launches on a GPU: the status of kernels that may fail and that nothing waits for."""

from __future__ import annotations

import threading
import warnings
import weakref
from collections.abc import Sequence
from functools import partial

from spcomp.arrays import Array
from spcomp.errors import ArgumentError, SpcompWarning
from spcomp.runtime.cuda import memory
from spcomp.runtime.cuda.driver import LEGACY, on, start

NONE = -1  # what the word of a kernel holds that has not failed


class Status:
    """A word on *device* for each kernel that may fail, and a copy of all on the host.

    A kernel that fails leaves the least number of what went wrong in its word. The copy follows
    each call on its stream, without waiting, also in a graph. *names* are those of the kernels.
    """

    def __init__(self, names: Sequence[str], device: int, stream: int) -> None:
        self.names, self.device = tuple(names), device
        self._words = memory.allocate((len(names),), "int32", device)
        self._copy = memory.pinned((len(names),), "int32", device)
        self._lock, self._none = threading.Lock(), b"\xff" * self._copy.nbytes
        what, places = "the status of kernels", (self._copy.ctypes.data, self.word(0))
        with on(device, what) as numba:
            context, call = int(numba.driver.cuCtxGetCurrent()), numba.driver.cuMemcpyDtoHAsync
            args = numba, context, device, what, call, *places, self._copy.nbytes
            self._fetch = partial(start, *args)
        self._clear(stream)
        weakref.finalize(self, _warn, self.names, self._copy).atexit = False

    def word(self, number: int) -> int:
        """Return the pointer of the word of a kernel by its *number*."""
        return int(self._words.__cuda_array_interface__["data"][0]) + 4 * number

    def follow(self, stream: int) -> None:
        """Copy the words to the host after what *stream* was given, without waiting."""
        self._fetch(stream or LEGACY)

    @property
    def failed(self) -> bool:
        """Whether a kernel is known to have failed; nothing waits for those that still run."""
        return self._copy.tobytes() != self._none

    def take(self, stream: int) -> tuple[int, int] | None:
        """Wait for the GPU; return the first kernel that failed and its status, and forget it."""
        with self._lock:
            memory.synchronize_device(self.device)
            if not self.failed:
                return None
            number = int((self._copy != NONE).argmax())
            status = int(self._copy[number]) + 1
            self._clear(stream)
            return number, status

    def _clear(self, stream: int) -> None:
        memory.fill(self.word(0), b"\xff" * 4, len(self.names), self.device, stream)
        memory.synchronize(stream, self.device)  # before calls on other streams
        self._copy[:] = NONE


def late(error: ArgumentError) -> ArgumentError:
    """Return *error*, of an earlier call, as a later one or ``check`` raises it."""
    return type(error)(
        f"{error.message}, in an earlier call",
        hint="its results are not valid; kernel.check() after a call waits for it, and says so",
    )


def _warn(names: Sequence[str], copy: Array) -> None:
    """Say that kernels failed which nobody asked for."""
    if failed := [name for name, word in zip(names, copy, strict=True) if word != NONE]:
        text = f"calls of {', '.join(failed)} failed on the GPU: kernel.check() says why"
        warnings.warn(text, SpcompWarning, stacklevel=2)
