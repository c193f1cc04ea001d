"""Before the route: from SparseTIR's programs over the parts of a format to ours, and back.

In SparseTIR each part has the init of the whole, and ``"composable": 1`` says that the parts are
one computation. In spcomp one init stands before the parts, over all elements of the result.
"""

from __future__ import annotations

from typing import cast

from spcomp.errors import FormatError
from spcomp.formats.rules import FormatRewriteRule
from spcomp.ir.analysis.exprs import variables
from spcomp.ir.analysis.names import Names
from spcomp.ir.axis import AnyBuffer, Axis, SparseBuffer, domain_axes
from spcomp.ir.coordinate import SpIter
from spcomp.ir.expr import Const, Expr
from spcomp.ir.func import Func
from spcomp.ir.program import CoordFunc
from spcomp.ir.rewrite import relink
from spcomp.ir.stmt import Seq, Stmt, Store, seq
from spcomp.ir.structural import expr_equal
from spcomp.ir.visitor import statements
from spcomp.passes.decompose.preprocess import buffers_in
from spcomp.schedule.steps.base import Problem
from spcomp.schedule.steps.iterations.sparse import SparseReorder

COMPOSABLE = "composable"


def with_one_init(func: Func) -> Func:
    """Return *func* with one init before its parts if it has the attribute ``composable``.

    Raises FormatError if the inits of the parts differ, and for parts that are lowered.
    """
    if not func.attr(COMPOSABLE):
        return func
    if not isinstance(func, CoordFunc):
        raise FormatError(
            f"{func.name} runs over the parts of a format, and each begins anew",
            func.span,
            hint="decompose and lower the program here, or leave composable and all inits but one",
        )
    attrs = {name: value for name, value in func.attrs if name != COMPOSABLE}
    parts = func.body.body if isinstance(func.body, Seq) else (func.body,)
    names = Names(func)
    begun: dict[AnyBuffer, tuple[str, Store]] = {}
    stmts: list[Stmt] = []
    for part in parts:
        if isinstance(part, SpIter) and part.init is not None:
            stmts += _first_inits(part, begun, names)
            part = part.replace(init=None)
        stmts.append(part)
    func = func.replace(body=seq(*stmts), attrs=tuple({**attrs, "horizontal_fuse": True}.items()))
    return with_whole_fibers(func)


def _first_inits(
    part: SpIter, begun: dict[AnyBuffer, tuple[str, Store]], names: Names
) -> list[Stmt]:
    """Return the init iterations of buffers that *part* is the first to write.

    A part is named after its iteration, ``_`` and its rule. Raises FormatError if inits differ.
    """
    inits: list[Stmt] = []
    assert part.init is not None
    whole = part.name.rsplit("_", 1)[0]
    for store in part.init.body if isinstance(part.init, Seq) else (part.init,):
        if not isinstance(store, Store) or not isinstance(store.value, Const):
            raise FormatError("the init of a part stores numbers", store.span)
        buffer = store.buffer
        if not isinstance(buffer, SparseBuffer) or not _covers_buffer(store):
            raise FormatError(f"parts begin some of {buffer.name}, not all along axes", store.span)
        if buffer in begun:
            other, first = begun[buffer]
            if other != whole:
                raise FormatError(f"{other} and {whole} both begin {buffer.name}", store.span)
            if not expr_equal(first.value, store.value):
                raise FormatError(f"parts begin {buffer.name} with different numbers", store.span)
            continue
        begun[buffer] = whole, store
        indices = tuple(names.var(axis.name.lower()) for axis in buffer.axes)
        body = store.replace(indices=indices)
        kinds = "S" * len(indices)
        inits.append(
            SpIter(indices, buffer.axes, kinds, f"{whole}_init", None, body, span=part.span)
        )
    return inits


def _covers_buffer(store: Store) -> bool:
    """Whether *store* writes all of its buffer: each index has variables of its own."""
    used = [variables(index) for index in store.indices if index is not None]
    return all(used) and sum(map(len, used)) == len(
        {var for vars_of_index in used for var in vars_of_index}
    )


def with_whole_fibers(func: CoordFunc) -> CoordFunc:
    """Return *func* with sparse_fixed axes in place of sparse_variable axes with one fiber.

    In SparseTIR's loops such a fiber has all ``nnz`` positions. Its indptr stays a parameter that
    nothing reads.
    """
    replaced: dict[Axis, Axis] = {}
    for axis in func.axes:
        root = axis.parent
        if axis.kind != "sparse_variable" or root is None or root.parent is not None:
            continue
        if axis.nnz is not None and isinstance(root.length, Const) and root.length.value == 1:
            replaced[axis] = axis.replace(
                kind="sparse_fixed", indptr=None, nnz_cols=axis.nnz, nnz=None
            )
    return relink(func, axes=replaced)


def with_own_init(func: CoordFunc, rule: str) -> CoordFunc:
    """Return *func*, decomposed by one *rule*, with inits moved into the iterations they belong to.

    A single rule stores the whole in another format, so the axes of its part have all coordinates.
    """
    stmts: list[Stmt] = []
    for part in func.body.body if isinstance(func.body, Seq) else (func.body,):
        if stmts and (joined := _with_init(stmts[-1], part, rule)) is not None:
            stmts[-1] = joined
        else:
            stmts.append(part)
    return func.replace(body=seq(*stmts))


def _with_init(first: Stmt, update: Stmt, rule: str) -> SpIter | None:
    """Return *update* with *first* as its init; None if *first* is not its init."""
    if not isinstance(first, SpIter) or not isinstance(update, SpIter):
        return None
    begin, store = first.body, update.body
    if f"{update.name.removesuffix(f'_{rule}')}_init" != first.name or update.init is not None:
        return None
    if not isinstance(begin, Store) or not isinstance(store, Store):
        return None
    if not isinstance(begin.value, Const) or begin.buffer is not store.buffer:
        return None
    over = dict(zip(update.vars, (a for d in update.domains for a in domain_axes(d)), strict=True))
    picks = {over[var] for index in store.indices if index is not None for var in variables(index)}
    if not _covers_buffer(begin) or any(axis.is_sparse for axis in picks):
        return None
    return update.replace(init=store.replace(value=begin.value, atomic=False))


def with_inits_first(func: CoordFunc) -> CoordFunc:
    """Return *func* with each init before all statements that do not touch what it writes."""
    stmts: list[Stmt] = []
    for stmt in func.body.body if isinstance(func.body, Seq) else (func.body,):
        at = len(stmts)
        if isinstance(stmt, SpIter) and isinstance(stmt.body, Store) and stmt.init is None:
            begins = stmt.body.buffer if isinstance(stmt.body.value, Const) else None
            while at and begins is not None and begins not in buffers_in(stmts[at - 1]):
                at -= 1
        stmts.insert(at, stmt)
    return func.replace(body=seq(*stmts))


def with_original_lengths(func: CoordFunc, before: CoordFunc, rule: FormatRewriteRule) -> CoordFunc:
    """Return *func* with sparse axes of the part of *rule* as long as those they stand for.

    The lengths that SparseTIR's programs declare are not used there and may be those of others.
    """
    lengths = {axis.name: axis.length for axis in before.axes}
    params: dict[Expr, str] = dict(zip(rule.backward.params, rule.axes_after_rewrite, strict=True))
    for name, coordinate in zip(rule.axes_before_rewrite, rule.backward.results, strict=True):
        wish = f"{params[coordinate]}_{rule.name}" if coordinate in params else ""
        axis = next((a for a in func.axes if a.name == wish and a.is_sparse), None)
        if axis is not None:
            func = relink(func, axes={axis: axis.replace(length=lengths[name])})
    return func


def in_published_order(func: CoordFunc, before: CoordFunc, rule: FormatRewriteRule) -> CoordFunc:
    """Return *func* with the axes of the part of *rule* in SparseTIR's order.

    In place of each axis of *before* stand the axes that its coordinate is made of. Our order stays
    where an axis would otherwise run before its parent.
    """
    for old in (node for node in statements(before.body) if isinstance(node, SpIter)):
        name = f"{old.name}_{rule.name}"
        part = next((n for n in statements(func.body) if getattr(n, "name", "") == name), None)
        if not isinstance(part, SpIter) or not all(isinstance(d, Axis) for d in part.domains):
            continue
        order: list[str] = []
        for axis in (above for domain in old.domains for above in domain_axes(domain)):
            after = rule.axis_map.get(axis.name)
            order += (
                [axis.name] if after is None else [f"{derived}_{rule.name}" for derived in after]
            )
        place = {domain_axes(domain)[0].name: k for k, domain in enumerate(part.domains)}
        if sorted(place) == sorted(order):
            step = SparseReorder(name, tuple(part.vars[place[axis]].name for axis in order))
            result = step.result(func)
            func = func if isinstance(result, Problem) else cast("CoordFunc", result)
    return func
