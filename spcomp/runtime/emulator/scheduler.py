"""Beside the kernels: the emulator's machine code that runs blocks and threads, see ``language``.

A thread runs until it waits for others or is done. The blocks run one after the other.
"""

from __future__ import annotations

from spcomp.runtime.emulator.collectives import collective, give
from spcomp.runtime.emulator.language import Pointer, call, fill
from spcomp.runtime.emulator.layout import (
    ACCESSES,
    ACTIVEMASK,
    ALIGNED,
    ALL_GROUPS,
    ARENA,
    ARENA_BYTES,
    ARGS,
    BARRIER,
    BLOCK,
    BLOCKS,
    CHECK,
    CLOCK,
    COUNT,
    CTAID,
    DIVERGENT,
    DONE,
    ERA,
    ERAS,
    FAULT,
    FAULT_OTHER,
    FAULT_OTHER_SITE,
    FAULT_SITE,
    FIRST_ERA,
    FRAME,
    FRESH,
    IN_FLIGHT,
    KIND,
    KNOWN,
    LANE,
    MASK,
    NCTAID,
    NOW,
    ORDER,
    OUTSIDE_MASK,
    PARTIAL_WARP,
    POISON,
    QUEUE_BYTES,
    QUEUES,
    READY,
    RESUME,
    SITE,
    START,
    STATUS,
    SYNCED,
    THREAD_BYTES,
    THREADS,
    TOO_MANY_ERAS,
    WAITING,
)
from spcomp.runtime.emulator.memory import fail, finish_copies, has


def run(launch: Pointer, first: int, end: int) -> int:
    """Run the blocks *first* to *end* of the order; return whether something is wrong."""
    for k in range(first, end):
        enter_block(launch, k)
        run_block(launch)
        if launch.i64[FAULT] != 0:
            return 1
    return 0


def enter_block(launch: Pointer, k: int) -> int:
    """Prepare the *k*-th block: its index, poisoned shared memory, and fresh threads."""
    block = launch.ptr[BLOCKS].i64[k]
    launch.i64[BLOCK] = block
    launch.i32[CTAID] = block % launch.i32[NCTAID]
    block = block // launch.i32[NCTAID]
    launch.i32[CTAID + 1] = block % launch.i32[NCTAID + 1]
    launch.i32[CTAID + 2] = block // launch.i32[NCTAID + 1]
    next_era(launch)
    launch.i64[FIRST_ERA] = launch.i64[ERA]
    launch.ptr[ERAS].u32[k] = launch.i64[ERA]
    arena = launch.ptr[ARENA]
    for word in range((launch.i64[ARENA_BYTES] + 3) // 4):
        arena.u32[word] = POISON
    for t in range(launch.i64[COUNT]):
        thread = launch.ptr[THREADS] + t * THREAD_BYTES
        thread.i32[STATUS] = FRESH
        launch.ptr[QUEUES].i64[t * (QUEUE_BYTES // 8)] = 0
        launch.ptr[QUEUES].i64[t * (QUEUE_BYTES // 8) + 1] = 0
    return 0


def next_era(launch: Pointer) -> int:
    """Order what follows after everything that the block did: nothing else is known of clocks."""
    launch.i64[ERA] += 1
    if launch.i64[ERA] >= IN_FLIGHT and launch.i64[CHECK] != 0:
        launch.i64[ERA] = 1
        fail(launch, TOO_MANY_ERAS, 0, 0, 0)
    if launch.i64[SYNCED] != 0 or launch.i64[ERA] == 1:
        launch.i64[SYNCED] = 0
        for t in range(launch.i64[COUNT]):
            thread = launch.ptr[THREADS] + t * THREAD_BYTES
            thread.i64[CLOCK] = 1
            fill(thread + KNOWN, 0, 128)
    return 0


def run_block(launch: Pointer) -> int:
    """Run the threads of the block until all are done or something is wrong."""
    while advance(launch) != 0:
        progress = 0
        for first in range((launch.i64[COUNT] + 31) // 32):
            progress |= meet(launch, first * 32, 0)
        if launch.i64[FAULT] != 0:
            return 0
        if progress == 0 and release(launch) == 0:
            for first in range((launch.i64[COUNT] + 31) // 32):
                progress |= meet(launch, first * 32, 1)
            if progress == 0:
                divergent(launch)
                return 0
    return 0


def advance(launch: Pointer) -> int:
    """Run each thread that can run until it waits; return how many threads wait."""
    waiting = 0
    for k in range(launch.i64[COUNT]):
        thread = launch.ptr[THREADS] + launch.ptr[ORDER].i64[k] * THREAD_BYTES
        status = thread.i32[STATUS]
        if status in (READY, FRESH):
            launch.ptr[NOW] = thread
            launch.i64[ACCESSES] = 0
            thread.i32[STATUS] = READY
            if status == FRESH:
                call(launch.ptr[START], launch.ptr[ARGS], thread.ptr[FRAME])
            else:
                call(launch.ptr[RESUME], thread.ptr[FRAME], thread.ptr[FRAME])
            if launch.i64[FAULT] != 0:
                return 0
            if thread.i32[STATUS] == READY:
                thread.i32[STATUS] = DONE
                if finish_copies(launch, thread, ALL_GROUPS) == 0:
                    return 0
        if thread.i32[STATUS] == WAITING:
            waiting += 1
    return waiting


def meet(launch: Pointer, first: int, active: int) -> int:
    """Do what the lanes of the warp of thread *first* wait at where all are there.

    With *active*, instead: answer those that ask which lanes are active. Return whether a lane
    goes on.
    """
    warp = launch.ptr[THREADS] + first * THREAD_BYTES
    lanes = launch.i64[COUNT] - first
    lanes = lanes if lanes < 32 else 32
    live, asking = 0, 0
    for lane in range(lanes):
        thread = warp + lane * THREAD_BYTES
        live |= (thread.i32[STATUS] != DONE) << lane
        asks = thread.i32[KIND] == ACTIVEMASK if active else thread.i32[KIND] > ACTIVEMASK
        asking |= (thread.i32[STATUS] == WAITING and asks) << lane
    progress = 0
    for lane in range(lanes):
        if has(asking, lane):
            group = members(warp, warp + lane * THREAD_BYTES, live, asking)
            if possible(launch, warp + lane * THREAD_BYTES, group) == 0:
                return 0
            if group & asking == group and agree(warp, warp + lane * THREAD_BYTES, group):
                go_on(launch, warp, warp + lane * THREAD_BYTES, group)
                asking &= ~group
                progress = 1
    return progress


def go_on(launch: Pointer, warp: Pointer, thread: Pointer, group: int) -> int:
    """Do what the lanes *group* wait at, and let them go on."""
    if thread.i32[KIND] == ACTIVEMASK:
        give(warp, group, group)
    else:
        collective(launch, warp, thread.i32[KIND], group)
    for lane in range(32):
        if has(group, lane):
            (warp + lane * THREAD_BYTES).i32[STATUS] = READY
    return 0


def possible(launch: Pointer, thread: Pointer, group: int) -> int:
    """Return whether *thread* may wait for the lanes *group*."""
    launch.ptr[NOW] = thread
    if has(group, thread.i32[LANE]) == 0:
        return fail(launch, OUTSIDE_MASK, thread.i32[SITE], 0, 0)
    if thread.i32[KIND] >= ALIGNED and group != (1 << 32) - 1:
        return fail(launch, PARTIAL_WARP, thread.i32[SITE], 0, 0)
    return 1


def members(warp: Pointer, thread: Pointer, live: int, asking: int) -> int:
    """Return the lanes that *thread* waits for."""
    if thread.i32[KIND] == ACTIVEMASK:
        group = 0
        for lane in range(32):
            same = (warp + lane * THREAD_BYTES).i32[SITE] == thread.i32[SITE]
            group |= (has(asking, lane) and same) << lane
        return group
    return live if thread.i32[KIND] >= ALIGNED else thread.u32[MASK] & live


def agree(warp: Pointer, thread: Pointer, group: int) -> int:
    """Return whether the lanes *group*, which all wait, wait at the same as *thread*."""
    for lane in range(32):
        if has(group, lane):
            other = warp + lane * THREAD_BYTES
            if other.i32[KIND] != thread.i32[KIND]:
                return 0
            if thread.i32[KIND] >= ALIGNED or thread.i32[KIND] == ACTIVEMASK:
                if other.i32[SITE] != thread.i32[SITE]:
                    return 0
            elif other.u32[MASK] != thread.u32[MASK]:
                return 0
    return 1


def release(launch: Pointer) -> int:
    """Return whether all threads that are not done wait at one barrier, and let them go on."""
    site = -1
    for t in range(launch.i64[COUNT]):
        thread = launch.ptr[THREADS] + t * THREAD_BYTES
        if thread.i32[STATUS] == WAITING:
            if thread.i32[KIND] != BARRIER or (site != -1 and thread.i32[SITE] != site):
                return 0
            site = thread.i32[SITE]
    for t in range(launch.i64[COUNT]):
        thread = launch.ptr[THREADS] + t * THREAD_BYTES
        if thread.i32[STATUS] == WAITING:
            thread.i32[STATUS] = READY
    next_era(launch)
    return 1


def divergent(launch: Pointer) -> int:
    """Report that threads wait for each other: one, and the next that waits elsewhere."""
    found = 0
    for t in range(launch.i64[COUNT]):
        thread = launch.ptr[THREADS] + t * THREAD_BYTES
        if thread.i32[STATUS] == WAITING:
            if found == 0:
                found = 1
                launch.ptr[NOW] = thread
                fail(launch, DIVERGENT, thread.i32[SITE], 0, 0)
                launch.i64[FAULT_OTHER_SITE] = thread.i32[SITE]
            elif thread.i32[SITE] != launch.i64[FAULT_SITE]:
                launch.i64[FAULT_OTHER] = t
                launch.i64[FAULT_OTHER_SITE] = thread.i32[SITE]
                return 0
    return 0
