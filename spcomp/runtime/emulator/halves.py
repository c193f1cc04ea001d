"""Beside the kernels: conversions of 16-bit floats, which LLVM calls where a machine has none."""

from __future__ import annotations

_DECODE = """define float @__extendhfsf2(half %h) #0 {
  %b = bitcast half %h to i16
  %w = zext i16 %b to i32
  %m = and i32 %w, 32767
  %u = uitofp i32 %m to float
  %s = fmul float %u, 0x3E70000000000000
  %small = bitcast float %s to i32
  %shifted = shl i32 %m, 13
  %normal = add i32 %shifted, 939524096
  %special = add i32 %normal, 939524096
  %is_special = icmp uge i32 %m, 31744
  %is_small = icmp ult i32 %m, 1024
  %a = select i1 %is_special, i32 %special, i32 %normal
  %c = select i1 %is_small, i32 %small, i32 %a
  %g = and i32 %w, 32768
  %sign = shl i32 %g, 16
  %r = or i32 %c, %sign
  %f = bitcast i32 %r to float
  ret float %f
}
"""
_ENCODE_HALF = """define half @__truncsfhf2(float %x) #0 {
  %w = bitcast float %x to i32
  %m = and i32 %w, 2147483647
  %l = lshr i32 %m, 13
  %odd = and i32 %l, 1
  %d = add i32 %m, -939520001
  %e = add i32 %d, %odd
  %normal = lshr i32 %e, 13
  %y = bitcast i32 %m to float
  %z = fadd float %y, 5.000000e-01
  %v = bitcast float %z to i32
  %small = sub i32 %v, 1056964608
  %is_small = icmp ult i32 %m, 947912704
  %is_huge = icmp uge i32 %m, 1199570944
  %is_nan = icmp ugt i32 %m, 2139095040
  %huge = select i1 %is_nan, i32 32256, i32 31744
  %a = select i1 %is_small, i32 %small, i32 %normal
  %c = select i1 %is_huge, i32 %huge, i32 %a
  %g = lshr i32 %w, 16
  %sign = and i32 %g, 32768
  %r = or i32 %c, %sign
  %t = trunc i32 %r to i16
  %h = bitcast i16 %t to half
  ret half %h
}
"""
_ENCODE_BFLOAT = """define bfloat @__truncsfbf2(float %x) #0 {
  %w = bitcast float %x to i32
  %u = lshr i32 %w, 16
  %odd = and i32 %u, 1
  %a = add i32 %w, 32767
  %c = add i32 %a, %odd
  %rounded = lshr i32 %c, 16
  %quiet = or i32 %u, 64
  %is_nan = fcmp uno float %x, %x
  %r = select i1 %is_nan, i32 %quiet, i32 %rounded
  %t = trunc i32 %r to i16
  %h = bitcast i16 %t to bfloat
  ret bfloat %h
}
"""
# Through float32, rounded to odd so that rounding again is right (Boldo and Melquiond, 2008).
_FROM_DOUBLE = """define T @__truncdfS(double %x) #0 {
  %f = fptrunc double %x to float
  %e = fpext float %f to double
  %exact = fcmp ueq double %e, %x
  %ae = call double @llvm.fabs.f64(double %e)
  %ax = call double @llvm.fabs.f64(double %x)
  %above = fcmp ogt double %ae, %ax
  %b = bitcast float %f to i32
  %less = sext i1 %above to i32
  %toward = add i32 %b, %less
  %odd = or i32 %toward, 1
  %w = select i1 %exact, i32 %b, i32 %odd
  %y = bitcast i32 %w to float
  %r = call T @__truncsfS(float %y)
  ret T %r
}
"""
HALVES = "".join(
    [
        _DECODE,
        _ENCODE_HALF,
        _ENCODE_BFLOAT,
        _FROM_DOUBLE.replace("T", "half").replace("S(", "hf2("),
        _FROM_DOUBLE.replace("T", "bfloat").replace("S(", "bf2("),
    ]
)
