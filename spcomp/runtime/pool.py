"""The worker pool: the number of threads of a parallel loop, and the machine code that runs it.

threadpoolctl does not see the pool, since it finds pools by the file names of shared libraries, and
this one has no file. Use ``num_threads`` to limit it.
"""

from __future__ import annotations

import ctypes
import math
import operator
import os
import platform
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from spcomp.arrays import Array
from spcomp.codegen.abi import PARALLEL_FOR, PAUSE
from spcomp.errors import ArgumentError
from spcomp.locks import Lock
from spcomp.runtime.native import load as native
from spcomp.runtime.native.pool_ir import SPIN, pool_ir
from spcomp.runtime.native.pool_log import FIELDS
from spcomp.target import Target

MAX_THREADS = 1024
LOG_ROOM = 1 << 16  # events of a log
_FAMILY = {"amd64": "x86_64", "arm64": "aarch64"}
POOL_IR = pool_ir(
    _FAMILY.get(platform.machine().lower(), platform.machine().lower()), sys.platform
)  # for this machine; see object_with_pool for others

_lock = Lock()
_log_lock = Lock()  # there is one log at a time
_threads: int | None = None  # outside of all num_threads; None: not asked for yet
_active: list[_Limit] = []  # of num_threads that have not ended, the newest last


def get_num_threads() -> int:
    """Return how many threads, the caller's included, work on a parallel loop.

    The default is the least of SPCOMP_NUM_THREADS (or OMP_NUM_THREADS), the CPUs that this process
    may run on, and its cgroup's quota. Raises ArgumentError for a variable that is not a positive
    number.
    """
    global _threads
    with _lock:
        if _active:
            return _active[-1].count
        if _threads is None:
            _threads = default_num_threads()
        return _threads


def set_num_threads(n: int) -> None:
    """Use *n* threads for parallel loops of the whole process; results do not depend on it.

    In a ``with`` of :func:`num_threads`, until it ends. Raises ArgumentError unless *n* is an
    integer in 1..1024.
    """
    count = _thread_count("set_num_threads", n)

    def change() -> None:
        global _threads
        if _active:
            _active[-1].count = count
        else:
            _threads = count

    _change(change)


@contextmanager
def num_threads(n: int) -> Iterator[None]:
    """Use *n* threads for parallel loops of the whole process until the ``with`` ends.

    If several threads of Python do that at once, the number is that of the newest ``with``.
    """
    limit = _Limit(_thread_count("set_num_threads", n))
    _change(lambda: _active.append(limit))
    try:
        yield
    finally:
        _change(lambda: _active.remove(limit))


@dataclass(slots=True, eq=False)
class _Limit:
    """The *count* of threads in a ``with`` of ``num_threads``."""

    count: int


def _change(change: Callable[[], object]) -> None:
    """Run *change*, and tell the pool if there are other threads then."""
    with _lock:
        before = get_num_threads()
        change()
        if get_num_threads() != before and _native.cache_info().currsize:
            _apply(get_num_threads())


def addresses() -> dict[str, int]:
    """Return the addresses of PARALLEL_FOR and PAUSE; the first call creates the pool."""
    with _lock:
        if not _native.cache_info().currsize:
            count = get_num_threads()
            _native()
            _apply(count)
        return {name: _native()[name] for name in (PARALLEL_FOR, PAUSE)}


def object_with_pool(llvm_ir: str, target: Target) -> bytes:
    """Return an object of *llvm_ir* with a pool of its own; it needs libc, libm and pthreads.

    ``void spcomp_set_threads(int64_t)`` sets the number of its threads.
    """
    from spcomp.codegen import cpu
    from spcomp.codegen.cpu.machine import family

    pool = pool_ir(family(target), sys.platform)
    return cpu.object_code(cpu.link(llvm_ir, [pool]), target)


def watch(poll: int) -> None:
    """Make loops on Python's main thread ask the C function ``int poll(void)`` whether to stop."""

    def ask() -> None:
        main = threading.main_thread().ident or 0
        kinds = (ctypes.c_void_p, ctypes.c_uint64)
        ctypes.CFUNCTYPE(None, *kinds)(_native()["spcomp_watch"])(poll, main)

    ask()
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=ask)


@dataclass(frozen=True, slots=True)
class Chunks:
    """Iterations *begin* to *end* of a parallel loop, which one thread ran at once.

    *thread* is what ``threading.get_ident`` returns there, *loop* the address of the loop's code.
    *start* and *stop* are times in seconds.
    """

    thread: int
    loop: int
    begin: int
    end: int
    start: float
    stop: float


@contextmanager
def log() -> Iterator[list[Chunks]]:
    """Give a list that has, after the ``with``, what parallel loops of the process ran meanwhile.

    It is in the order of time, and ends where it is full. A loop inside of a chunk belongs to that.
    Without pthreads, nothing is recorded.
    """
    addresses()
    events: list[Chunks] = []
    with _log_lock:
        memory = _log_memory()
        memory[:2] = LOG_ROOM, 0
        set_log = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(_native()["spcomp_log"])
        set_log(memory.ctypes.data)
        try:
            yield events
        finally:
            set_log(None)
            rows = memory[2:].reshape(LOG_ROOM, -1)[: memory[1]].tolist()
            found = [
                Chunks(thread, loop, begin, end, 1e-9 * start, 1e-9 * stop)
                for thread, loop, begin, end, start, stop in rows
            ]
            events += _outermost(sorted(found, key=lambda chunks: (chunks.start, -chunks.stop)))


def _outermost(events: list[Chunks]) -> Iterator[Chunks]:
    """Yield those of *events*, in order, that no other of the same thread encloses."""
    ends: dict[int, float] = {}
    for chunks in events:
        if chunks.stop > ends.get(chunks.thread, 0.0):
            ends[chunks.thread] = chunks.stop
            yield chunks


def busy_share(events: Sequence[Chunks], threads: int) -> float | None:
    """Return the share of the time of *threads*, from first to last, that *events* took.

    None if there are no events.
    """
    if not events:
        return None
    span = max(chunks.stop for chunks in events) - events[0].start
    worked = sum(chunks.stop - chunks.start for chunks in events)
    return min(1.0, worked / (threads * span)) if span > 0 else 1.0


@cache
def _log_memory() -> Array:
    """Return the memory of all logs; it is never freed, as a late loop may still write to it."""
    return np.zeros(2 + LOG_ROOM * len(FIELDS), np.int64)


@cache
def _native() -> dict[str, int]:
    names = ("set_threads", "set_spin", "reset", "watch", "log")
    addresses = dict(
        native.load([POOL_IR], [PARALLEL_FOR, PAUSE, *(f"spcomp_{name}" for name in names)])
    )
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=ctypes.CFUNCTYPE(None)(addresses["spcomp_reset"]))
    return addresses


def _apply(count: int) -> None:
    crowded = count > _affinity()  # a spinning thread would keep another from working
    _setter("spcomp_set_spin")(0 if crowded else SPIN)
    _setter("spcomp_set_threads")(count)


@cache
def _setter(name: str) -> Callable[[int], None]:
    return ctypes.CFUNCTYPE(None, ctypes.c_int64)(_native()[name])


def default_num_threads() -> int:
    """Return how many threads the environment and the machine allow."""
    limits = [_affinity()]
    for variable in ("SPCOMP_NUM_THREADS", "OMP_NUM_THREADS"):
        if text := os.environ.get(variable, "").split(",")[0].strip():
            limits.append(_thread_count(variable, text))
            break
    if (quota := cgroup_quota()) is not None:
        limits.append(max(1, math.ceil(quota)))
    return min(limits)


def _thread_count(where: str, value: object) -> int:
    try:
        count = int(value) if isinstance(value, str) else operator.index(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        count = 0
    if isinstance(value, bool) or not 1 <= count <= MAX_THREADS:
        raise ArgumentError(
            f"{where}: the number of threads must be an integer from 1 to {MAX_THREADS},"
            f" got {value!r}"
        )
    return count


def _affinity() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cgroup_quota(root: Path = Path("/")) -> float | None:
    """Return how many CPUs' time the process's cgroups grant, or None for no limit."""
    limits: list[float] = []
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if not controllers:
            limits += _limits(root / "sys/fs/cgroup", path, _limit_v2)
        elif "cpu" in controllers.split(","):
            limits += _limits(root / "sys/fs/cgroup/cpu", path, _limit_v1)
    return min(limits, default=None)


def _limits(mount: Path, path: str, limit: Callable[[Path], float | None]) -> list[float]:
    """Return the limits of the group at *path* and all above it."""
    inner = Path(path.lstrip("/"))
    limits = (limit(mount / group) for group in (inner, *inner.parents))
    return [quota for quota in limits if quota is not None]


def _limit_v2(group: Path) -> float | None:
    return _ratio(" ".join(_lines(group / "cpu.max")).split())


def _limit_v1(group: Path) -> float | None:
    names = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
    return _ratio([" ".join(_lines(group / name)) for name in names])


def _ratio(words: list[str]) -> float | None:
    if len(words) != 2 or not all(word.isdigit() and int(word) > 0 for word in words):
        return None  # "max", -1 or no such file: no limit
    return int(words[0]) / int(words[1])


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
