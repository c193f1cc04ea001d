"""Beside the kernels: the emulator's machine code of what lanes of a warp do together.

See ``language``. Definitions are those of the PTX ISA, section 9.7. What PTX leaves undefined, as
what a shuffle reads from a lane outside the mask, is poison: a NaN and a large integer.
"""

from __future__ import annotations

from spcomp.runtime.emulator.language import Pointer
from spcomp.runtime.emulator.layout import (
    CHECK,
    LDMATRIX,
    MATCH_ANY,
    MMA_F16,
    OPERANDS,
    POISON,
    REDUX_ADD,
    REDUX_AND,
    REDUX_MAX,
    REDUX_MIN,
    REDUX_OR,
    REDUX_UMAX,
    REDUX_UMIN,
    RESULT,
    SHFL_BFLY,
    SHFL_DOWN,
    SHFL_UP,
    THREAD_BYTES,
    VOTE_ALL,
    VOTE_ANY,
    VOTE_BALLOT,
    WARP_SYNC,
)
from spcomp.runtime.emulator.matrices import load_matrices, multiply_matrices
from spcomp.runtime.emulator.memory import has, synchronize


def collective(launch: Pointer, warp: Pointer, kind: int, group: int) -> int:
    """Do what the lanes *group* of *warp* wait at."""
    if kind == WARP_SYNC:
        return synchronize(launch, warp, group) if launch.i64[CHECK] else 0
    if kind <= SHFL_BFLY:
        return shuffle(warp, kind, group)
    if kind < MATCH_ANY:
        return vote(warp, kind, group)
    if kind == MATCH_ANY:
        return match(warp, group)
    if kind < MMA_F16:
        return reduce(warp, kind, group)
    if kind < LDMATRIX:
        return multiply_matrices(warp, kind)
    return load_matrices(launch, warp, kind)


def operand(warp: Pointer, lane: int, k: int) -> Pointer:
    """Return the place of the *k*-th operand of *lane*."""
    return warp + lane * THREAD_BYTES + OPERANDS + 8 * k


def shuffle(warp: Pointer, kind: int, group: int) -> int:
    """Give each lane of *group* the value of another lane of its segment."""
    for lane in range(32):
        if has(group, lane):
            value, source = POISON, source_of(lane, kind, operand(warp, lane, 2))
            if has(group, source):
                value = operand(warp, source, 1).u32[0]
            (warp + lane * THREAD_BYTES + RESULT).u32[0] = value
    return 0


def source_of(lane: int, kind: int, place: Pointer) -> int:
    """Return the lane whose value *lane* gets; *place* holds its last two operands."""
    by, segment, most = place.u32[0] & 31, (place.u32[2] >> 8) & 31, place.u32[2] & 31
    first = lane & segment
    last = first | (most & ~segment)
    if kind == SHFL_UP:
        return lane - by if lane - by >= last else lane
    source = first | (by & ~segment)
    if kind == SHFL_DOWN:
        source = lane + by
    elif kind == SHFL_BFLY:
        source = lane ^ by
    return source if source <= last else lane


def give(warp: Pointer, group: int, value: int) -> int:
    """Make *value* the result of the lanes *group*."""
    for lane in range(32):
        if has(group, lane):
            (warp + lane * THREAD_BYTES + RESULT).u32[0] = value
    return 0


def vote(warp: Pointer, kind: int, group: int) -> int:
    """Tell the lanes *group* for which of them the predicate holds, or whether it does."""
    ballot = 0
    for lane in range(32):
        if has(group, lane) and operand(warp, lane, 1).u8[0] & 1 != 0:
            ballot |= 1 << lane
    if kind == VOTE_BALLOT:
        return give(warp, group, ballot)
    if kind == VOTE_ANY:
        return give(warp, group, ballot != 0)
    if kind == VOTE_ALL:
        return give(warp, group, ballot == group)
    return give(warp, group, ballot == group or ballot == 0)


def match(warp: Pointer, group: int) -> int:
    """Tell each lane of *group* which of them have its value."""
    for lane in range(32):
        if has(group, lane):
            same, value = 0, operand(warp, lane, 1).u32[0]
            for other in range(32):
                if has(group, other) and value == operand(warp, other, 1).u32[0]:
                    same |= 1 << other
            (warp + lane * THREAD_BYTES + RESULT).u32[0] = same
    return 0


def reduce(warp: Pointer, kind: int, group: int) -> int:
    """Give the lanes *group* the sum, least, ... of their values."""
    result, first = 0, 1
    for lane in range(32):
        if has(group, lane):
            value = operand(warp, lane, 1).u32[0]
            if kind in (REDUX_MIN, REDUX_MAX):
                value = operand(warp, lane, 1).i32[0]
            result = value if first != 0 else combine(kind, result, value)
            first = 0
    return give(warp, group, result)


def combine(kind: int, a: int, b: int) -> int:
    """Return *a* and *b* combined by a reduction."""
    if kind == REDUX_ADD:
        return a + b
    if kind in (REDUX_MIN, REDUX_UMIN):
        return a if a < b else b
    if kind in (REDUX_MAX, REDUX_UMAX):
        return a if a > b else b
    if kind == REDUX_AND:
        return a & b
    if kind == REDUX_OR:
        return a | b
    return a ^ b
