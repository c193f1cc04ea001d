"""From a program and formats to the program over their parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from spcomp.errors import ArgumentError
from spcomp.formats.hyb import composable
from spcomp.formats.rules import ComposableFormat, Composed, FormatRewriteRule
from spcomp.ir.program import CoordFunc
from spcomp.kernels.decomposed.kernel import Decomposed, with_parts

if TYPE_CHECKING:
    from spcomp.kernels.decomposed.choose import Undecided


def decompose(
    func: CoordFunc, **formats: ComposableFormat | Sequence[FormatRewriteRule] | str
) -> Decomposed | Undecided:
    """Return *func* with the buffers named in *formats* stored in the formats given.

    A format may be ``"hyb"``, ``"hyb(4)"``, or a list of rules. Every sp_iter over such a buffer
    becomes one for each part of its format; its statements must be steps of reductions, or write
    each element once. Compile the result: its Kernel is called like that of *func*, and converts
    the matrices. Where the matrix decides the format (``hyb()``), the result is an Undecided.

    Raises:
        ArgumentError: for a program that is not in coordinate space, and for a wrong format.
        FormatError: for a buffer that has no place in the format, or a program that uses it in a
            way that parts cannot serve.
    """
    if not isinstance(func, CoordFunc):
        raise ArgumentError(
            f"argument func: got {type(func).__name__}, expected a program in coordinate space",
            hint="give a function decorated with @T.prim_func that has sp_iter",
        )
    layouts = {name: _format(name, given) for name, given in formats.items()}
    if any(layout.is_open for layout in layouts.values()):
        from spcomp.kernels.decomposed.choose import Undecided

        trial = {name: layout.filled() for name, layout in layouts.items()}
        with_parts(func, trial)  # so that what does not fit is refused now
        return Undecided(func, layouts)
    return with_parts(func, layouts)


def _format(name: str, arg: Any) -> ComposableFormat:
    if (layout := composable(arg)) is not None:
        return layout
    rules = tuple(arg) if isinstance(arg, (list, tuple)) else ()
    if rules and all(isinstance(rule, FormatRewriteRule) for rule in rules):
        return Composed(rules)
    raise ArgumentError(
        f"argument {name}: got {arg!r}, expected a format",
        hint='formats are "hyb", those in spcomp.formats, such as spcomp.formats.bsr(4), and lists'
        " of rules",
    )
