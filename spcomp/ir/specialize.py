"""Beside the route: programs with some of their scalar parameters fixed to constants."""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Integral, Real
from typing import TYPE_CHECKING

from spcomp.errors import ArgumentError, expect
from spcomp.ir.expr import Const, Expr, Var, const
from spcomp.ir.func import Func
from spcomp.ir.module import Module
from spcomp.ir.rewrite import Fn, Relink, relink

if TYPE_CHECKING:
    from spcomp.dtypes import DType

Scalar = int | float | bool


def specialize(func: Fn, values: Mapping[Var | str, Scalar]) -> Fn:
    """Return *func* with scalar parameters, given as variables or names, fixed to *values*.

    They disappear from the parameters. Raises ArgumentError for a name that is no scalar parameter
    and for a value that its dtype does not hold.
    """
    expect("values", values, Mapping, "numbers by parameters")
    by_name = {key.name if isinstance(key, Var) else key: value for key, value in values.items()}
    return relink(func, vars=_constants(func, by_name))


def specialize_module(module: Module[Fn], values: Mapping[Var | str, Scalar]) -> Module[Fn]:
    """Return *module* with scalar parameters of its source fixed, in every phase and on the host.

    Raises ArgumentError as specialize does.
    """
    by_name = {key.name if isinstance(key, Var) else key: value for key, value in values.items()}
    constants = _constants(module.source, by_name)
    source = relink(module.source, vars=constants)
    funcs = []
    for func in module.funcs:
        own_values = {var: by_name[var.name] for var in func.params if var.name in by_name}
        constants |= {var: _constant(var, value) for var, value in own_values.items()}
        funcs.append(relink(func, vars=constants))
    host = Relink(constants, {}, {})
    return Module(source, tuple(funcs), tuple(host.value(op) for op in module.host))


def _constants(func: Func, values: Mapping[str, Scalar]) -> dict[Var, Expr]:
    scalars = {var.name: var for var in func.params if var.type.kind != "handle"}
    for name in values:
        if name not in scalars:
            kind = "a handle" if name in (var.name for var in func.params) else "no parameter"
            choices = ", ".join(scalars) or "there are none"
            raise ArgumentError(
                f"cannot specialize {name!r}, it is {kind} of {func.name}",
                hint=f"scalar parameters: {choices}",
            )
    return {scalars[name]: _constant(scalars[name], value) for name, value in values.items()}


def _constant(var: Var, value: Scalar) -> Const:
    if not _fits(value, var.type):
        raise ArgumentError(
            f"cannot specialize {var.name!r}, {value!r} is no {var.type}",
            hint=f"give a value that {var.type} holds",
        )
    return const(value, var.type)


_LARGEST = {"float16": 65504.0, "bfloat16": 3.3895313892515355e38, "float32": 3.4028234663852886e38}


def _fits(value: object, dtype: DType) -> bool:
    if dtype.kind == "bool":
        return isinstance(value, bool) or (isinstance(value, Integral) and value in (0, 1))
    if dtype.is_integer:
        low = -(1 << dtype.bits - 1) if dtype.kind == "int" else 0
        if not isinstance(value, Integral) or isinstance(value, bool):
            return False
        return low <= int(value) < low + (1 << dtype.bits)
    if not isinstance(value, Real) or isinstance(value, bool):
        return False
    largest = _LARGEST.get(str(dtype), math.inf)
    return not math.isfinite(value) or abs(float(value)) <= largest
