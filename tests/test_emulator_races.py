"""The emulator's race detector against one that compares every pair of accesses."""

from itertools import product

import numpy as np
import pytest

from spcomp.errors import EmulationError
from spcomp.runtime.emulator import Emulated
from tests.emulator_kernels import BARRIER, G, at, module

NOTHING, READ, WRITE, ATOMIC = range(4)
NO_SYNC, BLOCK_BARRIER, WARP, HALVES = range(4)
THREADS, BYTES = 40, 4

SWITCH = "switch i32 %op, label"
# Each step: an access by ops[g, step] at where[g, step], then what syncs[step] says.
STEPS = module(
    f"""
  %row = mul i64 %g, %steps
  %low = and i32 %tid, 16
  %islow = icmp eq i32 %low, 0
  %halfmask = select i1 %islow, i32 65535, i32 -65536
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %i1, %next ]
  %j = add i64 %row, %i
{at("po", "%ops", "%j")}  %op = load i32, {G} %po, align 4
{at("pw", "%where", "%j")}  %w = load i32, {G} %pw, align 4
{at("ps", "%syncs", "%i")}  %sync = load i32, {G} %ps, align 4
  %wl = zext i32 %w to i64
{at("p", "%x", "%wl")}  {SWITCH} %then [ i32 1, label %read i32 2, label %write i32 3, label %add ]
read:
  %v = load i32, {G} %p, align 4
  br label %then
write:
  store i32 1, {G} %p, align 4
  br label %then
add:
  %a = atomicrmw add {G} %p, i32 1 syncscope("device") monotonic
  br label %then
then:
  switch i32 %sync, label %next [ i32 1, label %all i32 2, label %warp i32 3, label %half ]
all:
  {BARRIER}
  br label %next
warp:
  call void @llvm.nvvm.bar.warp.sync(i32 -1)
  br label %next
half:
  call void @llvm.nvvm.bar.warp.sync(i32 %halfmask)
  br label %next
next:
  %i1 = add i64 %i, 1
  %more = icmp slt i64 %i1, %steps
  br i1 %more, label %loop, label %done
done:
  ret void""",
    f"{G} readonly %ops, {G} readonly %where, {G} readonly %syncs, {G} %x, i64 %steps",
)


def groups(sync):
    """The threads of a block that a synchronisation brings together."""
    size = {BLOCK_BARRIER: THREADS, WARP: 32, HALVES: 16}.get(sync)
    return [range(k, min(k + size, THREADS)) for k in range(0, THREADS, size)] if size else []


def has_race(ops, where, syncs):
    """Whether two accesses conflict and no chain of synchronisations is between them."""
    blocks, steps = ops.shape[0] // THREADS, ops.shape[1]
    clocks = np.zeros((THREADS, steps, THREADS), int)  # what a thread knows of others at a step
    known = np.full((THREADS, THREADS), -1)
    for step in range(steps):
        np.fill_diagonal(known, step)
        clocks[:, step] = known
        for group in groups(syncs[step]):
            known[group] = known[group].max(0)
    accesses = [
        (block, thread, step, ops[row, step], where[row, step])
        for block, thread in product(range(blocks), range(THREADS))
        for row in [block * THREADS + thread]
        for step in np.flatnonzero(ops[row])
    ]
    for k, (block, thread, step, op, place) in enumerate(accesses):
        for other_block, other, other_step, other_op, other_place in accesses[:k]:
            mine = block == other_block and thread == other
            if place != other_place or mine or op == other_op in (READ, ATOMIC):
                continue
            ordered = block == other_block and (
                clocks[thread, step, other] >= other_step
                or clocks[other, other_step, thread] >= step
            )
            if not ordered:
                return True
    return False


@pytest.mark.parametrize("case", range(4))
def test_random_accesses_race_if_and_only_if_the_pairs_say_so(case):
    rng = np.random.default_rng(case)
    kernel, found = Emulated(STEPS), []
    for _ in range(120):
        blocks, steps = int(rng.integers(1, 3)), int(rng.integers(2, 7))
        ops = np.zeros((blocks * THREADS, steps), np.int32)
        count = int(rng.integers(2, 7))
        threads = rng.choice(blocks * THREADS, count)
        ops[threads, rng.integers(0, steps, count)] = rng.choice(4, count, p=[0, 0.5, 0.25, 0.25])
        where = rng.integers(0, 2, ops.shape, dtype=np.int32)
        syncs = rng.integers(0, 4, steps, dtype=np.int32)
        want = has_race(ops, where, syncs)
        found.append(want)
        for seed in (None, -1, int(rng.integers(100))):
            args = [ops, where, syncs, np.zeros(2, np.int32), np.int64(steps)]
            launch = ("k", (blocks, 1, 1), (THREADS, 1, 1), 0, args)
            if not want:
                kernel.launch(*launch, seed=seed)
                continue
            with pytest.raises(EmulationError) as caught:
                kernel.launch(*launch, seed=seed)
            assert (caught.value.kind, caught.value.buffer) == ("race", "x")
    assert 20 < sum(found) < 100
