"""At a call on a GPU: the handle of a stream of any library, and the libraries' current streams."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any

from spcomp.errors import ArgumentError
from spcomp.runtime.cuda.driver import LEGACY, driver_function, errors, require

STREAM = "stream"  # the argument of a call with the stream to work on
CHOSEN: ContextVar[Any] = ContextVar("spcomp_stream", default=None)


@contextmanager
def chosen_stream(stream: Any) -> Iterator[None]:
    """Let calls in the ``with`` run on *stream*, of any library; None: as they do otherwise."""
    token = CHOSEN.set(CHOSEN.get() if stream is None else stream)
    try:
        yield
    finally:
        CHOSEN.reset(token)


def handle_of(stream: Any) -> int:
    """Return the handle of *stream*; None and 0 are the legacy default stream.

    It is a number, or a stream of numba.cuda, CuPy, PyTorch, cuda.core, or of another library with
    ``__cuda_stream__``. Raises ArgumentError.
    """
    if stream is None:
        return LEGACY
    handle = stream if type(stream) is int else _handle(stream)
    if type(handle) is not int or handle < 0:
        raise ArgumentError(
            f"argument stream: got {type(stream).__name__}, expected a CUDA stream",
            hint="give one of torch, cupy, numba.cuda or cuda.core, or its handle as an int",
        )
    return handle or LEGACY


def _handle(stream: Any) -> Any:
    for name in ("cuda_stream", "ptr"):  # of torch, of cupy
        if type(handle := getattr(stream, name, None)) is int:
            return handle
    protocol = getattr(stream, "__cuda_stream__", None)
    if protocol is None:
        return None
    return int((protocol() if callable(protocol) else protocol)[1])


def is_recorded(stream: int) -> bool:
    """Return whether what *stream* is given goes into a graph."""
    numba = require()
    try:
        return int(driver_function(numba, "cuStreamIsCapturing")(stream)) != 0
    except errors(numba):
        return False  # the first launch says what is wrong


def current_stream(library: str, device: int) -> int | None:
    """Return the stream of *device* that *library* works on now, None if it has no such thing."""
    if library == "torch":
        torch = sys.modules["torch"]
        raw = getattr(getattr(torch, "_C", None), "_cuda_getCurrentRawStream", None)
        if raw is not None:  # in builds for CUDA: it makes no object
            return int(raw(device)) or LEGACY
        return handle_of(torch.cuda.current_stream(device))
    if library == "cupy":
        return handle_of(sys.modules["cupy"].cuda.get_current_stream(device))
    return None


def working_on(library: str, stream: int, device: int) -> AbstractContextManager[Any]:
    """Make *stream* of *device* the current one of torch or cupy in a ``with``."""
    if current_stream(library, device) == stream:
        return nullcontext()
    cuda = sys.modules[library].cuda
    if library == "torch":
        return cuda.stream(cuda.ExternalStream(stream, device=device))  # type: ignore[no-any-return]
    return cuda.ExternalStream(stream, device)  # type: ignore[no-any-return]
