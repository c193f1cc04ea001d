"""At a bind: the matrix that is bound may be inspected, to run many calls on it faster."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from spcomp.errors import ArgumentError, expect

if TYPE_CHECKING:
    from spcomp.kernels.protocol import Runnable

HINT = "bind(A=csr, calls=1000) for so many calls, bind(A=csr, inspect=True) for any number"


@dataclass(frozen=True, slots=True)
class Inspection:
    """What ``bind(calls=..., inspect=...)`` asks for. *calls*: how many; None: many."""

    calls: int | None

    @staticmethod
    def take(named: dict[str, Any], takes: Callable[[str], bool]) -> Inspection | None:
        """Take ``calls`` and ``inspect`` out of *named*; None if neither asks for an inspection.

        They are arguments of the program where *takes* says so. Raises ArgumentError.
        """
        calls = None if takes("calls") else named.pop("calls", None)
        inspect = None if takes("inspect") else named.pop("inspect", None)
        if calls is not None:
            expect("calls", calls, int, "how many calls a conversion has to pay off in", hint=HINT)
            if calls < 1:
                raise ArgumentError(f"argument calls: got {calls}, expected at least 1", hint=HINT)
        if inspect is not None:
            expect("inspect", inspect, bool, "True or False", hint=HINT)
        if inspect is False or (inspect is None and calls is None):
            return None
        return Inspection(calls)

    def bound(self, kernel: Any, named: dict[str, Any]) -> Any:
        """Return *kernel* with *named* bound, as is expected to be fastest for the matrices."""
        inspector = import_module("spcomp.tune.inspector")  # above; only where it is asked for
        bound: Runnable = inspector.bind(kernel, self, named)
        return bound
