"""Under a call that follows gradients: programs derived once for each set of operands."""

from __future__ import annotations

from dataclasses import dataclass, field

from spcomp.formats.hyb import composable
from spcomp.kernels.adjoint.kernel import AdjointKernel
from spcomp.kernels.gradients import Differentiable
from spcomp.kernels.notation.kernel import NotationKernel
from spcomp.notation.adjoint.adjoint import NoDependenceError, NoOperandError
from spcomp.notation.semiring import ORDINARY


def _depends(program: Differentiable, name: str) -> bool:
    try:
        program.derive((name,))
    except (NoDependenceError, NoOperandError):
        return False
    return True


@dataclass(frozen=True, slots=True, eq=False)
class Derivative:
    """The gradients of a program by some operands: the *kernel* of its adjoint.

    *saves*: the values that are kept for it. *forward*: runs in the place of the program, and
    returns those, too; None: they are results. *needed*: the operands whose values are read.
    """

    kernel: AdjointKernel
    saves: tuple[str, ...]
    forward: NotationKernel | None
    needed: frozenset[str]
    _tangents: list[AdjointKernel] = field(default_factory=list)

    @classmethod
    def of(cls, program: Differentiable, wrt: tuple[str, ...]) -> Derivative:
        """Return the derivative of *program* by *wrt*, derived once; raises SpcompError."""
        known: Derivative | None = program.derivatives.get(wrt)
        if known is None:
            adjoint, formats = program.derive(wrt), program.formats
            operands = {  # parts are for the statements of the program
                name: formats[name]
                for name in formats.keys() & {*adjoint.arguments}
                if composable(formats[name]) is None
            }
            kernel = AdjointKernel(adjoint, operands, program.options)
            saves, forward = adjoint.saves, None
            if not program.saves:
                saves = tuple(name for name in saves if name in program.results)
            elif not {*saves} <= {*program.results}:
                everything = adjoint.forward_and_saves
                forward = NotationKernel(everything, formats, ORDINARY, program.options)
            known = cls(kernel, saves, forward, frozenset(adjoint.needed))
            program.derivatives[wrt] = known
        return known

    @classmethod
    def where_dependent(cls, program: Differentiable, wrt: tuple[str, ...]) -> Derivative | None:
        """Return the derivative by those of *wrt* that results depend on, None if they do not.

        They do not depend on operands that only sizes are taken of, nor on those in steps.
        """
        if wrt not in program.dependent:
            program.dependent[wrt] = tuple(name for name in wrt if _depends(program, name))
        kept = program.dependent[wrt]
        return cls.of(program, kept) if kept else None

    def tangents(self) -> AdjointKernel:
        """Return the kernel that takes tangents of operands to those of the results."""
        if not self._tangents:
            adjoint = self.kernel.adjoint
            again = adjoint.again(tuple(adjoint.names[name] for name in adjoint.results))
            formats = {n: x for n, x in self.kernel.formats.items() if n in {*again.arguments}}
            self._tangents.append(AdjointKernel(again, formats, self.kernel.options))
        return self._tangents[0]
