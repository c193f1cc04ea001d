"""Beside the kernels: where the emulator's structures hold what, for Python and machine code.

Numbers are indices into the view that the comment names.
"""

from __future__ import annotations

# A launch: 40 views of 64 bits, then some of 32 bits.
NOW = 0  # ptr: the thread that runs
THREADS = 1  # ptr: the threads of the block, THREAD_BYTES each
COUNT = 2  # how many
ORDER = 3  # ptr: i64, the order in which they run
BLOCKS = 4  # ptr: i64, the numbers of the blocks in the order in which they run
START = 5  # ptr: machine code that starts a thread
RESUME = 6  # ptr: and that continues it
ARGS = 7  # ptr: the arguments of the kernel, 8 bytes each
ARENA = 8  # ptr: shared memory
ARENA_BYTES = 9
CHECK = 12  # whether accesses are checked
SITES = 13  # ptr: the instructions that access memory, SITE_WORDS each
RANGES = 14  # ptr: the memory that they may access, RANGE_WORDS each
RANGE_COUNT = 15
SHIFT = 16  # log2 of the bytes of a cell
ERA = 17  # counts barriers of blocks, and blocks
FIRST_ERA = 18  # of the block that runs
ERAS = 19  # ptr: u32, the first era of each block in the order in which they run
QUEUES = 20  # ptr: unfinished copies, QUEUE_BYTES for each thread
FAULT = 21  # what is wrong, or 0
FAULT_SITE = 22
FAULT_ADDRESS = 23
FAULT_STAMP = 24  # of the other access of a race
FAULT_SIZE = 25
FAULT_THREAD = 26
FAULT_BLOCK = 27
FAULT_OTHER = 28  # the other thread of a divergent barrier
BLOCK = 29  # the number of the block that runs
FAULT_OTHER_SITE = 31
ACCESSES = 32  # of the thread since it began to run, or last waited
SYNCED = 30  # whether a warp was synchronised since the last barrier
NTID, CTAID, NCTAID = 80, 83, 86  # i32: blockDim, blockIdx, gridDim, x y z each
LAUNCH_BYTES = 384

# A thread: views of 32 bits, then of 64 bits, then bytes.
TID = 0  # i32: threadIdx, x y z
LANE = 3
INDEX = 4  # i32: among the threads of its block
STATUS = 5  # i32: one of the next four
READY, WAITING, DONE, FRESH = 0, 1, 2, 3
KIND = 6  # i32: what it waits at
SITE = 7  # i32: the instruction that it waits at
FRAME = 4  # ptr
CLOCK = 5  # i64: counts its warp synchronisations since the last barrier of the block
OPERANDS = 64  # bytes: of the instruction that it waits at, 8 bytes each
MASK = 16  # u32: the first operand
RESULT = 192  # bytes
KNOWN = 256  # bytes: u32, the clocks of its warp's lanes that it is synchronised with
THREAD_BYTES = 384

# What threads wait at.
BARRIER, ACTIVEMASK, WARP_SYNC = 1, 2, 3
SHFL_IDX, SHFL_UP, SHFL_DOWN, SHFL_BFLY = 4, 5, 6, 7
VOTE_BALLOT, VOTE_ANY, VOTE_ALL, VOTE_UNI = 8, 9, 10, 11
MATCH_ANY = 12
REDUX_ADD, REDUX_MIN, REDUX_MAX, REDUX_UMIN = 16, 17, 18, 19
REDUX_UMAX, REDUX_AND, REDUX_OR, REDUX_XOR = 20, 21, 22, 23
MMA_F16, MMA_BF16, MMA_TF32, MMA_F64 = 32, 33, 34, 35
LDMATRIX = 40  # + log2 of the number of matrices, + 4 if transposed
ALIGNED = 32  # kinds from here on want the whole warp at one instruction

# An instruction that accesses memory: 64 bits.
ACCESS, SPACE, BASE, ALIGN, SCOPE = 0, 1, 2, 3, 4
SITE_WORDS = 8
READ, WRITE, ATOMIC = 0, 1, 2
GENERIC, GLOBAL, SHARED = 0, 1, 3  # address spaces of LLVM
BLOCK_SCOPE = 1
NO_BASE = -1
ELSEWHERE = -(1 << 30)  # a variable of the module that is not in shared memory

# Memory that may be accessed: 64 bits.
LOW, HIGH, FLAGS, CELLS, ORIGIN = 0, 1, 2, 3, 4
RANGE_WORDS = 8
READ_ONLY, IN_SHARED = 1, 2

# A cell: what happened to some bytes, as stamps of accesses: 64 bits.
WRITTEN = 0
READERS = 1  # two of this block, then one of an earlier block
ATOMICS = 4  # the same
CELL_BYTES = 64

# A stamp: era, clock, thread and site of an access.
ERA_AT, CLOCK_AT, THREAD_AT = 40, 24, 14
MOST_ERAS, MOST_CLOCKS, MOST_SITES = 1 << 24, 1 << 16, 1 << 14
MOST_THREADS = 1024
MOST_ACCESSES = 1 << 26
IN_FLIGHT = MOST_ERAS - 1  # the era of a copy that is not waited for: ordered with nothing

# Unfinished copies of a thread: 64 bits, COPIES entries from FIRST_COPY on.
QUEUE_LENGTH, QUEUE_OPEN = 0, 1  # entries; the group that is not committed yet
FIRST_COPY = 2
COPY_TO, COPY_FROM, COPY_SIZE, COPY_GROUP, COPY_SITE, COPY_TAKEN = 0, 1, 2, 3, 4, 5
COPY_WORDS = 6
COPIES = 32
ALL_GROUPS = 1 << 62  # more than there can be
QUEUE_BYTES = 8 * (FIRST_COPY + COPIES * COPY_WORDS)

# What can be wrong.
RACE, OUT_OF_BOUNDS, MISALIGNED, READ_ONLY_WRITTEN, DIVERGENT = 1, 2, 3, 4, 5
OUTSIDE_MASK, PARTIAL_WARP, TOO_MANY_ERAS, TOO_MANY_CLOCKS = 6, 7, 8, 9
ENDLESS, TRAPPED, DIVIDED = 10, 11, 12
POISON = 0x7FFFFFFF
