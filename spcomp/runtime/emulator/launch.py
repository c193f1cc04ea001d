"""Beside the kernels: one launch of a kernel in the emulator, its memory and its order."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from spcomp.errors import ArgumentError
from spcomp.runtime.emulator import layout as at
from spcomp.runtime.emulator import machinery
from spcomp.runtime.emulator.faults import Buffer, Extent, Report
from spcomp.runtime.emulator.translate import Kernel, Program

THREADS_PER_SLICE = 1 << 16  # between looks for signals
Words = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, slots=True)
class Code:
    """The machine code of *program*: *addresses* by symbol, and whether it watches accesses.

    *frames* has the bytes of a thread's frame for each kernel that has run.
    """

    program: Program
    addresses: Mapping[str, int]
    check: bool
    frames: dict[str, int] = field(default_factory=dict)


class Launch:
    """One launch: the structures of ``layout`` in numpy arrays, and what they point to."""

    def __init__(
        self,
        code: Code,
        kernel: Kernel,
        grid: Extent,
        block: Extent,
        shared_bytes: int,
        args: Sequence[tuple[str, Any]],
    ) -> None:
        self.code, self.program, self.grid, self.block = code, code.program, grid, block
        self.count, self.blocks = prod(block), prod(grid)
        self.words = np.zeros(at.LAUNCH_BYTES // 8, np.int64)
        self.keep: list[Any] = [args]
        warps = -(-self.count // 32)
        self.threads = self._bytes(32 * warps * at.THREAD_BYTES)
        self.slots = np.zeros(max(1, len(args)), np.int64)
        for k, (_, value) in enumerate(args):
            place = self.slots[k : k + 1].view(np.uint8)
            data = np.array(value.ctypes.data) if isinstance(value, np.ndarray) else value
            place[: data.nbytes] = np.frombuffer(data.tobytes(), np.uint8)
        self.buffers = self._buffers(args, shared_bytes)
        self._fill(kernel, shared_bytes, args)

    def _bytes(self, size: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Return zeros that begin at a multiple of 64 and live as long as the launch."""
        whole = np.zeros(size + 64, np.uint8)
        self.keep.append(whole)
        skip = -whole.ctypes.data % 64
        return whole[skip : skip + size]

    def _buffers(self, args: Sequence[tuple[str, Any]], shared_bytes: int) -> list[Buffer]:
        """Return the memory that the kernel may access, in the order of ranges."""
        arena = self.code.addresses["emu.arena"]
        result = []
        for variable in self.program.variables:
            size = shared_bytes if variable.size is None else variable.size
            name = f"shared memory {variable.name}"
            result.append(Buffer(name, arena + variable.offset, size, 1, shared=True))
        for name, value in args:
            if isinstance(value, np.ndarray):
                result.append(Buffer(name, value.ctypes.data, value.nbytes, value.itemsize))
        return result

    def _fill(self, kernel: Kernel, shared_bytes: int, args: Sequence[tuple[str, Any]]) -> None:
        words, where = self.words, self.code.addresses
        frame = self._frame_bytes(kernel)
        words[at.THREADS] = self.threads.ctypes.data
        words[at.COUNT] = self.count
        words[at.START], words[at.RESUME] = where[kernel.symbol], where["emu.resume"]
        words[at.ARGS], words[at.ARENA] = self.slots.ctypes.data, where["emu.arena"]
        words[at.ARENA_BYTES] = self.program.arena - self.program.dynamic_bytes + shared_bytes
        frames = self._bytes(self.count * frame).ctypes.data
        words[at.QUEUES] = self._bytes(self.count * at.QUEUE_BYTES).ctypes.data
        thread = np.arange(self.count)
        x, y, _ = self.block
        table = self.threads.reshape(-1, at.THREAD_BYTES)[: self.count]
        small, large = table.view(np.int32), table.view(np.int64)
        small[:, at.TID], small[:, at.TID + 1] = thread % x, thread // x % y
        small[:, at.TID + 2], small[:, at.INDEX] = thread // (x * y), thread
        small[:, at.LANE] = thread % 32
        large[:, at.FRAME], large[:, at.CLOCK] = frames + frame * thread, 1
        ids = words.view(np.int32)
        ids[at.NTID : at.NTID + 3], ids[at.NCTAID : at.NCTAID + 3] = self.block, self.grid
        if self.code.check:
            self._watch(kernel, args)

    def _frame_bytes(self, kernel: Kernel) -> int:
        """Return the bytes of a thread's frame, which the kernel tells when it gets none."""
        sizes = self.code.frames
        if kernel.name not in sizes:
            size = ctypes.c_int64()
            start = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)
            start(self.code.addresses[kernel.symbol])(ctypes.addressof(size), None)
            sizes[kernel.name] = -(-size.value // 64) * 64 + 64
        return sizes[kernel.name]

    def _watch(self, kernel: Kernel, args: Sequence[tuple[str, Any]]) -> None:
        """Describe the accesses, the ranges and their cells."""
        sites, words = self.program.sites, self.words
        table = np.zeros((max(1, len(sites)), at.SITE_WORDS), np.int64)
        for row, site in zip(table, sites, strict=False):
            row[at.ACCESS], row[at.SPACE], row[at.BASE] = site.access, site.space, site.base
            row[at.ALIGN], row[at.SCOPE] = site.align, site.scope
        shift = self.program.grain.bit_length() - 1
        ranges = np.zeros((max(1, len(self.buffers)), at.RANGE_WORDS), np.int64)
        regions = _regions(self.buffers)
        cells = {
            low: self._bytes(at.CELL_BYTES * ((high - low >> shift) + 1)) for low, high in regions
        }
        arrays = [
            (param, value)
            for param, (_, value) in zip(kernel.params, args, strict=True)
            if isinstance(value, np.ndarray)
        ]
        only = [False] * len(self.program.variables)
        only += [
            "readonly" in param.attributes or not value.flags.writeable for param, value in arrays
        ]
        for row, buffer, read_only in zip(ranges, self.buffers, only, strict=False):
            row[at.LOW], row[at.HIGH] = buffer.low, buffer.low + buffer.size
            row[at.FLAGS] = at.READ_ONLY * read_only | at.IN_SHARED * buffer.shared
            low = next((low for low, high in regions if low <= buffer.low < high), None)
            if low is not None and buffer.size:
                row[at.ORIGIN], row[at.CELLS] = low, cells[low].ctypes.data
        self.keep += [table, ranges]
        words[at.CHECK], words[at.SHIFT], words[at.RANGE_COUNT] = 1, shift, len(self.buffers)
        words[at.SITES], words[at.RANGES] = table.ctypes.data, ranges.ctypes.data

    def run(self, seed: int | None) -> None:
        """Run all blocks, in slices, so that signals are handled between them."""
        threads, order = _order(self.count, seed), _order(self.blocks, seed)
        eras = np.zeros(self.blocks, np.uint32)
        self.words[at.ORDER], self.words[at.BLOCKS] = threads.ctypes.data, order.ctypes.data
        self.words[at.ERAS] = eras.ctypes.data
        step = max(1, THREADS_PER_SLICE // self.count)
        where = self.words.ctypes.data
        ctypes.c_void_p.from_address(self.code.addresses["emu.launch"]).value = where
        for first in range(0, self.blocks, step):
            if machinery.run(where, first, min(self.blocks, first + step)):
                report = Report(
                    self.program, self.words, eras, order, self.buffers, self.grid, self.block
                )
                raise report.error()


def _order(count: int, seed: int | None) -> Words:
    """Return the numbers below *count*: ascending, descending for -1, or permuted by *seed*."""
    if seed is None:
        return np.arange(count)
    if seed < -1:
        raise ArgumentError(f"seed is {seed}, expected None, -1 or more")
    if seed == -1:
        return np.arange(count)[::-1].copy()
    return np.random.default_rng(seed).permutation(count)


def _regions(buffers: Sequence[Buffer]) -> list[tuple[int, int]]:
    """Return the memory of *buffers* from low to high, those that overlap as one."""
    result: list[tuple[int, int]] = []
    for buffer in sorted((b for b in buffers if b.size), key=lambda b: b.low):
        low, high = buffer.low & -16, buffer.low + buffer.size
        if result and low < result[-1][1]:
            low, high = result[-1][0], max(high, result[-1][1])
            result.pop()
        result.append((low, high))
    return result
