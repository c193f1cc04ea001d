"""For the whole route: a pass states which level it takes and gives; a pipeline checks these."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields
from enum import IntEnum
from typing import Any, ClassVar, TypeAlias

from spcomp.ir.func import Func
from spcomp.ir.module import Module
from spcomp.ir.program import CoordFunc, FlatFunc, PosFunc


class Stage(IntEnum):
    """The three levels of the IR, in the order of lowering."""

    COORDINATE = 1
    POSITION = 2
    FLAT = 3


_STAGE_OF: dict[type[Func], Stage] = {
    CoordFunc: Stage.COORDINATE,
    PosFunc: Stage.POSITION,
    FlatFunc: Stage.FLAT,
}


def stage_of(module: Module[Any]) -> Stage:
    """Return the level of the functions of *module*."""
    return _STAGE_OF[type(module.funcs[0])]


@dataclass(frozen=True, slots=True)
class Pass(ABC):
    """Maps a module at level *takes* to one at level *gives*; its fields are its options.

    Options that follow from the target are not printed (``field(repr=False)``).
    """

    name: ClassVar[str]
    takes: ClassVar[Stage]
    gives: ClassVar[Stage]

    @abstractmethod
    def run(self, module: Module[Any]) -> Module[Any]:
        """Return the rewritten module; *module* itself is never changed."""

    def __str__(self) -> str:
        options = ",".join(
            f"{f.name}={getattr(self, f.name)}"
            for f in fields(self)
            if f.repr and getattr(self, f.name) != f.default
        )
        return f"{self.name}{{{options}}}" if options else self.name


class FuncPass(Pass):
    """A pass that rewrites each function of the module by itself."""

    __slots__ = ()

    @abstractmethod
    def run_func(self, func: Any) -> Func:
        """Return *func* rewritten."""

    def run(self, module: Module[Any]) -> Module[Any]:
        """Rewrite every function."""
        return module.with_funcs(*(self.run_func(func) for func in module.funcs))


Hook: TypeAlias = Callable[[Pass, Module[Any]], None]


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Passes in order; constructing it raises ValueError if their levels do not fit."""

    passes: tuple[Pass, ...]

    def __post_init__(self) -> None:
        for before, after in zip(self.passes, self.passes[1:], strict=False):
            if before.gives is not after.takes:
                raise ValueError(
                    f"{after} takes {after.takes.name} but {before} gives {before.gives.name}"
                )

    def run(self, module: Module[Any], after: Hook | None = None) -> Module[Any]:
        """Run every pass, and call *after* (verify, dump, time, round trip) after each."""
        for step in self.passes:
            module = step.run(module)
            if after is not None:
                after(step, module)
        return module

    def __str__(self) -> str:
        return ",".join(map(str, self.passes))
