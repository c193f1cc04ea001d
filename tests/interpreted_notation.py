"""Programs of index notation run by the interpreter, in the place of machine code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple, cast

import numpy as np

from spcomp.compiler.interface import interface
from spcomp.ir.interpret.program import interpret
from spcomp.ir.program import CoordFunc
from spcomp.kernels.frame import Frame
from spcomp.kernels.kernel import Kernel
from spcomp.kernels.notation.arguments import CallArguments, call_arguments
from spcomp.kernels.notation.kernel import NotationKernel
from spcomp.kernels.notation.planned import CompiledVersion, Split
from spcomp.kernels.notation.runner import Runner, SplitVersion
from spcomp.kernels.results import allocate, collect, new_array, result_wraps


def interpreted(
    kernel: NotationKernel, args: Mapping[str, Any], stage: str = "coordinate", **more: Any
) -> Any:
    """What the interpreter computes for a call, of the program at *stage*."""
    return Interpreted.of(kernel._runner, stage).run(None, call_arguments(args), **more)


class Interpreted(Runner):
    """Runs programs as they are planned, by the interpreter of a *stage*, and compiles none."""

    stage: str

    @classmethod
    def of(cls, runner: Runner, stage: str) -> Interpreted:
        """Return one for the program of *runner*."""
        planner = runner.planner
        result = cls(planner.written, planner.formats, planner.semiring, runner.options)
        result.stage = stage
        return result

    def _compile(
        self, arguments: CallArguments, asked: frozenset[str]
    ) -> CompiledVersion | SplitVersion:
        planned = self.planned(arguments, asked)
        if isinstance(planned, Split):
            return self._split_version(planned)
        program: Any = planned.func
        if self.stage != "coordinate":
            compiled = Kernel.of(planned.func, self.options)._compiled
            program = getattr(compiled.stages, self.stage)

        kernel = cast("Kernel", Interpreter(planned.func, program))
        return CompiledVersion.of(planned, kernel, arguments, {})

    def _split_version(self, split: Split) -> SplitVersion:
        pieces = super()._split_version(split).pieces
        return SplitVersion(
            tuple(replace(piece, runner=self.of(piece.runner, self.stage)) for piece in pieces)
        )


class Interpreter(NamedTuple):
    """Stands for the Kernel of *func*, which is *program* at some stage."""

    func: CoordFunc
    program: Any

    only_calls = None

    def __call__(self, **handed: Any) -> Any:
        """Return the results for the arguments *handed*."""
        return interpret_for(self.func, self.program, handed)


def interpret_for(func: CoordFunc, program: Any, handed: Mapping[str, Any]) -> Any:
    """Interpret *program*, which *func* is at some stage, for arguments of *func*."""
    frame = Frame(interface(func, frozenset()), {})
    for name, arg in handed.items():
        frame.take(name, arg, verify=True)
    frame.resolve_sizes()
    allocate(frame, new_array)
    frame.resolve_sizes()
    names = {param.name for param in func.params}
    flat = {
        name: value.reshape(-1) if isinstance(value, np.ndarray) else value
        for name, value in frame.values.items()
        if name in names
    }
    arrays = interpret(program, flat)
    return collect(frame, result_wraps(frame, arrays), arrays)
