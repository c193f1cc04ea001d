"""Flat IR to LLVM IR for a CPU: lines that are printed, and failures that show numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spcomp.codegen.abi import RECORDS, TURNS
from spcomp.dtypes import DIGITS, HOLE, DType, bool_, float64, int64, uint64

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spcomp.codegen.abi import Report
    from spcomp.codegen.llvm.code import Code
    from spcomp.codegen.llvm.expr import Exprs
    from spcomp.ir.expr import Expr


def print_line(code: Code, exprs: Exprs, message: str, values: Sequence[Expr]) -> None:
    """Write a call of ``printf`` that prints *message* with *values* in its holes, at once."""
    text, operands = message.replace("%", "%%"), [""]
    for value in values:
        dtype = wide(value.dtype)
        operand = exprs.convert(value, dtype)
        form = {int64: "%lld", uint64: "%llu", bool_: "%s", float64: ""}[dtype]
        if dtype == bool_:
            words = (constant(code, word) for word in ("True", "False"))
            operand = code.value(f"select i1 {operand}, ptr {', ptr '.join(words)}")
        text = text.replace(HOLE, form or f"%.{DIGITS[value.dtype.bits]}g", 1)
        operands.append(f"{'ptr' if dtype == bool_ else register_of(dtype)} {operand}")
    show = code.unit.declare("printf", "i32", "ptr, ...")
    flush = code.unit.declare("fflush", "i32", "ptr")
    line = f"ptr {constant(code, text + chr(10))}{', '.join(operands)}"
    code.do(f"call i32 (ptr, ...) {show}({line}) nobuiltin")  # LLVM would call puts
    code.do(f"call i32 {flush}(ptr null)")


def fail_with(
    code: Code, exprs: Exprs, status: str, report: Report, values: Sequence[Expr]
) -> None:
    """Write a failure with *values*, which *report* says where to find.

    A failure that changes nothing, since the call has this one or one before it already, takes no
    turn.
    """
    words = [exprs.convert(value, wide(value.dtype)) for value in values]
    symbol, first = report.symbol, report.number * TURNS - 1  # as the status word has it
    size = 1 + RECORDS * report.width
    code.unit.declarations[symbol] = f"@{symbol} = global [{size} x i64] zeroinitializer, align 8"

    def record() -> None:
        count = code.value(f"atomicrmw add ptr @{symbol}, i64 1 seq_cst")
        turn = code.value(f"and i64 {count}, {TURNS - 1}")
        number = code.value(f"and i64 {count}, {RECORDS - 1}")
        begin = code.value(f"mul i64 {number}, {report.width}")
        for at, word in enumerate([turn, *words]):
            index = code.value(f"add i64 {begin}, {at + 1}")
            where = code.value(f"getelementptr inbounds i64, ptr @{symbol}, i64 {index}")
            if at == 0:
                code.do(f"store atomic i64 {turn}, ptr {where} seq_cst, align 8")
                code.do("fence seq_cst")  # who sees a number of this turn sees the turn
                continue
            kind = wide(values[at - 1].dtype)
            stored = code.value(f"zext i1 {word} to i64") if kind == bool_ else word
            code.do(f"store {register_of(kind)} {stored}, ptr {where}, align 8")
        short = code.value(f"trunc i64 {turn} to i32")
        reached = code.value(f"add i32 {short}, {first}")
        code.do(f"atomicrmw umin ptr {status}, i32 {reached} monotonic")

    so_far = code.value(f"load atomic i32, ptr {status} monotonic, align 4")
    code.when(code.value(f"icmp uge i32 {so_far}, {first + TURNS}"), record)


def wide(dtype: DType) -> DType:
    """Return the type that a number of *dtype* is shown as."""
    if dtype.kind == "bool":
        return bool_
    if dtype.is_float:
        return float64
    return uint64 if dtype.kind == "uint" else int64


def register_of(dtype: DType) -> str:
    """Return the LLVM type of a number that is kept as *dtype*."""
    return "double" if dtype == float64 else "i64"


def constant(code: Code, text: str) -> str:
    """Return the name of a constant of the module that is *text*, as C has it."""
    name, data = f"@text.{text.encode().hex()}", text.encode() + b"\0"
    plain = "".join(chr(b) if 31 < b < 127 and b not in b'"\\' else f"\\{b:02X}" for b in data)
    kind = f"private unnamed_addr constant [{len(data)} x i8]"
    code.unit.declarations.setdefault(name, f'{name} = {kind} c"{plain}"')
    return name
