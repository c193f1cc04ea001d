"""Beside the route: what decorates a program, which is parsed at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from spcomp.errors import front_door

__all__ = ("host", "ir_module", "prim_func")


@front_door
def prim_func(function: Callable[..., Any]) -> Any:
    """Return the CoordFunc, PosFunc or FlatFunc that *function* spells.

    Raises ScriptError or FormatError at the line that is wrong.
    """
    from spcomp.script.parse import decorate  # with the parser, which few imports need

    return decorate(function)


@front_door
def ir_module(cls: type) -> Any:
    """Return the Module that a class of ``T.prim_func`` functions and one ``T.host`` spells.

    The first function is the source as written. Raises ScriptError.
    """
    from spcomp.script.parse import decorate_class  # likewise

    return decorate_class(cls)


def host(function: Callable[..., Any]) -> Callable[..., Any]:
    """Mark the host program of a ``T.ir_module``; returns *function*, which never runs."""
    return function
