"""For every level: the classes of programs, which scripts parse to and passes return."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Self

from spcomp.display.html import code
from spcomp.ir.func import Func
from spcomp.ir.node import node
from spcomp.ir.printer.program import print_func
from spcomp.ir.specialize import specialize

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spcomp.ir.expr import Var


@node
class Program(Func):
    """A program that users hold: it prints, and its scalar parameters may be fixed."""

    __repr__ = Func.__repr__

    def __str__(self) -> str:
        return self.script()

    def script(self, *, show_meta: bool = False) -> str:
        """Return the function as a Python file that parses back to it.

        *show_meta* is accepted for TVM's sake; it has no effect, as the script says everything.
        """
        del show_meta
        return print_func(self)

    def show(self) -> None:
        """Write the script to stdout, in colour on a terminal."""
        if not sys.stdout.isatty():
            sys.stdout.write(self.script())
            return
        from rich.console import Console
        from rich.syntax import Syntax

        text = Syntax("", "python", background_color="default").highlight(self.script())
        Console().print(text, soft_wrap=True, end="")

    def _repr_html_(self) -> str:
        return code(self.script())

    def specialize(self, values: Mapping[Var | str, float]) -> Self:
        """Return the function with scalar parameters, by variable or name, fixed to *values*.

        Raises ArgumentError for a key that is no scalar parameter, or a value it does not hold.
        """
        return specialize(self, values)


@node
class CoordFunc(Program):
    """A program in coordinate space: every index of a buffer is a coordinate."""

    LEVEL = 2
    __repr__ = Func.__repr__


@node
class PosFunc(Program):
    """A program in position space: an index of a sparse buffer is a position in its fiber."""

    LEVEL = 1
    __repr__ = Func.__repr__


@node
class FlatFunc(Program):
    """A program over one-dimensional buffers; no axis, no sparse buffer, no block."""

    LEVEL = 0
    __repr__ = Func.__repr__
