"""Index notation to coordinate IR, declarations: axes, buffers, numbers and sizes, as needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import cast as typed

from spcomp.dtypes import DType, bool_, handle, int64
from spcomp.errors import ScriptError
from spcomp.ir.access import Load
from spcomp.ir.axis import Axis, BufferDomain, SparseBuffer
from spcomp.ir.expr import Expr, Var, binary, const
from spcomp.ir.program import CoordFunc
from spcomp.ir.promotion import Value
from spcomp.ir.stmt import Stmt, seq
from spcomp.notation.layout import LOOSE, Layout, Operand
from spcomp.notation.loops import OperandLevel
from spcomp.notation.nodes import Access
from spcomp.notation.plan import Plan
from spcomp.notation.results import Keys, Output
from spcomp.notation.semiring import Semiring
from spcomp.notation.sizes import Sizes

ZERO, ONE = const(0), const(1)


class Emitter:
    """Declares the parameters, axes and buffers of a program when statements ask for them."""

    def __init__(
        self,
        name: str,
        plans: Sequence[Plan],
        operands: Mapping[str, Operand],
        semiring: Semiring,
        *,
        exact: bool = True,
        loads_apart: bool = False,
    ) -> None:
        self.name, self.plans, self.operands, self.semiring = name, plans, operands, semiring
        self.exact = exact  # whether floats are computed as they are written
        self.loads_apart = loads_apart  # what is at coordinates, one element after the other
        self.taken = {name, *operands, *(plan.stmt.target.name for plan in plans)}
        self.handles: list[Var] = []
        self.scalars: dict[str, Var] = {}
        self.weak: dict[str, Var] = {}  # stand for a Python number until its type is known
        self.numbers: dict[tuple[str, DType], Var] = {}
        self.axes: dict[object, Axis] = {}
        self.buffers: dict[str, SparseBuffer] = {}
        self.domains: dict[tuple[str, Var], BufferDomain] = {}
        self.sizes = Sizes([plan.stmt for plan in plans], self.unique)
        self.layouts: dict[str, Layout] = {n: o.layout for n, o in operands.items()}
        self.outputs: dict[str, Output] = {}

    def program(self, body: Sequence[Stmt]) -> CoordFunc:
        """Return the program that runs *body*, with all declarations."""
        params = (*self.handles, *self.scalars.values(), *self.sizes.params())
        axes = tuple(dict.fromkeys(self.axes.values()))
        domains, buffers = tuple(self.domains.values()), tuple(self.buffers.values())
        attrs = (("fuse_rows", True),) if len(self.plans) > 1 else ()
        return CoordFunc(self.name, params, axes, buffers, seq(*body), domains, attrs)

    def unique(self, wish: str) -> str:
        """Return the name *wish*, or one like it that is free."""
        name, count = wish, 1
        while name in self.taken:
            count += 1
            name = f"{wish}_{count}"
        self.taken.add(name)
        return name

    def handle(self, wish: str) -> Var:
        """Return a new parameter for an array."""
        self.handles.append(Var(self.unique(wish), handle))
        return self.handles[-1]

    def scalar(self, name: str) -> Value:
        """Return the argument *name*, a number."""
        if self.operands[name].weak:
            var = self.weak.setdefault(name, Var(name, self.operands[name].dtype))
            return Value(var, weak=True)
        return Value(self.scalars.setdefault(name, Var(name, self.operands[name].dtype)))

    def number(self, name: str, dtype: DType) -> Var:
        """Return the parameter for the Python number *name* as *dtype*."""
        if (name, dtype) not in self.numbers:
            wish = self.unique(f"{name}_{dtype}") if name in self.scalars else name
            self.numbers[name, dtype] = self.scalars[wish] = Var(wish, dtype)
        return self.numbers[name, dtype]

    # -- axes and buffers ---------------------------------------------------------------------

    def dense_axis(self, index: str, again: int = 0) -> Axis:
        """Return the axis of all coordinates of *index*; *again* tells its dimensions apart."""
        length = self.sizes.of(index)
        key = (length, index, again)
        if key not in self.axes:
            name = index.replace(".", "_")
            name = self.unique(name.upper() if name.upper() != name else f"{name}_all")
            self.axes[key] = Axis(name, "dense_fixed", length)
        return self.axes[key]

    def unit_axis(self) -> Axis:
        """Return the axis of one coordinate, the parent of levels without a dense one."""
        if "unit" not in self.axes:
            self.axes["unit"] = Axis(self.unique("Root"), "dense_fixed", ONE)
        return self.axes["unit"]

    def buffer(self, access: Access) -> SparseBuffer:
        """Return the buffer of the operand of *access*, declared the first time."""
        if access.name not in self.buffers:
            operand = self.operands[access.name]
            axes = self._levels(access, operand.layout)
            data = self.handle(f"{access.name}_values")
            self.buffers[access.name] = SparseBuffer(access.name, data, axes, operand.dtype)
            if operand.mask:
                mask = self.handle(f"{operand.mask}_values")
                self.buffers[operand.mask] = SparseBuffer(operand.mask, mask, axes, bool_)
        for subscript, dimension in zip(access.subscripts, access.dimensions, strict=True):
            if not isinstance(subscript, str):
                self._promise(subscript, self.sizes.of(dimension))
        return self.buffers[access.name]

    def _promise(self, vector: Access, length: Var) -> None:
        """Note that the numbers in *vector* are below *length*, which calls check."""
        domain = BufferDomain(self.buffer(vector), ZERO, binary("-", length, ONE))
        self.domains.setdefault((vector.name, length), domain)

    def _levels(self, access: Access, layout: Layout) -> tuple[Axis, ...]:
        name, sizes = access.name, self.sizes
        axes: list[Axis] = [] if layout.is_rooted and layout.order else [self.unit_axis()]
        for level, (kind, dim) in enumerate(zip(layout.kinds, layout.order, strict=True)):
            index = access.dimensions[dim]
            if kind.axis == "dense_fixed":
                above = [access.dimensions[at] for at in layout.order[:level]]
                axes.append(self.dense_axis(index, above.count(index)))
                continue
            wish = self.unique(f"{name}_{index}" if index.isidentifier() else f"{name}_{level}")
            variable, width = "indptr" in kind.arrays, ONE if kind.branchless else None
            axis = Axis(
                wish,
                kind.axis,
                sizes.of(index),
                axes[-1],
                nnz=self._count(f"{wish}_nnz") if variable else None,
                nnz_cols=width if variable else width or self._count(f"{wish}_width"),
                indptr=self.handle(f"{wish}_indptr") if variable else None,
                indices=self.handle(f"{wish}_indices") if kind.axis.startswith("sparse") else None,
                idtype=layout.idtype,
                sorted=kind.ordered and str(kind) not in LOOSE,
                unique=kind.unique,
                padded=str(kind) in LOOSE,
                shifted=kind.name == "offset",
                hashed=kind.name == "hashed",
            )
            self.axes[OperandLevel(name, level)] = axis
            axes.append(axis)
        return tuple(axes)

    def _count(self, name: str) -> Var:
        return self.scalars.setdefault(name, Var(name, int64))

    def result(self, plan: Plan) -> SparseBuffer:
        """Return the buffer of the result of *plan*."""
        target, output = plan.stmt.target, plan.output
        if target.name in self.buffers:
            if not plan.stmt.accumulates:
                raise ScriptError(f"{target.name} is assigned twice", plan.stmt.at)
            return self.buffers[target.name]
        self.layouts[target.name], self.outputs[target.name] = output.layout, output
        axes = self._result_axes(target, output)
        data = self.handle(f"{target.name}_values")
        buffer = self.buffers[target.name] = SparseBuffer(target.name, data, axes, plan.dtype)
        return buffer

    def _result_axes(self, target: Access, output: Output) -> tuple[Axis, ...]:
        if output.storage == "dense":
            return tuple(map(self.dense_axis, target.indices)) or (self.unit_axis(),)
        if output.keys is not None:
            return self._key_axes(target, output.keys)
        names = [target.indices[dim] for dim in output.layout.order]
        above: tuple[Axis, ...] = (self.dense_axis(names[0]),)
        if output.like is not None:
            shared = names if output.storage == "shared" else names[:-1]
            count = sum(name in output.like.indices for name in shared)
            above = self._outer(target, output.like, count)
            if output.storage == "shared":
                return (*above, *map(self.dense_axis, names[count:]))
        wish = self.unique(f"{target.name}_{names[-1]}")
        length, idtype = self.sizes.of(names[-1]), output.layout.idtype
        ordered = output.layout.kinds[-1].ordered
        last = Axis(wish, "sparse_variable", length, above[-1], idtype=idtype, sorted=ordered)
        self.axes[OperandLevel(target.name, len(names) - 1)] = last
        return (*above, last)

    def _outer(self, target: Access, like: Access, count: int) -> tuple[Axis, ...]:
        """Return the axes of the first *count* levels of *like*, which *target* shares."""
        extra = 0 if self.layouts[like.name].is_rooted else 1
        axes = self.buffer(like).axes[: count + extra]
        for level, axis in enumerate(axes[extra:]):
            self.axes.setdefault(OperandLevel(target.name, level), axis)
        return axes

    def _key_axes(self, target: Access, keys: Keys) -> tuple[Axis, ...]:
        above = self.dense_axis(keys.indices[0]) if keys.rows else self.unit_axis()
        first, *rest = map(self.sizes.of, keys.digits)
        length = reduce(lambda a, b: binary("*", a, b), rest, typed("Expr", first))
        wish = self.unique(f"{target.name}_key")
        self.axes[wish] = Axis(wish, "sparse_variable", length, above, idtype=int64)
        return above, self.axes[wish]

    def mask(self, access: Access, variables: Mapping[str, Expr]) -> Expr | None:
        """Return the mask of the element of *access*; None if its operand is no bitmap."""
        operand = self.operands.get(access.name)
        if operand is None or not operand.mask:
            return None
        where = [variables[access.indices[dim]] for dim in operand.layout.order]
        return Load(self.buffers[operand.mask], tuple(where))

    def load(self, access: Access, variables: Mapping[str, Expr], unit: Expr) -> Load:
        """Return the element of *access* at the coordinates *variables*."""
        layout = self.layouts[access.name]
        where = [self._coordinate(access.subscripts[dim], variables, unit) for dim in layout.order]
        rooted = layout.is_rooted and bool(layout.order)
        return Load(self.buffers[access.name], (*(() if rooted else (unit,)), *where))

    def _coordinate(
        self, subscript: str | Access, variables: Mapping[str, Expr], unit: Expr
    ) -> Expr:
        """Return the coordinate that *subscript* is: that of an index, or one that is data."""
        if isinstance(subscript, str):
            return variables[subscript]
        return self.load(subscript, variables, unit)
