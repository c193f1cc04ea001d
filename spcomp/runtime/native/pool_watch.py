"""Part of the pool, as LLVM IR: how a signal ends a loop early.

One thread of the process may be watched (``spcomp_watch``); in Python it is the thread that handles
signals. Between chunks, and inside a chunk after every BUDGET trips of inner loops
(``spcomp_pause``), it asks a function whether to stop, at most once in EVERY nanoseconds. To stop,
it takes the chunks that are left without running them, and waits for the others, which end at their
next pause. The call then returns INTERRUPTED, and the contents of its outputs are unspecified.
"""

from __future__ import annotations

EVERY = 50_000_000  # nanoseconds between two questions whether to stop
EASY = 1_000_000  # nanoseconds of work that are not worth a question

WATCH = """
@poll = internal global ptr null        ; i32 (): not 0 to stop
@main = internal global i64 0           ; the thread that asks it, as a pthread
@inside = internal global ptr null      ; the context of the job that it asks in, if it is in one
@halted = internal global ptr null      ; the same once the job is to end early
@polled = internal global i64 0         ; when it last asked

; Let %thread ask %poll from now on.
define weak void @spcomp_watch(ptr %poll, i64 %thread) {
  store atomic i64 %thread, ptr @main release, align 8
  store atomic ptr %poll, ptr @poll release, align 8
  ret void
}

; Whether this thread asks in the job of %ctx that it begins; it then calls @leave at its end.
define internal i1 @enter(ptr %ctx) {
  %poll = load atomic ptr, ptr @poll acquire, align 8
  %none = icmp eq ptr %poll, null
  br i1 %none, label %no, label %compare
compare:
  %self = call i64 @pthread_self()
  %main = load atomic i64, ptr @main acquire, align 8
  %other = icmp ne i64 %self, %main
  br i1 %other, label %no, label %mine
mine:
  %in = load ptr, ptr @inside
  %nested = icmp ne ptr %in, null
  br i1 %nested, label %no, label %yes
yes:
  store ptr %ctx, ptr @inside
  ret i1 true
no:
  ret i1 false
}

; Whether the job ended early.
define internal i1 @leave() {
  %halted = load atomic ptr, ptr @halted monotonic, align 8
  %early = icmp ne ptr %halted, null
  store atomic ptr null, ptr @halted monotonic, align 8
  store ptr null, ptr @inside
  ret i1 %early
}

; In the middle of a chunk of the job of %ctx, or, if that is null, of a loop that is no job: how
; much work to do until the next pause, or -1 to end.
define weak i64 @spcomp_pause(ptr %ctx) cold noinline {
entry:
  %halted = load atomic ptr, ptr @halted monotonic, align 8
  %any = icmp ne ptr %halted, null
  %same = icmp eq ptr %halted, %ctx
  %ours = and i1 %any, %same
  br i1 %ours, label %stop, label %who
who:
  %poll = load atomic ptr, ptr @poll acquire, align 8
  %none = icmp eq ptr %poll, null
  br i1 %none, label %go, label %compare
compare:
  %self = call i64 @pthread_self()
  %main = load atomic i64, ptr @main acquire, align 8
  %mine = icmp eq i64 %self, %main
  br i1 %mine, label %which, label %go
which:
  %inside = load ptr, ptr @inside
  %asks = icmp eq ptr %inside, %ctx
  br i1 %asks, label %ask, label %go
ask:
  %now = call i64 @now()
  %early = call i1 @asked(i64 %now)
  br i1 %early, label %stop, label %go
stop:
  ret i64 -1
go:
  ret i64 BUDGET
}

; Ask whether to stop, if it is time to. Only the thread that has entered comes here.
define internal i1 @asked(i64 %now) {
entry:
  %halted = load atomic ptr, ptr @halted monotonic, align 8
  %already = icmp ne ptr %halted, null
  br i1 %already, label %end, label %when
when:
  %last = load i64, ptr @polled
  %since = sub i64 %now, %last
  %due = icmp sgt i64 %since, EVERY
  br i1 %due, label %ask, label %exit
ask:
  store i64 %now, ptr @polled
  %poll = load atomic ptr, ptr @poll acquire, align 8
  %answer = call i32 %poll()
  %stop = icmp ne i32 %answer, 0
  br i1 %stop, label %halt, label %exit
halt:
  %inside = load ptr, ptr @inside
  store atomic ptr %inside, ptr @halted monotonic, align 8
  br label %end
end:
  ret i1 true
exit:
  ret i1 false
}

; Run all chunks here: as many at a time as take no longer than EASY, and ask in between.
define internal i32 @turns(ptr %fn, ptr %ctx, i64 %n, i64 %size, i64 %chunks) noinline {
entry:
  %begun = call i64 @now()
  br label %turn
turn:
  %done = phi i64 [ 0, %entry ], [ %upto, %on ]
  %some = phi i64 [ 1, %entry ], [ %next, %on ]
  %before = phi i64 [ %begun, %entry ], [ %now, %on ]
  %ahead = add i64 %done, %some
  %upto = call i64 @llvm.umin.i64(i64 %ahead, i64 %chunks)
  %from = mul i64 %done, %size
  %stop = mul i64 %upto, %size
  %to = call i64 @llvm.umin.i64(i64 %stop, i64 %n)
  call void @work(ptr %fn, ptr %ctx, i64 %from, i64 %to)
  %all = icmp eq i64 %upto, %chunks
  br i1 %all, label %exit, label %ask
ask:
  %now = call i64 @now()
  %stopped = call i1 @asked(i64 %now)
  br i1 %stopped, label %exit, label %on
on:
  %time = sub i64 %now, %before
  %quick = icmp slt i64 %time, EASY
  %more = shl i64 %some, 1
  %less = lshr i64 %some, 1
  %least = call i64 @llvm.umax.i64(i64 %less, i64 1)
  %next = select i1 %quick, i64 %more, i64 %least
  br label %turn
exit:
  %result = phi i32 [ 0, %turn ], [ INTERRUPTED, %ask ]
  ret i32 %result
}

; Take the chunks of the job that are left, and do none of them.
define internal void @drop(i64 %chunks) noinline {
entry:
  %word = load atomic i64, ptr @word seq_cst, align 8
  br label %try
try:
  %now = phi i64 [ %word, %entry ], [ %seen, %swap ]
  %chunk = and i64 %now, 4294967295
  %left = icmp ult i64 %chunk, %chunks
  br i1 %left, label %swap, label %exit
swap:
  %some = sub i64 %chunks, %chunk
  %next = add i64 %now, %some
  %result = cmpxchg ptr @word, i64 %now, i64 %next seq_cst seq_cst
  %seen = extractvalue { i64, i1 } %result, 0
  %won = extractvalue { i64, i1 } %result, 1
  br i1 %won, label %count, label %try
count:
  %before = atomicrmw add ptr @finished, i64 %some seq_cst
  br label %exit
exit:
  ret void
}
"""
