"""Index notation, decisions: operands used directly, though loops cannot go through them in order.

A list of elements repeats its outer coordinates; a bitmap is an array of all elements with a mask
of those that are stored; the coordinates of hash tables come in no order. Some programs can use
these directly; for the others they are converted to levels in order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from spcomp.notation.algebra import with_reductions
from spcomp.notation.layout import Layout, has_slots, is_bitmap, is_list, is_located
from spcomp.notation.nodes import Access, Assignment, Expr, Number, Op, Scalar, accesses
from spcomp.notation.plan import Nest, Plan
from spcomp.notation.reason import Reason
from spcomp.notation.results import adds_up
from spcomp.notation.semiring import Semiring


def misfit(
    plans: Sequence[Plan], layouts: Mapping[str, Layout], semiring: Semiring
) -> Reason | None:
    """Return why *plans* cannot use the lists, bitmaps and tables among the operands directly.

    None if they can, and there are any.
    """
    direct = {name for name, layout in layouts.items() if is_direct(layout)}
    if not direct:
        return Reason("nothing is left that would be used as it is given")
    for plan in plans:
        if (reason := plan.needs_other_layouts) is not None:
            return reason
        if not _leaves_out(plan, direct):
            return Reason(
                f"{plan.stmt.target} would have levels of {', '.join(sorted(direct))}", plan.stmt.at
            )
    return _misfit_of_lists(plans, layouts, semiring) or _misfit_of_located(plans, layouts)


def _misfit_of_lists(
    plans: Sequence[Plan], layouts: Mapping[str, Layout], semiring: Semiring
) -> Reason | None:
    names = [name for name, layout in layouts.items() if is_list(layout)]
    if not names:
        return None
    if len(plans) > 1 or len(names) > 1:
        return Reason(f"{names[-1]} is a list, which one statement can go through, by itself")
    if not _adds_each_once(plans[0], names[0]) or not adds_products(plans[0].stmt, semiring):
        return Reason(
            f"{names[0]} is a list, and not each of its elements is added to the result once",
            plans[0].stmt.at,
        )
    return None


def _misfit_of_located(plans: Sequence[Plan], layouts: Mapping[str, Layout]) -> Reason | None:
    bitmaps = {name for name, layout in layouts.items() if is_bitmap(layout)}
    slots = {name for name, layout in layouts.items() if has_slots(layout)}
    nests = [nest for plan in plans for nest in _nests(plan.nests)]
    for nest in nests:
        for access in nest.unsure:
            if access.name in slots and not _probes(nest, access, layouts[access.name]):
                return Reason(f"{access} would be looked for at coordinates that nothing stores")
    for nest in nests:
        if not _asks_once(nest, bitmaps):
            return Reason(f"{', '.join(sorted(bitmaps))} would be asked for an element repeatedly")
    return None


def is_direct(layout: Layout) -> bool:
    """Whether *layout* is converted unless a program can use it directly."""
    return is_list(layout) or is_bitmap(layout) or has_slots(layout)


def _leaves_out(plan: Plan, names: set[str]) -> bool:
    """Whether the result of *plan* is dense, or no loop or level of it is of an operand *names*."""
    if plan.output.storage == "dense":
        return True
    places = [part for nest in _nests(plan.nests) for loop in nest.loops for part in loop.parts]
    like = plan.output.like
    return not names & ({place.name for place in places} | ({like.name} if like else set()))


def adds_products(stmt: Assignment, semiring: Semiring) -> bool:
    """Whether *stmt* reduces a product, so that no element depends on the others."""
    value = with_reductions(stmt, semiring).value
    return adds_up(value) and _is_product(value.body)


def _is_product(term: Expr) -> bool:
    if isinstance(term, Op) and term.op in ("*", "neg"):
        return all(_is_product(arg) for arg in term.args)
    return isinstance(term, (Access, Scalar, Number))


def _adds_each_once(plan: Plan, name: str) -> bool:
    """Whether *plan* is one nest that adds to its result, each element of *name* once."""
    if len(plan.nests) != 1:
        return False
    nest, reads = plan.nests[0], [a for a in accesses(plan.stmt.value) if a.name == name]
    if len(reads) != 1 or nest.op is None or nest.temps or nest.unsure or nest.filters:
        return False
    loops = [loop for loop in nest.loops if loop.kind != "dense"]
    parts = [loop.parts[0].name for loop in loops if loop.kind == "one"]
    names, indices = [loop.index for loop in loops], reads[0].indices
    return parts == [name] * len(indices) and sorted(names) == sorted(indices)


def _probes(nest: Nest, access: Access, layout: Layout) -> bool:
    """Whether *access* probes tables at elements that another operand of *nest* stores."""
    kinds = [loop.kind for loop in nest.loops if loop.index in access.indices]
    return is_located(layout) and bool(kinds) and kinds[-1] not in ("dense", "along")


def _nests(nests: Sequence[Nest]) -> Iterator[Nest]:
    for nest in nests:
        yield nest
        yield from _nests([temp.nest for temp in nest.temps])


def _asks_once(nest: Nest, bitmaps: set[str]) -> bool:
    """Whether the loops over all coordinates meet each element of the bitmaps once at most."""
    dense = {loop.index for loop in nest.loops if loop.kind == "dense"}
    masked = [access for access in nest.unsure if access.name in bitmaps]
    return all(dense <= set(access.indices) for access in masked)
