"""Before the route: ``from spcomp.sparsetir.script import tir as T``, the script language.

It reads what SparseTIR published as SparseTIR does: a buffer whose elements have no address is
declared, and refused where its program is lowered; a function of level 0 may keep its blocks; parts
of a format are one computation, see :mod:`spcomp.sparsetir.composable`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from spcomp.script.syntax import *  # noqa: F403


def prim_func(function: Callable[..., Any]) -> Any:  # type: ignore[no-redef]
    """Return the CoordFunc, PosFunc or FlatFunc that *function* spells.

    Raises ScriptError or FormatError at the line that is wrong.
    """
    from spcomp.script.parse import decorate
    from spcomp.sparsetir.composable import as_read

    return as_read(decorate(function, published=True))


def ir_module(cls: type) -> Any:  # type: ignore[no-redef]
    """Return the Module that a class of ``T.prim_func`` functions and one ``T.host`` spells.

    Raises ScriptError, and FormatError for a function over the parts of a format.
    """
    from spcomp.errors import FormatError
    from spcomp.script.parse import decorate_class
    from spcomp.sparsetir.composable import COMPOSABLE

    made = decorate_class(cls)
    for func in (made.source, *made.funcs):
        if func.attr(COMPOSABLE):
            raise FormatError(
                f"{func.name} runs over the parts of a format",
                func.span,
                hint="take it out of the class",
            )
    return made
