"""Index notation: one line of mathematics to coordinate IR; parse, algebra, plan, emit.

For programs written as Python objects, this module has the functions and semirings by name:
``notation.exp(x)``, ``notation.where(c, a, b)``, ``notation.sum(k, x)``, ``notation.min_plus``.
"""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    from spcomp.notation import objects, semiring
    from spcomp.notation.nodes import REDUCTIONS

    if name in REDUCTIONS:
        return objects.reduction(REDUCTIONS[name])
    if name in semiring.BUILT_IN:
        return semiring.BUILT_IN[name]
    if name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(objects, name)
    except AttributeError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
