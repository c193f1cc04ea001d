"""Beside the kernels: LLVM IR that checks index arrays, a vector at a time and on all threads.

For each index width W in bits two functions return 1 if all is well and 0 if not:

``spcomp_pointersW(indptr, fibers, first, low, high, longest)``: *indptr* has *fibers* + 1 elements
that never decrease, from one in ``0..first`` to one in ``low..high``, in steps of at most
*longest*.

``spcomp_indicesW(indices, count, least, span, order, indptr, fibers)``: each of the *count*
elements (at most 2^31) minus *least* is in ``0..span``. If *order* is not 0, *indptr*, which has
been checked, delimits fibers from 0 to *count*, and the elements within each fiber ascend (1) or
strictly ascend (2).

Order is checked without a loop per fiber: one pass counts the places where elements do not ascend,
another counts those of them where a fiber begins; the two counts must agree.
"""

from __future__ import annotations

import re

from spcomp.codegen.abi import PARALLEL_FOR

LANES = {32: 8, 64: 4}  # one AVX register
GRAIN = 1 << 14  # elements per chunk
WIDTHS = tuple(LANES)


def symbols() -> tuple[str, ...]:
    """Return the names of the functions."""
    return tuple(f"spcomp_{array}{width}" for array in ("pointers", "indices") for width in WIDTHS)


def checks_ir(attributes: str) -> str:
    """Return the functions as LLVM IR whose functions have *attributes*."""
    text = _SHARED
    for width, lanes in LANES.items():
        loops = (_POINTERS_LOOP + _INDICES_LOOP).replace("VEC", "<LANES x INT>")
        steps = "".join(loops.replace("LANES", str(n)) + _reductions(n, width) for n in (1, lanes))
        functions = steps + _POINTERS + _INDICES
        numbers = {"WIDE": lanes, "BYTES": width // 8, "WIDTH": width, "MOST": (1 << width) - 1}
        for name, value in numbers.items():
            functions = functions.replace(name, str(value))
        text += functions.replace("INT", f"i{width}")
    text = re.sub(r"[sz]ext i64 (\S+) to i64", r"add i64 \1, 0", text)  # of the same width
    text = text.replace("POOL", PARALLEL_FOR).replace("GRAIN", str(GRAIN))
    return f"{text}\nattributes #0 = {{ nounwind {attributes} }}\n"


def _reductions(lanes: int, width: int) -> str:
    vector = f"v{lanes}i{width}"
    kind = f"<{lanes} x i{width}>"
    names = [f"@llvm.vector.reduce.{op}.{vector}({kind})" for op in ("or", "add", "umax")]
    lines = [f"declare i{width} {name}\n" for name in names]
    return "".join([*lines, f"declare {kind} @llvm.umax.{vector}({kind}, {kind})\n"])


_SHARED = """
declare i64 @llvm.umax.i64(i64, i64)
declare i64 @llvm.umin.i64(i64, i64)
declare i32 @POOL(ptr, ptr, i64, i64)

!0 = distinct !{!0, !1}
!1 = !{!"llvm.loop.unroll.count", i32 4}

; Run %body on 0..%n: here if that is one chunk, else on all threads. False if interrupted.
define internal i1 @split(ptr %body, ptr %context, i64 %n) #0 {
  %small = icmp sle i64 %n, GRAIN
  br i1 %small, label %here, label %pool
here:
  call void %body(ptr %context, i64 0, i64 %n)
  ret i1 true
pool:
  %stop = call i32 @POOL(ptr %body, ptr %context, i64 %n, i64 GRAIN)
  %all = icmp eq i32 %stop, 0
  ret i1 %all
}
"""

# Whether a step from an element in %from..%to to its successor decreases or is too long (not 0).
_POINTERS_LOOP = """
define internal INT @stepWIDTH.LANES(ptr %p, i64 %from, i64 %to, INT %longest) alwaysinline #0 {
entry:
  %l0 = insertelement VEC poison, INT %longest, i64 0
  %limit = shufflevector VEC %l0, VEC poison, <LANES x i32> zeroinitializer
  br label %head
head:
  %i = phi i64 [ %from, %entry ], [ %next, %body ]
  %bad = phi VEC [ zeroinitializer, %entry ], [ %worse, %body ]
  %next = add i64 %i, LANES
  %more = icmp sle i64 %next, %to
  br i1 %more, label %body, label %exit
body:
  %at = getelementptr inbounds INT, ptr %p, i64 %i
  %after = getelementptr inbounds INT, ptr %at, i64 1
  %a = load VEC, ptr %at, align BYTES
  %b = load VEC, ptr %after, align BYTES
  %step = sub VEC %b, %a
  %falls = icmp sgt VEC %a, %b
  %leaps = icmp ugt VEC %step, %limit
  %wrong = or <LANES x i1> %falls, %leaps
  %mark = sext <LANES x i1> %wrong to VEC
  %worse = or VEC %bad, %mark
  br label %head
exit:
  %any = call INT @llvm.vector.reduce.or.vLANESINT(VEC %bad)
  ret INT %any
}
"""

_POINTERS = """
; %context: the array, the longest step, the flag that is set if something is wrong.
define internal void @pointersWIDTH.chunk(ptr %context, i64 %from, i64 %to) #0 {
  %p = load ptr, ptr %context
  %c1 = getelementptr inbounds i64, ptr %context, i64 1
  %longest = load INT, ptr %c1
  %count = sub i64 %to, %from
  %rest = srem i64 %count, WIDE
  %middle = sub i64 %to, %rest
  %bulk = call INT @stepWIDTH.WIDE(ptr %p, i64 %from, i64 %middle, INT %longest)
  %tail = call INT @stepWIDTH.1(ptr %p, i64 %middle, i64 %to, INT %longest)
  %any = or INT %bulk, %tail
  %bad = icmp ne INT %any, 0
  br i1 %bad, label %tell, label %exit
tell:
  %c2 = getelementptr inbounds i64, ptr %context, i64 2
  store atomic i64 1, ptr %c2 monotonic, align 8
  br label %exit
exit:
  ret void
}

define i32 @spcomp_pointersWIDTH(ptr %p, i64 %fibers, i64 %first, i64 %low, i64 %high,
                                 i64 %longest) #0 {
entry:
  %context = alloca [3 x i64]
  %least = load INT, ptr %p, align BYTES
  %end = getelementptr inbounds INT, ptr %p, i64 %fibers
  %most = load INT, ptr %end, align BYTES
  %begin = sext INT %least to i64
  %last = sext INT %most to i64
  %w0 = icmp ugt i64 %begin, %first
  %w1 = icmp slt i64 %last, %low
  %w2 = icmp sgt i64 %last, %high
  %w01 = or i1 %w0, %w1
  %wrong = or i1 %w01, %w2
  br i1 %wrong, label %exit, label %steps
steps:
  store ptr %p, ptr %context
  %c1 = getelementptr inbounds i64, ptr %context, i64 1
  %bound = call i64 @llvm.umin.i64(i64 %longest, i64 MOST)
  store i64 %bound, ptr %c1
  %c2 = getelementptr inbounds i64, ptr %context, i64 2
  store i64 0, ptr %c2
  %all = call i1 @split(ptr @pointersWIDTH.chunk, ptr %context, i64 %fibers)
  %told = load atomic i64, ptr %c2 acquire, align 8
  %none = icmp eq i64 %told, 0
  %good = and i1 %all, %none
  br label %exit
exit:
  %well = phi i1 [ false, %entry ], [ %good, %steps ]
  %result = zext i1 %well to i32
  ret i32 %result
}
"""

# For the elements %from..%to: whether one is out of range (high bit of the result), and how many
# do not ascend from the one before them (%from is at least 1).
_INDICES_LOOP = """
define internal i64 @scanWIDTH.LANES(ptr %p, i64 %from, i64 %to, INT %least, INT %span, INT %rise)
    alwaysinline #0 {
entry:
  %r0 = insertelement VEC poison, INT %rise, i64 0
  %up = shufflevector VEC %r0, VEC poison, <LANES x i32> zeroinitializer
  %l0 = insertelement VEC poison, INT %least, i64 0
  %low = shufflevector VEC %l0, VEC poison, <LANES x i32> zeroinitializer
  br label %head
head:
  %i = phi i64 [ %from, %entry ], [ %next, %body ]
  %most = phi VEC [ zeroinitializer, %entry ], [ %larger, %body ]
  %falls = phi VEC [ zeroinitializer, %entry ], [ %fallen, %body ]
  %next = add i64 %i, LANES
  %more = icmp sle i64 %next, %to
  br i1 %more, label %body, label %exit
body:
  %at = getelementptr inbounds INT, ptr %p, i64 %i
  %prior = getelementptr inbounds INT, ptr %at, i64 -1
  %b = load VEC, ptr %at, align BYTES
  %a = load VEC, ptr %prior, align BYTES
  %above = sub VEC %b, %low
  %larger = call VEC @llvm.umax.vLANESINT(VEC %most, VEC %above)
  %enough = sub VEC %b, %up  ; wraps around only if %b is out of range
  %fall = icmp sgt VEC %a, %enough
  %one = sext <LANES x i1> %fall to VEC
  %fallen = sub VEC %falls, %one
  br label %head
exit:
  %max = call INT @llvm.vector.reduce.umax.vLANESINT(VEC %most)
  %sum = call INT @llvm.vector.reduce.add.vLANESINT(VEC %falls)
  %beyond = icmp ugt INT %max, %span
  %count = zext INT %sum to i64
  %sign = select i1 %beyond, i64 -9223372036854775808, i64 0
  %result = or i64 %sign, %count
  ret i64 %result
}
"""

_INDICES = """
; The first of the %n + 1 ascending elements of %p that is at least %wanted; %n + 1 if none is.
define internal i64 @findWIDTH(ptr %p, i64 %n, i64 %wanted) #0 {
entry:
  %end = add i64 %n, 1
  br label %head
head:
  %low = phi i64 [ 0, %entry ], [ %low2, %body ]
  %high = phi i64 [ %end, %entry ], [ %high2, %body ]
  %more = icmp slt i64 %low, %high
  br i1 %more, label %body, label %exit
body:
  %sum = add i64 %low, %high
  %middle = lshr i64 %sum, 1
  %at = getelementptr inbounds INT, ptr %p, i64 %middle
  %value = load INT, ptr %at, align BYTES
  %wide = sext INT %value to i64
  %less = icmp slt i64 %wide, %wanted
  %above = add i64 %middle, 1
  %low2 = select i1 %less, i64 %above, i64 %low
  %high2 = select i1 %less, i64 %high, i64 %middle
  br label %head
exit:
  ret i64 %low
}

; How many non-empty fibers begin in %from..%to at an element that does not ascend.
define internal i64 @startsWIDTH(ptr %p, ptr %indptr, i64 %fibers, i64 %from, i64 %to,
                                 INT %rise) #0 {
entry:
  %first = call i64 @findWIDTH(ptr %indptr, i64 %fibers, i64 %from)
  %end = call i64 @findWIDTH(ptr %indptr, i64 %fibers, i64 %to)
  br label %head
head:
  %r = phi i64 [ %first, %entry ], [ %next, %body ]
  %before = phi INT [ -1, %entry ], [ %start, %body ]
  %count = phi i64 [ 0, %entry ], [ %counted, %body ]
  %more = icmp slt i64 %r, %end
  br i1 %more, label %body, label %exit
body:
  %r.at = getelementptr inbounds INT, ptr %indptr, i64 %r
  %start = load INT, ptr %r.at, align BYTES
  %at = sext INT %start to i64
  %b.at = getelementptr inbounds INT, ptr %p, i64 %at
  %a.at = getelementptr inbounds INT, ptr %b.at, i64 -1
  %b = load INT, ptr %b.at, align BYTES
  %a = load INT, ptr %a.at, align BYTES
  %enough = sub INT %b, %rise
  %fall = icmp sgt INT %a, %enough
  %new = icmp ne INT %start, %before
  %counts = and i1 %fall, %new
  %one = zext i1 %counts to i64
  %counted = add i64 %count, %one
  %next = add i64 %r, 1
  br label %head, !llvm.loop !0
exit:
  ret i64 %count
}

; %context: indices, least, span, order, indptr, fibers, the flag set if something is wrong.
define internal void @indicesWIDTH.chunk(ptr %context, i64 %begin, i64 %to) #0 {
entry:
  %p = load ptr, ptr %context
  %c1 = getelementptr inbounds i64, ptr %context, i64 1
  %least = load INT, ptr %c1
  %c2 = getelementptr inbounds i64, ptr %context, i64 2
  %span = load INT, ptr %c2
  %c3 = getelementptr inbounds i64, ptr %context, i64 3
  %order = load i64, ptr %c3
  %strict = icmp eq i64 %order, 2
  %rise = zext i1 %strict to INT  ; the least difference to the next element
  %from = call i64 @llvm.umax.i64(i64 %begin, i64 1)  ; the first has none before it
  %count = sub i64 %to, %from
  %rest = srem i64 %count, WIDE
  %middle = sub i64 %to, %rest
  %bulk = call i64 @scanWIDTH.WIDE(ptr %p, i64 %from, i64 %middle, INT %least, INT %span,
                                   INT %rise)
  %tail = call i64 @scanWIDTH.1(ptr %p, i64 %middle, i64 %to, INT %least, INT %span, INT %rise)
  %head = load INT, ptr %p, align BYTES
  %above = sub INT %head, %least
  %head.wrong = icmp ugt INT %above, %span
  %either = or i64 %bulk, %tail
  %far = icmp slt i64 %either, 0
  %wrong = or i1 %far, %head.wrong
  br i1 %wrong, label %tell, label %range
range:
  %any = icmp ne i64 %order, 0
  br i1 %any, label %ordered, label %exit
ordered:
  %falls = add i64 %bulk, %tail
  %none = icmp eq i64 %falls, 0
  br i1 %none, label %exit, label %compare
compare:
  %c4 = getelementptr inbounds i64, ptr %context, i64 4
  %indptr = load ptr, ptr %c4
  %c5 = getelementptr inbounds i64, ptr %context, i64 5
  %fibers = load i64, ptr %c5
  %starts = call i64 @startsWIDTH(ptr %p, ptr %indptr, i64 %fibers, i64 %from, i64 %to, INT %rise)
  %same = icmp eq i64 %starts, %falls
  br i1 %same, label %exit, label %tell
tell:
  %c6 = getelementptr inbounds i64, ptr %context, i64 6
  store atomic i64 1, ptr %c6 monotonic, align 8
  br label %exit
exit:
  ret void
}

define i32 @spcomp_indicesWIDTH(ptr %p, i64 %count, i64 %least, i64 %span, i64 %order,
                                ptr %indptr, i64 %fibers) #0 {
entry:
  %context = alloca [7 x i64]
  %none = icmp eq i64 %count, 0
  br i1 %none, label %exit, label %some
some:
  %empty = icmp slt i64 %span, 0
  %huge = icmp ugt i64 %count, 2147483647  ; what a lane can count
  %not.ours = or i1 %empty, %huge
  br i1 %not.ours, label %exit, label %delimit
delimit:
  %loose = icmp eq i64 %order, 0
  br i1 %loose, label %scan, label %ends
ends:
  %first = load INT, ptr %indptr, align BYTES
  %end = getelementptr inbounds INT, ptr %indptr, i64 %fibers
  %last = load INT, ptr %end, align BYTES
  %last.wide = sext INT %last to i64
  %e0 = icmp eq INT %first, 0
  %e1 = icmp eq i64 %last.wide, %count
  %exact = and i1 %e0, %e1
  br i1 %exact, label %scan, label %exit
scan:
  store ptr %p, ptr %context
  %c1 = getelementptr inbounds i64, ptr %context, i64 1
  store i64 %least, ptr %c1
  %c2 = getelementptr inbounds i64, ptr %context, i64 2
  store i64 %span, ptr %c2
  %c3 = getelementptr inbounds i64, ptr %context, i64 3
  store i64 %order, ptr %c3
  %c4 = getelementptr inbounds i64, ptr %context, i64 4
  store ptr %indptr, ptr %c4
  %c5 = getelementptr inbounds i64, ptr %context, i64 5
  store i64 %fibers, ptr %c5
  %c6 = getelementptr inbounds i64, ptr %context, i64 6
  store i64 0, ptr %c6
  %all = call i1 @split(ptr @indicesWIDTH.chunk, ptr %context, i64 %count)
  %told = load atomic i64, ptr %c6 acquire, align 8
  %untold = icmp eq i64 %told, 0
  %good = and i1 %all, %untold
  br label %exit
exit:
  %well = phi i1 [ true, %entry ], [ false, %some ], [ false, %ends ], [ %good, %scan ]
  %result = zext i1 %well to i32
  ret i32 %result
}
"""
