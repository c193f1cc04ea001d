"""Before the route: how SparseTIR writes a program over the parts of a format, and how we do.

There each part has the init of the whole, and ``"composable": 1`` says that the parts are one
computation; here such an init stands before them, over all elements of what is written.
"""

from __future__ import annotations

from contextlib import suppress
from typing import cast

from spcomp.errors import FormatError, ScheduleError
from spcomp.formats.rules import FormatRewriteRule
from spcomp.ir.analysis.exprs import variables
from spcomp.ir.analysis.names import Names
from spcomp.ir.axis import AnyBuffer, Axis, SparseBuffer, domain_axes
from spcomp.ir.coordinate import SpIter
from spcomp.ir.expr import Const
from spcomp.ir.func import Func
from spcomp.ir.program import CoordFunc
from spcomp.ir.rewrite import relink
from spcomp.ir.stmt import Seq, Stmt, Store, seq
from spcomp.ir.structural import structural_equal
from spcomp.ir.visitor import statements
from spcomp.schedule.steps.iterations.sparse import SparseReorder

COMPOSABLE = "composable"


def as_read(func: Func) -> Func:
    """Return *func* in our form if it says ``composable``, as SparseTIR's decomposition does.

    Raises FormatError where parts begin with different values, and for parts that are lowered.
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
    made: list[Stmt] = []
    for part in parts:
        if isinstance(part, SpIter) and part.init is not None:
            made += _begun(part, begun, names)
            part = part.replace(init=None)
        made.append(part)
    func = func.replace(body=seq(*made), attrs=tuple({**attrs, "horizontal_fuse": True}.items()))
    return with_whole_fibers(func)


def _begun(part: SpIter, begun: dict[AnyBuffer, tuple[str, Store]], names: Names) -> list[Stmt]:
    """Return the iterations over what *part* is the first to begin; raises FormatError.

    Parts of one iteration are called after it and their rule, behind ``_``.
    """
    made: list[Stmt] = []
    assert part.init is not None
    whole = part.name.rsplit("_", 1)[0]
    for store in part.init.body if isinstance(part.init, Seq) else (part.init,):
        if not isinstance(store, Store) or not isinstance(store.value, Const):
            raise FormatError("the init of a part stores numbers", store.span)
        buffer = store.buffer
        if not isinstance(buffer, SparseBuffer) or not _all_of(store):
            raise FormatError(f"parts begin some of {buffer.name}, not all along axes", store.span)
        if buffer in begun:
            other, first = begun[buffer]
            if other != whole:
                raise FormatError(f"{other} and {whole} both begin {buffer.name}", store.span)
            if not structural_equal(first.value, store.value):
                raise FormatError(f"parts begin {buffer.name} with different numbers", store.span)
            continue
        begun[buffer] = whole, store
        own = tuple(names.var(axis.name.lower()) for axis in buffer.axes)
        body = store.replace(indices=own)
        kinds = "S" * len(own)
        made.append(SpIter(own, buffer.axes, kinds, f"{whole}_init", None, body, span=part.span))
    return made


def _all_of(store: Store) -> bool:
    """Whether the indices of *store* are of different variables each, and no numbers."""
    used = [variables(index) for index in store.indices if index is not None]
    return all(used) and sum(map(len, used)) == len({var for own in used for var in own})


def with_whole_fibers(func: CoordFunc) -> CoordFunc:
    """Return *func* with sparse_variable axes that have one fiber as sparse_fixed ones.

    As SparseTIR's loops have it, such a fiber is all of the ``nnz`` positions: its indptr stays a
    parameter that nothing reads.
    """
    made: dict[Axis, Axis] = {}
    for axis in func.axes:
        root = axis.parent
        if axis.kind != "sparse_variable" or root is None or root.parent is not None:
            continue
        if axis.nnz is not None and isinstance(root.length, Const) and root.length.value == 1:
            made[axis] = axis.replace(kind="sparse_fixed", indptr=None, nnz_cols=axis.nnz, nnz=None)
    return relink(func, axes=made)


def with_own_init(func: CoordFunc, rule: str) -> CoordFunc:
    """Return *func*, decomposed by one *rule*, with inits in the iterations that go on with them.

    A single rule is another format of the whole: the axes of its part have all coordinates.
    """
    made: list[Stmt] = []
    for part in func.body.body if isinstance(func.body, Seq) else (func.body,):
        if made and (joined := _joined(made[-1], part, rule)) is not None:
            made[-1] = joined
        else:
            made.append(part)
    return func.replace(body=seq(*made))


def _joined(first: Stmt, update: Stmt, rule: str) -> SpIter | None:
    """Return *update* with what *first*, its init, stores; None if that is something else."""
    if not isinstance(first, SpIter) or not isinstance(update, SpIter):
        return None
    begin, store = first.body, update.body
    if f"{update.name.removesuffix(f'_{rule}')}_init" != first.name or update.init is not None:
        return None
    if not isinstance(begin, Store) or not isinstance(store, Store):
        return None
    if not isinstance(begin.value, Const) or begin.buffer is not store.buffer:
        return None
    if not _all_of(begin):
        return None
    return update.replace(init=store.replace(value=begin.value, atomic=False))


def in_published_order(func: CoordFunc, before: CoordFunc, rule: FormatRewriteRule) -> CoordFunc:
    """Return *func* with the iterations of the part of *rule* in the order that SparseTIR gives.

    Each axis *before* is followed by all that its coordinate is made of, before the next; where
    that would run an axis before its parent, our order stays.
    """
    for old in (node for node in statements(before.body) if isinstance(node, SpIter)):
        name = f"{old.name}_{rule.name}"
        part = next((n for n in statements(func.body) if getattr(n, "name", "") == name), None)
        if not isinstance(part, SpIter) or not all(isinstance(d, Axis) for d in part.domains):
            continue
        wanted: list[str] = []
        for axis in (above for domain in old.domains for above in domain_axes(domain)):
            after = rule.axis_map.get(axis.name)
            wanted += [axis.name] if after is None else [f"{own}_{rule.name}" for own in after]
        place = {domain_axes(domain)[0].name: k for k, domain in enumerate(part.domains)}
        if sorted(place) == sorted(wanted):
            step = SparseReorder(name, tuple(part.vars[place[axis]].name for axis in wanted))
            with suppress(ScheduleError):
                func = cast("CoordFunc", step.apply(func))
    return func
