"""Index notation, decisions: operands whose loops do not suit a statement.

``y[j] = A[i, j] * x[i]`` over rows of A adds to y at coordinates in no order, which threads cannot
share. Over its columns, each element of y is a sum of its own. And a reduction inside a term has
loops of its own where those around it do not go through its operands.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from spcomp.formats.format import Format
from spcomp.notation.layout import Layout
from spcomp.notation.loops import Loop, levels
from spcomp.notation.nodes import accesses
from spcomp.notation.plan import Nest, Plan, Temp


def transposes(plans: Sequence[Plan], layouts: Mapping[str, Layout]) -> dict[str, Layout]:
    """Return the matrices along which *plans* scatter, in the order that gathers.

    Only for types that hardware does not add up in memory with the same result in any order.
    """
    found: dict[str, Layout] = {}
    for plan in plans:
        if plan.output.storage != "dense" or plan.dtype.is_word:
            continue
        for nest in plan.nests:
            for loop in _scattering(nest):
                name = loop.parts[0].name
                layout = layouts.get(name)  # None: an earlier result's
                if layout is not None and (by_columns := _by_columns(layout)) is not None:
                    found[name] = by_columns
    return found


def searched(plans: Sequence[Plan], layouts: Mapping[str, Layout]) -> frozenset[str]:
    """Return the operands of which reductions inside terms look for each coordinate.

    Loops around such a reduction run over every coordinate. Where an operand does not store all of
    an outer level, nothing says where its fiber begins.
    """
    found: set[str] = set()
    for nest in (temp.nest for plan in plans for outer in plan.nests for temp in _temps(outer)):
        dense = {loop.index for loop in nest.loops if loop.kind == "dense"}
        for access in accesses(nest.value):
            layout = layouts.get(access.name)  # None: an earlier result's
            inner = () if layout is None else levels(access, layout)[1:]
            if any(name in dense and kind == "compressed" for name, kind, _ in inner):
                found.add(access.name)
    return frozenset(found)


def _temps(nest: Nest) -> Iterator[Temp]:
    """Yield the reductions inside *nest*, and those inside them."""
    for temp in nest.temps:
        yield temp
        yield from _temps(temp.nest)


def ordering(plans: Sequence[Plan]) -> frozenset[str]:
    """Return the operands in whose order a result of *plans* may be stored."""
    sparse = (plan for plan in plans if plan.output.storage != "dense")
    return frozenset(access.name for plan in sparse for access in accesses(plan.stmt.value))


def _scattering(nest: Nest) -> Iterator[Loop]:
    """Yield the loops of *nest* over stored coordinates of the result, inside a reduced one."""
    reduced = False
    for loop in nest.loops if nest.op is not None else ():
        if loop.index in nest.over:
            reduced = True
        elif reduced and loop.kind == "one" and loop.index in nest.target.indices:
            yield loop


def _by_columns(layout: Layout) -> Layout | None:
    """Return the layout of the same matrix by its inner dimension; None if it is no matrix."""
    if layout.is_dense or sorted(layout.order) != [0, 1]:
        return None
    return Format(("dense", "compressed"), layout.order[::-1], layout.idtype)
