"""Before the route: the decorators of programs, which parse them at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from spcomp.errors import front_door

if TYPE_CHECKING:
    from spcomp.script.source import Macro

__all__ = ("host", "ir_module", "macro", "prim_func")


@front_door
def prim_func(function: Callable[..., Any]) -> Any:
    """Return the CoordFunc, PosFunc or FlatFunc that *function* spells.

    Raises ScriptError or FormatError at the wrong line.
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


def macro(function: Callable[..., Any]) -> Macro:
    """Return *function* as a macro: its statements replace each call of it in a script.

    Arguments are buffers, variables, numbers or dtypes of the calling script; all other names are
    the macro's own. Printed programs have the statements in place, as with TVM's ``T.macro``.
    """
    from spcomp.script.source import Macro  # with the parser, which few imports need

    return Macro(function)


def host(function: Callable[..., Any]) -> Callable[..., Any]:
    """Mark the host program of a ``T.ir_module``; returns *function*, which never runs."""
    return function
