"""Beside the kernels: the emulator's machine code that watches memory, see ``language``.

Every access leaves a stamp in the cells of its bytes. Two accesses of one block are ordered if a
barrier of the block is between them (their eras differ) or, within a warp, if the later thread
knows the clock of the earlier one, as after a warp synchronisation of both. Accesses of different
blocks are never ordered. Of the readers since the last write two are kept, of different warps if
there are such: whoever writes next then races with one of them if it races with any, unless parts
of a warp are synchronised by different masks. The method is that of FastTrack (Flanagan and
Freund, PLDI 2009), with eras in place of the clocks of a barrier.
"""

from __future__ import annotations

from spcomp.runtime.emulator.language import Pointer, address, copy, fill, pointer
from spcomp.runtime.emulator.layout import (
    ACCESS,
    ACCESSES,
    ALIGN,
    ALL_GROUPS,
    ATOMIC,
    ATOMICS,
    BASE,
    BLOCK,
    BLOCK_SCOPE,
    CELL_BYTES,
    CELLS,
    CHECK,
    CLOCK,
    CLOCK_AT,
    COPIES,
    COPY_FROM,
    COPY_GROUP,
    COPY_SITE,
    COPY_SIZE,
    COPY_TAKEN,
    COPY_TO,
    COPY_WORDS,
    ENDLESS,
    ERA,
    ERA_AT,
    FAULT,
    FAULT_ADDRESS,
    FAULT_BLOCK,
    FAULT_OTHER,
    FAULT_SITE,
    FAULT_SIZE,
    FAULT_STAMP,
    FAULT_THREAD,
    FIRST_COPY,
    FIRST_ERA,
    FLAGS,
    GENERIC,
    HIGH,
    IN_FLIGHT,
    IN_SHARED,
    INDEX,
    KNOWN,
    LOW,
    MISALIGNED,
    MOST_ACCESSES,
    MOST_CLOCKS,
    MOST_SITES,
    MOST_THREADS,
    NOW,
    ORIGIN,
    OUT_OF_BOUNDS,
    QUEUE_BYTES,
    QUEUE_LENGTH,
    QUEUE_OPEN,
    QUEUES,
    RACE,
    RANGE_COUNT,
    RANGE_WORDS,
    RANGES,
    READ,
    READ_ONLY,
    READ_ONLY_WRITTEN,
    READERS,
    SCOPE,
    SHARED,
    SHIFT,
    SITE_WORDS,
    SITES,
    SPACE,
    SYNCED,
    THREAD_AT,
    THREAD_BYTES,
    TOO_MANY_CLOCKS,
    WRITTEN,
)


def has(group: int, lane: int) -> int:
    """Return whether *lane* is one of the lanes *group*."""
    return (group >> lane) & 1


def fail(launch: Pointer, fault: int, site: int, where: int, size: int) -> int:
    """Note what is wrong, unless something was before; return 0."""
    if launch.i64[FAULT] == 0:
        launch.i64[FAULT] = fault
        launch.i64[FAULT_SITE] = site
        launch.i64[FAULT_ADDRESS] = where
        launch.i64[FAULT_SIZE] = size
        launch.i64[FAULT_THREAD] = launch.ptr[NOW].i32[INDEX]
        launch.i64[FAULT_OTHER] = launch.i64[FAULT_THREAD]
        launch.i64[FAULT_BLOCK] = launch.i64[BLOCK]
    return 0


def check(launch: Pointer, where: int, size: int, site: int) -> int:
    """Return whether the thread may access *size* bytes at *where* by the instruction *site*."""
    info = launch.ptr[SITES] + site * (8 * SITE_WORDS)
    area = area_of(launch, info, where, size)
    fault = problem(launch, info, area, where, size)
    if fault != 0:
        return fail(launch, fault, site, where, size)
    if size == 0 or address(area) == 0:
        return 1
    shared = area.i64[FLAGS] & IN_SHARED
    first = (where - area.i64[ORIGIN]) >> launch.i64[SHIFT]
    last = (where + size - 1 - area.i64[ORIGIN]) >> launch.i64[SHIFT]
    stamp = stamp_of(launch, site)
    for k in range(first, last + 1):
        other = touch(launch, area.ptr[CELLS] + k * CELL_BYTES, stamp, info, shared)
        if other != 0:
            launch.i64[FAULT_STAMP] = other
            return fail(launch, RACE, site, area.i64[ORIGIN] + (k << launch.i64[SHIFT]), size)
    return 1


def problem(launch: Pointer, info: Pointer, area: Pointer, where: int, size: int) -> int:
    """Return what is wrong with an access of the range *area*, races excepted, or 0."""
    launch.i64[ACCESSES] += 1
    if launch.i64[ACCESSES] > MOST_ACCESSES:
        return ENDLESS
    if size == 0:
        return 0
    if where & (info.i64[ALIGN] - 1) != 0:
        return MISALIGNED
    if address(area) == 0:  # local memory, if the pointer can point there
        return 0 if info.i64[SPACE] == GENERIC else OUT_OF_BOUNDS
    if where < area.i64[LOW] or size < 0 or size > area.i64[HIGH] - where:
        return OUT_OF_BOUNDS
    if area.i64[FLAGS] & READ_ONLY != 0 and info.i64[ACCESS] != READ:
        return READ_ONLY_WRITTEN
    return 0


def check_local(launch: Pointer, where: int, size: int, site: int, low: int, bytes_: int) -> int:
    """Return whether the thread may access *size* bytes of its variable of *bytes_* at *low*."""
    info = launch.ptr[SITES] + site * (8 * SITE_WORDS)
    if where & (info.i64[ALIGN] - 1) != 0:
        return fail(launch, MISALIGNED, site, where, size)
    if where < low or size < 0 or size > low + bytes_ - where:
        return fail(launch, OUT_OF_BOUNDS, site, where, size)
    return 1


def area_of(launch: Pointer, info: Pointer, where: int, size: int) -> Pointer:
    """Return the range that an access belongs to, or null."""
    if info.i64[BASE] >= 0:
        return launch.ptr[RANGES] + info.i64[BASE] * (8 * RANGE_WORDS)
    for k in range(launch.i64[RANGE_COUNT]):
        area = launch.ptr[RANGES] + k * (8 * RANGE_WORDS)
        if where >= area.i64[LOW] and size <= area.i64[HIGH] - where:
            if info.i64[SPACE] == GENERIC:
                return area
            if (info.i64[SPACE] == SHARED) == (area.i64[FLAGS] & IN_SHARED != 0):
                return area
    return pointer(0)


def stamp_of(launch: Pointer, site: int) -> int:
    """Return the stamp of an access by the thread that runs."""
    thread = launch.ptr[NOW]
    when = (launch.i64[ERA] << ERA_AT) | (thread.i64[CLOCK] << CLOCK_AT)
    return when | (thread.i32[INDEX] << THREAD_AT) | site


def unordered(launch: Pointer, stamp: int, shared: int) -> int:
    """Return whether nothing orders the access *stamp* before the thread that runs."""
    if stamp == 0:
        return 0
    era = stamp >> ERA_AT
    if era == IN_FLIGHT:
        return 1
    if era < launch.i64[FIRST_ERA]:
        return 1 if shared == 0 else 0
    if era < launch.i64[ERA]:
        return 0
    thread = launch.ptr[NOW]
    other = (stamp >> THREAD_AT) & (MOST_THREADS - 1)
    if other == thread.i32[INDEX]:
        return 0
    if other >> 5 != thread.i32[INDEX] >> 5:
        return 1
    clock = (stamp >> CLOCK_AT) & (MOST_CLOCKS - 1)
    return 1 if clock > (thread + KNOWN).u32[other & 31] else 0


def touch(launch: Pointer, cell: Pointer, stamp: int, info: Pointer, shared: int) -> int:
    """Record the access *stamp* in *cell*; return the stamp that it races with, or 0."""
    kind = info.i64[ACCESS]
    if unordered(launch, cell.i64[WRITTEN], shared) != 0:
        return cell.i64[WRITTEN]
    for k in range(3):
        if kind != READ and unordered(launch, cell.i64[READERS + k], shared) != 0:
            return cell.i64[READERS + k]
        other = cell.i64[ATOMICS + k]
        alone = kind != ATOMIC or narrow(launch, info, other) != 0
        if alone and unordered(launch, other, shared) != 0:
            return other
    if kind == READ:
        remember(launch, cell + 8 * READERS, stamp, shared)
    elif kind == ATOMIC:
        remember(launch, cell + 8 * ATOMICS, stamp, shared)
    else:
        fill(cell, 0, CELL_BYTES)
        cell.i64[WRITTEN] = stamp
    return 0


def narrow(launch: Pointer, info: Pointer, other: int) -> int:
    """Return whether two atomic accesses are of two blocks, and one is atomic in its block only."""
    if other == 0 or other >> ERA_AT >= launch.i64[FIRST_ERA]:
        return 0
    site = launch.ptr[SITES] + (other & (MOST_SITES - 1)) * (8 * SITE_WORDS)
    return 1 if info.i64[SCOPE] == BLOCK_SCOPE or site.i64[SCOPE] == BLOCK_SCOPE else 0


def remember(launch: Pointer, three: Pointer, stamp: int, shared: int) -> int:
    """Put *stamp* among the two of this block and the one of an earlier block."""
    if three.i64[0] != 0 and three.i64[0] >> ERA_AT < launch.i64[FIRST_ERA]:
        if shared == 0:
            three.i64[2] = three.i64[0]
        three.i64[0] = 0
        three.i64[1] = 0
    mine, one, two = warp_of(stamp), warp_of(three.i64[0]), warp_of(three.i64[1])
    if unordered(launch, three.i64[0], shared) == 0:
        three.i64[0] = stamp
    elif unordered(launch, three.i64[1], shared) == 0 or (one == two and mine != one):
        three.i64[1] = stamp
    return 0


def warp_of(stamp: int) -> int:
    """Return the warp of an access."""
    return ((stamp >> THREAD_AT) & (MOST_THREADS - 1)) >> 5


def synchronize(launch: Pointer, warp: Pointer, group: int) -> int:
    """Order what the lanes *group* did before what any of them will do."""
    launch.i64[SYNCED] = 1
    for source in range(32):
        latest = latest_known(warp, group, source)
        for lane in range(32):
            if has(group, lane):
                (warp + lane * THREAD_BYTES + KNOWN).u32[source] = latest
    for lane in range(32):
        if has(group, lane):
            thread = warp + lane * THREAD_BYTES
            thread.i64[CLOCK] += 1
            if thread.i64[CLOCK] >= MOST_CLOCKS:
                fail(launch, TOO_MANY_CLOCKS, 0, 0, 0)
    return 0


def latest_known(warp: Pointer, group: int, source: int) -> int:
    """Return the latest clock of the lane *source* that one of the lanes *group* knows."""
    if has(group, source):
        return (warp + source * THREAD_BYTES).i64[CLOCK]
    latest = 0
    for lane in range(32):
        known = (warp + lane * THREAD_BYTES + KNOWN).u32[source]
        if has(group, lane) and known > latest:
            latest = known
    return latest


def copy_async(launch: Pointer, to: int, source: int, size: int, taken: int, site: int) -> int:
    """Begin to copy *taken* of *size* bytes, the rest zeros; return whether the thread may.

    The copy happens as late as it can: when the thread waits for it, or its queue is full.
    """
    if taken > size:
        return fail(launch, OUT_OF_BOUNDS, site + 1, source, taken)
    if may_copy(launch, to, source, size, taken, site) == 0:
        return 0
    queue = launch.ptr[QUEUES] + launch.ptr[NOW].i32[INDEX] * QUEUE_BYTES
    if queue.i64[QUEUE_LENGTH] == COPIES and finish_first(launch, queue) == 0:
        return 0
    entry = queue + 8 * (FIRST_COPY + queue.i64[QUEUE_LENGTH] * COPY_WORDS)
    if launch.i64[CHECK] != 0:
        when = IN_FLIGHT << ERA_AT
        mark(launch, to, size, site, stamp_of(launch, site) | when)
    entry.i64[COPY_TO] = to
    entry.i64[COPY_FROM] = source
    entry.i64[COPY_SIZE] = size
    entry.i64[COPY_TAKEN] = taken
    entry.i64[COPY_GROUP] = queue.i64[QUEUE_OPEN]
    entry.i64[COPY_SITE] = site
    queue.i64[QUEUE_LENGTH] += 1
    return 1


def may_copy(launch: Pointer, to: int, source: int, size: int, taken: int, site: int) -> int:
    """Return whether the thread may write *size* bytes and read *taken*."""
    if launch.i64[CHECK] == 0:
        return 1
    if check(launch, to, size, site) == 0:
        return 0
    return check(launch, source, taken, site + 1)


def mark(launch: Pointer, to: int, size: int, site: int, stamp: int) -> int:
    """Make *stamp* the last write of *size* bytes, which the thread may write."""
    info = launch.ptr[SITES] + site * (8 * SITE_WORDS)
    area = area_of(launch, info, to, size)
    first = (to - area.i64[ORIGIN]) >> launch.i64[SHIFT]
    for k in range(first, first + (size >> launch.i64[SHIFT])):
        (area.ptr[CELLS] + k * CELL_BYTES).i64[WRITTEN] = stamp
    return 0


def commit(launch: Pointer) -> int:
    """Put the thread's copies since the last commit into one group."""
    queue = launch.ptr[QUEUES] + launch.ptr[NOW].i32[INDEX] * QUEUE_BYTES
    queue.i64[QUEUE_OPEN] += 1
    return 1


def wait_groups(launch: Pointer, left: int) -> int:
    """Finish the thread's copies except the *left* latest groups; return whether all is well."""
    thread = launch.ptr[NOW]
    queue = launch.ptr[QUEUES] + thread.i32[INDEX] * QUEUE_BYTES
    return finish_copies(launch, thread, queue.i64[QUEUE_OPEN] - left)


def wait_all(launch: Pointer) -> int:
    """Finish all copies of the thread; return whether all is well."""
    return finish_copies(launch, launch.ptr[NOW], ALL_GROUPS)


def finish_copies(launch: Pointer, thread: Pointer, group: int) -> int:
    """Finish the thread's copies of the groups before *group*; return whether all is well."""
    queue = launch.ptr[QUEUES] + thread.i32[INDEX] * QUEUE_BYTES
    while queue.i64[QUEUE_LENGTH] > 0:
        if queue.i64[FIRST_COPY + COPY_GROUP] >= group:
            return 1
        if finish_first(launch, queue) == 0:
            return 0
    return 1


def finish_first(launch: Pointer, queue: Pointer) -> int:
    """Finish the oldest copy; return whether the thread may access its memory."""
    entry = queue + 8 * FIRST_COPY
    to, source, site = entry.i64[COPY_TO], entry.i64[COPY_FROM], entry.i64[COPY_SITE]
    size, taken = entry.i64[COPY_SIZE], entry.i64[COPY_TAKEN]
    if launch.i64[CHECK] != 0:
        mark(launch, to, size, site, 0)
    if may_copy(launch, to, source, size, taken, site) == 0:
        return 0
    copy(pointer(to), pointer(source), taken)
    fill(pointer(to + taken), 0, size - taken)
    queue.i64[QUEUE_LENGTH] -= 1
    copy(entry, entry + 8 * COPY_WORDS, queue.i64[QUEUE_LENGTH] * 8 * COPY_WORDS)
    return 1
