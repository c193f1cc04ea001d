"""I to I, parts: the axes, buffers and parameters of a rule, with names of the program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from spcomp.dtypes import int64
from spcomp.formats.rules import FormatRewriteRule
from spcomp.ir.access import Load
from spcomp.ir.analysis.exprs import ZERO, uncast
from spcomp.ir.analysis.names import Names
from spcomp.ir.arith.bounds import Interval
from spcomp.ir.arith.indexmap import IndexMap
from spcomp.ir.arith.linear import same_value
from spcomp.ir.axis import AnyBuffer, Axis, BufferDomain, SparseBuffer
from spcomp.ir.expr import Const, Expr, Var, binary, cast, const
from spcomp.ir.program import CoordFunc
from spcomp.ir.rewrite import Relink
from spcomp.passes.decompose.decompose_parts import Part


def instantiate(
    rule: FormatRewriteRule, func: CoordFunc, names: Names, others: Sequence[SparseBuffer]
) -> Part:
    """Return the part of *rule* with new names; parameters and axes of *func* are shared."""
    desc = rule.new_format_desc
    params = {p.name: p for p in desc.params if p in func.params}
    for param in desc.params:
        if param.name not in params:
            params[param.name] = names.var(f"{param.name}_{rule.name}", param.type)
    link = Relink({p: params[p.name] for p in desc.params}, {a: a for a in func.axes}, {})
    axes: dict[str, Axis] = {}
    needed = {
        above for axis in desc.axes if axis.name in rule.axes_after_rewrite for above in axis.path()
    }
    for axis in (axis for axis in desc.axes if axis in needed):
        if axis not in link.replaced:
            wish = names.unique(f"{axis.name}_{rule.name}")
            link.replaced[axis] = link.visit_Node(axis).replace(name=wish)
        renamed = link.replaced[axis]
        assert isinstance(renamed, Axis)
        axes[axis.name] = renamed
    buffers: dict[str, SparseBuffer] = {}
    for buffer in desc.buffers:
        if buffer.name in rule.buffers_to_rewrite:
            wish = names.unique(f"{buffer.name}_{rule.name}")
            new = link.visit_Node(buffer).replace(name=wish)
            assert isinstance(new, SparseBuffer)
            buffers[buffer.name] = new
    backward, stored = _backward(rule, func, link, names)
    if not rule.is_stored:
        _check_inverse(rule, axes)
    part = Part(rule, params, axes, buffers, {}, backward, stored)
    return replace(part, beside={old: _beside(old, part, func, names) for old in others})


def _backward(
    rule: FormatRewriteRule, func: CoordFunc, link: Relink, names: Names
) -> tuple[IndexMap, tuple[BufferDomain, ...]]:
    """Return inv_idx_map with the arrays of the part, and what these hold: coordinates of axes."""
    lengths = {axis.name: axis.length for axis in func.axes}
    domains: dict[AnyBuffer, BufferDomain] = {}
    for name, result in zip(rule.axes_before_rewrite, rule.backward.results, strict=True):
        load = uncast(result)
        if isinstance(load, Load) and load.buffer not in link.replaced:
            new = link.visit_Node(load.buffer)
            assert isinstance(new, SparseBuffer)
            new = new.replace(name=names.unique(f"{load.buffer.name}_{rule.name}"))
            link.replaced[load.buffer] = new
            domains[new] = BufferDomain(new, ZERO, binary("-", lengths[name], const(1)))
    results = tuple(link.rewrite(result) for result in rule.backward.results)
    return IndexMap(rule.backward.params, results), tuple(domains.values())


def _beside(old: SparseBuffer, part: Part, func: CoordFunc, names: Names) -> SparseBuffer:
    """Return the part of *old*, along the axes of *part* instead of those before the rewrite."""
    rule, along = part.rule, next(iter(part.buffers.values())).axes
    before = {axis for axis in func.axes if axis.name in rule.axes_before_rewrite}
    first = next(at for at, axis in enumerate(old.axes) if axis in before)
    axes = (*old.axes[:first], *along, *old.axes[first + len(before) :])
    new = old.replace(name=names.unique(f"{old.name}_{rule.name}"), axes=axes)
    declared = {b.name: b for b in rule.new_format_desc.buffers if b.name not in part.buffers}
    own = declared.get(old.name)
    if own is not None and own.data is not None:
        _check_declared(rule, own, new, part.axes)
        return new.replace(data=part.params[own.data.name])
    if old.data is None:
        return new
    return new.replace(data=names.var(f"{old.data.name}_{rule.name}", old.data.type))


def _check_declared(
    rule: FormatRewriteRule, declared: AnyBuffer, new: SparseBuffer, axes: Mapping[str, Axis]
) -> None:
    """Raise unless *rule* declares the part *new* as it is, along *axes* and further ones."""
    along = declared.axes if isinstance(declared, SparseBuffer) else ()
    same = len(along) == len(new.axes) and declared.dtype == new.dtype
    for there, here in zip(along, new.axes, strict=False):
        length = same_value(cast(there.length, int64), cast(here.length, int64))
        same &= axes[there.name] is here if there.name in axes else length
    if not same:
        order = ", ".join(axis.name for axis in new.axes)
        raise rule.error(f"it does not declare {declared.name} along {order}", "keep their order")


def _check_inverse(rule: FormatRewriteRule, axes: dict[str, Axis]) -> None:
    """Raise unless idx_map is proved to undo inv_idx_map on the axes of the part."""
    domain: dict[Var, Interval] = {}
    results: dict[Var, Expr] = {}
    table = zip(rule.axes_after_rewrite, rule.backward.params, rule.forward.results, strict=True)
    for name, param, result in table:
        length = axes[name].length
        domain[param] = Interval(0, int(length.value) - 1 if isinstance(length, Const) else None)
        if name not in rule.free:
            results[param] = result
    forward = IndexMap(rule.forward.params, tuple(results.values()))
    if not forward.is_inverse_of(IndexMap(tuple(results), rule.backward.results), domain):
        message = "idx_map is not proved to undo inv_idx_map"
        raise rule.error(message, "each coordinate after must follow from those before")
