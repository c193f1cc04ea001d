"""Before the route: ``tvm.script``, the script language as ``tir``, and programs from text."""

from __future__ import annotations

from spcomp.errors import ScriptError
from spcomp.ir.func import Func
from spcomp.script.parse import parse_published
from spcomp.sparsetir.composable import with_one_init
from spcomp.sparsetir.script import tir as tir

__all__ = ["from_source", "tir"]


def from_source(text: str) -> Func:
    """Return the one function that *text*, such as ``func.script()``, defines.

    Raises ScriptError or FormatError at the line that is wrong.
    """
    programs = parse_published(text, "<source>")
    if len(programs) != 1 or not isinstance(programs[0], Func):
        raise ScriptError(f"the text defines {len(programs)} programs, expected one function")
    return with_one_init(programs[0])
