"""IR to script text: functions and modules that the parser reads back, at every level."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spcomp.ir.module import HostAlloc, HostOp, Launch, Module, Return, Scan, Trim
from spcomp.ir.printer.expr import identifier, literal_text, print_expr
from spcomp.ir.printer.stmt import StmtPrinter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spcomp.dtypes import DType
    from spcomp.ir.func import Func

__all__ = ["print_expr", "print_func", "print_module", "print_program"]

HEADER = "from spcomp import script as T\n\n\n"
_WIDTH = 100


def print_program(program: Func | Module[Any]) -> str:
    """Return *program* as a Python file; a Module that only runs one function prints as that."""
    if isinstance(program, Module):
        return print_func(program.funcs[0]) if program.is_single else print_module(program)
    return print_func(program)


def print_func(func: Func) -> str:
    """Return *func* as a Python file whose parse is structurally equal to it."""
    return HEADER + "\n".join(_func_lines(func, 0)) + "\n"


def print_module(module: Module[Any]) -> str:
    """Return *module* as a Python file with one class: its source, its functions, its host."""
    funcs = module.funcs if module.funcs == (module.source,) else (module.source, *module.funcs)
    parts = [*(_func_lines(func, 1) for func in funcs), _host_lines(module)]
    body = "\n\n".join("\n".join(part) for part in parts)
    return f"{HEADER}@T.ir_module\nclass {identifier(module.source.name)}:\n{body}\n"


def _func_lines(func: Func, indent: int) -> list[str]:
    printer = StmtPrinter(indent)
    params = [f"{printer.names.give(var)}: {_annotation(var.type)}" for var in func.params]
    printer.line("@T.prim_func")
    _signature(printer, func.name, params)
    printer.indent += 1
    attrs = dict(func.attrs) | {"sparse_tir_level": func.LEVEL}
    printer.line(f"T.func_attr({literal_text(attrs)})")
    for axis in func.axes:
        call = printer.axis_call(axis)
        printer.line(f"{printer.names.give(axis)} = {call}")
    for buffer in func.buffers:
        call = printer.buffer_call(buffer)
        printer.line(f"{printer.names.give(buffer)} = {call}")
    for promise in func.domains:
        low, high = printer.ex.alone(promise.low), printer.ex.alone(promise.high)
        name = printer.names.of(promise.buffer)
        printer.line(f"T.assume_buffer_domain({name}, [{low}, {high}])")
    printer.rest(func.body)
    return printer.lines


def _signature(printer: StmtPrinter, name: str, params: Sequence[str]) -> None:
    head = f"def {identifier(name)}("
    line = f"{head}{', '.join(params)}) -> None:"
    if 4 * printer.indent + len(line) <= _WIDTH:
        printer.line(line)
        return
    printer.line(head)
    for param in params:
        printer.line(f"    {param},")
    printer.line(") -> None:")


def _annotation(dtype: DType) -> str:
    return f"T.{dtype}"


def _host_lines(module: Module[Any]) -> list[str]:
    printer = StmtPrinter(1)
    params = [f"{printer.names.give(v)}: {_annotation(v.type)}" for v in module.source.params]
    printer.line("@T.host")
    _signature(printer, "main", params)
    with_body = len(printer.lines)
    printer.indent += 1
    for op in module.host:
        printer.line(_host_op(printer, op))
    if len(printer.lines) == with_body:
        printer.line("pass")
    return printer.lines


def _host_op(printer: StmtPrinter, op: HostOp) -> str:
    match op:
        case Launch(func=name):
            return f"T.launch({literal_text(name)})"
        case Scan(buffer=buffer):
            return f"T.scan({printer.names.of(buffer)})"
        case Trim(buffer=buffer, size=count):
            return f"T.trim({printer.names.of(buffer)}, {printer.ex.count(count)})"
        case Return(buffers=buffers):
            return f"T.host_return({', '.join(map(printer.names.of, buffers))})"
        case HostAlloc(buffer=buffer, fill=fill):
            size = printer.ex.count(buffer.shape[0])
            options = "" if literal_text(fill) == "0" else f", fill={literal_text(fill)}"
            dtype = literal_text(str(buffer.dtype))
            # its name is that of the handle parameters it is bound to: it is never numbered
            printer.names.by_node[buffer] = identifier(buffer.name)
            return f"{identifier(buffer.name)} = T.host_alloc({size}, {dtype}{options})"
