"""Part of the pool, as LLVM IR: a record of who ran which chunks when, if somebody asks for it.

``spcomp_log(ptr)`` names the memory of a log, or null, which ends it. A log has the number of
events that there is room for, that of events so far, and the fields of each: the thread (as a
pthread), the function, where its range begins and ends, and when it began and ended, in
nanoseconds.
"""

from __future__ import annotations

FIELDS = ("thread", "function", "begin", "end", "start", "stop")

LOG = """
@log = internal global ptr null

define weak void @spcomp_log(ptr %memory) {
  store atomic ptr %memory, ptr @log seq_cst, align 8
  ret void
}

; Run the iterations from %begin to %end.
define internal void @work(ptr %fn, ptr %ctx, i64 %begin, i64 %end) alwaysinline {
  %log = load atomic ptr, ptr @log monotonic, align 8
  %off = icmp eq ptr %log, null
  br i1 %off, label %plain, label %logged
plain:
  call void %fn(ptr %ctx, i64 %begin, i64 %end)
  ret void
logged:
  call void @logged(ptr %fn, ptr %ctx, i64 %begin, i64 %end, ptr %log)
  ret void
}

define internal void @logged(ptr %fn, ptr %ctx, i64 %begin, i64 %end, ptr %log) cold noinline {
  %start = call i64 @now()
  call void %fn(ptr %ctx, i64 %begin, i64 %end)
  %stop = call i64 @now()
  %thread = call i64 @pthread_self()
  %function = ptrtoint ptr %fn to i64
  %count.at = getelementptr inbounds i64, ptr %log, i64 1
  %number = atomicrmw add ptr %count.at, i64 1 seq_cst
  %room = load i64, ptr %log
  %fits = icmp ult i64 %number, %room
  br i1 %fits, label %write, label %exit
write:
  %events = getelementptr inbounds i64, ptr %log, i64 2
  %at = getelementptr inbounds [COUNT x i64], ptr %events, i64 %number
STORES
  br label %exit
exit:
  ret void
}
""".replace("COUNT", str(len(FIELDS))).replace(
    "STORES",
    "\n".join(
        f"  %{field}.at = getelementptr inbounds i64, ptr %at, i64 {k}\n"
        f"  store i64 %{field}, ptr %{field}.at"
        for k, field in enumerate(FIELDS)
    ),
)

SERIAL_LOG = """
define weak void @spcomp_log(ptr %memory) {
  ret void
}
"""
