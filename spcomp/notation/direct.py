"""Index notation, decisions: what is used as it is given, though loops cannot go through it all.

A list of elements repeats its outer coordinates, a bitmap is an array of all elements, beside one
that says which of them are there, and the coordinates of tables come in no order. Some programs can
use them so; for the others they are converted to levels in order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from spcomp.notation.algebra import with_reductions
from spcomp.notation.layout import Layout, has_slots, is_bitmap, is_located, lists
from spcomp.notation.nodes import Access, Assignment, Expr, Number, Op, Scalar, accesses
from spcomp.notation.plan import Nest, Plan
from spcomp.notation.results import adds_up
from spcomp.notation.semiring import Semiring


def suits(plans: Sequence[Plan], layouts: Mapping[str, Layout], semiring: Semiring) -> bool:
    """Whether *plans* use all lists, bitmaps and tables among the operands as they can be."""
    given = {name for name, layout in layouts.items() if is_direct(layout)}
    if any(plan.converts or not _leaves_out(plan, given) for plan in plans):
        return False
    listed = [name for name, layout in layouts.items() if lists(layout)]
    if listed and (len(plans) > 1 or len(listed) > 1 or not _goes_through(plans[0], listed[0])):
        return False
    if listed and not adds_products(plans[0].stmt, semiring):
        return False
    bitmaps = {name for name, layout in layouts.items() if is_bitmap(layout)}
    slots = {name for name, layout in layouts.items() if has_slots(layout)}
    nests = [nest for plan in plans for nest in _nests(plan.nests)]
    asked = ((nest, a) for nest in nests for a in nest.unsure if a.name in slots)
    if not all(_probes(nest, access, layouts[access.name]) for nest, access in asked):
        return False
    return all(_asks_once(nest, bitmaps) for nest in nests)


def is_direct(layout: Layout) -> bool:
    """Whether *layout* has levels that are converted unless a program can use them as they are."""
    return lists(layout) or is_bitmap(layout) or has_slots(layout)


def _leaves_out(plan: Plan, given: set[str]) -> bool:
    """Whether the result of *plan* is dense, or no loop and no level of it is of those *given*."""
    if plan.output.storage == "dense":
        return True
    places = [part for nest in _nests(plan.nests) for loop in nest.loops for part in loop.parts]
    like = plan.output.like
    return not given & ({place.name for place in places} | ({like.name} if like else set()))


def adds_products(stmt: Assignment, semiring: Semiring) -> bool:
    """Whether *stmt* reduces a product: what each element adds does not depend on the others."""
    value = with_reductions(stmt, semiring).value
    return adds_up(value) and _is_product(value.body)


def _is_product(term: Expr) -> bool:
    if isinstance(term, Op) and term.op in ("*", "neg"):
        return all(_is_product(arg) for arg in term.args)
    return isinstance(term, (Access, Scalar, Number))


def _goes_through(plan: Plan, name: str) -> bool:
    """Whether *plan* is one nest that adds to its result, each element of *name* once."""
    if len(plan.nests) != 1:
        return False
    nest, own = plan.nests[0], [a for a in accesses(plan.stmt.value) if a.name == name]
    if len(own) != 1 or nest.op is None or nest.temps or nest.unsure or nest.filters:
        return False
    loops = [loop for loop in nest.loops if loop.kind != "dense"]
    parts = [loop.parts[0].name for loop in loops if loop.kind == "one"]
    names, indices = [loop.index for loop in loops], own[0].indices
    return parts == [name] * len(indices) and sorted(names) == sorted(indices)


def _probes(nest: Nest, access: Access, layout: Layout) -> bool:
    """Whether *access* is asked of tables, as often as *nest* meets what another operand stores."""
    kinds = [loop.kind for loop in nest.loops if loop.index in access.indices]
    return is_located(layout) and bool(kinds) and kinds[-1] not in ("dense", "along")


def _nests(nests: Sequence[Nest]) -> Iterator[Nest]:
    for nest in nests:
        yield nest
        yield from _nests([temp.nest for temp in nest.temps])


def _asks_once(nest: Nest, bitmaps: set[str]) -> bool:
    """Whether the loops over all coordinates meet each element of the bitmaps once at most."""
    every = {loop.index for loop in nest.loops if loop.kind == "dense"}
    own = [access for access in nest.unsure if access.name in bitmaps]
    return all(every <= set(access.indices) for access in own)
