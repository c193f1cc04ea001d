"""I to II, decisions: which loops of an iteration reduce, and where its init goes. Plain data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from spcomp.errors import LoweringError, warn
from spcomp.ir.access import Load
from spcomp.ir.analysis.exprs import ZERO, variables
from spcomp.ir.analysis.positions import is_unit, upper_bound
from spcomp.ir.arith.injectivity import element_key
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
from spcomp.ir.structural import fingerprint
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
    """The decisions about an sp_iter, before anything is built.

    *init*: ``inside``, before the first loop that reduces, within the loops around it (the block
    carries it if that loop belongs to the innermost block); ``outside``, before all loops. A nest
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
        """Whether init uses a variable of a loop that reduces, such as a false spatial one."""
        variables_ = set(self.init_vars)
        return any(loop.reduces and variables_ & set(loop.vars) for loop in self.loops)


def plan_iteration(it: SpIter) -> IterationPlan:
    """Return the plan of *it*; warns of an axis declared spatial that is a reduction."""
    stores = _stores(it.body)
    loops: list[LoopPlan] = []
    start = 0
    for domain in it.domains:
        end = start + domain_width(domain)
        loop_vars = it.vars[start:end]
        reduces = False
        axes = domain_axes(domain)[: end - start]
        for axis, var, kind in zip(axes, loop_vars, it.kinds[start:end], strict=True):
            if kind == "S" and _is_false_spatial(it, axis, var, stores):
                reduces = True
            reduces |= kind == "R"
        loops.append(LoopPlan(domain, loop_vars, reduces))
        start = end
    plan = IterationPlan(tuple(loops))
    return plan if it.init is None else _place_init(it, plan)


def without_absent(
    plan: IterationPlan, start: int, lacks: Callable[[Axis], bool]
) -> IterationPlan | None:
    """Return *plan* whose loops from *start* on leave out the axes that *lacks* says are absent.

    None if a loop has no axis left.
    """
    loops = list(plan.loops)
    for k in range(start, len(loops)):
        domain = loops[k].domain
        parts = domain.parts if isinstance(domain, (Union, Intersect)) else (domain,)
        remaining = tuple(p for p in parts if isinstance(p, Attach) or not lacks(domain_axes(p)[0]))
        if len(remaining) == len(parts):
            continue
        if not remaining or not isinstance(domain, Union):
            return None
        part: Domain = remaining[0] if len(remaining) == 1 else Union(remaining)  # type: ignore[arg-type]
        loops[k] = replace(loops[k], domain=part)
    return replace(plan, loops=tuple(loops))


def _stores(body: Stmt) -> list[Store]:
    private = {n.buffer for n in walk(body) if isinstance(n, Alloc)}
    return [n for n in walk(body) if isinstance(n, Store) and n.buffer not in private]


def _is_false_spatial(it: SpIter, axis: Axis, var: Var, stores: list[Store]) -> bool:
    """Whether *var*, declared spatial, may write an element in several iterations."""
    if is_unit(axis):
        return False
    around = [inner for inner in walk(it) if isinstance(inner, SpIter)]
    ranges = {v: (ZERO, upper_bound(inner, v)) for inner in around for v in inner.vars}
    for store in stores:
        if injective(element_key(store.buffer, store.indices), var, ranges):
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
    needed = {v for s in stores for i in s.indices if i is not None for v in variables(i)}
    needed |= variables(it.init)
    first = plan.first_reduction
    covered = [_covers(loop, stores, plan) for loop in plan.loops]
    inner = [k for k in range(first, len(plan.loops)) if set(plan.loops[k].vars) & needed]
    outer = [v for loop in plan.loops[:first] for v in loop.vars]
    if (
        all(covered[k] for k in (*range(first), *inner))
        and not _needs_inner(plan, first, inner)
        and all(_is_independent(it, v) for v in outer)
    ):
        return _separate(plan, "inside", first, stores, needed, inner)
    spatial = [k for k, loop in enumerate(plan.loops) if set(loop.vars) & needed]
    return _separate(plan, "outside", 0, stores, needed, spatial)


def _is_independent(it: SpIter, var: Var) -> bool:
    """Whether each iteration of *var* only accesses elements that it initialised itself.

    That holds if each buffer that init and body share is accessed with one index that differs
    between the iterations, or always at the same indices, which a spatial variable ensures.
    """
    assert it.init is not None
    before, after = _accesses(it.init), _accesses(it.body)
    ranges = {v: (ZERO, upper_bound(it, v)) for v in it.vars if v is not var}
    for memory in before.keys() & after.keys():
        accesses = (*before[memory], *after[memory])
        if not any(isinstance(access, Store) for access in accesses):
            continue
        indices = [element_key(access.buffer, access.indices) for access in accesses]
        index_keys = [tuple(map(fingerprint, each)) for each in indices]
        if len({access.buffer for access in accesses}) > 1:
            return False
        if len(set(index_keys)) == 1 and any(isinstance(access, Store) for access in after[memory]):
            continue
        same = (
            k for k, column in enumerate(zip(*index_keys, strict=True)) if len(set(column)) == 1
        )
        if not any(injective((indices[0][k],), var, ranges) for k in same):
            return False
    return True


def _accesses(stmt: Stmt) -> dict[object, list[Load | Store]]:
    """Return the loads and stores of *stmt* by the memory they touch."""
    private = {n.buffer for n in walk(stmt) if isinstance(n, Alloc)}
    result: dict[object, list[Load | Store]] = {}
    for n in walk(stmt):
        if isinstance(n, (Load, Store)) and n.buffer not in private:
            result.setdefault(n.buffer.data or n.buffer, []).append(n)
    return result


def _needs_inner(plan: IterationPlan, first: int, inner: list[int]) -> bool:
    """Whether a spatial loop inside the reductions runs over fibers of a reduction's axis."""
    reduction_axes = {
        a for loop in plan.loops[first:] if loop.reduces for a in domain_axes(loop.domain)
    }
    parents = (a.parent for k in inner for a in domain_axes(plan.loops[k].domain)[:1])
    return any(parent in reduction_axes for parent in parents)


def _separate(
    plan: IterationPlan,
    place: InitPlace,
    level: int,
    stores: list[Store],
    needed: set[Var],
    loops: list[int],
) -> IterationPlan:
    domains: list[Domain] = []
    init_vars: list[Var] = []
    for k in loops:
        loop = plan.loops[k]
        is_whole = _covers(loop, stores, plan) and not loop.reduces
        if is_whole and not _is_orphan(loop, domains, plan, level):
            domains.append(loop.domain)
            init_vars.extend(loop.vars)
            continue
        for var, axis in zip(loop.vars, domain_axes(loop.domain), strict=False):
            if var in needed:  # the full length of the axis, not only stored coordinates
                domains.append(
                    Axis(f"{axis.name}_all", "dense_fixed", axis.length, nnz=axis.length)
                )
                init_vars.append(var)
    return IterationPlan(plan.loops, place, tuple(domains), tuple(init_vars))


def _is_orphan(loop: LoopPlan, domains: list[Domain], plan: IterationPlan, level: int) -> bool:
    """Whether the parent of the loop's axis is iterated here, but not by the init nest."""
    parent = domain_axes(loop.domain)[0].parent
    iterated = {a for k, p in enumerate(plan.loops) if k >= level for a in domain_axes(p.domain)}
    covered = {a for domain in domains for a in domain_axes(domain)}
    return parent is not None and parent in iterated and parent not in covered


def _covers(loop: LoopPlan, stores: list[Store], plan: IterationPlan) -> bool:
    """Whether the loop reaches each stored element that init sets, and each only once."""
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
    axes: tuple[Axis, ...], loop_vars: tuple[Var, ...], store: Store, plan: IterationPlan
) -> bool:
    """Whether the store's buffer lies along *axes*, indexed by the variables that run over them."""
    if not isinstance(store.buffer, SparseBuffer):
        return False
    index: dict[Axis, Expr | None] = dict(zip(store.buffer.axes, store.indices, strict=True))
    if any(index.get(axis) is not var for axis, var in zip(axes, loop_vars, strict=True)):
        return False
    parent = axes[0].parent
    while parent is not None:
        runs = [p for p in plan.loops if parent in domain_axes(p.domain)]
        if runs and index.get(parent) not in runs[-1].vars:
            return False
        parent = parent.parent
    return True


def order_error(it: SpIter, axis: Axis, node: Node) -> LoweringError:
    """Return the error for an axis whose parent is not iterated around it."""
    parent = axis.parent.name if axis.parent else "its parent"
    return LoweringError(
        f"{axis.name} runs over the fibers of {parent}, which is not iterated around it"
        f" in {it.name!r}",
        node.span,
        hint=f"put {parent} before {axis.name} in the sp_iter, or use T.attach",
    )
