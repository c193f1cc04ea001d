"""Part of the pool, as LLVM IR: how a job is shared with the workers."""

from __future__ import annotations

SHARE = """
; How many chunks to take at once: BATCH of work, at most a quarter of a thread's share.
define internal i64 @batch.of(i64 %chunks, i64 %first, i64 %threads, double %expected) {
  %rest = sub i64 %chunks, %first
  %pieces = shl i64 %threads, 2
  %share = udiv i64 %rest, %pieces
  %count = sitofp i64 %rest to double
  %each = fdiv double %expected, %count
  %some = fdiv double BATCH, %each        ; infinite if there is no telling
  %capped = call double @llvm.minnum.f64(double %some, double 1.0e6)
  %whole = fptoui double %capped to i64
  %least = call i64 @llvm.umax.i64(i64 %whole, i64 1)
  %most = call i64 @llvm.umax.i64(i64 %share, i64 1)
  %batch = call i64 @llvm.umin.i64(i64 %least, i64 %most)
  ret i64 %batch
}

; Publish the job from chunk %first on, which is %expected nanoseconds of work; take part; wait for
; what the others took.
define internal i32 @share(ptr %fn, ptr %ctx, i64 %n, i64 %size, i64 %chunks, i64 %threads,
                           i64 %first, double %expected, i1 %asks) noinline {
entry:
  %helpers = sub i64 %threads, 1
  %started = load atomic i64, ptr @started monotonic, align 8
  %enough = icmp sge i64 %started, %helpers
  br i1 %enough, label %publish, label %start
start:
  call void @start(i64 %helpers)
  br label %publish
publish:
  %old = load atomic i64, ptr @word monotonic, align 8
  %number = lshr i64 %old, 32
  %after = add i64 %number, 1
  %next = and i64 %after, 4294967295       ; as @word holds it
  %job = shl i64 %next, 32
  %closed = or i64 %job, 4294967295
  %open = or i64 %job, %first
  store atomic i64 %closed, ptr @word seq_cst, align 8
  %fn.bits = ptrtoint ptr %fn to i64
  %ctx.bits = ptrtoint ptr %ctx to i64
  store atomic i64 %fn.bits, ptr @fn release, align 8
  store atomic i64 %ctx.bits, ptr @ctx release, align 8
  store atomic i64 %n, ptr @n release, align 8
  store atomic i64 %size, ptr @size release, align 8
  store atomic i64 %chunks, ptr @chunks release, align 8
  store atomic i64 %helpers, ptr @helpers release, align 8
  %batch = call i64 @batch.of(i64 %chunks, i64 %first, i64 %threads, double %expected)
  store atomic i64 %batch, ptr @batch release, align 8
  store atomic i64 %first, ptr @finished release, align 8
  store atomic i64 %open, ptr @word seq_cst, align 8
  %begun = call i64 @now()
  %much = fcmp ogt double %expected, WORTH
  %fair = fcmp ogt double %expected, INVEST
  %series = load i64, ptr @series
  %follows = icmp sge i64 %series, SERIES
  %pauses = load atomic i64, ptr @spin monotonic, align 8
  %stay = icmp sgt i64 %pauses, 0
  %in.series = and i1 %follows, %stay
  %invest = and i1 %fair, %in.series
  %wanted = or i1 %much, %invest
  %few = shl i64 %batch, 2
  %turn = select i1 %asks, i64 %few, i64 -1 ; chunks to take between questions
  %opening = select i1 %asks, i64 1, i64 -1
  br i1 %wanted, label %rouse, label %take
rouse:
  %took.0 = phi i64 [ 0, %publish ], [ %took, %late ]
  call void @rouse()
  br label %take
take:                                      ; a turn, or as many again as were taken, and look
  %so.far = phi i64 [ 0, %publish ], [ %took.0, %rouse ], [ %took, %early ], [ %took, %ask ]
  %quota = phi i64 [ 1, %publish ], [ %opening, %rouse ], [ %took, %early ], [ %again.turn, %ask ]
  %roused = phi i1 [ false, %publish ], [ true, %rouse ], [ false, %early ], [ true, %ask ]
  %more = call i64 @take(i64 %next, i64 %quota)
  %took = add i64 %so.far, %more
  %none = icmp ult i64 %more, %quota
  br i1 %none, label %taken, label %look.up
look.up:
  %now = call i64 @now()
  %spent = sub i64 %now, %begun
  br i1 %roused, label %ask, label %judge
ask:
  %each = udiv i64 %spent, %took
  %dear = icmp ugt i64 %each, EASY
  %again.turn = select i1 %dear, i64 1, i64 %turn
  %stop = call i1 @asked(i64 %now)
  br i1 %stop, label %drop, label %take
drop:
  call void @drop(i64 %chunks)
  br label %wait
judge:
  %long = sitofp i64 %spent to double
  %late.is = fcmp ogt double %long, WORTH
  br i1 %late.is, label %late, label %early
early:
  br label %take
late:                                      ; longer than expected
  br label %rouse
taken:
  %some = icmp ne i64 %took, 0
  br i1 %some, label %learn, label %wait
learn:
  %end = call i64 @now()
  %time = sub i64 %end, %begun
  call void @remember(ptr %fn, i64 %time, i64 %took, i64 %chunks, i64 %n)
  br label %wait
wait:
  %result = phi i32 [ 0, %taken ], [ 0, %learn ], [ INTERRUPTED, %drop ]
  br label %look
look:
  %tried = phi i64 [ 0, %wait ], [ %again, %pause ]
  %count = load atomic i64, ptr @finished acquire, align 8
  %over = icmp eq i64 %count, %chunks
  br i1 %over, label %close, label %not.yet
not.yet:
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
  ret i32 %result
}

; Wake the workers that sleep.
define internal void @rouse() noinline {
entry:
  %asleep = load atomic i64, ptr @sleepers seq_cst, align 8
  %all.awake = icmp eq i64 %asleep, 0
  br i1 %all.awake, label %exit, label %wake
wake:
  %r0 = call i32 @pthread_mutex_lock(ptr @lock)
  call void @spread()                      ; under the lock no worker leaves
  %r1 = call i32 @pthread_cond_broadcast(ptr @wake)
  %r2 = call i32 @pthread_mutex_unlock(ptr @lock)
  br label %exit
exit:
  ret void
}
"""
