"""PTX written by hand for tests of the runtime on a GPU, and what the kernels do, on a fake one."""

from __future__ import annotations

import struct

import numpy as np

from tests.fake_cuda import FakeGPU, Launch

SCALED_SUM = """
.version 7.0
.target sm_80
.address_size 64

.visible .entry scaled_sum(
    .param .u64 scaled_sum_x,
    .param .u64 scaled_sum_y,
    .param .u64 scaled_sum_z,
    .param .f32 scaled_sum_scale,  // z[i] = x[i] + scale * y[i], i < n
    .param .u32 scaled_sum_n
)
{
    .reg .pred %p;
    .reg .f32 %f<5>;
    .reg .b32 %r<6>;
    .reg .b64 %d<8>;
    ld.param.u64 %d1, [scaled_sum_x];
    ld.param.u64 %d2, [scaled_sum_y];
    ld.param.u64 %d3, [scaled_sum_z];
    ld.param.f32 %f1, [scaled_sum_scale];
    ld.param.u32 %r1, [scaled_sum_n];
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %tid.x;
    mad.lo.s32 %r5, %r2, %r3, %r4;
    setp.ge.u32 %p, %r5, %r1;
    @%p bra END;
    cvta.to.global.u64 %d1, %d1;
    cvta.to.global.u64 %d2, %d2;
    cvta.to.global.u64 %d3, %d3;
    mul.wide.u32 %d4, %r5, 4;
    add.u64 %d5, %d1, %d4;
    add.u64 %d6, %d2, %d4;
    add.u64 %d7, %d3, %d4;
    ld.global.f32 %f2, [%d5];
    ld.global.f32 %f3, [%d6];
    fma.rn.f32 %f4, %f1, %f3, %f2;
    st.global.f32 [%d7], %f4;
END:
    ret;
}
"""
SCALED_SUM_TYPES = ("ptr", "ptr", "ptr", "f32", "u32")

REVERSE = """
.version 7.0
.target sm_80
.address_size 64

.extern .shared .align 16 .b8 room[];

.visible .entry reverse(.param .u64 reverse_x, .param .u32 reverse_last)
{
    .reg .b32 %r<8>;
    .reg .b64 %d<5>;
    ld.param.u64 %d1, [reverse_x];
    ld.param.u32 %r1, [reverse_last];  // the offset in shared memory of the last element
    cvta.to.global.u64 %d2, %d1;
    mov.u32 %r2, %tid.x;
    mul.wide.u32 %d3, %r2, 4;
    add.u64 %d4, %d2, %d3;
    ld.global.u32 %r3, [%d4];
    mov.u32 %r4, room;
    shl.b32 %r5, %r2, 2;
    sub.u32 %r6, %r1, %r5;
    add.u32 %r7, %r4, %r6;
    st.shared.u32 [%r7], %r3;
    bar.sync 0;
    mov.u32 %r7, %ntid.x;
    shl.b32 %r7, %r7, 2;
    sub.u32 %r7, %r1, %r7;
    add.u32 %r7, %r7, 4;
    add.u32 %r7, %r7, %r4;
    add.u32 %r7, %r7, %r5;
    ld.shared.u32 %r3, [%r7];
    st.global.u32 [%d4], %r3;
    ret;
}
"""
REVERSE_TYPES = ("ptr", "u32")


def scaled_sum(gpu: FakeGPU, launch: Launch) -> None:
    """What the kernel of SCALED_SUM does."""
    (scale,) = struct.unpack("<f", launch.arguments[3])
    (count,) = struct.unpack("<I", launch.arguments[4])
    count = min(count, launch.grid[0] * launch.block[0])
    pointers = (int.from_bytes(raw, "little") for raw in launch.arguments[:3])
    x, y, z = (gpu.array(pointer, (count,), np.float32) for pointer in pointers)
    z[:] = x + np.float32(scale) * y
