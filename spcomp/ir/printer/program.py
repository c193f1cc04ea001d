"""IR to script text: functions and modules that the parser reads back, at every level."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from spcomp.ir.module import HostAlloc, HostOp, Launch, Module, Return, Scan, Trim
from spcomp.ir.printer.expr import identifier, literal_text, print_expr
from spcomp.ir.printer.stmt import StmtPrinter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spcomp.dtypes import DType
    from spcomp.errors import Span
    from spcomp.ir.func import Func

__all__ = ["Line", "print_expr", "print_func", "print_lines", "print_module", "print_program"]

Line: TypeAlias = tuple[str, "tuple[Span, ...]"]  # the places it is from, its statement's first
HEADER = "from spcomp import script as T\n\n\n"
_WIDTH = 100


def print_program(program: Func | Module[Any]) -> str:
    """Return *program* as a Python file; a Module that only runs one function prints as that."""
    if isinstance(program, Module):
        return print_func(program.funcs[0]) if program.is_single else print_module(program)
    return print_func(program)


def print_func(func: Func) -> str:
    """Return *func* as a Python file whose parse is structurally equal to it."""
    return HEADER + _text(_func_lines(func, 0)) + "\n"


def print_module(module: Module[Any]) -> str:
    """Return *module* as a Python file with one class: its source, its functions, its host."""
    return HEADER + _text(_module_lines(module)) + "\n"


def print_lines(program: Func | Module[Any]) -> list[Line]:
    """Return the lines of ``print_program``, without its header, and where each comes from."""
    if not isinstance(program, Module):
        return _func_lines(program, 0)
    return _func_lines(program.funcs[0], 0) if program.is_single else _module_lines(program)


def _text(lines: list[Line]) -> str:
    return "\n".join(text for text, _ in lines)


def _module_lines(module: Module[Any]) -> list[Line]:
    funcs = module.funcs if module.funcs == (module.source,) else (module.source, *module.funcs)
    result: list[Line] = [("@T.ir_module", ()), (f"class {identifier(module.source.name)}:", ())]
    for part in funcs:
        result += [*_func_lines(part, 1), ("", ())]
    return [*result, *_host_lines(module)]


def _func_lines(func: Func, indent: int) -> list[Line]:
    printer = StmtPrinter(indent)
    params = [f"{printer.names.give(var)}: {_annotation(var.type)}" for var in func.params]
    with printer.at(func):
        _func_head(printer, func, params)
    printer.rest(func.body)
    return list(zip(printer.lines, printer.places, strict=True))


def _func_head(printer: StmtPrinter, func: Func, params: Sequence[str]) -> None:
    printer.line("@T.prim_func")
    _signature(printer, func.name, params)
    printer.indent += 1
    attrs = dict(func.attrs) | {"sparse_tir_level": func.LEVEL}
    printer.line(f"T.func_attr({literal_text(attrs)})")
    for axis in func.axes:
        call = printer.axis_call(axis)
        with printer.at(axis):
            printer.line(f"{printer.names.give(axis)} = {call}")
    for buffer in func.buffers:
        call = printer.buffer_call(buffer)
        with printer.at(buffer):
            printer.line(f"{printer.names.give(buffer)} = {call}")
    for promise in func.domains:
        low, high = printer.ex.alone(promise.low), printer.ex.alone(promise.high)
        name = printer.names.of(promise.buffer)
        printer.line(f"T.assume_buffer_domain({name}, [{low}, {high}])")


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


def _host_lines(module: Module[Any]) -> list[Line]:
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
    return list(zip(printer.lines, printer.places, strict=True))


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
