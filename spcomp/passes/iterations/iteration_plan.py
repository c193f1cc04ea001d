"""I to II, decisions: which loops of an iteration reduce, and where its init goes. Plain data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from spcomp.errors import LoweringError, warn
from spcomp.ir.access import Load
from spcomp.ir.analysis.exprs import ZERO, fingerprint, variables
from spcomp.ir.analysis.positions import is_unit, limit
from spcomp.ir.arith.simplify import injective
from spcomp.ir.axis import (
    Attach,
    Axis,
    Domain,
    Flatten,
    Fuse,
    Intersect,
    SparseBuffer,
    Union,
    domain_axes,
    domain_width,
)
from spcomp.ir.coordinate import SpIter
from spcomp.ir.expr import Expr, Var
from spcomp.ir.node import Node
from spcomp.ir.stmt import Alloc, Stmt, Store
from spcomp.ir.visitor import walk

InitPlace: TypeAlias = Literal["none", "inside", "outside"]


@dataclass(frozen=True, slots=True)
class LoopPlan:
    """One loop of an iteration: its domain, the variables it binds, and whether it reduces."""

    domain: Domain
    vars: tuple[Var, ...]
    reduces: bool


@dataclass(frozen=True, slots=True)
class IterationPlan:
    """What was decided about an sp_iter, before anything is built.

    *init*: ``inside``, before the first loop that reduces, within the loops around it (the block
    carries it where that loop belongs to the innermost one); ``outside``, before all loops. A nest
    that only initialises runs over *init_domains*, binding *init_vars*.
    """

    loops: tuple[LoopPlan, ...]
    init: InitPlace = "none"
    init_domains: tuple[Domain, ...] = ()
    init_vars: tuple[Var, ...] = ()

    @property
    def first_reduction(self) -> int:
        """The index of the outermost loop that reduces; the number of loops if none does."""
        flags = [loop.reduces for loop in self.loops]
        return flags.index(True) if True in flags else len(flags)

    @property
    def init_reduces(self) -> bool:
        """Whether init uses a variable of a loop that reduces, as a false spatial one."""
        own = set(self.init_vars)
        return any(loop.reduces and own & set(loop.vars) for loop in self.loops)


def plan_iteration(it: SpIter) -> IterationPlan:
    """Return the plan of *it*; warns of a spatial axis that in truth is a reduction."""
    stores = _stores(it.body)
    loops: list[LoopPlan] = []
    start = 0
    for domain in it.domains:
        end = start + domain_width(domain)
        own = it.vars[start:end]
        reduces = False
        axes = domain_axes(domain)[: end - start]
        for axis, var, kind in zip(axes, own, it.kinds[start:end], strict=True):
            if kind == "S" and _is_false_spatial(it, axis, var, stores):
                reduces = True
            reduces |= kind == "R"
        loops.append(LoopPlan(domain, own, reduces))
        start = end
    plan = IterationPlan(tuple(loops))
    return plan if it.init is None else _place_init(it, plan)


def without_absent(
    plan: IterationPlan, start: int, lacks: Callable[[Axis], bool]
) -> IterationPlan | None:
    """Return *plan* whose loops from *start* on leave out the axes that there is nothing of.

    None if a loop has nothing left to run over.
    """
    loops = list(plan.loops)
    for k in range(start, len(loops)):
        domain = loops[k].domain
        parts = domain.parts if isinstance(domain, (Union, Intersect)) else (domain,)
        left = tuple(p for p in parts if isinstance(p, Attach) or not lacks(domain_axes(p)[0]))
        if len(left) == len(parts):
            continue
        if not left or not isinstance(domain, Union):
            return None
        rest: Domain = left[0] if len(left) == 1 else Union(left)  # type: ignore[arg-type]
        loops[k] = replace(loops[k], domain=rest)
    return replace(plan, loops=tuple(loops))


def _stores(body: Stmt) -> list[Store]:
    private = {n.buffer for n in walk(body) if isinstance(n, Alloc)}
    return [n for n in walk(body) if isinstance(n, Store) and n.buffer not in private]


def _is_false_spatial(it: SpIter, axis: Axis, var: Var, stores: list[Store]) -> bool:
    """Whether *var*, called spatial, does not tell the elements apart that are written."""
    if is_unit(axis):
        return False
    around = [own for own in walk(it) if isinstance(own, SpIter)]
    ranges = {v: (ZERO, limit(own, v)) for own in around for v in own.vars}
    for store in stores:
        indices = tuple(i for i in store.indices if i is not None)
        if injective(indices, var, ranges):
            continue
        where = f"{it.span}: " if it.span else ""
        warn(
            f"{where}axis {axis.name} is declared spatial in {it.name!r}, but {var.name} does not"
            f" tell apart the elements of {store.buffer.name}: it is treated as a reduction"
        )
        return True
    return False


def _place_init(it: SpIter, plan: IterationPlan) -> IterationPlan:
    assert it.init is not None
    stores = _stores(it.init)
    used = {v for s in stores for i in s.indices if i is not None for v in variables(i)}
    used |= variables(it.init)
    first = plan.first_reduction
    covered = [_covers(loop, stores, plan) for loop in plan.loops]
    inner = [k for k in range(first, len(plan.loops)) if set(plan.loops[k].vars) & used]
    outer = [v for loop in plan.loops[:first] for v in loop.vars]
    if (
        all(covered[k] for k in (*range(first), *inner))
        and not _needs_inner(plan, first, inner)
        and all(_meets_own(it, v) for v in outer)
    ):
        return _separate(plan, "inside", first, stores, used, inner)
    spatial = [k for k, loop in enumerate(plan.loops) if set(loop.vars) & used]
    return _separate(plan, "outside", 0, stores, used, spatial)


def _meets_own(it: SpIter, var: Var) -> bool:
    """Whether iteration *var* of the body meets only what the same iteration initialised.

    So it is where each buffer that init and body share is accessed by one index that tells the
    iterations apart, or always at the same indices, which a spatial variable does.
    """
    assert it.init is not None
    before, after = _accesses(it.init), _accesses(it.body)
    ranges = {v: (ZERO, limit(it, v)) for v in it.vars if v is not var}
    for memory in before.keys() & after.keys():
        shared = (*before[memory], *after[memory])
        if not any(isinstance(access, Store) for access in shared):
            continue
        spelled = [tuple(map(fingerprint, access.indices)) for access in shared]
        if len({access.buffer for access in shared}) > 1:
            return False
        if len(set(spelled)) == 1 and any(isinstance(access, Store) for access in after[memory]):
            continue
        same = (k for k, column in enumerate(zip(*spelled, strict=True)) if len(set(column)) == 1)
        if not any(injective((shared[0].indices[k],), var, ranges) for k in same):
            return False
    return True


def _accesses(stmt: Stmt) -> dict[object, list[Load | Store]]:
    """The loads and stores of *stmt* by the memory they touch."""
    private = {n.buffer for n in walk(stmt) if isinstance(n, Alloc)}
    found: dict[object, list[Load | Store]] = {}
    for n in walk(stmt):
        if isinstance(n, (Load, Store)) and n.buffer not in private:
            found.setdefault(n.buffer.data or n.buffer, []).append(n)
    return found


def _needs_inner(plan: IterationPlan, first: int, inner: list[int]) -> bool:
    """Whether a spatial loop inside the reductions runs over a fiber that a reduction picks."""
    reduced = {a for loop in plan.loops[first:] if loop.reduces for a in domain_axes(loop.domain)}
    parents = (a.parent for k in inner for a in domain_axes(plan.loops[k].domain)[:1])
    return any(parent in reduced for parent in parents)


def _separate(
    plan: IterationPlan,
    place: InitPlace,
    level: int,
    stores: list[Store],
    used: set[Var],
    loops: list[int],
) -> IterationPlan:
    domains: list[Domain] = []
    own: list[Var] = []
    for k in loops:
        loop = plan.loops[k]
        whole = _covers(loop, stores, plan) and not loop.reduces
        if whole and not _orphan(loop, domains, plan, level):
            domains.append(loop.domain)
            own.extend(loop.vars)
            continue
        for var, axis in zip(loop.vars, domain_axes(loop.domain), strict=False):
            if var in used:  # the full length of the axis, not what is stored of it
                domains.append(
                    Axis(f"{axis.name}_all", "dense_fixed", axis.length, nnz=axis.length)
                )
                own.append(var)
    return IterationPlan(plan.loops, place, tuple(domains), tuple(own))


def _orphan(loop: LoopPlan, done: list[Domain], plan: IterationPlan, level: int) -> bool:
    """Whether the parent of the loop's axis is iterated here, but not by the init nest."""
    parent = domain_axes(loop.domain)[0].parent
    here = {a for k, p in enumerate(plan.loops) if k >= level for a in domain_axes(p.domain)}
    kept = {a for domain in done for a in domain_axes(domain)}
    return parent is not None and parent in here and parent not in kept


def _covers(loop: LoopPlan, stores: list[Store], plan: IterationPlan) -> bool:
    """Whether the loop meets each stored element of what is initialised, and each only once."""
    match loop.domain:
        case Axis(kind="dense_fixed"):
            return True
        case Axis() | Fuse():
            axes = domain_axes(loop.domain)
            return all(_runs_along(axes, loop.vars, store, plan) for store in stores)
        case Flatten():
            return True
    return False


def _runs_along(
    axes: tuple[Axis, ...], own: tuple[Var, ...], store: Store, plan: IterationPlan
) -> bool:
    """Whether the store's buffer lies along *axes*, indexed by the variables that run over them."""
    if not isinstance(store.buffer, SparseBuffer):
        return False
    index: dict[Axis, Expr | None] = dict(zip(store.buffer.axes, store.indices, strict=True))
    if any(index.get(axis) is not var for axis, var in zip(axes, own, strict=True)):
        return False
    parent = axes[0].parent
    while parent is not None:
        runs = [p for p in plan.loops if parent in domain_axes(p.domain)]
        if runs and index.get(parent) not in runs[-1].vars:
            return False
        parent = parent.parent
    return True


def order_error(it: SpIter, axis: Axis, node: Node) -> LoweringError:
    """The error for an axis whose parent is not iterated around it."""
    parent = axis.parent.name if axis.parent else "its parent"
    return LoweringError(
        f"{axis.name} runs over the fibers of {parent}, which is not iterated around it"
        f" in {it.name!r}",
        node.span,
        hint=f"put {parent} before {axis.name} in the sp_iter, or use T.attach",
    )
