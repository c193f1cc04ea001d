"""The worker pool's machine code, as LLVM IR: it runs the chunks of a parallel loop.

``spcomp_parallel_for2(fn, ctx, n, grain)`` calls ``fn(ctx, begin, end)`` for ranges that cover
``0..n``. They consist of chunks whose boundaries depend only on *n* and *grain*. The caller begins
at once, alone, and finishes a job that takes no longer than PATIENCE by itself. A longer job, or
one that is expected to be long because the last job of the same *fn* was, is published in
``@word``, which holds the number of the job (upper half) and the next chunk to take (lower half;
all ones: closed). Chunks are taken by compare-and-swap of the whole word, small ones several at a
time. So a worker that wakes late can neither touch a finished job nor take a chunk of the next one
under the old job's function: its swap fails. The caller waits only for chunks that were taken,
never for a thread to start.

Workers spin for a while after a job, then sleep. Waking one takes a system call and some tens of
microseconds until it runs. So sleepers are woken for WORTH of work, or for less if jobs follow one
another so closely that they will not fall asleep again. They are kept off the CPU that the caller
runs on, because the scheduler of a virtual machine takes an idle CPU for an absent one and would
queue them behind the caller. A second caller while a job runs (another thread, or a loop inside a
chunk) runs its loop itself.

``pool_watch`` describes how a loop ends early, ``pool_log`` how the times of chunks are recorded.
"""

from __future__ import annotations

from spcomp.codegen.abi import BUDGET, INTERRUPTED
from spcomp.runtime.native.pool_log import LOG, SERIAL_LOG
from spcomp.runtime.native.pool_share import SHARE
from spcomp.runtime.native.pool_watch import EASY, EVERY, WATCH
from spcomp.runtime.native.pool_workers import AFFINITY, NO_AFFINITY, TAKE, WORKERS

CHUNKS = 256  # chunks per loop by default
MOST_CHUNKS = 2048  # the most chunks of a loop of so many trips that chunks would be long
TRIPS = 8192  # the least trips of such a chunk, compared with which handing it out takes no time
SPIN = 2000  # pauses before a worker sleeps: some tens of microseconds
PATIENCE = 3_000  # nanoseconds that the caller works alone before it shares the rest
AT_ONCE = 6_000.0  # nanoseconds of expected work from which on it is shared at the start
WORTH = 50_000.0  # nanoseconds of work for which sleepers are woken
INVEST = 6_000.0  # nanoseconds of work for which they are woken in a series of jobs
BATCH = 8_000.0  # nanoseconds of work that are worth an access to @word, and a new beginning
CLOSE = 20_000  # the most nanoseconds between two jobs of a series
SERIES = 3  # the least jobs of a series
CELLS = 256  # functions whose time per iteration is remembered

_STATE = """
@threads = internal global i64 0        ; that may work on a job, the caller included; 0: ask
@spin = internal global i64 {spin}
@started = internal global i64 0        ; workers that exist
@busy = internal global i32 0           ; a job is running
; job number, next chunk; in a cache line of its own, as is @finished
@word = internal global {{ i64, [56 x i8] }} {{
  i64 4294967295, [56 x i8] zeroinitializer
}}, align 64
@fn = internal global i64 0
@ctx = internal global i64 0
@n = internal global i64 0
@size = internal global i64 0           ; iterations per chunk
@chunks = internal global i64 0
@helpers = internal global i64 0        ; workers that may take part
@batch = internal global i64 0          ; chunks to take at once
@finished = internal global {{ i64, [56 x i8] }} zeroinitializer, align 64 ; chunks done
@sleepers = internal global i64 0
@waiting = internal global i64 0        ; the caller sleeps on @done
@lock = internal global [128 x i8] zeroinitializer, align 64
@wake = internal global [128 x i8] zeroinitializer, align 64
@done = internal global [128 x i8] zeroinitializer, align 64
@ready = internal global i32 0          ; the lock and conditions are initialised
@ended = internal global i64 0          ; when the last job was over
@series = internal global i64 0         ; jobs that followed closely on the one before
@paces = internal global [{cells} x {{ ptr, double }}] zeroinitializer ; functions, ns per iteration
@ids = internal global [1024 x i64] zeroinitializer ; the workers as pthreads

@variable = internal constant [19 x i8] c"SPCOMP_NUM_THREADS\\00"

declare ptr @getenv(ptr)
declare i32 @atoi(ptr)
declare i64 @sysconf(i32)
declare i64 @pthread_self()
declare i64 @llvm.umax.i64(i64, i64)
declare i64 @llvm.smax.i64(i64, i64)
declare i64 @llvm.umin.i64(i64, i64)
declare double @llvm.minnum.f64(double, double)
declare i32 @clock_gettime(i32, ptr)
declare i32 @pthread_create(ptr, ptr, ptr, ptr)
declare i32 @pthread_detach(i64)
declare i32 @pthread_mutex_init(ptr, ptr)
declare i32 @pthread_mutex_lock(ptr)
declare i32 @pthread_mutex_unlock(ptr)
declare i32 @pthread_cond_init(ptr, ptr)
declare i32 @pthread_cond_wait(ptr, ptr)
declare i32 @pthread_cond_signal(ptr)
declare i32 @pthread_cond_broadcast(ptr)
"""

_ENTRY = """
define weak void @spcomp_set_threads(i64 %count) {
  store atomic i64 %count, ptr @threads seq_cst, align 8
  %is.ready = load atomic i32, ptr @ready acquire, align 4
  %none = icmp eq i32 %is.ready, 0
  br i1 %none, label %exit, label %tell
tell:                                      ; those that are too many leave
  %r0 = call i32 @pthread_mutex_lock(ptr @lock)
  %r1 = call i32 @pthread_cond_broadcast(ptr @wake)
  %r2 = call i32 @pthread_mutex_unlock(ptr @lock)
  br label %exit
exit:
  ret void
}

; SPCOMP_NUM_THREADS, else the processors that are online.
define internal i64 @ask() noinline {
entry:
  %text = call ptr @getenv(ptr @variable)
  %missing = icmp eq ptr %text, null
  br i1 %missing, label %count, label %parse
parse:
  %number = call i32 @atoi(ptr %text)
  %wide = sext i32 %number to i64
  %good = icmp sgt i32 %number, 0
  br i1 %good, label %exit, label %count
count:
  %online = call i64 @sysconf(i32 PROCESSORS)
  %sane = call i64 @llvm.smax.i64(i64 %online, i64 1)
  br label %exit
exit:
  %result = phi i64 [ %wide, %parse ], [ %sane, %count ]
  ret i64 %result
}

define weak void @spcomp_set_spin(i64 %count) {
  store atomic i64 %count, ptr @spin monotonic, align 8
  ret void
}

; For the child of a fork, where no worker is left: the pool as it was at the start.
define weak void @spcomp_reset() {
  store i64 0, ptr @started
  store i64 0, ptr @sleepers
  store i64 0, ptr @waiting
  store atomic i32 0, ptr @ready release, align 4
  store ptr null, ptr @inside
  store ptr null, ptr @halted
  %old = load i64, ptr @word
  %closed = or i64 %old, 4294967295
  store i64 %closed, ptr @word
  store atomic i32 0, ptr @busy seq_cst, align 4
  ret void
}

define weak i32 @spcomp_parallel_for2(ptr %fn, ptr %ctx, i64 %n, i64 %grain) {
entry:
  %some = icmp sgt i64 %n, 0
  br i1 %some, label %divide, label %done
divide:
  %given = icmp sgt i64 %grain, 0
  %less = sub i64 %n, 1
  %large = udiv i64 %less, CHUNKS
  %small = udiv i64 %less, MOST_CHUNKS
  %floor = call i64 @llvm.umax.i64(i64 %small, i64 TRIPS)
  %below = call i64 @llvm.umin.i64(i64 %large, i64 %floor)
  %even = add i64 %below, 1
  %asked = select i1 %given, i64 %grain, i64 %even
  %high = lshr i64 %n, 31
  %least = add i64 %high, 1                ; so that chunk numbers fit 32 bits
  %size = call i64 @llvm.umax.i64(i64 %asked, i64 %least)
  %last = sub i64 %n, 1
  %full = udiv i64 %last, %size
  %chunks = add i64 %full, 1
  %set = load atomic i64, ptr @threads monotonic, align 8
  %unset = icmp eq i64 %set, 0
  br i1 %unset, label %ask, label %decide
ask:
  %asked.threads = call i64 @ask()
  store atomic i64 %asked.threads, ptr @threads monotonic, align 8
  br label %decide
decide:
  %threads = phi i64 [ %set, %divide ], [ %asked.threads, %ask ]
  %asks = call i1 @enter(ptr %ctx)
  %split = icmp sgt i64 %chunks, 1
  br i1 %split, label %who, label %alone
who:
  %several = icmp sgt i64 %threads, 1
  %worth = or i1 %several, %asks
  br i1 %worth, label %claim, label %alone
claim:
  %claimed = cmpxchg ptr @busy, i32 0, i32 1 acquire monotonic
  %ours = extractvalue { i32, i1 } %claimed, 1
  br i1 %ours, label %publish, label %busy
busy:
  br i1 %asks, label %turns, label %alone
alone:
  call void @work(ptr %fn, ptr %ctx, i64 0, i64 %n)
  br label %over
turns:
  %r0 = call i32 @turns(ptr %fn, ptr %ctx, i64 %n, i64 %size, i64 %chunks)
  br label %over
publish:
  %r1 = call i32 @run(ptr %fn, ptr %ctx, i64 %n, i64 %size, i64 %chunks, i64 %threads, i1 %asks)
  br label %over
over:
  %result = phi i32 [ 0, %alone ], [ %r0, %turns ], [ %r1, %publish ]
  br i1 %asks, label %leave, label %exit
leave:
  %early = call i1 @leave()
  %status = select i1 %early, i32 INTERRUPTED, i32 %result
  ret i32 %status
exit:
  ret i32 %result
done:
  ret i32 0
}

"""

_JOB = """
; Nanoseconds of a clock that only goes forward.
define internal i64 @now() {
  %time = alloca [2 x i64]
  %r = call i32 @clock_gettime(i32 CLOCK, ptr %time)
  %seconds = load i64, ptr %time
  %at = getelementptr inbounds i64, ptr %time, i64 1
  %rest = load i64, ptr %at
  %whole = mul i64 %seconds, 1000000000
  %now = add i64 %whole, %rest
  ret i64 %now
}

; Where the pace of %fn is remembered, or that of another function with the same hash.
define internal ptr @cell(ptr %fn) {
  %bits = ptrtoint ptr %fn to i64
  %mixed = mul i64 %bits, -7046029254386353131 ; code begins at the same places of many pages
  %hash = lshr i64 %mixed, 32
  %index = urem i64 %hash, CELLS
  %at = getelementptr inbounds {ptr, double}, ptr @paces, i64 %index
  ret ptr %at
}

; %count of %chunks took %time.
define internal void @remember(ptr %fn, i64 %time, i64 %count, i64 %chunks, i64 %n) {
  %at = call ptr @cell(ptr %fn)
  %pace.at = getelementptr inbounds {ptr, double}, ptr %at, i64 0, i32 1
  %whole = call double @scaled(i64 %time, i64 %chunks, i64 %count)
  %iterations = sitofp i64 %n to double
  %pace = fdiv double %whole, %iterations
  store ptr %fn, ptr %at
  store double %pace, ptr %pace.at
  ret void
}

define internal double @scaled(i64 %time, i64 %times, i64 %by) {
  %a = sitofp i64 %time to double
  %b = sitofp i64 %times to double
  %c = sitofp i64 %by to double
  %product = fmul double %a, %b
  %result = fdiv double %product, %c
  ret double %result
}

; Begin the job; share it if it is long. Only the owner of @busy comes here.
define internal i32 @run(ptr %fn, ptr %ctx, i64 %n, i64 %size, i64 %chunks, i64 %threads,
                         i1 %asks) noinline {
entry:
  %begun = call i64 @now()
  %ended = load i64, ptr @ended
  %gap = sub i64 %begun, %ended
  %soon = icmp slt i64 %gap, CLOSE
  %before = load i64, ptr @series
  %longer = add i64 %before, 1
  %series = select i1 %soon, i64 %longer, i64 0
  store i64 %series, ptr @series
  %cell = call ptr @cell(ptr %fn)
  %whose = load ptr, ptr %cell
  %pace.at = getelementptr inbounds {ptr, double}, ptr %cell, i64 0, i32 1
  %pace = load double, ptr %pace.at
  %iterations = sitofp i64 %n to double
  %expected = fmul double %pace, %iterations
  %known = icmp eq ptr %whose, %fn
  %long = fcmp ogt double %expected, AT_ONCE
  %at.once = and i1 %known, %long
  %single = icmp sle i64 %threads, 1
  br i1 %single, label %own, label %team
own:                                       ; there is nobody to share it with
  %short = fcmp olt double %expected, EASY.0
  %whole = and i1 %known, %short
  br i1 %whole, label %one, label %several
one:
  call void @work(ptr %fn, ptr %ctx, i64 0, i64 %n)
  br label %own.end
several:
  %turned = call i32 @turns(ptr %fn, ptr %ctx, i64 %n, i64 %size, i64 %chunks)
  %through = icmp eq i32 %turned, 0
  br i1 %through, label %own.end, label %close
own.end:
  %own.now = call i64 @now()
  %own.time = sub i64 %own.now, %begun
  br label %alone
team:
  br i1 %at.once, label %share, label %try
try:                                       ; as many chunks again as are done
  %done = phi i64 [ 0, %team ], [ %upto, %more ]
  %some = call i64 @llvm.umax.i64(i64 %done, i64 1)
  %ahead = add i64 %done, %some
  %upto = call i64 @llvm.umin.i64(i64 %ahead, i64 %chunks)
  %from = mul i64 %done, %size
  %stop = mul i64 %upto, %size
  %to = call i64 @llvm.umin.i64(i64 %stop, i64 %n)
  call void @work(ptr %fn, ptr %ctx, i64 %from, i64 %to)
  %now = call i64 @now()
  %taken = sub i64 %now, %begun
  %all = icmp eq i64 %upto, %chunks
  br i1 %all, label %alone, label %more
more:
  %patient = icmp slt i64 %taken, PATIENCE
  br i1 %patient, label %try, label %slow
slow:
  %left = sub i64 %chunks, %upto
  %rest = call double @scaled(i64 %taken, i64 %left, i64 %upto)
  br label %share
share:
  %first = phi i64 [ 0, %team ], [ %upto, %slow ]
  %work = phi double [ %expected, %team ], [ %rest, %slow ]
  %shared = call i32 @share(ptr %fn, ptr %ctx, i64 %n, i64 %size, i64 %chunks, i64 %threads,
                            i64 %first, double %work, i1 %asks)
  %end = call i64 @now()
  br label %close
alone:
  %at = phi i64 [ %now, %try ], [ %own.now, %own.end ]
  %time = phi i64 [ %taken, %try ], [ %own.time, %own.end ]
  call void @remember(ptr %fn, i64 %time, i64 1, i64 1, i64 %n)
  br label %close
close:
  %over = phi i64 [ %end, %share ], [ %at, %alone ], [ %begun, %several ]
  %result = phi i32 [ %shared, %share ], [ 0, %alone ], [ %turned, %several ]
  store i64 %over, ptr @ended
  store atomic i32 0, ptr @busy release, align 4
  %well = icmp eq i32 %result, 0
  %question = and i1 %asks, %well
  br i1 %question, label %ask, label %exit
ask:                                       ; jobs may be short, and many
  %halt = call i1 @asked(i64 %over)
  %answer = select i1 %halt, i32 INTERRUPTED, i32 0
  ret i32 %answer
exit:
  ret i32 %result
}
"""

_SERIAL = """
define weak void @spcomp_set_threads(i64 %count) {
  ret void
}
define weak void @spcomp_set_spin(i64 %count) {
  ret void
}
define weak void @spcomp_reset() {
  ret void
}
define weak void @spcomp_watch(ptr %poll, i64 %thread) {
  ret void
}
define weak i64 @spcomp_pause(ptr %ctx) {
  ret i64 BUDGET
}
define weak i32 @spcomp_parallel_for2(ptr %fn, ptr %ctx, i64 %n, i64 %grain) {
  %some = icmp sgt i64 %n, 0
  br i1 %some, label %go, label %exit
go:
  call void %fn(ptr %ctx, i64 0, i64 %n)
  br label %exit
exit:
  ret i32 0
}
"""

_PAUSES = {  # intrinsics: inline assembly needs a parser that LLVM may be built without
    "x86_64": ("@llvm.x86.sse2.pause()", "@llvm.x86.sse2.pause()"),
    "aarch64": ("@llvm.aarch64.hint(i32)", "@llvm.aarch64.hint(i32 1)"),
}
_CLOCKS = {"darwin": 6}  # the number of CLOCK_MONOTONIC; elsewhere Linux's
_PROCESSORS = {"darwin": 58}  # sysconf's number for the processors online; elsewhere Linux's


def pool_ir(family: str, platform: str) -> str:
    """Return the pool's LLVM IR for a CPU *family* (``x86_64``) and a ``sys.platform``.

    Without pthreads, a loop runs on its caller's thread.
    """
    if platform == "win32":
        return (_SERIAL + SERIAL_LOG).replace("BUDGET", str(BUDGET))
    affinity = AFFINITY if platform == "linux" else NO_AFFINITY
    text = _STATE.format(spin=SPIN, cells=CELLS)
    text += _ENTRY + WATCH + LOG + _JOB + SHARE + TAKE + WORKERS + affinity
    declared, called = _PAUSES.get(family, ("", ""))
    text += f"declare void {declared}\n" if declared else ""
    numbers = {
        "MOST_CHUNKS": MOST_CHUNKS,
        "TRIPS": TRIPS,
        "CHUNKS": CHUNKS,
        "PROCESSORS": _PROCESSORS.get(platform, 84),
        "CLOCK": _CLOCKS.get(platform, 1),
        "PATIENCE": PATIENCE,
        "AT_ONCE": AT_ONCE,
        "WORTH": WORTH,
        "INVEST": INVEST,
        "BATCH": BATCH,
        "EVERY": EVERY,
        "BUDGET": BUDGET,
        "EASY": EASY,
        "INTERRUPTED": INTERRUPTED,
        "CLOSE": CLOSE,
        "SERIES": SERIES,
        "CELLS": CELLS,
    }
    for name, number in numbers.items():
        text = text.replace(name, str(number))
    return text.replace("  PAUSE\n", f"  call void {called}\n" if called else "")
