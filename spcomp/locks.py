"""Below everything: locks that are free in the child of a fork, where their owner may be gone.

The data that they guard are replaced as a whole or by one operation of Python, so a child finds
them before or after a change and can begin with a new lock. Where that is not so, as in a foreign
library, no process may fork in the middle: ``hold_while_forking``.
"""

from __future__ import annotations

import ast
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
ROOM = 256  # references to locks, dead ones too, beside twice those that were alive
PATIENCE = 0.05  # seconds between looks of the main thread for signals that other threads got


class Lock(RLock):  # type: ignore[misc]  # final to mypy only
    """A reentrant lock for use in a ``with``; it is free in the child of a fork.

    The ``with`` takes and frees it in C. With a Python function in between, a signal whose handler
    raises could arrive after the lock is taken and before the ``with`` knows of it.
    """

    __slots__ = ()

    def __init__(self) -> None:
        global _room
        _locks.add(weakref.ref(self))  # without a callback: what a signal raises there is lost
        if len(_locks) > _room:
            for lock in [lock for lock in list(_locks) if lock() is None]:
                _locks.discard(lock)
            _room = 2 * len(_locks) + ROOM


def syntax_tree(text: str, mode: str = "exec") -> Any:
    """Return Python's syntax tree of *text*; raises SyntaxError and what ``ast.parse`` raises.

    CPython 3.11 counts the depth of the trees that all threads make in one place, and raises
    SystemError where two make one at once (issue 106905): one thread parses at a time.
    """
    with _parsing:
        return ast.parse(text, mode=mode)


class cached_property(functools.cached_property[T]):  # noqa: N801 (it is used as a decorator)
    """``functools.cached_property``, whose lock (before Python 3.12) is renewed after a fork."""

    def __init__(self, func: Callable[[Any], T]) -> None:
        super().__init__(func)
        if hasattr(self, "lock"):
            _properties.append(self)


def shield_from_signals(work: Callable[P, T]) -> Callable[P, T]:
    """Return *work*, of a foreign library, such that no signal handler raises in the middle of it.

    Handlers run on the main thread. Called there, *work* runs on another thread while the main
    thread waits. If a handler raises meanwhile, the wait ends, and the result of *work* is dropped.
    """

    @functools.wraps(work)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        if _exiting or threading.get_ident() != threading.main_thread().ident:
            return work(*args, **kwargs)
        outcome: list[T] = []
        errors: list[BaseException] = []
        finished = threading.Lock()  # in C, for the reason in Lock
        finished.acquire()

        def aside(_: object) -> None:
            try:
                _running.add(finished)
                if not _exiting:
                    outcome.append(work(*args, **kwargs))
            except BaseException as error:
                errors.append(error)
            finally:
                _running.discard(finished)
                finished.release()

        token: set[object] = set()
        alive = weakref.ref(token)
        try:
            start_new_thread(aside, (token,))
        except RuntimeError:  # there are too many threads
            return work(*args, **kwargs)
        del token  # now only the thread keeps it alive
        while not finished.acquire(timeout=PATIENCE) and alive() is not None:
            pass
        if errors:
            raise errors.pop()
        if not outcome:
            raise MemoryError("no memory for a thread")  # it ended before it began
        return outcome.pop()

    return run


def _finish() -> None:
    """Wait for dropped work: the process must not exit while a foreign library runs."""
    global _exiting
    _exiting = True
    for lock in list(_running):
        lock.acquire()


class _Holdable(Protocol):
    def acquire(self) -> object: ...

    def release(self) -> object: ...


_locks: set[weakref.ref[Lock]] = set()
_room = ROOM  # references from which on dead ones are looked for
_parsing = Lock()
_properties: list[Any] = []
_running: set[threading.Lock] = set()  # a lock for each work in progress, free at its end
_exiting = False  # whether the process is exiting
atexit.register(_finish)


def hold_while_forking(lock: _Holdable) -> None:
    """Delay forks while another thread holds the reentrant *lock*."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(
            before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release
        )


def _renew() -> None:
    for lock in filter(None, [lock() for lock in list(_locks)]):
        lock._at_fork_reinit()  # type: ignore[attr-defined]  # noqa: SLF001
    for each in _properties:
        each.lock = threading.RLock()
    _running.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)
