"""Around the route: a program of index notation that runs as several, one after the other."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from spcomp.errors import ArgumentError

if TYPE_CHECKING:
    from spcomp.compiler.notation import Execute, NotationKernel
    from spcomp.notation.plan import Plan


@dataclass(frozen=True, slots=True)
class Step:
    """A program of one statement, and what its result is called from here on."""

    kernel: NotationKernel
    name: str

    @property
    def renames(self) -> bool:
        """Whether it makes something new in the place of what is called so."""
        return self.kernel.program.statements[0].target.name != self.name


@dataclass(frozen=True, slots=True, eq=False)
class Steps:
    """The programs of one, for arguments of one kind; *plans*: what was found out about it."""

    plans: tuple[Plan, ...]
    steps: tuple[Step, ...]

    def run(
        self,
        arguments: Mapping[str, Any],
        given: Mapping[str, Any],
        out: Collection[str],
        execute: Execute | None,
    ) -> dict[str, Any]:
        """Return all results by name; those that are *given*, *out* of them as such, in place."""
        known = {**arguments, **given}
        for step in self.steps:
            target = step.kernel.program.statements[0].target.name
            if step.renames and step.name in out:
                raise ArgumentError(
                    f"argument out: {step.name} gets another pattern, so it has no array to write",
                    hint=f"give it by name, {step.name}=...: what is returned is new",
                )
            named = {name: known[name] for name in step.kernel.arguments if name in known}
            own = {target: given[target]} if target in given and target not in named else None
            known[step.name] = step.kernel.run(own, named, {}, {}, execute)
        return known

    def explain(self) -> str:
        """Return what the programs did that ran last, one after the other."""
        return "\n".join(step.kernel.explain() for step in self.steps)
