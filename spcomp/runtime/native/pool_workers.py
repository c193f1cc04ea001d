"""Part of the pool, as LLVM IR: how worker threads start, wait, take chunks and are placed."""

from __future__ import annotations

TAKE = """
; Take %quota chunks of job %number, or some more, until there are none; return how many.
define internal i64 @take(i64 %number, i64 %quota) noinline {
entry:
  %fn.bits = load atomic i64, ptr @fn acquire, align 8
  %ctx.bits = load atomic i64, ptr @ctx acquire, align 8
  %n = load atomic i64, ptr @n acquire, align 8
  %size = load atomic i64, ptr @size acquire, align 8
  %chunks = load atomic i64, ptr @chunks acquire, align 8
  %batch = load atomic i64, ptr @batch acquire, align 8
  %fn = inttoptr i64 %fn.bits to ptr
  %ctx = inttoptr i64 %ctx.bits to ptr
  br label %look
look:
  %took = phi i64 [ 0, %entry ], [ %taken, %full ]
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
  %all = sub i64 %chunks, %chunk
  %some = call i64 @llvm.umin.i64(i64 %batch, i64 %all)
  %next = add i64 %now, %some
  %result = cmpxchg ptr @word, i64 %now, i64 %next seq_cst seq_cst
  %seen = extractvalue { i64, i1 } %result, 0
  %won = extractvalue { i64, i1 } %result, 1
  br i1 %won, label %call, label %try
call:
  %begin = mul i64 %chunk, %size
  %reach = mul i64 %some, %size
  %stop = add i64 %begin, %reach
  %end = call i64 @llvm.umin.i64(i64 %stop, i64 %n)
  call void @work(ptr %fn, ptr %ctx, i64 %begin, i64 %end)
  %before = atomicrmw add ptr @finished, i64 %some seq_cst
  %count = add i64 %before, %some
  %taken = add i64 %took, %some
  %over = icmp eq i64 %count, %chunks
  br i1 %over, label %last, label %full
full:
  %enough = icmp uge i64 %taken, %quota
  br i1 %enough, label %exit, label %look
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
  %total = phi i64 [ %took, %try ], [ %taken, %full ], [ %taken, %last ], [ %taken, %tell ]
  ret i64 %total
}
"""

WORKERS = """
; Create workers up to %all, as far as the system lets us. Only the owner of @busy comes here.
define internal void @start(i64 %all) noinline {
entry:
  %thread = alloca i64
  %wanted = call i64 @llvm.umin.i64(i64 %all, i64 1024)
  %is.ready = load atomic i32, ptr @ready acquire, align 4
  %done = icmp ne i32 %is.ready, 0
  br i1 %done, label %hold, label %init
init:
  %i0 = call i32 @pthread_mutex_init(ptr @lock, ptr null)
  %i1 = call i32 @pthread_cond_init(ptr @wake, ptr null)
  %i2 = call i32 @pthread_cond_init(ptr @done, ptr null)
  store atomic i32 1, ptr @ready release, align 4
  br label %hold
hold:
  %h0 = call i32 @pthread_mutex_lock(ptr @lock)
  br label %head
head:
  %started = load atomic i64, ptr @started monotonic, align 8
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
  store atomic i64 %count, ptr @started monotonic, align 8
  %id.at = getelementptr inbounds i64, ptr @ids, i64 %started
  store i64 %id, ptr %id.at
  br label %head
exit:
  %h1 = call i32 @pthread_mutex_unlock(ptr @lock)
  ret void
}

; Whether the worker of this index, which holds @lock, is one too many, or another has its place.
define internal i1 @leaves(i64 %index) {
  %threads = load atomic i64, ptr @threads seq_cst, align 8
  %limited = icmp ne i64 %threads, 0
  %number = add i64 %index, 1
  %above = icmp sge i64 %number, %threads
  %surplus = and i1 %limited, %above
  %started = load atomic i64, ptr @started monotonic, align 8
  %beyond = icmp sge i64 %index, %started
  %id.at = getelementptr inbounds i64, ptr @ids, i64 %index
  %id = load i64, ptr %id.at
  %self = call i64 @pthread_self()
  %other = icmp ne i64 %id, %self
  %replaced = or i1 %beyond, %other
  br i1 %replaced, label %exit, label %decide
decide:
  br i1 %surplus, label %cut, label %exit
cut:                                       ; those above find themselves beyond
  store atomic i64 %index, ptr @started monotonic, align 8
  br label %exit
exit:
  %result = phi i1 [ true, %0 ], [ false, %decide ], [ true, %cut ]
  ret i1 %result
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
  %leaves = call i1 @leaves(i64 %index)
  br i1 %leaves, label %leave, label %stay
leave:
  %l0 = atomicrmw sub ptr @sleepers, i64 1 seq_cst
  %l1 = call i32 @pthread_mutex_unlock(ptr @lock)
  ret ptr null
stay:
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
  call void @settle()
  br label %look
join:
  %helpers = load atomic i64, ptr @helpers acquire, align 8
  %welcome = icmp slt i64 %index, %helpers
  br i1 %welcome, label %work, label %worked
work:
  %took = call i64 @take(i64 %job, i64 -1)
  br label %worked
worked:
  br label %idle
}
"""

# While workers wake up they may not run on the caller's CPU; afterwards, wherever the caller may.
AFFINITY = """
@everywhere = internal global [16 x i64] zeroinitializer, align 8 ; CPUs of the last caller

declare i32 @sched_getcpu()
declare i32 @sched_getaffinity(i32, i64, ptr)
declare i32 @sched_setaffinity(i32, i64, ptr)
declare i32 @pthread_setaffinity_np(i64, i64, ptr)
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)

define internal void @spread() noinline {
entry:
  %all = alloca [16 x i64], align 8
  %mask = alloca [16 x i64], align 8
  %cpu = call i32 @sched_getcpu()
  %beyond = icmp uge i32 %cpu, 1024       ; or unknown
  br i1 %beyond, label %exit, label %read
read:
  %failed = call i32 @sched_getaffinity(i32 0, i64 128, ptr %all)
  %ok = icmp eq i32 %failed, 0
  br i1 %ok, label %clear, label %exit
clear:
  call void @llvm.memcpy.p0.p0.i64(ptr %mask, ptr %all, i64 128, i1 false)
  %wide = zext i32 %cpu to i64
  %number = lshr i64 %wide, 6
  %at = getelementptr inbounds i64, ptr %mask, i64 %number
  %word = load i64, ptr %at
  %place = and i64 %wide, 63
  %bit = shl i64 1, %place
  %others = xor i64 %bit, -1
  %rest = and i64 %word, %others
  store i64 %rest, ptr %at
  %count = load atomic i64, ptr @started monotonic, align 8
  br label %head
head:
  %w = phi i64 [ 0, %clear ], [ %w.next, %body ]
  %refused = phi i32 [ 0, %clear ], [ %set, %body ]
  %willing = icmp eq i32 %refused, 0      ; refused: the caller may run here only
  %left = icmp ult i64 %w, %count
  %go = and i1 %willing, %left
  br i1 %go, label %body, label %done
body:
  %id.at = getelementptr inbounds i64, ptr @ids, i64 %w
  %id = load i64, ptr %id.at
  %set = call i32 @pthread_setaffinity_np(i64 %id, i64 128, ptr %mask)
  %w.next = add i64 %w, 1
  br label %head
done:
  br i1 %willing, label %keep, label %exit
keep:
  call void @llvm.memcpy.p0.p0.i64(ptr @everywhere, ptr %all, i64 128, i1 false)
  br label %exit
exit:
  ret void
}

define internal void @settle() noinline {
  %set = call i32 @sched_setaffinity(i32 0, i64 128, ptr @everywhere)
  ret void
}
"""

NO_AFFINITY = """
define internal void @spread() {
  ret void
}
define internal void @settle() {
  ret void
}
"""
