"""The C header of a compiled program: its functions, with every parameter and status documented."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from spcomp import __version__
from spcomp.codegen.abi import DIVISION, OK, TURNS, c_parameters

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spcomp.codegen.abi import Emitted, FunctionABI, Param
    from spcomp.dtypes import DType

_PHASES = """
 * A host program runs what is declared here: {name}.flat.py shows what it does around it."""
_THREADS = """\
/* Use this many threads, the caller's included; at first one per processor. */
void spcomp_set_threads(int64_t threads);
"""
_C_TYPES = {"float16": "uint16_t", "bfloat16": "uint16_t", "float32": "float", "float64": "double"}


def header(name: str, emitted: Emitted, notes: Mapping[str, str]) -> str:
    """Return the header of program *name*; *notes* describes parameters, by name."""
    guard = f"SPCOMP_{re.sub(r'[^A-Za-z0-9]', '_', name).upper()}_H"
    body = "\n".join(_declaration(function, notes) for function in emitted.functions)
    if emitted.parallel:
        body += f"\n{_THREADS}"
    alone = [function.name for function in emitted.functions] == [name]
    phases = "" if alone else _PHASES.format(name=name)
    return f"""\
/* {name}, compiled by spcomp {__version__}.{phases}
 * Arrays are contiguous; a pointer that is not const is written. uint16_t holds the bits of a
 * 16-bit float, uint8_t a bool. Nothing is checked: sizes must be right, index arrays in range and
 * in order, and what is written must not overlap anything else. */
#ifndef {guard}
#define {guard}

#include <stdint.h>

#ifdef __cplusplus
extern "C" {{
#endif

{body}
#ifdef __cplusplus
}}
#endif

#endif
"""


def _declaration(function: FunctionABI, notes: Mapping[str, str]) -> str:
    named = list(zip(c_parameters(p.name for p in function.params), function.params, strict=True))
    lines = [f" * {name}: {_note(param, notes)}" for name, param in named]
    codes = [f"{OK}: done", f"{DIVISION}: integer division by zero"]
    numbered = {report.number for report in function.reports}
    for at, message in enumerate(function.messages, 1):
        status = f"{at * TURNS} to {(at + 1) * TURNS - 1}" if at in numbered else str(at)
        codes.append(f"{status}: {message}")
    params = ",\n    ".join(_parameter(name, param) for name, param in named) or "void"
    text = "\n".join(["/*", *lines, " * Returns", *(f" *   {code}" for code in codes), " */"])
    return f"{text}\nint32_t {function.symbol}(\n    {params});\n"


def _note(param: Param, notes: Mapping[str, str]) -> str:
    if param.dtype.kind == "handle" and param.element is None:
        return "not used, may be NULL"
    default = "made by the host program" if param.dtype.kind == "handle" else "a number"
    return notes.get(param.name, default)


def _parameter(name: str, param: Param) -> str:
    if param.dtype.kind != "handle":
        return f"{_c_type(param.dtype)} {name}"
    element = "void" if param.element is None else _c_type(param.element)
    const = "" if param.written else "const "
    return f"{const}{element} *{name}"


def _c_type(dtype: DType) -> str:
    if dtype.kind == "bool":
        return "uint8_t"
    return _C_TYPES.get(str(dtype), f"{dtype}_t")
