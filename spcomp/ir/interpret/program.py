"""Beside the route: runs a program of any level on numpy; this defines what the IR means.

Slow and obvious. ``min`` and ``max`` of floats are NaN if a side is; ``//`` and ``%`` of floats are
the floor of the exact quotient and its remainder; a shift by the width or more gives 0 (or the
sign).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from spcomp.arrays import Array
from spcomp.errors import ArgumentError, InternalError
from spcomp.ir.access import Load
from spcomp.ir.expr import Var
from spcomp.ir.func import Func
from spcomp.ir.interpret.coordinate import CoordinateInterpreter
from spcomp.ir.interpret.expr import Evaluator, as_number
from spcomp.ir.interpret.flat import FlatInterpreter
from spcomp.ir.interpret.position import PositionInterpreter
from spcomp.ir.interpret.stmt import Interpreter
from spcomp.ir.interpret.storage import decode, encode
from spcomp.ir.module import HostAlloc, HostOp, Launch, Module, Return, Scan, Trim
from spcomp.ir.program import CoordFunc, FlatFunc, PosFunc

_LEVELS: dict[type[Func], type[Interpreter]] = {
    CoordFunc: CoordinateInterpreter,
    PosFunc: PositionInterpreter,
    FlatFunc: FlatInterpreter,
}


def interpret(program: Func | Module[Any], args: Mapping[str, Any]) -> dict[str, Array]:
    """Run *program* and return the arrays of its assembled results by name.

    Args:
        program: A function of any level, or a Module, whose host program is run.
        args: For every parameter its value: a number for a scalar, for a handle a contiguous 1-D
            array (bfloat16 as uint16 bits), updated in place. A handle whose array is assembled
            is left out.

    Returns:
        ``{axis}_indptr`` and ``{axis}_indices`` of each assembled axis, and the values of each
        buffer along one under the name of its handle; empty if nothing is assembled.

    Raises:
        ArgumentError: An argument is missing, surplus or of another dtype; or the program, which
            then still runs to its end, failed: it wrote a coordinate that is not stored, divided
            an integer by zero, or ran a Fail statement.
        InternalError: The program breaks a law of its level, such as an index outside its array.
    """
    func = program.source if isinstance(program, Module) else program
    _check_names(func, args)
    failures: list[str] = []
    with np.errstate(all="ignore"):
        if isinstance(program, Module):
            results = _Host(program, args, failures).run()
        else:
            results = _run(program, args, failures)
    if failures:
        raise ArgumentError(failures[0])
    return results


def _run(func: Func, args: Mapping[str, Any], failures: list[str]) -> dict[str, Array]:
    """Run *func* with its parameters bound by name."""
    arrays = {
        p.name: args[p.name] for p in func.params if p.dtype.kind == "handle" if p.name in args
    }
    interpreter = _LEVELS[type(func)](arrays, failures)
    for param in func.params:
        if param.dtype.kind != "handle":
            interpreter.env[param] = as_number(args[param.name], param.dtype)
    return interpreter.run(func)


def _check_names(func: Func, args: Mapping[str, Any]) -> None:
    assembled = {
        buffer.data.name
        for buffer in func.buffers
        if buffer.data is not None
        for axis in getattr(buffer, "axes", ())
        if axis.is_assembled
    }
    names = {param.name for param in func.params}
    for problem, names_ in (("missing", names - assembled - {*args}), ("surplus", {*args} - names)):
        if names_:
            raise ArgumentError(f"{problem} argument {', '.join(sorted(names_))}")
    for param in func.params:
        value = args.get(param.name)
        if param.dtype.kind == "handle" and value is not None and np.ndim(value) != 1:
            raise ArgumentError(f"{param.name} is not a one-dimensional array")


class _Host(Evaluator):
    """Runs the host program; variables and buffers are looked up by name."""

    def __init__(self, module: Module[Any], args: Mapping[str, Any], failures: list[str]) -> None:
        super().__init__({}, failures)
        self.module, self.values = module, dict(args)

    def run(self) -> dict[str, Array]:
        """Run the operations in order and return the arrays that the last one names."""
        results: dict[str, Array] = {}
        for op in self.module.host:
            results |= self._op(op)
        return results

    def _op(self, op: HostOp) -> dict[str, Array]:
        match op:
            case Launch(func=name):
                return _run(self.module[name], self.values, self.failures)
            case Scan(buffer=buffer):
                values = self._array(buffer.name)
                values[:] = np.cumsum([0, *values[1:]])
            case HostAlloc(buffer=buffer, fill=fill):
                dtype = buffer.dtype.numpy_name
                value = encode(as_number(fill or 0, buffer.dtype), buffer.dtype)
                self.values[buffer.name] = np.full(self.number(buffer.shape[0]), value, dtype)
            case Trim(buffer=buffer, size=size):
                self.values[buffer.name] = self._array(buffer.name)[: self.number(size)]
            case Return(buffers=buffers):
                return {buffer.name: self._array(buffer.name) for buffer in buffers}
        return {}

    def visit_Var(self, var: Var) -> Any:
        """Return the argument of that name."""
        return as_number(self._array(var.name), var.dtype)

    def visit_Load(self, node: Load) -> Any:
        """Read an element of an argument, or of an array that the host program allocated."""
        buffer = node.buffer
        name = (
            buffer.name if buffer.name in self.values or buffer.data is None else buffer.data.name
        )
        array, index = self._array(name), node.indices[-1]
        at = -1 if index is None else self.number(index)
        if not 0 <= at < len(array):
            raise InternalError("interpretation", f"the host reads element {at} of {name}")
        return decode(array[at], buffer.dtype)

    def _array(self, name: str) -> Any:
        if name not in self.values:
            raise InternalError("interpretation", f"the host program knows no {name}")
        return self.values[name]
