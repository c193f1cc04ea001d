"""Before the route: ``from spcomp.sparsetir.script import tir as T``, the script language.

It reads published programs as SparseTIR does: a buffer whose elements have no address can be
declared, and is refused when its program is lowered; a function of level 0 may keep its blocks; the
parts of a format are one computation, see :mod:`spcomp.sparsetir.composable`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from spcomp.ir.func import Func
from spcomp.script.decorators import *  # noqa: F403
from spcomp.script.parse import decorate
from spcomp.script.syntax import *  # noqa: F403
from spcomp.sparsetir.composable import with_one_init
from spcomp.sparsetir.warps import WARP_CALLS, WarpImplementation


def prim_func(  # type: ignore[no-redef]
    function: Callable[..., Any],
) -> Func | WarpImplementation:
    """Parse *function*; an implementation on the tensor cores is only known by what it calls."""
    calls = sorted(WARP_CALLS.keys() & {*function.__code__.co_names})
    if len(calls) == 1:
        return WarpImplementation(function.__name__, WARP_CALLS[calls[0]])
    return decorate(function, published=with_one_init)
