"""Beside the kernels: the instructions of a module that access memory or wait, numbered."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

from spcomp.runtime.emulator import layout as at

GRAIN = 4  # bytes of a cell, at most


@dataclass(frozen=True, slots=True)
class Site:
    """An instruction that accesses memory or waits: where it is written and what it does."""

    text: str
    line: str = ""
    access: int = at.READ
    space: int = at.GENERIC
    base: int = at.NO_BASE
    align: int = 1
    scope: int = 0

    @property
    def place(self) -> str:
        """The line of the source, or the instruction itself."""
        return self.line or f"`{self.text}`"


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable in shared memory: *offset* from its begin, *size* in bytes, None if dynamic."""

    name: str
    offset: int
    size: int | None


class Sites:
    """The sites of a module while it is translated; *others* are variables of other memory."""

    def __init__(self, variables: tuple[Variable, ...], others: list[str]) -> None:
        self.shared = len(variables)
        self.variables = {variable.name: k for k, variable in enumerate(variables)}
        self.variables |= dict.fromkeys(others, at.ELSEWHERE)
        self.all: list[Site] = []
        self.grain = GRAIN

    def add(self, site: Site, element: int = GRAIN) -> int:
        """Return the number of *site*, whose accesses are multiples of *element* bytes."""
        self.all.append(site)
        self.grain = gcd(self.grain, gcd(element, site.align))
        return len(self.all) - 1
