"""Below everything: locks that serve the child of a fork, in which the thread that had one is gone.

What is guarded here is replaced as a whole or by one operation of Python, so that a child finds it
before or after a change and can begin with a new lock. Where that is not so, as in a foreign
library, nobody may fork in the middle: ``hold_while_forking``.
"""

from __future__ import annotations

import functools
import os
import threading
import weakref
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Lock:
    """A reentrant lock, to be held in a ``with``; it is free in the child of a fork."""

    __slots__ = ("__weakref__", "_lock")

    def __init__(self) -> None:
        self._renew()
        _locks.add(self)

    def _renew(self) -> None:
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


class cached_property(functools.cached_property[T]):  # noqa: N801 (it is used as a decorator)
    """``functools.cached_property``, which has a lock for all objects before Python 3.12."""

    def __init__(self, func: Callable[[Any], T]) -> None:
        super().__init__(func)
        if hasattr(self, "lock"):
            _properties.append(self)


class _Holdable(Protocol):
    def acquire(self) -> object: ...

    def release(self) -> object: ...


_locks: weakref.WeakSet[Lock] = weakref.WeakSet()
_properties: list[Any] = []


def hold_while_forking(lock: _Holdable) -> None:
    """Let no process fork while another thread holds the reentrant *lock*."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(
            before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release
        )


def _renew() -> None:
    for lock in list(_locks):
        lock._renew()  # noqa: SLF001
    for each in _properties:
        each.lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)
