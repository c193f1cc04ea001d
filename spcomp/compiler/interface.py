"""Before the first call: what a program needs of its arguments, worked out once per Kernel."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from spcomp.compiler.roles import Access, Role, accesses
from spcomp.dtypes import DType
from spcomp.errors import FormatError
from spcomp.ir.access import Load
from spcomp.ir.analysis.reduction import as_reduction
from spcomp.ir.analysis.sizes import text
from spcomp.ir.axis import EMPTY, AnyBuffer, Axis, AxisKind, Buffer, BufferDomain, SparseBuffer
from spcomp.ir.expr import BinOp, Expr, Select, Var, binary, const
from spcomp.ir.interpret.storage import layout
from spcomp.ir.program import CoordFunc, FlatFunc
from spcomp.ir.visitor import walk
from spcomp.locks import cached_property

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from spcomp.ir.func import Func
    from spcomp.ir.node import Node
    from spcomp.ir.stmt import Store

Layout: TypeAlias = Literal["dense", "csr", "bsr", "values", "other"]
ParamKind: TypeAlias = Literal["in", "out", "inout", "assembled", "index", "scalar", "unused"]


@dataclass(frozen=True, slots=True, eq=False)
class AxisPlan:
    """What an axis needs of the arguments: sizes as expressions, arrays as parameter names."""

    name: str
    kind: AxisKind
    parent: AxisPlan | None
    length: Expr
    fibers: Expr | None  # how many positions its parent has
    positions: Expr | None  # how many elements lie along it; None if a call assembles it
    nnz_cols: Expr | None
    indptr: str | None
    indices: str | None
    idtype: np.dtype[np.generic]
    ascending: bool  # the coordinates of a fiber ascend
    unique: bool  # and none occurs twice
    padded: bool  # a negative coordinate marks padding
    shifted: bool  # its indices are one fiber, to which the coordinate of the row is added
    hashed: bool  # its fibers are hash tables

    @property
    def is_assembled(self) -> bool:
        """Whether a call makes its index arrays."""
        return self.positions is None and self.indptr is None

    @property
    def least(self) -> Expr:
        """The least value that its indices may hold."""
        if self.shifted and self.parent is not None:
            return binary("-", const(1), self.parent.length)
        return const(EMPTY if self.padded else 0)

    @property
    def entries(self) -> Expr | None:
        """The number of its indices."""
        return self.nnz_cols if self.shifted else self.positions

    @property
    def arrays(self) -> tuple[str, ...]:
        """The names of the index arrays that it has."""
        return tuple(name for name in (self.indptr, self.indices) if name is not None)


@dataclass(frozen=True, slots=True, eq=False)
class BufferPlan:
    """What the argument for a buffer must be; a pattern has no *handle* and stands for an axis."""

    name: str
    handle: str
    layout: Layout
    axes: tuple[AxisPlan, ...]
    shape: tuple[Expr, ...]
    size: Expr | None  # elements in memory; None if a call assembles it
    dtype: DType
    np_dtype: np.dtype[np.generic]
    fill: float
    role: Role
    full: bool  # the program writes every element before any is read
    strided: bool = False  # a view: *size* is the least that holds it
    doubt: str = ""  # what to warn of where a call allocates it
    distinct: bool = False  # no value occurs twice

    @property
    def is_assembled(self) -> bool:
        """Whether the buffer's pattern is a result of the call."""
        return self.size is None

    @property
    def leaf(self) -> AxisPlan | None:
        """The last axis that has index arrays."""
        return next((axis for axis in reversed(self.axes) if axis.kind != "dense_fixed"), None)


@dataclass(frozen=True, slots=True)
class Param:
    """One parameter of a Kernel, to be printed; *name* is its keyword in a call."""

    name: str
    handle: str
    kind: ParamKind
    dtype: str
    shape: tuple[str, ...] = ()
    layout: tuple[str, ...] = ()

    def __str__(self) -> str:
        of = f"[{', '.join(self.shape)}]" if self.shape or self.layout else ""
        along = f" along {', '.join(self.layout)}" if self.layout else ""
        alias = f" (parameter {self.handle})" if self.handle != self.name else ""
        return f"{self.name}: {self.dtype}{of} {self.kind}{along}{alias}"


@dataclass(frozen=True, slots=True)
class Signature:
    """The parameters of a Kernel in the script's order, and the names of what it returns."""

    name: str
    params: tuple[Param, ...]
    results: tuple[str, ...]

    def without(self, names: Collection[str]) -> Signature:
        """Return the signature without the parameters called *names*."""
        params = tuple(param for param in self.params if param.name not in names)
        return replace(self, params=params)

    def __str__(self) -> str:
        lines = "".join(f"    {param},\n" for param in self.params)
        returns = ", ".join(self.results) or "None"
        return f"{self.name}(\n{lines}) -> {returns}"


@dataclass(frozen=True, eq=False)
class Interface:
    """All that a call needs to know about a program to bind its arguments."""

    name: str
    params: tuple[str, ...]  # in the script's order
    scalars: Mapping[str, DType]
    axes: tuple[AxisPlan, ...]
    buffers: tuple[BufferPlan, ...]  # one per handle that holds values
    domains: tuple[BufferDomain, ...]
    any_shape: bool  # flat programs say nothing about shapes
    by_handle: Mapping[str, BufferPlan]
    by_name: Mapping[str, BufferPlan]  # buffers, their handles, and axes that have arrays
    index_of: Mapping[str, tuple[AxisPlan, ...]]  # by handle, the axes whose array it is
    index_names: Mapping[str, str]  # handles of index arrays by name
    shared: Mapping[str, tuple[tuple[str, Expr], ...]]  # by handle, other buffers and their sizes
    computed: tuple[Expr, ...]  # the sums and products in sizes that the program computes
    needed: tuple[str, ...]  # the parameters that the program uses
    order_needed: frozenset[str]  # axes whose order, or tables, the compiled code relies on

    @cached_property
    def outputs(self) -> tuple[BufferPlan, ...]:
        """The buffers that are written, in the order of their parameters."""
        return tuple(plan for plan in self.buffers if plan.role != "in")

    @cached_property
    def sparse_axes(self) -> tuple[AxisPlan, ...]:
        """The axes that have index arrays."""
        return tuple(axis for axis in self.axes if axis.arrays)

    def takes(self, name: str) -> bool:
        """Whether a call can give an argument called *name*."""
        return name in self.by_name or name in self.scalars or name in self.index_names

    @property
    def names(self) -> tuple[str, ...]:
        """The keywords of a call, in the order of the parameters."""
        shown = {plan.handle: plan.name for plan in self.buffers}
        return tuple(shown.get(name, name) for name in self.params)

    @property
    def signature(self) -> Signature:
        """The parameters and results, to be printed."""
        params = tuple(self._param(name, self.by_handle.get(name)) for name in self.params)
        return Signature(self.name, params, tuple(plan.name for plan in self.outputs))

    def _param(self, name: str, plan: BufferPlan | None) -> Param:
        if plan is not None:
            kind: ParamKind = "assembled" if plan.is_assembled else plan.role
            shape = tuple(text(extent) for extent in plan.shape)
            layout = tuple(f"{axis.name} {axis.kind}" for axis in plan.axes)
            return Param(plan.name, name, kind, str(plan.dtype), shape, layout)
        if name in self.scalars:
            return Param(name, name, "scalar", str(self.scalars[name]))
        if name in self.index_of:
            return Param(name, name, "index", str(self.index_of[name][0].idtype))
        return Param(name, name, "unused", "handle")


def interface(func: Func, order_needed: frozenset[str] = frozenset()) -> Interface:
    """Return what *func* needs of its arguments; raises FormatError for an unusable layout.

    *order_needed*: the names of the axes whose order (or hash tables) the code relies on.
    """
    axes = _axis_plans(func)
    index_of: dict[str, list[AxisPlan]] = {}
    for axis_plan in axes.values():
        for array in axis_plan.arrays:
            index_of.setdefault(array, []).append(axis_plan)
    roles = accesses(func)
    by_handle: dict[str, BufferPlan] = {}
    by_name = {p.name: _pattern(p) for p in axes.values() if p.arrays and p.parent is not None}
    index_names = {name: name for name in index_of}
    shared: dict[str, tuple[tuple[str, Expr], ...]] = {}
    for buffer in func.buffers:
        if buffer.data is None:
            continue
        handle = buffer.data.name
        plan = _buffer_plan(buffer, handle, roles[handle], axes)
        plan = replace(plan, doubt=_doubt(plan, roles[handle].bare))
        if handle in index_of:
            index_names[buffer.name] = handle
            axis = index_of[handle][0]
            _same_dtype(buffer, axis.idtype)
            if plan.role != "in" and isinstance(func, CoordFunc):  # its accesses are not checked
                raise FormatError(
                    f"{buffer.name} is written, and says where elements lie along {axis.name}",
                    buffer.span,
                    hint="change index arrays before the call",
                )
        else:
            by_name[buffer.name] = by_handle.setdefault(handle, plan)
            _same_dtype(buffer, by_handle[handle].np_dtype)
        if by_handle.get(handle) is not plan and plan.size is not None:
            shared[handle] = (*shared.get(handle, ()), (plan.name, plan.size))
    order = {param.name: at for at, param in enumerate(func.params)}
    used = _used(func) | by_handle.keys() | index_of.keys()
    return Interface(
        name=func.name,
        params=tuple(order),
        scalars={p.name: p.dtype for p in func.params if p.dtype.kind != "handle"},
        axes=tuple(axes.values()),
        buffers=tuple(sorted(by_handle.values(), key=lambda p: order[p.handle])),
        domains=func.domains,
        any_shape=isinstance(func, FlatFunc),
        by_handle=by_handle,
        by_name=by_handle | by_name,
        index_of={name: tuple(users) for name, users in index_of.items()},
        index_names=index_names,
        shared=shared,
        computed=_computed(func),
        needed=tuple(name for name in order if name in used),
        order_needed=order_needed,
    )


def _doubt(plan: BufferPlan, step: Store | None) -> str:
    """Return what to say of a result whose first value is the fill; *step* of a reduction is first.

    Nothing where the fill is where such a reduction begins, as 0 is for sums.
    """
    found = None if step is None else as_reduction(step)
    if step is None or found is None or found.identity[0].value == plan.fill:
        return ""
    where = f"{step.span}: " if step.span is not None else ""
    begins = f"begins at {plan.fill:g}, its fill value, not at {found.identity[0].value:g}"
    return (
        f"{where}{plan.name} has no T.init(): its reduction by {found.combiner} {begins};"
        f" write one, or give {plan.name}"
    )


def _computed(func: Func) -> tuple[Expr, ...]:
    sizes = [size for axis in func.axes for size in (axis.length, axis.nnz, axis.nnz_cols)]
    sizes += [size for buffer in func.buffers for size in getattr(buffer, "shape", ())]
    parts = (part for size in sizes if size is not None for part in walk(size, skip=Select))
    return tuple(part for part in parts if isinstance(part, BinOp) and part.op in ("+", "-", "*"))


def _same_dtype(buffer: AnyBuffer, dtype: np.dtype[Any]) -> None:
    if np.dtype(buffer.dtype.numpy_name) != dtype:
        raise FormatError(
            f"{buffer.name} has dtype {buffer.dtype}, and shares an array of {dtype}",
            buffer.span,
            hint="give it a handle of its own",
        )


def _axis_plans(func: Func) -> dict[Axis, AxisPlan]:
    plans: dict[Axis, AxisPlan] = {}
    for axis in (*func.axes, *(a for b in func.buffers for a in getattr(b, "axes", ()))):
        for outer in axis.path():
            plans.setdefault(outer, _axis_plan(outer, plans))
    return plans


def _used(func: Func) -> set[str]:
    """The names of the variables that anything in *func* mentions."""
    roots: list[Node | None] = [func.body, *(d.low for d in func.domains)]
    roots += [d.high for d in func.domains]
    for axis in func.axes:
        roots += [axis.length, axis.nnz, axis.nnz_cols]
    for buffer in func.buffers:
        roots += getattr(buffer, "shape", ())
    return {n.name for root in roots if root is not None for n in walk(root) if isinstance(n, Var)}


def _axis_plan(axis: Axis, plans: Mapping[Axis, AxisPlan]) -> AxisPlan:
    parent = plans[axis.parent] if axis.parent is not None else None
    return AxisPlan(
        name=axis.name,
        kind=axis.kind,
        parent=parent,
        length=axis.length,
        fibers=parent.positions if parent is not None else None,
        positions=_positions(axis, parent),
        nnz_cols=axis.nnz_cols,
        indptr=axis.indptr.name if axis.indptr is not None else None,
        indices=axis.indices.name if axis.indices is not None else None,
        idtype=np.dtype(axis.idtype.numpy_name),
        ascending=axis.sorted,
        unique=axis.unique,
        padded=axis.padded,
        shifted=axis.shifted,
        hashed=axis.hashed,
    )


def _positions(axis: Axis, parent: AxisPlan | None) -> Expr | None:
    """How many positions *axis* has over all fibers; the end of indptr where nnz is not given."""
    if parent is None:
        return axis.length
    above = parent.positions
    if axis.is_assembled or above is None:
        return None
    if not axis.is_variable:
        return binary("*", above, axis.length if axis.nnz_cols is None else axis.nnz_cols)
    if axis.nnz is not None or axis.indptr is None:
        return axis.nnz
    array = Buffer(axis.indptr.name, axis.indptr, (binary("+", above, 1),), axis.idtype)
    return Load(array, (above,))


def _buffer_plan(
    buffer: AnyBuffer, handle: str, access: Access, axes: Mapping[Axis, AxisPlan]
) -> BufferPlan:
    sparse = isinstance(buffer, SparseBuffer)
    plans = tuple(axes[axis] for axis in buffer.axes) if isinstance(buffer, SparseBuffer) else ()
    shape = tuple(p.length for p in plans) if sparse else buffer.shape  # type: ignore[union-attr]
    size = _storage(buffer, plans)
    if buffer.distinct and access.role != "in":
        raise FormatError(
            f"{buffer.name} is written, and promised to have distinct values",
            buffer.span,
            hint="a promise is about an array that is only read",
        )
    return BufferPlan(
        name=buffer.name,
        handle=handle,
        layout=_layout(buffer, plans),
        axes=plans,
        shape=shape,
        size=size,
        dtype=buffer.dtype,
        np_dtype=np.dtype(buffer.dtype.numpy_name),
        fill=buffer.fill if isinstance(buffer, SparseBuffer) else 0,
        role="out" if size is None else access.role,  # an assembled buffer is empty before
        full=access.full,
        strided=isinstance(buffer, Buffer) and buffer.strides is not None,
        distinct=buffer.distinct,
    )


def _pattern(axis: AxisPlan) -> BufferPlan:
    """The plan of an argument that gives the arrays of *axis* and its ancestors, not values."""
    plans = [axis]
    while plans[0].parent is not None:
        plans.insert(0, plans[0].parent)
    kinds = tuple(plan.kind for plan in plans)
    layout: Layout = "csr" if kinds == ("dense_fixed", "sparse_variable") else "other"
    shape = tuple(plan.length for plan in plans)
    none = np.dtype(bool)
    return BufferPlan(
        axis.name, "", layout, tuple(plans), shape, axis.positions, DType("bool", 1), none,
        fill=0, role="in", full=False,
    )  # fmt: skip


def _layout(buffer: AnyBuffer, plans: tuple[AxisPlan, ...]) -> Layout:
    if isinstance(buffer, Buffer):
        return "values" if buffer.strides is not None else "dense"
    if buffer.extra_storage:
        return "values"
    kinds = tuple(plan.kind for plan in plans)
    if all(kind == "dense_fixed" for kind in kinds):
        return "dense"
    if any(p.parent is not None and (not at or plans[at - 1] is not p.parent)
           for at, p in enumerate(plans)):  # fmt: skip
        return "values"
    if kinds == ("dense_fixed", "sparse_variable"):
        return "csr"
    if kinds == ("dense_fixed", "sparse_variable", "dense_fixed", "dense_fixed"):
        return "bsr"
    return "other"


def _storage(buffer: AnyBuffer, plans: tuple[AxisPlan, ...]) -> Expr | None:
    """The number of elements of *buffer* in memory; None if only a call finds out."""
    if isinstance(buffer, SparseBuffer):
        chains = layout(buffer.axes).chains
        factors = [_chain_size([plans[at] for at in chain]) for chain in chains]
        extra = buffer.extra_storage
    elif buffer.strides is None:
        factors, extra = list(buffer.shape), 0
    else:
        reach = zip(buffer.shape, buffer.strides, strict=True)
        steps = [binary("*", binary("-", extent, 1), stride) for extent, stride in reach]
        return reduce(partial(binary, "+"), [const(1), *steps])
    sizes = [factor for factor in factors if factor is not None]
    if len(sizes) < len(factors):
        return None
    size: Expr = reduce(partial(binary, "*"), sizes or [const(1)])
    return binary("+", size, extra) if extra else size


def _chain_size(chain: list[AxisPlan]) -> Expr | None:
    """How many elements a chain of axes has; a sparse_fixed axis on its own has one fiber."""
    last = chain[-1]
    if chain[0].parent is None:
        return last.positions
    return last.length if last.nnz_cols is None else last.nnz_cols
