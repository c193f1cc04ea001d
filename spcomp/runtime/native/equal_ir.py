"""Beside the kernels: LLVM IR that compares 64-bit integers with a copy of them in 32 bits.

``spcomp_equal(wide, narrow, count)`` returns 1 if all *count* elements are the same numbers, else
0. The copy has half the bytes, and comparing is as fast as memory: ``memcmp`` with a copy in 64
bits takes a third longer.
"""

from __future__ import annotations

NAME = "spcomp_equal"
_BLOCK = 2048  # elements between two looks at the result

_IR = """
declare i64 @llvm.umin.i64(i64, i64)
declare i64 @llvm.vector.reduce.or.v1i64(<1 x i64>)
declare i64 @llvm.vector.reduce.or.v8i64(<8 x i64>)

!0 = distinct !{!0, !1}
!1 = !{!"llvm.loop.unroll.count", i32 4}

define i32 @NAME(ptr %wide, ptr %narrow, i64 %count) #0 {
entry:
  br label %head
head:
  %from = phi i64 [ 0, %entry ], [ %to, %block ]
  %more = icmp ult i64 %from, %count
  br i1 %more, label %block, label %exit
block:
  %end = add i64 %from, BLOCK
  %to = call i64 @llvm.umin.i64(i64 %end, i64 %count)
  %size = sub i64 %to, %from
  %rest = urem i64 %size, 8
  %middle = sub i64 %to, %rest
  %bulk = call i64 @differ8(ptr %wide, ptr %narrow, i64 %from, i64 %middle)
  %tail = call i64 @differ1(ptr %wide, ptr %narrow, i64 %middle, i64 %to)
  %any = or i64 %bulk, %tail
  %same = icmp eq i64 %any, 0
  br i1 %same, label %head, label %exit
exit:
  %result = phi i32 [ 1, %head ], [ 0, %block ]
  ret i32 %result
}
"""

# Bits in which elements from %from to %to differ.
_LOOP = """
define internal i64 @differLANES(ptr %wide, ptr %narrow, i64 %from, i64 %to) alwaysinline #0 {
entry:
  br label %head
head:
  %i = phi i64 [ %from, %entry ], [ %next, %body ]
  %bits = phi <LANES x i64> [ zeroinitializer, %entry ], [ %more.bits, %body ]
  %next = add i64 %i, LANES
  %more = icmp ule i64 %next, %to
  br i1 %more, label %body, label %exit
body:
  %wide.at = getelementptr inbounds i64, ptr %wide, i64 %i
  %narrow.at = getelementptr inbounds i32, ptr %narrow, i64 %i
  %a = load <LANES x i64>, ptr %wide.at, align 8
  %b = load <LANES x i32>, ptr %narrow.at, align 4
  %c = sext <LANES x i32> %b to <LANES x i64>
  %d = xor <LANES x i64> %a, %c
  %more.bits = or <LANES x i64> %bits, %d
  br label %head, !llvm.loop !0
exit:
  %any = call i64 @llvm.vector.reduce.or.vLANESi64(<LANES x i64> %bits)
  ret i64 %any
}
"""


def equal_ir(attributes: str) -> str:
    """Return the function as LLVM IR whose functions have *attributes*."""
    loops = "".join(_LOOP.replace("LANES", str(lanes)) for lanes in (1, 8))
    text = _IR.replace("BLOCK", str(_BLOCK)).replace("NAME", NAME) + loops
    return f"{text}\nattributes #0 = {{ nounwind {attributes} }}\n"
