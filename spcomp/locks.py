"""Below everything: locks that serve the child of a fork, in which the thread that had one is gone.

What is guarded here is replaced as a whole or by one operation of Python, so that a child finds it
before or after a change and can begin with a new lock. Where that is not so, as in a foreign
library, nobody may fork in the middle: ``hold_while_forking``.
"""

from __future__ import annotations

import atexit
import functools
import os
import threading
import weakref
from _thread import RLock, start_new_thread
from collections.abc import Callable
from typing import Any, ParamSpec, Protocol, TypeVar

T = TypeVar("T")
P = ParamSpec("P")
PATIENCE = 0.05  # seconds after which the main thread looks for signals that other threads got


class Lock(RLock):  # type: ignore[misc]  # final to mypy only
    """A reentrant lock, to be held in a ``with``; it is free in the child of a fork.

    A ``with`` takes and frees it in C, as it stands: were there a function of Python's between, a
    signal whose handler raises could come after the lock is taken and before the ``with`` knows.
    """

    __slots__ = ()

    def __init__(self) -> None:
        _locks.add(self)


class cached_property(functools.cached_property[T]):  # noqa: N801 (it is used as a decorator)
    """``functools.cached_property``, which has a lock for all objects before Python 3.12."""

    def __init__(self, func: Callable[[Any], T]) -> None:
        super().__init__(func)
        if hasattr(self, "lock"):
            _properties.append(self)


def beside_signals(work: Callable[P, T]) -> Callable[P, T]:
    """Decorate *work*, in a foreign library, so that no signal's handler raises amid it.

    Handlers run on the main thread; there *work* runs on a thread of its own, which is waited for.
    If a handler raises meanwhile, the wait is over, and what *work* returns is dropped.
    """

    @functools.wraps(work)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        if _over or threading.get_ident() != threading.main_thread().ident:
            return work(*args, **kwargs)
        outcome: list[T] = []
        errors: list[BaseException] = []
        done = threading.Lock()  # in C, for the reason that Lock gives
        done.acquire()

        def aside(_: object) -> None:
            try:
                _running.add(done)
                if not _over:
                    outcome.append(work(*args, **kwargs))
            except BaseException as error:
                errors.append(error)
            finally:
                _running.discard(done)
                done.release()

        given: set[object] = set()
        alive = weakref.ref(given)
        try:
            start_new_thread(aside, (given,))
        except RuntimeError:  # there are too many threads
            return work(*args, **kwargs)
        del given  # now the thread's alone, as long as it lives
        while not done.acquire(timeout=PATIENCE) and alive() is not None:
            pass
        if errors:
            raise errors.pop()
        if not outcome:
            raise MemoryError("no memory for a thread")  # it ended before it began
        return outcome.pop()

    return run


def _finish() -> None:
    """Let what was dropped come to its end: the process must not end under a foreign library."""
    global _over
    _over = True
    for done in list(_running):
        done.acquire()


class _Holdable(Protocol):
    def acquire(self) -> object: ...

    def release(self) -> object: ...


_locks: weakref.WeakSet[Lock] = weakref.WeakSet()
_properties: list[Any] = []
_running: set[threading.Lock] = set()  # of what runs beside the main thread, free at its end
_over = False  # the process ends
atexit.register(_finish)


def hold_while_forking(lock: _Holdable) -> None:
    """Let no process fork while another thread holds the reentrant *lock*."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(
            before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release
        )


def _renew() -> None:
    for lock in list(_locks):
        lock._at_fork_reinit()  # type: ignore[attr-defined]  # noqa: SLF001
    for each in _properties:
        each.lock = threading.RLock()
    _running.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)
