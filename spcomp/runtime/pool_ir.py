"""The worker pool's machine code, as LLVM IR: it runs the chunks of a parallel loop.

``spcomp_parallel_for(fn, ctx, n, grain)`` calls ``fn(ctx, begin, end)`` for chunks that cover
``0..n``; their boundaries depend on *n* and *grain* only. A job is published in ``@word``, which
holds its number (upper half) and the next chunk to take (lower half; all ones: closed). Chunks are
taken by compare-and-swap of the whole word, so that a worker which wakes late can neither touch a
finished job nor take a chunk of the next one under the old job's function: its swap fails. The
caller takes chunks at once and waits only for chunks that were taken, never for a thread to start.
Workers spin for a while after a job, then sleep. A second caller while a job runs (another thread,
or a loop inside a chunk) runs its loop itself.
"""

from __future__ import annotations

CHUNKS = 256  # chunks per loop where the loop does not say
SPIN = 2000  # pauses before a worker sleeps: some tens of microseconds

_STATE = """
@threads = internal global i64 0        ; that may work on a job, the caller included; 0: ask
@spin = internal global i64 {spin}
@started = internal global i64 0        ; workers that exist
@busy = internal global i32 0           ; a job is running
@word = internal global i64 4294967295  ; job number, next chunk
@fn = internal global i64 0
@ctx = internal global i64 0
@n = internal global i64 0
@size = internal global i64 0           ; iterations per chunk
@chunks = internal global i64 0
@helpers = internal global i64 0        ; workers that may take part
@finished = internal global i64 0       ; chunks done
@sleepers = internal global i64 0
@waiting = internal global i64 0        ; the caller sleeps on @done
@lock = internal global [128 x i8] zeroinitializer, align 64
@wake = internal global [128 x i8] zeroinitializer, align 64
@done = internal global [128 x i8] zeroinitializer, align 64
@ready = internal global i32 0          ; the lock and conditions are initialised

@variable = internal constant [19 x i8] c"SPCOMP_NUM_THREADS\\00"

declare ptr @getenv(ptr)
declare i32 @atoi(ptr)
declare i64 @sysconf(i32)
declare i64 @llvm.umax.i64(i64, i64)
declare i64 @llvm.smax.i64(i64, i64)
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
  store atomic i64 %count, ptr @threads monotonic, align 8
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
  store i32 0, ptr @ready
  %old = load i64, ptr @word
  %closed = or i64 %old, 4294967295
  store i64 %closed, ptr @word
  store atomic i32 0, ptr @busy seq_cst, align 4
  ret void
}

define weak void @spcomp_parallel_for(ptr %fn, ptr %ctx, i64 %n, i64 %grain) {
entry:
  %some = icmp sgt i64 %n, 0
  br i1 %some, label %divide, label %exit
divide:
  %given = icmp sgt i64 %grain, 0
  %up = add i64 %n, CHUNKS_LESS_1
  %even = udiv i64 %up, CHUNKS
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
  %several = icmp sgt i64 %threads, 1
  %split = icmp sgt i64 %chunks, 1
  %worth = and i1 %several, %split
  br i1 %worth, label %claim, label %alone
claim:
  %claimed = cmpxchg ptr @busy, i32 0, i32 1 acquire monotonic
  %ours = extractvalue { i32, i1 } %claimed, 1
  br i1 %ours, label %publish, label %alone
alone:
  call void %fn(ptr %ctx, i64 0, i64 %n)
  br label %exit
publish:
  call void @run(ptr %fn, ptr %ctx, i64 %n, i64 %size, i64 %chunks, i64 %threads)
  br label %exit
exit:
  ret void
}
"""

_JOB = """
; Start workers, publish the job, work on it, wait for what the others took.
define internal void @run(ptr %fn, ptr %ctx, i64 %n, i64 %size, i64 %chunks,
                          i64 %threads) noinline {
entry:
  %helpers = sub i64 %threads, 1
  %started = load i64, ptr @started
  %enough = icmp sge i64 %started, %helpers
  br i1 %enough, label %publish, label %start
start:
  call void @start(i64 %helpers)
  br label %publish
publish:
  %old = load atomic i64, ptr @word monotonic, align 8
  %number = lshr i64 %old, 32
  %next = add i64 %number, 1
  %job = shl i64 %next, 32
  %closed = or i64 %job, 4294967295
  store atomic i64 %closed, ptr @word seq_cst, align 8
  %fn.bits = ptrtoint ptr %fn to i64
  %ctx.bits = ptrtoint ptr %ctx to i64
  store atomic i64 %fn.bits, ptr @fn release, align 8
  store atomic i64 %ctx.bits, ptr @ctx release, align 8
  store atomic i64 %n, ptr @n release, align 8
  store atomic i64 %size, ptr @size release, align 8
  store atomic i64 %chunks, ptr @chunks release, align 8
  store atomic i64 %helpers, ptr @helpers release, align 8
  store atomic i64 0, ptr @finished release, align 8
  store atomic i64 %job, ptr @word seq_cst, align 8
  %asleep = load atomic i64, ptr @sleepers seq_cst, align 8
  %all.awake = icmp eq i64 %asleep, 0
  br i1 %all.awake, label %work, label %rouse
rouse:
  %r0 = call i32 @pthread_mutex_lock(ptr @lock)
  %r1 = call i32 @pthread_cond_broadcast(ptr @wake)
  %r2 = call i32 @pthread_mutex_unlock(ptr @lock)
  br label %work
work:
  call void @take(i64 %next)
  %pauses = load atomic i64, ptr @spin monotonic, align 8
  br label %look
look:
  %tried = phi i64 [ 0, %work ], [ %again, %pause ]
  %count = load atomic i64, ptr @finished acquire, align 8
  %over = icmp eq i64 %count, %chunks
  br i1 %over, label %close, label %more
more:
  %patient = icmp slt i64 %tried, %pauses
  br i1 %patient, label %pause, label %sleep
pause:
  PAUSE
  %again = add i64 %tried, 1
  br label %look
sleep:
  %s0 = call i32 @pthread_mutex_lock(ptr @lock)
  store atomic i64 1, ptr @waiting seq_cst, align 8
  br label %check
check:
  %count2 = load atomic i64, ptr @finished seq_cst, align 8
  %over2 = icmp eq i64 %count2, %chunks
  br i1 %over2, label %woken, label %rest
rest:
  %s1 = call i32 @pthread_cond_wait(ptr @done, ptr @lock)
  br label %check
woken:
  store atomic i64 0, ptr @waiting seq_cst, align 8
  %s2 = call i32 @pthread_mutex_unlock(ptr @lock)
  br label %close
close:
  store atomic i32 0, ptr @busy release, align 4
  ret void
}

; Take chunks of job %number until there are none, or it is over.
define internal void @take(i64 %number) noinline {
entry:
  %fn.bits = load atomic i64, ptr @fn acquire, align 8
  %ctx.bits = load atomic i64, ptr @ctx acquire, align 8
  %n = load atomic i64, ptr @n acquire, align 8
  %size = load atomic i64, ptr @size acquire, align 8
  %chunks = load atomic i64, ptr @chunks acquire, align 8
  %fn = inttoptr i64 %fn.bits to ptr
  %ctx = inttoptr i64 %ctx.bits to ptr
  br label %look
look:
  %word = load atomic i64, ptr @word seq_cst, align 8
  br label %try
try:
  %now = phi i64 [ %word, %look ], [ %seen, %swap ]
  %job = lshr i64 %now, 32
  %same = icmp eq i64 %job, %number
  %chunk = and i64 %now, 4294967295
  %left = icmp ult i64 %chunk, %chunks
  %take = and i1 %same, %left
  br i1 %take, label %swap, label %exit
swap:
  %next = add i64 %now, 1
  %result = cmpxchg ptr @word, i64 %now, i64 %next seq_cst seq_cst
  %seen = extractvalue { i64, i1 } %result, 0
  %won = extractvalue { i64, i1 } %result, 1
  br i1 %won, label %call, label %try
call:
  %begin = mul i64 %chunk, %size
  %stop = add i64 %begin, %size
  %short = icmp slt i64 %stop, %n
  %end = select i1 %short, i64 %stop, i64 %n
  call void %fn(ptr %ctx, i64 %begin, i64 %end)
  %before = atomicrmw add ptr @finished, i64 1 seq_cst
  %count = add i64 %before, 1
  %over = icmp eq i64 %count, %chunks
  br i1 %over, label %last, label %look
last:
  %waits = load atomic i64, ptr @waiting seq_cst, align 8
  %sleeps = icmp ne i64 %waits, 0
  br i1 %sleeps, label %tell, label %exit
tell:
  %t0 = call i32 @pthread_mutex_lock(ptr @lock)
  %t1 = call i32 @pthread_cond_signal(ptr @done)
  %t2 = call i32 @pthread_mutex_unlock(ptr @lock)
  br label %exit
exit:
  ret void
}
"""

_WORKERS = """
; Create workers up to %wanted, as far as the system lets us. Only the owner of @busy comes here.
define internal void @start(i64 %wanted) noinline {
entry:
  %thread = alloca i64
  %is.ready = load i32, ptr @ready
  %done = icmp ne i32 %is.ready, 0
  br i1 %done, label %head, label %init
init:
  %i0 = call i32 @pthread_mutex_init(ptr @lock, ptr null)
  %i1 = call i32 @pthread_cond_init(ptr @wake, ptr null)
  %i2 = call i32 @pthread_cond_init(ptr @done, ptr null)
  store i32 1, ptr @ready
  br label %head
head:
  %started = load i64, ptr @started
  %more = icmp slt i64 %started, %wanted
  br i1 %more, label %create, label %exit
create:
  %index = inttoptr i64 %started to ptr
  %failed = call i32 @pthread_create(ptr %thread, ptr null, ptr @worker, ptr %index)
  %ok = icmp eq i32 %failed, 0
  br i1 %ok, label %created, label %exit
created:
  %id = load i64, ptr %thread
  %d = call i32 @pthread_detach(i64 %id)
  %count = add i64 %started, 1
  store i64 %count, ptr @started
  br label %head
exit:
  ret void
}

; Look for a job newer than the last one seen; spin, then sleep, then look again.
define internal ptr @worker(ptr %index.bits) {
entry:
  %index = ptrtoint ptr %index.bits to i64
  br label %idle
idle:
  %last = phi i64 [ 0, %entry ], [ %job, %worked ]
  %pauses = load atomic i64, ptr @spin monotonic, align 8
  br label %look
look:
  %tried = phi i64 [ 0, %idle ], [ %again, %pause ], [ 0, %awake ]
  %word = load atomic i64, ptr @word seq_cst, align 8
  %job = lshr i64 %word, 32
  %chunk = and i64 %word, 4294967295
  %open = icmp ne i64 %chunk, 4294967295
  %new = icmp ne i64 %job, %last
  %go = and i1 %open, %new
  br i1 %go, label %join, label %more
more:
  %patient = icmp slt i64 %tried, %pauses
  br i1 %patient, label %pause, label %sleep
pause:
  PAUSE
  %again = add i64 %tried, 1
  br label %look
sleep:
  %s0 = call i32 @pthread_mutex_lock(ptr @lock)
  %s1 = atomicrmw add ptr @sleepers, i64 1 seq_cst
  br label %check
check:
  %word2 = load atomic i64, ptr @word seq_cst, align 8
  %job2 = lshr i64 %word2, 32
  %chunk2 = and i64 %word2, 4294967295
  %open2 = icmp ne i64 %chunk2, 4294967295
  %new2 = icmp ne i64 %job2, %last
  %go2 = and i1 %open2, %new2
  br i1 %go2, label %awake, label %rest
rest:
  %s2 = call i32 @pthread_cond_wait(ptr @wake, ptr @lock)
  br label %check
awake:
  %s3 = atomicrmw sub ptr @sleepers, i64 1 seq_cst
  %s4 = call i32 @pthread_mutex_unlock(ptr @lock)
  br label %look
join:
  %helpers = load atomic i64, ptr @helpers acquire, align 8
  %welcome = icmp slt i64 %index, %helpers
  br i1 %welcome, label %work, label %worked
work:
  call void @take(i64 %job)
  br label %worked
worked:
  br label %idle
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
define weak void @spcomp_parallel_for(ptr %fn, ptr %ctx, i64 %n, i64 %grain) {
  %some = icmp sgt i64 %n, 0
  br i1 %some, label %go, label %exit
go:
  call void %fn(ptr %ctx, i64 0, i64 %n)
  br label %exit
exit:
  ret void
}
"""

_PAUSES = {  # intrinsics: inline assembly needs a parser that LLVM may be built without
    "x86_64": ("@llvm.x86.sse2.pause()", "@llvm.x86.sse2.pause()"),
    "aarch64": ("@llvm.aarch64.hint(i32)", "@llvm.aarch64.hint(i32 1)"),
}
_PROCESSORS = {"darwin": 58}  # sysconf's number for the processors online; elsewhere Linux's


def pool_ir(family: str, platform: str) -> str:
    """Return the pool's LLVM IR for a CPU *family* (``x86_64``) and a ``sys.platform``.

    Where there are no pthreads a loop runs on its caller.
    """
    if platform == "win32":
        return _SERIAL
    text = _STATE.replace("{spin}", str(SPIN)) + _ENTRY + _JOB + _WORKERS
    declared, called = _PAUSES.get(family, ("", ""))
    text += f"declare void {declared}\n" if declared else ""
    text = text.replace("CHUNKS_LESS_1", str(CHUNKS - 1)).replace("CHUNKS", str(CHUNKS))
    text = text.replace("PROCESSORS", str(_PROCESSORS.get(platform, 84)))
    return text.replace("  PAUSE\n", f"  call void {called}\n" if called else "")
