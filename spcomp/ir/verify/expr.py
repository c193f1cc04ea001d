"""Under the verifier: dtypes, scopes and indices of expressions."""

from __future__ import annotations

from typing import ClassVar, NoReturn

from spcomp.dtypes import DType, bool_, int64
from spcomp.errors import InternalError
from spcomp.ir.access import Load, Search, Stored
from spcomp.ir.analysis.forest import layout_conflict
from spcomp.ir.arith.bounds import dtype_range
from spcomp.ir.axis import AnyBuffer, Axis, Buffer, SparseBuffer
from spcomp.ir.expr import (
    ARITY,
    CALLS,
    COMPARISONS,
    BinOp,
    Broadcast,
    Call,
    Cast,
    Const,
    Expr,
    Ramp,
    Reduce,
    Select,
    UnOp,
    Var,
)
from spcomp.ir.func import Func
from spcomp.ir.node import Node
from spcomp.ir.position import Region
from spcomp.ir.stmt import Store
from spcomp.ir.visitor import Visitor

_ARITHMETIC = frozenset({"+", "-", "*", "/", "//", "%", "min", "max"})
_SHIFTS = frozenset({"<<", ">>"})
_FLOAT_CALLS = CALLS - {"abs", "pow", "floor", "ceil", "round", "trunc", "fma", "popcount"}


class ExprVerifier(Visitor[None]):
    """Checks expressions in the scope of the statement that is being checked."""

    LEVEL: ClassVar[str]
    COVERS: ClassVar[tuple[type[Node], ...]] = (
        *(Var, Const, BinOp, UnOp, Cast, Select, Call, Load, Stored, Search),
        *(Ramp, Broadcast, Reduce),
    )

    def __init__(self, func: Func, after: str) -> None:
        self.func, self.after = func, after
        self.scope: set[Var] = set(func.params)
        self.buffers: set[AnyBuffer] = set(func.buffers)
        self.axes: set[Axis] = set(func.axes)

    def fail(self, message: str, node: Node) -> NoReturn:
        """Raise InternalError with the function's name and the span of *node*."""
        place = f" ({node.span})" if node.span is not None else ""
        text = f"{self.LEVEL} function {self.func.name}: {message}{place}"
        raise InternalError(self.after, text, message, node.span)

    # Checks that several nodes share

    def same(self, a: Expr, b: Expr, what: str) -> None:
        """Check that two operands have one dtype."""
        if a.dtype != b.dtype:
            self.fail(f"{what} combines {a.dtype} and {b.dtype}", a)

    def integer(self, expr: Expr, what: str) -> None:
        """Check a scalar integer."""
        self.visit(expr)
        if not expr.dtype.is_integer or expr.dtype.lanes > 1:
            self.fail(f"{what} has dtype {expr.dtype}, not an integer", expr)

    def boolean(self, expr: Expr, what: str, lanes: int = 1) -> None:
        """Check a condition of *lanes*."""
        self.visit(expr)
        if expr.dtype != bool_.with_lanes(lanes):
            self.fail(f"{what} has dtype {expr.dtype}, not {bool_.with_lanes(lanes)}", expr)

    def check_buffer(self, buffer: AnyBuffer) -> None:
        """Check that *buffer* can exist at this level, whether declared or allocated."""
        if isinstance(buffer, SparseBuffer):
            for axis in buffer.axes:
                if axis not in self.axes:
                    self.fail(f"axis {axis.name} of {buffer.name} is not declared", buffer)
            if (conflict := layout_conflict(buffer.axes)) is not None:
                self.fail(conflict.message, buffer)
            return
        for extent in (*buffer.shape, *(buffer.strides or ())):
            self.integer(extent, f"an extent of {buffer.name}")
        if buffer.strides is not None and len(buffer.strides) != len(buffer.shape):
            self.fail(f"{buffer.name} has not one stride for each dimension", buffer)

    def access(self, node: Load | Store) -> int:
        """Check buffer, indices and mask; return the lanes of the index."""
        buffer = node.buffer
        self.in_scope(buffer, node)
        rank = len(buffer.shape if isinstance(buffer, Buffer) else buffer.axes)
        if len(node.indices) != rank:
            self.fail(f"{buffer.name} has {rank} axes, {len(node.indices)} indices", node)
        lanes = 1
        for place, index in enumerate(node.indices):
            if index is None:
                self.missing_index(node, place)
                continue
            self.visit(index)
            lanes = index.dtype.lanes
            if not index.dtype.is_integer:
                self.fail(f"an index of {buffer.name} has dtype {index.dtype}", node)
            self.vector(index.dtype, node)
        if node.mask is not None:
            self.flat_only("a mask", node)
            self.boolean(node.mask, f"the mask of {buffer.name}", lanes)
        return lanes

    def in_scope(self, buffer: AnyBuffer, node: Node) -> None:
        """Check that *buffer* is declared or allocated around *node*."""
        if buffer not in self.buffers:
            self.fail(f"buffer {buffer.name} is not declared here", node)

    def missing_index(self, node: Load | Store | Region, place: int) -> None:
        """Check that the level allows an index to be left out at *place*."""
        self.fail(f"index {place} of {node.buffer.name} is missing", node)

    def flat_only(self, what: str, node: Node) -> None:
        """Refuse *what* above the flat level."""
        self.fail(f"{what} stands above the flat level", node)

    def vector(self, dtype: DType, node: Node) -> None:
        """Refuse a vector above the flat level."""
        if dtype.lanes > 1:
            self.flat_only(f"a vector of {dtype}", node)

    # Nodes

    def visit_Var(self, node: Var) -> None:
        """Check that the variable is bound and no handle."""
        if node not in self.scope:
            self.fail(f"variable {node.name} is not bound here", node)
        if node.dtype.kind == "handle":
            self.fail(f"the handle {node.name} is used as a value", node)

    def visit_Const(self, node: Const) -> None:
        """Check that the type holds the value."""
        number = float if node.type.is_float else bool if node.type == bool_ else int
        if type(node.value) is not number:
            self.fail(f"a literal of {node.type} is {node.value!r}", node)
        if number is int and int(node.value) not in dtype_range(node.type):
            self.fail(f"the literal {node.value} does not fit {node.type}", node)

    def visit_BinOp(self, node: BinOp) -> None:
        """Check that both sides have one dtype, which the operator takes."""
        self.visit(node.lhs)
        self.visit(node.rhs)
        self.same(node.lhs, node.rhs, f"operator {node.op}")
        dtype = node.lhs.dtype
        if node.op in COMPARISONS:
            fits = True
        elif node.op in ("and", "or"):
            fits = dtype.kind == "bool"
        elif node.op in _ARITHMETIC:
            fits = dtype.is_float or (dtype.is_integer and node.op != "/")
        else:
            fits = dtype.is_integer or (dtype.kind == "bool" and node.op not in _SHIFTS)
        if not fits:
            self.fail(f"operator {node.op} on {dtype}", node)

    def visit_UnOp(self, node: UnOp) -> None:
        """Check the operand's dtype."""
        self.visit(node.value)
        dtype = node.dtype
        fits = {
            "-": dtype.is_integer or dtype.is_float,
            "not": dtype.kind == "bool",
            "~": dtype.is_integer or dtype.kind == "bool",
        }
        if not fits[node.op]:
            self.fail(f"operator {node.op} on {dtype}", node)

    def visit_Cast(self, node: Cast) -> None:
        """Check that a cast changes the element type only."""
        self.visit(node.value)
        if node.type.kind == "handle" or node.type.lanes != node.value.dtype.lanes:
            self.fail(f"a cast from {node.value.dtype} to {node.type}", node)

    def visit_Select(self, node: Select) -> None:
        """Check the condition and that both sides have one dtype."""
        self.visit(node.then)
        self.visit(node.otherwise)
        self.same(node.then, node.otherwise, "a select")
        self.boolean(node.cond, "a select's condition", node.cond.dtype.lanes)
        if node.cond.dtype.lanes not in (1, node.then.dtype.lanes):
            self.fail(f"a select by {node.cond.dtype} of {node.then.dtype}", node)

    def visit_Call(self, node: Call) -> None:
        """Check the function's name, number and dtype of arguments."""
        if node.func not in CALLS or len(node.args) != ARITY[node.func]:
            self.fail(f"a call of {node.func} with {len(node.args)} arguments", node)
        for arg in node.args:
            self.visit(arg)
            self.same(node.args[0], arg, node.func)
        dtype = node.args[0].dtype
        needs_float = node.func in _FLOAT_CALLS
        fits = dtype.is_float if needs_float else dtype.is_float or dtype.is_integer
        if not fits or (node.func == "popcount" and dtype.is_float):
            self.fail(f"a call of {node.func} on {dtype}", node)

    def visit_Load(self, node: Load) -> None:
        """Check the access."""
        self.access(node)

    def visit_Stored(self, node: Stored) -> None:
        """Refuse it; the verifier of the coordinate level allows it."""
        self.fail("T.stored stands below the coordinate level", node)

    def visit_Search(self, node: Search) -> None:
        """Check the range, and that the key can be compared with the values."""
        self.in_scope(node.buffer, node)
        self.integer(node.begin, "the begin of a search")
        self.integer(node.end, "the end of a search")
        self.visit(node.key)
        key, values = node.key.dtype, node.buffer.dtype
        if key.is_float != values.is_float or key.lanes > 1:
            self.fail(f"a search for {key} in {values}", node)
        if node.kind == "probe" and not (key.is_integer and values.kind == "int"):
            self.fail(f"a probe for {key} in {values}", node)
        if node.slope and (
            key != int64 or values.kind != "int" or node.kind not in ("lower", "upper")
        ):
            self.fail(f"a search with a slope for {key} in {values}", node)
        if abs(node.slope) >> 31:
            self.fail(f"a search with the slope {node.slope}", node)

    def visit_Ramp(self, node: Ramp) -> None:
        """Check a vector of integers."""
        self.flat_only("a ramp", node)
        self.integer(node.base, "the base of a ramp")
        self._lanes(node.lanes, node)

    def visit_Broadcast(self, node: Broadcast) -> None:
        """Check a vector of one scalar."""
        self.flat_only("a broadcast", node)
        self.visit(node.value)
        self._lanes(node.lanes, node)
        if node.value.dtype.lanes > 1:
            self.fail(f"a broadcast of {node.value.dtype}", node)

    def visit_Reduce(self, node: Reduce) -> None:
        """Check the combination of lanes."""
        self.flat_only("a vector reduction", node)
        self.visit(node.value)
        if node.op not in ("+", "*", "min", "max") or node.value.dtype.lanes < 2:
            self.fail(f"a reduction by {node.op} of {node.value.dtype}", node)

    def _lanes(self, lanes: int, node: Node) -> None:
        if lanes < 2:
            self.fail(f"a vector of {lanes} lanes", node)
