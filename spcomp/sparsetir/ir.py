"""Beside the route: ``tvm.ir``, the comparison of two programs in their normal form."""

from __future__ import annotations

from typing import Any

from spcomp.errors import expect
from spcomp.ir.func import Func
from spcomp.ir.structural import structural_equal as equal
from spcomp.sparsetir.module import IRModule as IRModule
from spcomp.sparsetir.normal import normal_form

__all__ = ["IRModule", "assert_structural_equal", "structural_equal"]


def structural_equal(lhs: Any, rhs: Any, map_free_vars: bool = False) -> bool:  # noqa: FBT001, FBT002
    """Whether *lhs* and *rhs*, functions or modules, compute the same in the same way.

    Names are ignored, and so is what the rest of a program implies: see normal_form. There are no
    free variables, so *map_free_vars* has no effect.
    """
    del map_free_vars
    if isinstance(lhs, IRModule) and isinstance(rhs, IRModule):
        return [*lhs] == [*rhs] and all(structural_equal(lhs[name], rhs[name]) for name in lhs)
    for name, value in (("lhs", lhs), ("rhs", rhs)):
        expect(name, value, Func, "a function, or two modules")
    return type(lhs) is type(rhs) and equal(normal_form(lhs), normal_form(rhs), names=False)


def assert_structural_equal(lhs: Any, rhs: Any, map_free_vars: bool = False) -> None:  # noqa: FBT001, FBT002
    """Raise ValueError, with both programs in normal form, unless they are structurally equal."""
    if not structural_equal(lhs, rhs, map_free_vars):
        both = (
            g.script() if isinstance(g, IRModule) else normal_form(g).script() for g in (lhs, rhs)
        )
        raise ValueError("the programs differ:\n\n{}\n\nand\n\n{}".format(*both))
