"""Before the route: ``tvm.script``: the script language as ``tir``, and programs from text."""

from __future__ import annotations

from spcomp.errors import ScriptError
from spcomp.ir.func import Func
from spcomp.script.parse import parse_published
from spcomp.sparsetir.composable import as_read
from spcomp.sparsetir.script import tir as tir

__all__ = ["from_source", "tir"]


def from_source(text: str) -> Func:
    """Return the one function that *text* defines, as ``func.script()`` gives it.

    Raises ScriptError or FormatError at the line that is wrong.
    """
    found = parse_published(text, "<source>")
    if len(found) != 1 or not isinstance(found[0], Func):
        raise ScriptError(f"the text defines {len(found)} programs, expected one function")
    return as_read(found[0])
