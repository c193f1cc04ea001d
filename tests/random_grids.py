"""Random schedules for GPUs: loops on blocks and threads, shared memory, partial results."""

from __future__ import annotations

import random
from collections.abc import Callable

from spcomp.schedule.nests.nests import reduction_loops
from spcomp.schedule.schedule import Schedule
from tests.corpus_base import Inputs, Program, variants
from tests.random_traces import STAGE_I, THREADS, Composer

WIDTHS = (1, 2, 3, 4, 5, 8, 16, 32, 33)
CHANGES = (  # steps that give programs other loops and blocks to run on a grid
    *("split", "fuse", "reorder", "loop_partition", "add_unit_loop", "unroll", "vectorize"),
    *("decompose_reduction", "cache_read", "cache_write", "reverse_cache_write", "compute_at"),
    *("reverse_compute_at", "compute_inline", "rfactor", "blockize", "annotate", "split_nnz"),
    *("transform_layout", "storage_align", "split_hubs", "split_rows", "partial_results"),
    *("group_runs", "split_positions", "stage_weights"),
)
MOST = 12


def on_threads(composer: Composer) -> None:
    """Run a piece of a loop on threads, and the rest on blocks or, as often, not."""
    rng, name = composer.rng, composer.loop()
    if not composer.take("split", name, rng.choice(WIDTHS)):
        return
    composer.take("bind", f"{name}_i", rng.choice(THREADS[2:]))
    if rng.random() < 0.5:
        composer.take("bind", f"{name}_o", rng.choice(THREADS[:2]))


def on_grid(composer: Composer) -> None:
    """Bind a loop as it is."""
    composer.take("bind", composer.loop(), composer.rng.choice(THREADS))


def partial_sums(composer: Composer) -> None:
    """Let threads share the iterations of a reduction."""
    rng = composer.rng
    loops = [x.var.name for x in composer.loops if x.var in reduction_loops(composer.schedule.func)]
    if not loops:
        return
    name, width = rng.choice(loops), rng.choice(WIDTHS)
    if not composer.take("split", name, width):
        return
    inner, outer = f"{name}_i", f"{name}_o"
    composer.take("reorder", inner, outer)
    before = set(composer.blocks)
    if not composer.take("rfactor", inner):
        return
    for block in set(composer.blocks) - before:
        composer.take("set_scope", block, 0, rng.choice(("local", "local", "shared", "global")))
    thread = rng.choice(("threadIdx.x", "threadIdx.x", "threadIdx.y"))
    for part in (inner, f"{inner}_1"):
        if rng.random() < 0.9:
            composer.take("bind", part, thread)


def shared_copy(composer: Composer) -> None:
    """Read through, or write into, memory of a block, near a loop."""
    rng, before = composer.rng, set(composer.blocks)
    kind = rng.choice(("cache_read", "cache_write", "reverse_cache_write"))
    buffer = rng.choice((0, 0, 1, 2))
    if not composer.take(kind, composer.block(), buffer, rng.choice(("shared", "shared", "local"))):
        return
    for block in sorted(set(composer.blocks) - before):
        around = composer.schedule.get_loops(block)
        move = "reverse_compute_at" if "write" in kind else "compute_at"
        target = rng.choice([x.var.name for x in composer.loops])
        composer.take(move, block, target)
        around = composer.schedule.get_loops(block)
        if around and rng.random() < 0.7:
            name = around[-1]
            if rng.random() < 0.5 and composer.take("split", name, rng.choice(WIDTHS)):
                name = f"{name}_i"
            composer.take("bind", name, rng.choice(THREADS[2:]))


def scope(composer: Composer) -> None:
    """Move a buffer that is allocated inside to other memory."""
    composer.attempt("set_scope")


def several_threads(composer: Composer) -> None:
    """Run the iterations of a loop in parallel, as many as there are."""
    composer.attempt("parallel")


GRID: dict[Callable[[Composer], None], int] = {  # and how often each is tried
    on_threads: 4,
    on_grid: 4,
    partial_sums: 3,
    shared_copy: 3,
    scope: 1,
    several_threads: 1,
}


def compose_grid(program: Program, seed: int) -> tuple[Composer, Inputs, str]:
    """Return a schedule of *program* with loops on a grid, inputs, and their dtype."""
    rng = random.Random(seed)
    dtype, idtype = rng.choice(variants(program))
    inputs = program.inputs(rng.choice(program.cases), dtype, idtype, seed)
    func = program.build(dtype, idtype)
    if rng.random() < 0.5:  # extents that are known allow more
        func = func.specialize({k: v for k, v in inputs.items() if isinstance(v, int)})
    composer = Composer(Schedule(func), rng)
    if rng.random() < 0.3:
        composer.attempt(rng.choice(STAGE_I))
    composer.schedule = composer.schedule.lower_sparse_iter()
    for kind in rng.choices(CHANGES, k=rng.randint(0, MOST)):
        if composer.goes_on(kind):
            composer.attempt(kind)
    tries = rng.choices(list(GRID), list(GRID.values()), k=rng.randint(1, MOST))
    for act in tries:
        if composer.goes_on("split"):
            act(composer)
    return composer, inputs, dtype
