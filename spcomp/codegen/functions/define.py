"""Functions as LLVM text, the door: mathematical functions of a float, or of whole vectors.

Each is an internal function of one module, of plain instructions and of intrinsics that LLVM's
NVPTX back end knows exactly: fma, fabs, copysign, sqrt, trunc, fshl. It ends the process at others.
"""

from __future__ import annotations

from collections.abc import Callable

from spcomp.codegen.functions import angles, exponentials, logarithms, special, trigonometry
from spcomp.codegen.functions.values import Value
from spcomp.codegen.llvm.code import Code, Unit
from spcomp.codegen.llvm.math import per_lane
from spcomp.codegen.llvm.ops import register, suffix
from spcomp.dtypes import DType
from spcomp.errors import LoweringError

PURE = "nocallback nofree nosync nounwind speculatable willreturn memory(none)"
FUNCTIONS: dict[str, Callable[..., Value]] = {
    body.__name__: body
    for body in (
        *(exponentials.exp, exponentials.exp2, exponentials.expm1, exponentials.sigmoid),
        *(exponentials.sinh, exponentials.cosh, exponentials.tanh),
        *(logarithms.log, logarithms.log2, logarithms.log10, logarithms.log1p, logarithms.pow),
        *(logarithms.asinh, logarithms.acosh, logarithms.atanh),
        *(trigonometry.sin, trigonometry.cos, trigonometry.tan),
        *(angles.asin, angles.acos, angles.atan, angles.atan2),
        *(special.cbrt, special.hypot, special.erf, special.fmod),
    )
}
OF_TWO = ("pow", "atan2", "hypot", "fmod")
WHOLE = frozenset(FUNCTIONS) - {"fmod"}  # those without loops, which take whole vectors


def per_element(code: Code, dtype: DType, func: str, *args: str) -> str:
    """Return *func* of *args*, all of the float *dtype*, lane by lane."""
    name = declare(code.unit, func, register(dtype.element))
    return per_lane(code, name, register(dtype), args, dtype.lanes)


def at_once(code: Code, dtype: DType, func: str, *args: str) -> str:
    """Return *func*, one of WHOLE, of *args*, all of the float *dtype*, in whole vectors.

    The same function of single elements has the same bits.
    """
    kind = register(dtype)
    name = declare(code.unit, func, kind, "#0")
    return code.value(f"call {kind} @{name}({', '.join(f'{kind} {arg}' for arg in args)})")


def declare(unit: Unit, func: str, kind: str, facts: str = "") -> str:
    """Define the function *func* of *kind* in *unit* once; return its name.

    *kind*: float, double, or a vector of these. *facts*: what LLVM is told of it besides.
    """
    if func not in FUNCTIONS:
        raise LoweringError(f"{func} on a GPU", hint=f"there are {', '.join(sorted(FUNCTIONS))}")
    name = f"spcomp.{func}.{suffix(kind)}"
    if name not in unit.declarations:
        code = Code(unit)
        code.lines = []  # without places: inlined, its instructions have that of the call
        args = ("%x", "%y") if func in OF_TWO else ("%x",)
        result = FUNCTIONS[func](*(Value(code, kind, arg) for arg in args))
        parameters = ", ".join(f"{kind} {arg}" for arg in args)
        lines = (
            f"define internal {kind} @{name}({parameters}) {PURE} {facts} {{",
            *("entry:", *code.lines),
            *(f"  ret {kind} {result.name}", "}"),
        )
        unit.declarations[name] = "\n".join(lines)
    return name
