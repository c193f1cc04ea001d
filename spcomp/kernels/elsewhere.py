"""Before a call: arguments that are stored elsewhere, in parts, and what runs programs on them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol


class Elsewhere(Protocol):
    """Runs programs of index notation where their arguments are."""

    def call(self, kernel: Any, out: Any, named: Mapping[str, Any]) -> Any:
        """Return what a call of the NotationKernel *kernel* with the arguments *named* returns."""

    def bind(self, kernel: Any, named: Mapping[str, Any]) -> Any:
        """Return *kernel* with the arguments *named* fixed, as ``bind`` does."""

    def script(self, kernel: Any, out: Any, named: Mapping[str, Any]) -> Any:
        """Return what a call of the Kernel *kernel* of a script with these arguments returns."""

    def plan(self, kernel: Any, named: Mapping[str, Any]) -> Any:
        """Return what such a call would do, as a value that prints."""


DOORS: dict[type, Elsewhere] = {}


def register(kind: type, door: Elsewhere) -> None:
    """Let *door* run the programs that get an argument of the type *kind*."""
    DOORS[kind] = door


def door_of(args: Iterable[Any]) -> Elsewhere | None:
    """Return what runs programs on *args*, if one of them is stored elsewhere, else None."""
    if not DOORS:
        return None
    return next((DOORS[kind] for kind in map(type, args) if kind in DOORS), None)
