"""The layers a program of the corpus runs through: each test asks for the one it needs."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
import scipy.sparse as sps

import spcomp
from spcomp.compiler.pipeline import lower
from spcomp.ir.interpret.program import interpret
from spcomp.ir.module import Launch, Module
from spcomp.ir.printer.program import print_program
from spcomp.script.parse import parse_source
from spcomp.target import Target
from tests.corpus_base import Inputs
from tests.programs import BY_NAME

TARGET = Target("cpu", "x86-64-v3", vector_bits=256)
WIDTHS = tuple(
    Target("cpu", f"x86-64{level}", vector_bits=bits)
    for level, bits in (("", 128), ("-v3", 256), ("-v4", 512))
)
STAGES = ("coordinate", "position", "flat")


@cache
def source(name: str, dtype: str = "float32", idtype: str = "int32") -> Any:
    """Return the program *name* as parsed."""
    return BY_NAME[name].build(dtype, idtype)


@cache
def stages(name: str, dtype: str = "float32", idtype: str = "int32") -> Any:
    """Return the program *name* lowered: a Module per stage, the same on every machine."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore" if BY_NAME[name].warns else "error")
        return lower(source(name, dtype, idtype), TARGET)


@cache
def kernel(name: str, dtype: str = "float32", idtype: str = "int32") -> Any:
    """Return the program *name* compiled for the host."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore" if BY_NAME[name].warns else "error")
        return spcomp.compile(source(name, dtype, idtype))


def reparsed(program: Any, name: str) -> Any:
    """Return what the parser reads from the printed *program*."""
    (back,) = parse_source(print_program(program), f"{name}.py")
    return back


def as_read(module: Any, name: str) -> Any:
    """Return what the parser reads from the printed *module*, as a Module."""
    back = reparsed(module, name)
    if isinstance(back, Module):
        return back
    return Module(module.source, (back,), (Launch(back.name),))


def interpreted(program: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Run *program* (of any stage) on *inputs*; returns every array by name."""
    with np.errstate(all="ignore"):
        results = interpret(program, inputs)
    return {**inputs, **results}


def called(
    name: str, inputs: Inputs, dtype: str = "float32", idtype: str = "int32", compiled: Any = None
) -> Inputs:
    """Call the compiled program with *inputs*; returns every array by name.

    *compiled*: what became of it, where that is not what the source became.
    """
    compiled = kernel(name, dtype, idtype) if compiled is None else compiled
    if not BY_NAME[name].assembles:
        func = source(name, dtype, idtype)
        compiled(*(inputs[param.name] for param in func.params))
        return inputs
    result = compiled(A=_matrix(inputs, "a"), B=_matrix(inputs, "b"))
    parts = {"JC_indptr": result.indptr, "JC_indices": result.indices, "c": result.data}
    return {**inputs, **parts}


def _matrix(inputs: Inputs, name: str) -> sps.csr_array:
    arrays = (inputs[name], inputs[f"{name}_indices"], inputs[f"{name}_indptr"])
    shape = len(arrays[2]) - 1, inputs["n"]
    matrix = sps.csr_array(shape, dtype=inputs[name].dtype)
    matrix.data, matrix.indices, matrix.indptr = arrays  # as they are: scipy would copy or check
    return matrix
