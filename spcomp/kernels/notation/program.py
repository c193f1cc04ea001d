"""Around the route: ``compile`` for index notation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import NoneType
from typing import TYPE_CHECKING, Any

from spcomp.compiler.backends import backend_of
from spcomp.errors import ScriptError, expect, refuse_deep_nests
from spcomp.kernels.notation.kernel import NotationKernel
from spcomp.notation.objects import Function, as_program, with_numbers
from spcomp.notation.prepare import refuse_out
from spcomp.notation.semiring import ORDINARY, Semiring, as_semiring

if TYPE_CHECKING:
    from spcomp.compiler.options import Options
    from spcomp.formats.format import Format
    from spcomp.formats.rules import ComposableFormat


def compile_notation(
    program: Any,
    options: Options,
    formats: Mapping[str, str | Format | ComposableFormat] | None,
    semiring: Semiring | str | None,
    functions: Mapping[str, Function] | None,
) -> NotationKernel:
    """Return the kernel of a string of index notation, of assigned symbols, or of a Program."""
    expect("formats", formats, (Mapping, NoneType), "formats by the names of tensors")
    expect("functions", functions, (Mapping, NoneType), "functions by their names")
    meaning = ORDINARY if semiring is None else as_semiring(semiring)
    if options.target.cpu != "native":
        backend_of(options.target.kind).resolve(options.target)  # raises for an unknown one
    with refuse_deep_nests(ScriptError):
        notation = as_program(program, dict(functions or {}), meaning)
        notation = with_numbers(notation, options.constants)
        refuse_out(notation)
        options = replace(options, constants={})
        return NotationKernel(notation, formats or {}, meaning, options)
