"""Beside the route, for all of it: the thresholds of all decisions, one value per target."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from spcomp.errors import BackendError

if TYPE_CHECKING:
    from spcomp.target import Target, TargetKind


@dataclass(frozen=True, slots=True)
class Knobs:
    """The thresholds of one target, for its default schedule, its passes and its code generator.

    None of them changes what a program means. The default schedule copies those that a step needs
    into the step's own fields, so that a trace replays to the same program whatever they are.
    """

    # register tiles of the default schedule
    tile_vectors: int  # vectors of accumulators beside what the loop body needs
    tile_sums: int  # such vectors in a tile of several rows that read the same
    stream_vectors: int  # as tile_vectors, where the body only adds up rows in their order

    # rows asked for before they are used
    prefetch_distance: int  # positions from asking for a row to its use
    prefetch_distance_least: int  # positions: the same for a row read in many passes
    prefetch_parts: int  # parts of such a row that are asked for ahead, in all
    prefetch_bytes_least: int  # bytes of a row that is worth asking for
    prefetch_bytes_dot: int  # the same of one whose products are added up to one number
    prefetch_bytes_most: int  # bytes, at most, of several whole rows that are worth it

    stream_ahead: (
        int  # elements from asking for what a sparse dot product reads in order to its use
    )

    # shares of parallel loops
    chunk_elements: int  # elements in a chunk of rows where each is one operation
    chunk_vector: int  # elements in a chunk of a loop in vectors; 0: there are no chunks
    chunk_slices: int  # steps of slices of rows in a chunk
    chunk_nested: int  # elements in a chunk of rows where each element is a loop
    chunk_sorted: int  # iterations over sorted coordinates in a chunk
    chunk_fibers: int  # the same where each iteration is a fiber
    chunk_workspace: int  # elements in a chunk of rows that share workspaces
    chunk_workspace_rows: int  # rows in it where no array says how long they are
    most_chunks: int  # chunks of a loop over sorted coordinates
    most_parts: int  # the same where sums of chunks are added one by one afterwards
    run_chunks: int  # chunks that a run of one coordinate fills before a chunk may begin inside it
    staged_rows: int  # short rows that are added up together; 0: none are
    staged_elements: int  # elements that these have, at most
    staged_least: int  # rows, at least: a processor learns how long fewer of them are
    staged_abreast: int  # elements, at most, of rows that add up theirs side by side; 0: none do
    hub_piece: int  # elements of a very long row that are worth a thread's attention
    hub_piece_most: int  # the same where a hub_share of all elements is more
    hub_piece_few: int  # the same where rows are few: shorter ones would leave threads without work
    few_rows: int  # rows, at most, that are few
    hub_share: int  # a very long row has more than one of so many parts of all elements
    scatter_parts: int  # parts of a scattered row that run at the same time, each over all elements
    scatter_bytes: int  # bytes that no two threads should write to, half as many at worst

    # versions of a program that are compiled for the extents and the data of a call
    extent_small: int  # elements: up to it every inner dense extent is compiled in
    extent_large: int  # elements: beyond it none is
    extent_multiple: int  # elements: extents in between are compiled in if they are a multiple
    narrow_operations: int  # with so few operations an element, a row costs several elements
    run_samples: int  # keys to look at, equally far apart: two that are equal show a long run
    run_keys: int  # with at most so many sorted keys, long runs are not looked for
    full_share: int  # lists name one of so many rows, at least, if each row looks for itself in all
    skew_factor: int  # a part so many times heavier than the average is worth balancing

    # merges
    search_factor: int  # a fiber so many times longer than the other is searched, not merged
    union_operands: int  # operands, at most, of a union with a loop for each point of its lattice
    surprise_limit: int  # excess of surprises over repetitions from which branches are avoided
    meeting_limit: int  # excess of pairs that meet over others from which no test comes first
    meeting_shorter: int  # coordinates, at most, of the shorter fiber in that test
    meeting_longer: int  # coordinates, at most, of the longer fiber in that test

    # rows of assembled results
    fiber_ordered: int  # elements, at most, of a fiber that is sorted by comparing all pairs
    fiber_unordered: int  # elements, at most, of a short fiber that is not sorted
    table_small: int  # a fiber with up to so many elements has a table for so many: a power of two
    table_spare: int  # a table has 2**table_spare slots an element
    mark_words: int  # words of marks, at most, that are sorted by comparing all pairs
    rank_lanes: int  # words compared at once, a power of two
    block_elements: int  # elements that operands have in a block of rows, on average
    block_rows: int  # rows in it, at most
    block_products: int  # products in a block of rows of a matrix product, at least
    part_elements: int  # elements of the operands in one part of a result that is a single row
    result_parts: int  # such parts, at most
    asks_rows: bool  # whether it matters how long rows are, in all programs
    packs_results: bool  # whether elements are made once, not counted and then made again
    gathers_results: bool  # whether matrices are transposed where results would be scattered
    owns_temporaries: bool  # whether the program, not the call, allocates what no caller gets
    turn_elements: int  # elements of a row between two changes of a softmax's maximum; 0: no such
    gathers_apart: bool  # whether rows at coordinates, of two arrays, push each other out of cache

    # vectors
    dot_lanes: int  # at least so many in the last vectors of a dot product of known length
    dot_accumulators: int  # independent partial sums of a dot product, a power of two
    unrolled_vectors: int  # vectors of a loop with a constant trip count that are written out
    gather_bits: int  # registers with at least so many bits gather a whole vector at once
    far_bytes: int  # larger arrays are gathered from by twice as many lanes; 0: never
    short_lanes: int  # lanes of gathered vectors on narrower registers, and along short rows
    mask_bits: int  # registers with at least so many bits load the last vector under a mask
    condition_bits: int  # processors with registers of so many bits have others for conditions

    # code
    single_lanes: int  # up to so many lanes are loaded one by one, not gathered
    run_lanes: int  # elements compared at once to find the end of a run: 8, 16, 32 or 64
    unrolled_copies: int  # copies of a body, at most, that nested unrolled loops write out
    unrolled_group: int  # trips that a longer unrolled loop writes out, a power of two
    line_bytes: int  # bytes that one prefetch brings, and that vectors should not straddle

    def gathers(self, vector_bits: int) -> bool:
        """Whether registers of so many bits gather a whole vector at once."""
        return vector_bits >= self.gather_bits


CPU_KNOBS = Knobs(
    tile_vectors=8,
    tile_sums=8,
    stream_vectors=16,
    prefetch_distance=16,
    prefetch_distance_least=4,
    prefetch_parts=32,  # with more, the first have left the cache before their use
    prefetch_bytes_least=64,  # a cache line
    prefetch_bytes_dot=64,
    prefetch_bytes_most=1024,  # beyond it the processor's own prefetcher has started
    stream_ahead=256,
    chunk_elements=8192,  # to find where a chunk begins costs as much as some hundred operations
    chunk_vector=4096,
    chunk_slices=1024,  # fewer: rows that two threads write at once share cache lines
    chunk_nested=4096,
    chunk_sorted=4096,
    chunk_fibers=64,
    chunk_workspace=1024,
    chunk_workspace_rows=64,
    most_chunks=256,
    most_parts=256,
    run_chunks=2,
    staged_rows=16,
    staged_elements=256,
    staged_least=20_000,
    staged_abreast=12,  # a gather for each term costs what the sum of a row does by then
    hub_piece=2048,
    hub_piece_most=2048,
    hub_piece_few=2048,
    few_rows=0,
    hub_share=32,
    scatter_parts=4,  # each reads the pattern again
    scatter_bytes=128,  # processors fetch cache lines in pairs
    extent_small=128,
    extent_large=1024,  # beyond it, what is known of the extent no longer matters
    extent_multiple=8,  # most are
    narrow_operations=16,
    run_samples=32,  # a run that fills two of so many parts is shared
    run_keys=32 * 1024,
    full_share=0,
    skew_factor=8,
    search_factor=4,
    union_operands=3,
    surprise_limit=8,
    meeting_limit=8,
    meeting_shorter=64,  # each is compared with all of the other
    meeting_longer=1 << 12,
    fiber_ordered=64,
    fiber_unordered=256,
    table_small=32,
    table_spare=2,
    mark_words=32,  # no branch depends on the data
    rank_lanes=8,
    block_elements=12 << 10,  # what a block makes stays in the processor's caches
    block_rows=1 << 12,
    block_products=12 << 10,
    part_elements=1 << 15,
    result_parts=1 << 10,
    asks_rows=False,
    packs_results=True,
    gathers_results=False,  # one thread is as fast as a transposition
    owns_temporaries=False,  # a call reuses the memory of results
    turn_elements=0,
    gathers_apart=True,
    dot_lanes=4,  # the sum of fewer costs more than it saves
    dot_accumulators=4,  # an addition takes four cycles
    unrolled_vectors=32,
    gather_bits=512,  # narrower processors load as fast as they gather
    far_bytes=0,
    short_lanes=4,
    mask_bits=256,  # under a mask of 32 bits a lane or more
    condition_bits=512,
    single_lanes=4,
    run_lanes=8,
    unrolled_copies=256,
    unrolled_group=8,
    line_bytes=64,
)

# Intel's processors that gather whole vectors run so far ahead that short rows come in time.
WIDE_KNOBS = replace(CPU_KNOBS, tile_sums=16, prefetch_bytes_least=256, prefetch_bytes_dot=128)
# AMD gathers no faster than it loads what is near a core: 0.7 to 0.95 of the speed. From farther
# away, the instruction for eight lanes of Zen 4 is 1.2 to 1.6 times as fast.
ZEN_KNOBS = replace(CPU_KNOBS, gather_bits=1024)
ZEN4_KNOBS = replace(ZEN_KNOBS, tile_sums=16, far_bytes=1 << 19)
# Zen 5 learns the lengths of fewer rows: beyond these, staged ones are 1.1 to 3.5 times as fast.
ZEN5_KNOBS = replace(ZEN_KNOBS, staged_least=9_000)
ZENS = {"znver4": ZEN4_KNOBS, "znver5": ZEN5_KNOBS}

# What these decide happens before loops are bound to threads: a lane is a thread's, and no thread
# reads ahead for another.
CUDA_KNOBS = replace(
    CPU_KNOBS,
    asks_rows=True,  # as many threads share a row
    packs_results=False,  # blocks cannot wait for each other to pass on where each begins
    gathers_results=True,
    owns_temporaries=True,  # most turn out to need no memory
    turn_elements=32,  # one on each thread of a warp
    gathers_apart=False,  # so many rows are worked on at a time that no array stays there anyway
    single_lanes=128,  # a thread has no vectors but those that it loads and stores
    unrolled_group=4,
    dot_accumulators=1,  # other threads run while one waits
    chunk_vector=0,  # the grid cuts it
    staged_rows=0,
    chunk_elements=256,  # for one thread
    chunk_nested=64,
    chunk_sorted=64,
    most_chunks=1 << 16,
    most_parts=1 << 12,
    chunk_fibers=8,
    chunk_workspace=64,
    chunk_workspace_rows=4,
    hub_piece=128,  # for the threads that have a row
    hub_piece_most=1024,
    hub_piece_few=64,
    few_rows=1 << 12,  # with a warp each, half of the threads that a large GPU has
    hub_share=1 << 14,  # about as many rows are worked on at a time
    full_share=64,  # to find a row takes a thread some of what its element takes
    skew_factor=1 << 30,  # as threads without work make room for others
    narrow_operations=0,  # rows run at the same time, however many there are
)

KNOBS: dict[TargetKind, Knobs] = {"cpu": CPU_KNOBS, "cuda": CUDA_KNOBS}


@dataclass(frozen=True, slots=True)
class GridKnobs:
    """The thresholds of a GPU, for how loops run on its blocks and threads."""

    block_threads: int  # threads in a block where nothing else decides
    warp_threads: int  # threads that share a row, at most: they run in step
    row_threads: int  # threads that share a row of which nothing else is known, a power of two
    parts: int  # parts of the elements of all rows, at least, if these are enough
    part_turns: int  # groups of elements in a part, at most: more would spread what is in cache
    thread_loads: int  # loads of a thread that wait for memory at the same time
    row_loads: int  # of these, those from one row, where other threads can have the rest
    sharing_blocks: int  # blocks whose threads share the iterations of a loop, at most
    processors: int  # multiprocessors of a GPU, at least
    resident_threads: int  # threads of a multiprocessor that registers are kept for
    few_loops: int  # loops of a kernel, at most, that leave registers to unroll some more
    resident_threads_many: int  # the same as resident_threads in kernels with more loops
    element_copies: int  # copies of the work on an element that a longer loop writes out
    fiber_copies: int  # elements of an entry that load at the same time
    entry_elements: int  # elements of an entry of a list that pay for a sum of its own
    thread_bytes: int  # bytes of a buffer that a thread keeps to itself, at most
    total_elements: int  # elements of a loop of its own that a warp adds up
    column_elements: int  # elements of a column that a thread adds up
    thread_sums: int  # elements that a thread adds up in registers, at most
    scan_elements: int  # elements of an array that a thread adds up for its running sums
    compact_elements: int  # elements of a part of a buffer that becomes a buffer, at most
    block_bytes: int  # bytes of shared memory that a block has on every GPU
    few_products: int  # products of a row that one thread makes, at most
    product_threads: int  # threads in a block of such rows, at most
    mark_lanes: int  # lanes on one row of a matrix while they mark: many rows are short
    mark_words: int  # words of marks that all warps have together, about
    warps_least: int  # warps that have marks
    warps_most: int  # the same, where marks are short
    warp_turns: int  # groups of neighbouring rows that a warp looks at, about
    run_elements: int  # elements of a long run of one key in a part, for a group of threads
    own_key_elements: int  # the same for one thread: neighbours still share cache lines
    key_threads: int  # threads, at least, that are a group
    joint_sums: int  # sums over lanes that share exchanges, at most: each takes registers
    open_sums: int  # the same of a loop of any length, whose last trips do not share them


CUDA_GRID = GridKnobs(
    block_threads=128,
    warp_threads=32,
    row_threads=8,
    parts=1 << 16,  # several for each group of threads
    part_turns=16,
    thread_loads=18,
    row_loads=4,
    sharing_blocks=512,  # some for each multiprocessor
    processors=108,  # of the A100
    resident_threads=1024,  # with fewer registers, code waits for each load before the next
    few_loops=5,  # with more, registers hold the values between them
    resident_threads_many=768,  # several loads in flight need some, too
    element_copies=8,
    fiber_copies=4,
    entry_elements=16,
    thread_bytes=1024,
    total_elements=2048,
    column_elements=128,
    thread_sums=64,
    scan_elements=16,
    compact_elements=1 << 16,
    block_bytes=48 << 10,
    few_products=64,
    product_threads=64,  # each needs some hundred bytes
    mark_lanes=8,
    mark_words=1 << 23,
    warps_least=512,
    warps_most=1 << 12,
    warp_turns=8,
    run_elements=512,
    own_key_elements=16,
    key_threads=8,
    joint_sums=8,
    open_sums=4,
)


@dataclass(frozen=True, slots=True)
class DaskKnobs:
    """The thresholds of programs over distributed tensors."""

    broadcast_bytes: int  # bytes of an array, at most, that every task gets whole
    part_bytes: int  # bytes of a text file that a task reads, about


DASK = DaskKnobs(broadcast_bytes=1 << 20, part_bytes=1 << 26)


def knobs_of(target: Target) -> Knobs:
    """Return the thresholds for *target*.

    Raises BackendError for a kind of target that has none: nobody has measured what is best there.
    """
    if target.cpu.startswith("znver"):
        return ZENS.get(target.cpu, ZEN_KNOBS)
    knobs = KNOBS.get(target.kind)
    if knobs is None:
        raise BackendError(
            f"no thresholds are known for {target}", hint=f"targets with some: {', '.join(KNOBS)}"
        )
    wide = knobs is CPU_KNOBS and knobs.gathers(target.vector_bits)
    return WIDE_KNOBS if wide else knobs
