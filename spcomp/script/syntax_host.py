"""Before parsing: the names of host programs, and the wrapper of names that only scripts use."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from spcomp.errors import ScriptError

F = TypeVar("F", bound=Callable[..., Any])


def outside(name: str) -> ScriptError:
    """Return the error for a *name* that is called outside a script."""
    hint = "write it in a function decorated with @T.prim_func"
    return ScriptError(f"T.{name} has a meaning only inside a script", hint=hint)


def only_in_scripts(function: F) -> F:
    """Make *function* raise when it is called, since only the parser gives it a meaning."""

    @functools.wraps(function)
    def refuse(*_args: Any, **_keywords: Any) -> Any:
        raise outside(function.__name__)

    return refuse  # type: ignore[return-value]


@only_in_scripts
def launch(name: str) -> None:
    """Run the module's function *name*."""


@only_in_scripts
def scan(buffer: Any) -> None:
    """Set ``buffer[0]`` to 0 and ``buffer[1:]`` to their running sums."""


@only_in_scripts
def host_alloc(size: Any, dtype: Any, fill: Any = 0) -> Any:
    """An array of *size* elements for the handle parameters of that name.

    Its elements are *fill*, or not initialized if that is None.
    """


@only_in_scripts
def trim(buffer: Any, size: Any) -> None:
    """Keep the first *size* elements of an array of ``host_alloc``."""


@only_in_scripts
def host_return(*buffers: Any) -> None:
    """Return *buffers* as the arrays of the assembled results."""


@only_in_scripts
def prefix(amount: Any) -> Any:
    """The sum of *amount* over the earlier iterations of the enclosing loop."""
