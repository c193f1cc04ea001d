"""Around the route: ``spcomp.adjoint``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import NoneType

from spcomp.errors import ArgumentError, ScriptError, expect, refuse_deep_nests
from spcomp.ir.program import CoordFunc
from spcomp.kernels.protocol import COMPILED, Runnable
from spcomp.notation.adjoint.adjoint import Adjoint, adjoint_of
from spcomp.notation.nodes import Program
from spcomp.notation.objects import Function, Symbol, as_program, with_numbers
from spcomp.notation.prepare import refuse_out
from spcomp.notation.semiring import ORDINARY
from spcomp.notation.subscripts import is_subscripts, statement_of
from spcomp.passes.adjoint.adjoint import script_adjoint


def adjoint(
    program: str | Symbol | Program | Adjoint | CoordFunc | Sequence[Symbol],
    wrt: str | Sequence[str],
    *,
    functions: Mapping[str, Function] | None = None,
    constants: Mapping[str, int | float] | None = None,
) -> Adjoint | CoordFunc:
    """Return the program that computes the gradients of *program*, for ``compile``.

    Args:
        program: Index notation as ``compile`` takes it; subscripts of ``einsum``, whose operands
            are called ``operand0``, ``operand1``, ... and whose result is ``out``; a function of
            the script language with sparse iterations; or an adjoint, whose gradients are derived
            again.
        wrt: The operands by which it is derived, one or several; their gradients are the results,
            in this order.
        functions: Of index notation: the user's own, by name.
        constants: Of index notation: values for numbers in it.

    Raises:
        SpcompError: ScriptError where the program has no derivative, with the line; ArgumentError
            for operands that it does not have.
    """
    names = (wrt,) if isinstance(wrt, str) else wrt
    if not isinstance(names, (tuple, list)) or not all(isinstance(name, str) for name in names):
        raise ArgumentError(
            f"argument wrt: got {wrt!r}, expected names of operands", hint='write wrt=("A", "B")'
        )
    expect("functions", functions, (Mapping, NoneType), "functions by their names")
    expect("constants", constants, (Mapping, NoneType), "numbers by their names")
    if isinstance(program, CoordFunc):
        if functions or constants:
            raise ArgumentError("argument functions: is for index notation only")
        return script_adjoint(program, tuple(names))
    if isinstance(program, Adjoint):
        return program.again(names)
    if isinstance(program, str) and is_subscripts(program):
        program = statement_of(program)
    if not isinstance(program, (str, Symbol, Program, tuple, list)):
        hint = "give index notation, or a function with sparse iterations"
        if isinstance(program, Runnable):
            hint = COMPILED
        raise ArgumentError(f"argument program: got {type(program).__name__}", hint=hint)
    with refuse_deep_nests(ScriptError):
        notation = as_program(program, dict(functions or {}), ORDINARY)
        notation = with_numbers(notation, constants or {})
        refuse_out(notation)
        return adjoint_of(notation, names)
