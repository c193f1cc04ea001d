"""Beside the kernels: the emulator's machine code of matrix fragments, see ``language``.

Where a lane's registers lie in the matrices is in the PTX ISA, section 9.7.14 (Matrix Fragments).
"""

from __future__ import annotations

from spcomp.runtime.emulator.language import Pointer, array
from spcomp.runtime.emulator.layout import (
    CHECK,
    LDMATRIX,
    MMA_BF16,
    MMA_F16,
    MMA_F64,
    MMA_TF32,
    NOW,
    OPERANDS,
    RESULT,
    SITE,
    THREAD_BYTES,
)
from spcomp.runtime.emulator.memory import check


def half(bits: int) -> float:
    """Return the float16 *bits* as a number."""
    place = array(8)
    exponent, fraction = (bits >> 10) & 31, bits & 1023
    if exponent == 0:
        place.f64[0] = fraction * 5.960464477539063e-08  # 2 ** -24
        place.i64[0] |= (bits >> 15) << 63
    elif exponent == 31:
        place.i64[0] = ((bits >> 15) << 63) | (2047 << 52) | (fraction << 42)
    else:
        place.i64[0] = ((bits >> 15) << 63) | ((exponent + 1008) << 52) | (fraction << 42)
    return place.f64[0]


def upper(bits: int) -> float:
    """Return the number whose float32 has these *bits*."""
    place = array(4)
    place.u32[0] = bits
    return place.f32[0]


def element(kind: int, register: Pointer, k: int) -> float:
    """Return the *k*-th element of the registers, each 8 bytes after the one before."""
    if kind == MMA_F16:
        return half((register + k // 2 * 8).u16[k % 2])
    if kind == MMA_BF16:
        return upper((register + k // 2 * 8).u16[k % 2] << 16)
    if kind == MMA_TF32:
        return upper((register + k * 8).u32[0] & 0xFFFFE000)
    return (register + k * 8).f64[0]


def multiply_matrices(warp: Pointer, kind: int) -> int:
    """Compute ``A @ B + C`` of the warp's fragments: sums of exact products, rounded at the end.

    A lane has the operands A, B, C in this order.
    """
    a, b = array(2048), array(1024)
    rows, depth = 16, 16
    if kind == MMA_TF32:
        depth = 8
    if kind == MMA_F64:
        rows, depth = 8, 4
    gather(warp, kind, rows, depth, a, b)
    elements = depth * (rows + 8) // 32  # of A and B in a lane
    of_c = elements // 2 if kind in (MMA_F16, MMA_BF16) else elements
    for lane in range(32):
        thread = warp + lane * THREAD_BYTES
        for k in range(rows * 8 // 32):
            row, column = (lane >> 2) + k // 2 * 8, (lane & 3) * 2 + k % 2
            c = thread + OPERANDS + 8 * (of_c + k)
            total = c.f64[0] if kind == MMA_F64 else c.f32[0]
            for i in range(depth):
                total += a.f64[row * depth + i] * b.f64[i * 8 + column]
            if kind == MMA_F64:
                (thread + RESULT).f64[k] = total
            else:
                (thread + RESULT).f32[k] = total
    return 0


def gather(warp: Pointer, kind: int, rows: int, depth: int, a: Pointer, b: Pointer) -> int:
    """Collect the matrices A (*rows* x *depth*) and B (*depth* x 8) from the lanes' registers."""
    packed = 2 if kind in (MMA_F16, MMA_BF16) else 1  # elements of a register
    of_a, halves = rows * depth // 32, rows // 8
    for lane in range(32):
        across, along = lane >> 2, (lane & 3) * packed
        registers = warp + lane * THREAD_BYTES + OPERANDS
        for k in range(of_a):
            row = across + 8 * (k // packed % halves)
            column = along + k % packed + 4 * packed * (k // packed // halves)
            a.f64[row * depth + column] = element(kind, registers, k)
        registers = registers + of_a // packed * 8
        for k in range(depth // 4):
            row = along + k % packed + 4 * packed * (k // packed)
            b.f64[row * 8 + across] = element(kind, registers, k)
    return 0


def load_matrices(launch: Pointer, warp: Pointer, kind: int) -> int:
    """Load 1, 2 or 4 matrices of 8 x 8 elements of 16 bits, whose rows the lanes point to."""
    count, transposed = 1 << ((kind - LDMATRIX) & 3), (kind - LDMATRIX) >> 2
    for lane in range(8 * count):
        thread = warp + lane * THREAD_BYTES
        launch.ptr[NOW] = thread
        row = (thread + OPERANDS).i64[0]
        if launch.i64[CHECK] != 0 and check(launch, row, 16, thread.i32[SITE]) == 0:
            return 0
    for lane in range(32):
        result = warp + lane * THREAD_BYTES + RESULT
        for k in range(2 * count):
            row, column = lane >> 2, (lane & 3) * 2 + k % 2
            if transposed != 0:
                row, column = column, row
            source = warp + (8 * (k // 2) + row) * THREAD_BYTES + OPERANDS
            result.u16[k] = source.ptr[0].u16[column]
    return 0
