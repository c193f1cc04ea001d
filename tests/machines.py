"""Targets for tests that run code, and are skipped where this machine cannot."""

from __future__ import annotations

from typing import Any

import pytest

from spcomp.codegen.cpu import machine
from spcomp.errors import BackendError
from spcomp.target import target


def runnable(name: str) -> Any:
    """Return the target *name* as a parameter of a test, which skips where its code cannot run."""
    made = target(name)
    if made.kind == "cpu":
        try:
            machine.check_runnable(machine.resolve(made))
        except BackendError as error:
            return pytest.param(name, marks=pytest.mark.skip(reason=str(error)))
    return name
