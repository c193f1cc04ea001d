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
