"""Index notation: one line of mathematics to coordinate IR; parse, algebra, plan, emit.

For programs written as Python objects, this module has the functions and semirings by name:
``notation.exp(x)``, ``notation.where(c, a, b)``, ``notation.sum(k, x)``, ``notation.min_plus``.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # "from spcomp.notation import objects" would ask this function for it
    objects, semiring, nodes = (
        import_module(f"{__name__}.{module}") for module in ("objects", "semiring", "nodes")
    )
    if name in nodes.REDUCTIONS:
        return objects.reduction(nodes.REDUCTIONS[name])
    if name in semiring.BUILT_IN:
        return semiring.BUILT_IN[name]
    try:
        return getattr(objects, name)
    except AttributeError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
