"""Under the verifier: scopes and statements, those of all levels and those of each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import ClassVar, get_args

from spcomp.dtypes import HOLE, DType, int64
from spcomp.ir.access import Load, Stored
from spcomp.ir.axis import (
    AnyBuffer,
    Attach,
    Axis,
    Buffer,
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
from spcomp.ir.func import Func
from spcomp.ir.node import Node
from spcomp.ir.position import Block, Cursor, Merge, Region
from spcomp.ir.stmt import (
    THREADS,
    WARPS,
    Alloc,
    Barrier,
    Evaluate,
    Fail,
    For,
    If,
    Let,
    LoopKind,
    Prefetch,
    Prefix,
    Print,
    Seq,
    Store,
    While,
    prefixes,
)
from spcomp.ir.verify.expr import ExprVerifier


class StmtVerifier(ExprVerifier):
    """Checks the statements that all levels have."""

    def __init__(self, func: Func, after: str) -> None:
        super().__init__(func, after)
        self.bound: set[Var] = set(func.params)
        self.counted: set[Prefix] = set()  # in the bodies of the loops around

    @contextmanager
    def binding(self, variables: Iterable[Var], node: Node) -> Iterator[None]:
        """Let *variables* be in scope; each may be bound only once in a function."""
        outer = self.scope
        self.scope = set(outer)
        for var in variables:
            if var in self.bound:
                self.fail(f"variable {var.name} is bound twice", node)
            self.bound.add(var)
            self.scope.add(var)
        yield
        self.scope = outer

    def of_dtype(self, expr: Expr, dtype: DType, what: str) -> None:
        """Check an expression and its dtype."""
        self.visit(expr)
        if expr.dtype != dtype:
            self.fail(f"{what} has dtype {expr.dtype}, not {dtype}", expr)

    def visit_Node(self, node: Node) -> None:
        """Refuse a node that has no meaning at this level."""
        self.fail(f"{type(node).__name__} does not belong to this level", node)

    def visit_Seq(self, node: Seq) -> None:
        """Check the statements."""
        for stmt in node.body:
            self.visit(stmt)

    def visit_Let(self, node: Let) -> None:
        """Check the value outside the scope of the variable."""
        self.of_dtype(node.value, node.var.dtype, f"the value of {node.var.name}")
        with self.binding([node.var], node):
            self.visit(node.body)

    def visit_Store(self, node: Store) -> None:
        """Check the access and that the value has the buffer's dtype."""
        lanes = self.access(node)
        dtype = node.buffer.dtype.with_lanes(lanes)
        self.of_dtype(node.value, dtype, f"a value stored in {node.buffer.name}")

    def visit_If(self, node: If) -> None:
        """Check the condition and both sides."""
        self.boolean(node.cond, "a condition")
        self.visit(node.then)
        if node.otherwise is not None:
            self.visit(node.otherwise)

    def visit_For(self, node: For) -> None:
        """Check that bounds and variable are int64, and the kind."""
        for part in (node.begin, node.end):
            self.of_dtype(part, int64, f"a bound of loop {node.var.name}")
        if node.var.dtype != int64 or node.kind not in get_args(LoopKind):
            self.fail(f"loop {node.var.name} is {node.kind}, over {node.var.dtype}", node)
        if (node.kind == "bound") != bool(node.thread) or node.thread not in ("", *THREADS):
            self.fail(f"loop {node.var.name} is {node.kind}, its thread {node.thread!r}", node)
        grain = dict(node.attrs).get("grain", 1)
        if not isinstance(grain, int) or grain < 1:
            self.fail(f"loop {node.var.name} has the grain {grain!r}", node)
        self.counted |= set(prefixes(node.body))
        with self.binding([node.var], node):
            self.visit(node.body)

    def visit_Prefix(self, node: Prefix) -> None:
        """Check that each iteration of a loop reaches the prefix once."""
        if node not in self.counted:
            self.fail(f"prefix {node.var.name} is not in the body of a loop, or conditional", node)
        self.of_dtype(node.amount, int64, f"the amount of {node.var.name}")
        if node.var.dtype != int64:
            self.fail(f"prefix {node.var.name} has dtype {node.var.dtype}", node)
        with self.binding([node.var], node):
            self.visit(node.body)

    def visit_While(self, node: While) -> None:
        """Check the condition and the body."""
        self.boolean(node.cond, "a loop's condition")
        self.visit(node.body)

    def visit_Alloc(self, node: Alloc) -> None:
        """Check that the buffer is new and has no handle."""
        if node.buffer.data is not None or node.buffer in self.buffers:
            self.fail(f"buffer {node.buffer.name} is allocated and declared", node)
        self.check_buffer(node.buffer)
        self.buffers.add(node.buffer)
        self.visit(node.body)
        self.buffers.remove(node.buffer)

    def visit_Evaluate(self, node: Evaluate) -> None:
        """Check the value."""
        self.visit(node.value)

    def visit_Fail(self, node: Fail) -> None:
        """Check the values, and that the message has a place for each."""
        self._message(node, "T.fail")

    def visit_Print(self, node: Print) -> None:
        """Check the values, and that the message has a place for each."""
        self._message(node, "T.print")

    def _message(self, node: Fail | Print, name: str) -> None:
        for value in node.values:
            self.visit(value)
            if value.dtype.lanes > 1 or value.dtype.kind == "handle":
                self.fail(f"{name} shows numbers, not a {value.dtype}", node)
        if node.values and node.message.count(HOLE) != len(node.values):
            self.fail(f"{name} has not as many values as holes for them", node)

    def visit_Barrier(self, node: Barrier) -> None:
        """Check the number of lanes."""
        if node.lanes not in (0, *WARPS):
            self.fail(f"a barrier of {node.lanes} lanes", node)

    def visit_Prefetch(self, node: Prefetch) -> None:
        """Check the access."""
        self.access(Load(node.buffer, node.indices))


class CoordVerifier(StmtVerifier):
    """Coordinate level: adds sparse iterations."""

    LEVEL = "coordinate"
    COVERS: ClassVar[tuple[type[Node], ...]] = (SpIter,)

    def __init__(self, func: Func, after: str) -> None:
        super().__init__(func, after)
        self.running: set[Axis] = set()  # axes of the iterations around

    def visit_Stored(self, node: Stored) -> None:
        """Check that the operand is an element, and check that."""
        if not isinstance(node.element, Load):
            self.fail("T.stored asks for no element", node)
        self.visit(node.element)

    def visit_SpIter(self, node: SpIter) -> None:
        """Check kinds, variables and domains, then init without the reduction variables."""
        width = sum(map(domain_width, node.domains))
        if not width == len(node.vars) == len(node.kinds) or set(node.kinds) - {"S", "R"}:
            counts = f"{width} domain variables, {len(node.vars)} variables, kinds {node.kinds!r}"
            self.fail(f"iteration {node.name} has {counts}", node)
        if any(var.dtype != int64 for var in node.vars):
            self.fail(f"iteration {node.name} has a variable that is not int64", node)
        outer, self.running = self.running, set(self.running)
        for domain in node.domains:
            self._domain(domain, node)
        with self.binding(node.vars, node):
            if node.init is not None:
                self._init(node, node.init)
            self.visit(node.body)
        self.running = outer

    def _init(self, node: SpIter, init: Node) -> None:
        reduction_vars = {v for v, kind in zip(node.vars, node.kinds, strict=True) if kind == "R"}
        full, self.scope = self.scope, self.scope - reduction_vars
        self.visit(init)
        self.scope = full

    def _domain(self, domain: Domain, node: SpIter) -> None:
        """Check that the axes are declared and that their parents are run over."""
        axes = domain_axes(domain)
        before = set(self.running)
        self._shape(domain, node)
        parts = domain.parts if isinstance(domain, Union | Intersect) else (domain,)
        attached = {part.axis: part.to for part in parts if isinstance(part, Attach)}
        for axis, to in attached.items():
            if to not in self.running:
                self.fail(f"{axis.name} is attached to {to.name}, not run over", node)
        for axis in axes:
            if axis not in self.axes:
                self.fail(f"axis {axis.name} of iteration {node.name} is not declared", node)
            above = self.running if isinstance(domain, Fuse | Flatten) else before
            free = axis.parent is None or axis in attached
            if not free and axis.parent not in above:
                self.fail(f"iteration {node.name} runs over {axis.name} without its parent", node)
            self.running.add(axis)

    def _shape(self, domain: Domain, node: SpIter) -> None:
        """Check that the axes suit the class of the domain."""
        match domain:
            case Fuse(axes=axes) | Flatten(axes=axes):
                fits = len(axes) > 0 and all(b.parent is a for a, b in pairwise(axes))
            case Union(parts=parts) | Intersect(parts=parts):
                fits = len(parts) > 1 and all(isinstance(part, Axis | Attach) for part in parts)
            case Attach(axis=axis):
                fits = axis.parent is not None
            case _:
                fits = True
        if not fits:
            self.fail(f"iteration {node.name} has a {type(domain).__name__} of no such axes", node)


class PosVerifier(StmtVerifier):
    """Position level: adds blocks and merges; blocks, loops, local buffers have unique names."""

    LEVEL = "position"
    COVERS: ClassVar[tuple[type[Node], ...]] = (Block, Merge)

    def __init__(self, func: Func, after: str) -> None:
        super().__init__(func, after)
        self.names: dict[str, set[str]] = {"block": set(), "loop": set(), "buffer": set()}

    def visit_For(self, node: For) -> None:
        """Check the loop and that its name is unique."""
        self._name("loop", node.var.name, node)
        super().visit_For(node)

    def visit_Alloc(self, node: Alloc) -> None:
        """Check the buffer and that its name is unique."""
        self._name("buffer", node.buffer.name, node)
        super().visit_Alloc(node)

    def visit_Block(self, node: Block) -> None:
        """Check iters outside, and regions, guard, init and body inside their scope."""
        self._name("block", node.name, node)
        for it in node.iters:
            self.of_dtype(it.value, int64, f"the value of {it.var.name}")
            self.integer(it.extent, f"the extent of {it.var.name}")
            if it.var.dtype != int64 or it.kind not in ("S", "R"):
                self.fail(f"block variable {it.var.name} is {it.var.dtype} {it.kind}", node)
        with self.binding([it.var for it in node.iters], node):
            for region in (*node.reads, *node.writes):
                self._region(region)
            if node.where is not None:
                self.boolean(node.where, f"the guard of block {node.name}")
            if node.init is not None:
                full = self.scope
                self.scope = full - {it.var for it in node.iters if it.kind == "R"}
                self.visit(node.init)
                self.scope = full
            self.visit(node.body)

    def visit_Merge(self, node: Merge) -> None:
        """Check cursors outside, and cases inside the scope of their variables."""
        for cursor in node.cursors:
            self._cursor(cursor)
        present = [case.present for case in node.cases]
        wrong = any(len(p) != len(node.cursors) for p in present)
        if len(set(present)) < len(present) or wrong or not node.cursors:
            self.fail(f"a merge of {len(node.cursors)} cursors has the cases {present}", node)
        if node.coordinate.dtype != int64 or node.kind not in ("union", "intersect"):
            self.fail(f"a merge is {node.kind}, over {node.coordinate.dtype}", node)
        with self.binding([node.coordinate, *(cursor.pos for cursor in node.cursors)], node):
            full = self.scope
            for case in node.cases:
                cursors = zip(node.cursors, case.present, strict=True)
                self.scope = full - {cursor.pos for cursor, is_present in cursors if not is_present}
                self.visit(case.body)
            self.scope = full

    def missing_index(self, node: Load | Store | Region, place: int) -> None:
        """Check that an axis below the one left out has an absolute position."""
        axes: tuple[Axis, ...] = getattr(node.buffer, "axes", ())
        indices = node.begins if isinstance(node, Region) else node.indices
        below = list(zip(axes, indices, strict=True))[place + 1 :] if axes else []
        if not any(index is not None and axes[place] in axis.path() for axis, index in below):
            super().missing_index(node, place)

    def _cursor(self, cursor: Cursor) -> None:
        for part in (cursor.begin, cursor.end):
            self.of_dtype(part, int64, f"a bound of cursor {cursor.pos.name}")
        if cursor.pos.dtype != int64:
            self.fail(f"cursor {cursor.pos.name} has dtype {cursor.pos.dtype}", cursor)
        if cursor.indices is not None:
            self.in_scope(cursor.indices, cursor)
            if not cursor.indices.dtype.is_integer:
                self.fail(f"a merge over {cursor.indices.name}, no integers", cursor)

    def _region(self, region: Region) -> None:
        buffer = region.buffer
        self.in_scope(buffer, region)
        rank = len(buffer.shape if isinstance(buffer, Buffer) else buffer.axes)
        if not len(region.begins) == len(region.extents) == rank:
            self.fail(f"a region of {buffer.name} has not {rank} ranges", region)
        for place, part in enumerate(zip(region.begins, region.extents, strict=True)):
            if part == (None, None):
                self.missing_index(region, place)
                continue
            for bound in part:
                if bound is None:
                    self.fail(f"a range of a region of {buffer.name} has one bound", region)
                self.integer(bound, f"a bound of a region of {buffer.name}")

    def _name(self, what: str, name: str, node: Node) -> None:
        if name in self.names[what]:
            self.fail(f"{what} {name} occurs twice", node)
        self.names[what].add(name)


class FlatVerifier(StmtVerifier):
    """Flat level: one-dimensional buffers, vectors and masks."""

    LEVEL = "flat"

    def check_buffer(self, buffer: AnyBuffer) -> None:
        """Check that the buffer is an array of one dimension."""
        if isinstance(buffer, SparseBuffer) or len(buffer.shape) != 1 or buffer.strides:
            self.fail(f"buffer {buffer.name} is not one-dimensional", buffer)
        super().check_buffer(buffer)

    def flat_only(self, what: str, node: Node) -> None:
        """Allow everything."""
