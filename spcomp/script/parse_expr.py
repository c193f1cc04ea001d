"""Python syntax to expressions: names, literals, operators and accesses, each with its dtype."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from spcomp.dtypes import DType, int64
from spcomp.ir.access import Load
from spcomp.ir.arith.fold import fold
from spcomp.ir.axis import AnyBuffer, Axis, SparseBuffer
from spcomp.ir.expr import BinOpKind, Call, Expr, Select, UnOp, UnOpKind, Var
from spcomp.ir.promotion import (
    BINARY_OPS,
    Value,
    arguments,
    combine,
    folds,
    implicit,
    literal,
    resolve,
    truth,
    unify,
)
from spcomp.script.scope import MISSING, Context, describe

if TYPE_CHECKING:
    from collections.abc import Callable

_UNARY: dict[type[ast.AST], UnOpKind] = {ast.USub: "-", ast.Not: "not", ast.Invert: "~"}
_FOLDED = (ast.Constant, ast.BoolOp, ast.Compare, ast.UnaryOp, ast.BinOp)
_BUILTINS = frozenset({"min", "max", "abs", "round", "pow"})  # Python's, taken as T's


class Calls(Protocol):
    """The parser of calls of the language's own functions: the module parse_call."""

    def parse(self, ex: Expressions, name: str, call: ast.Call, /) -> Value:
        """Return the value of ``T.name(...)``."""

    def extreme(self, ex: Expressions, name: str, values: list[Value], node: ast.AST, /) -> Value:
        """Return the minimum or maximum of two or more *values*."""


class Expressions:
    """Parses the expressions of one function; *calls* parses calls of the language's functions."""

    def __init__(self, ctx: Context, calls: Calls) -> None:
        self.ctx, self.calls = ctx, calls

    # -- what a place asks for ----------------------------------------------------------------

    def value(self, node: ast.expr) -> Value:
        """Return the operand that *node* spells."""
        handler = self._HANDLERS.get(type(node))
        if handler is None:
            what = type(node).__name__.lower()
            raise self.ctx.error(node, f"a script has no expression of the kind {what}")
        return handler(self, node)

    def expr(self, node: ast.expr) -> Expr:
        """Return *node* on its own: its type does not depend on another operand."""
        value = self.value(node)
        with self.ctx.blame(node):
            return resolve(value)

    def stored(self, node: ast.expr, dtype: DType) -> Expr:
        """Return *node* converted to *dtype* as by a store."""
        return self.stored_value(self.value(node), dtype, node)

    def stored_value(self, value: Value, dtype: DType, node: ast.AST) -> Expr:
        """Return *value*, written at *node*, converted to *dtype* as by a store."""
        hint = f'convert it: T.cast(value, "{dtype.element}")' if not value.weak else ""
        with self.ctx.blame(node, hint or f"write a literal that {dtype.element} holds"):
            return implicit(value, dtype)

    def condition(self, node: ast.expr) -> Expr:
        """Return *node* as a bool."""
        value = self.value(node)
        with self.ctx.blame(node):
            return truth(value)

    def decided(self, node: ast.expr) -> bool | None:
        """Return what Python values around the script make of the condition *node*, else None.

        A condition of literals alone stays in the program.
        """
        if not any(isinstance(part, ast.Name) for part in ast.walk(node)) or not self._known(node):
            return None
        return bool(self.number(node))

    def _known(self, node: ast.expr) -> bool:
        """Whether *node* consists of literals and Python numbers."""
        if isinstance(node, ast.Name | ast.Attribute):
            return self.ctx.number(node) is not None
        parts = (part for part in ast.iter_child_nodes(node) if isinstance(part, ast.expr))
        return isinstance(node, _FOLDED) and all(map(self._known, parts))

    def count(self, node: ast.expr) -> Expr:
        """Return *node* as an int64: the bound of a loop, an extent, an absolute position."""
        return self.stored(node, int64)

    def integer(self, node: ast.expr) -> Expr:
        """Return *node*, an integer of any width."""
        expr = self.expr(node)
        if not expr.dtype.is_integer:
            raise self.ctx.error(
                node, f"an integer is needed here, not {expr.dtype}", hint='T.cast(value, "int64")'
            )
        return expr

    def number(self, node: ast.expr) -> int | float | bool:
        """Return the Python number that is the value of *node*."""
        value = self.value(node)
        number = getattr(value.expr, "value", None)
        if not isinstance(number, int | float):
            raise self.ctx.error(node, "a number known when the script is read is needed here")
        return number

    def whole(self, node: ast.expr) -> int:
        """Return the Python int that is the value of *node*."""
        number = self.number(node)
        if not isinstance(number, int) or isinstance(number, bool):
            raise self.ctx.error(node, "a whole number is needed here")
        return number

    # -- accesses -----------------------------------------------------------------------------

    def access(self, node: ast.Subscript) -> tuple[AnyBuffer, tuple[Expr | None, ...]]:
        """Return the buffer and the indices of ``A[i, j]``."""
        buffer = self.ctx.buffer(node.value)
        return buffer, self.indices(buffer, node.slice)

    def indices(self, buffer: AnyBuffer, node: ast.expr) -> tuple[Expr | None, ...]:
        """Return the indices *node* into *buffer*, as many as it has dimensions."""
        parts = index_parts(node)
        self.check_rank(buffer, len(parts), node)
        return tuple(self.index(part) for part in parts)

    def index(self, node: ast.expr) -> Expr | None:
        """Return one index; ``_`` gives None, after which indices are absolute positions."""
        if isinstance(node, ast.Slice):
            raise self.ctx.error(node, "a slice has no value, only T.reads and T.writes take one")
        if isinstance(node, ast.Name) and node.id == "_":
            self.ctx.features.setdefault("an absolute position", node)
            return None
        return self.integer(node)

    def check_rank(self, buffer: AnyBuffer, count: int, node: ast.AST) -> None:
        """Raise unless *count* indices suit *buffer*."""
        sparse = isinstance(buffer, SparseBuffer)
        dims = buffer.axes if isinstance(buffer, SparseBuffer) else buffer.shape
        if len(dims) != count:
            names = ", ".join(d.name if isinstance(d, Axis) else "_" for d in dims)
            plural = "index" if len(dims) == 1 else "indices"
            raise self.ctx.error(
                node,
                f"{buffer.name} takes {len(dims)} {plural}, not {count}",
                hint=f"its axes are {names}" if sparse else "",
            )

    # -- operators ----------------------------------------------------------------------------

    def binary(self, op: BinOpKind, a: Value, b: Value, node: ast.AST) -> Value:
        """Return ``a op b``."""
        with self.ctx.blame(node):
            if folds((a, b)):
                return self._at(fold(op, (a, b)), node)
            return Value(combine(op, a, b, self.ctx.span(node)))

    def operator(self, op: ast.operator, a: Value, b: Value, node: ast.AST) -> Value:
        """Return *a* and *b* under a Python operator."""
        if isinstance(op, ast.Pow):
            return self.call("pow", [a, b], node)
        if isinstance(op, ast.MatMult):
            raise self.ctx.error(node, "@ has no meaning here", hint="iterate over the axes")
        return self.binary(BINARY_OPS[type(op)], a, b, node)

    def call(self, func: str, values: list[Value], node: ast.AST) -> Value:
        """Return the function *func* of CALLS applied to *values*."""
        with self.ctx.blame(node):
            if folds(values):
                return self._at(fold(func, values), node)
            args = arguments(func, values)
        return Value(Call(func, args, span=self.ctx.span(node)))

    def select(self, cond: Expr, then: Value, otherwise: Value, node: ast.AST) -> Value:
        """Return *then* if *cond* else *otherwise*; weak if both are."""
        with self.ctx.blame(node):
            sides = unify((then, otherwise))
        weak = then.weak and otherwise.weak
        return Value(Select(cond, *sides, span=self.ctx.span(node)), weak=weak)

    def _at(self, value: Value, node: ast.AST) -> Value:
        return Value(value.expr.replace(span=self.ctx.span(node)), weak=value.weak)

    # -- handlers, one per kind of syntax -----------------------------------------------------

    def _constant(self, node: ast.Constant) -> Value:
        if not isinstance(node.value, bool | int | float):
            raise self.ctx.error(node, f"{node.value!r} is no number")
        return self._at(literal(node.value), node)

    def _name(self, node: ast.Name) -> Value:
        binding = self.ctx.find(node.id)
        if isinstance(binding, Var) and binding.type.kind != "handle":
            return Value(binding)
        if binding is not None:
            hint = f"index it: {node.id}[...]"
            if isinstance(binding, Var):
                hint = f"match it to a buffer: X = T.match_sparse_buffer({node.id}, axes, dtype)"
            elif isinstance(binding, Axis):
                hint = "use a variable that runs over it"
            raise self.ctx.error(node, f"{node.id} is {describe(binding)}, not a value", hint=hint)
        return self._python(node, node.id)

    def _attribute(self, node: ast.Attribute) -> Value:
        name = self.ctx.syntax_name(node)
        if name is not None:
            raise self.ctx.error(node, f"T.{name} is no value")
        return self._python(node, ast.unparse(node))

    def _python(self, node: ast.expr, name: str) -> Value:
        number = self.ctx.number(node)
        if number is not None:
            return self._at(literal(number), node)
        other = self.ctx.python(node)
        if other is MISSING:
            raise self.ctx.unknown(name, node)
        raise self.ctx.error(
            node,
            f"{name} is a Python {type(other).__name__}",
            hint="a script can use Python ints, floats and bools; pass the rest as parameters",
        )

    def _bin_op(self, node: ast.BinOp) -> Value:
        return self.operator(node.op, self.value(node.left), self.value(node.right), node)

    def _bool_op(self, node: ast.BoolOp) -> Value:
        result = self.value(node.values[0])
        for other in node.values[1:]:
            result = self.binary(BINARY_OPS[type(node.op)], result, self.value(other), node)
        return result

    def _compare(self, node: ast.Compare) -> Value:
        if len(node.ops) > 1:
            first, last = ast.unparse(node.comparators[0]), ast.unparse(node.comparators[1])
            raise self.ctx.error(
                node,
                "comparisons do not chain here",
                hint=f"write ... {first} and {first} ... {last}",
            )
        if type(node.ops[0]) not in BINARY_OPS:
            raise self.ctx.error(node, "is and in have no meaning here", hint="use == or !=")
        a, b = self.value(node.left), self.value(node.comparators[0])
        return self.binary(BINARY_OPS[type(node.ops[0])], a, b, node)

    def _unary_op(self, node: ast.UnaryOp) -> Value:
        value = self.value(node.operand)
        if isinstance(node.op, ast.UAdd):
            return value
        op = _UNARY[type(node.op)]
        with self.ctx.blame(node):
            if folds((value,)):
                return self._at(fold("negative" if op == "-" else op, (value,)), node)
            operand = truth(value) if op == "not" else resolve(value)
        kind = operand.dtype.kind
        if (op == "-" and kind == "bool") or (op == "~" and operand.dtype.is_float):
            raise self.ctx.error(node, f"{op} has no meaning for {operand.dtype}")
        return Value(UnOp(op, operand, span=self.ctx.span(node)))

    def _if_exp(self, node: ast.IfExp) -> Value:
        if (known := self.decided(node.test)) is not None:
            return self.value(node.body if known else node.orelse)
        cond = self.condition(node.test)
        return self.select(cond, self.value(node.body), self.value(node.orelse), node)

    def _subscript(self, node: ast.Subscript) -> Value:
        buffer, indices = self.access(node)
        return Value(Load(buffer, indices, span=self.ctx.span(node)))

    def _call(self, node: ast.Call) -> Value:
        name = self.ctx.called(node)
        if name is None:
            return self._builtin(node)
        return self.calls.parse(self, name, node)

    def _builtin(self, node: ast.Call) -> Value:
        func = node.func
        if isinstance(func, ast.Name) and self.ctx.is_builtin(func, _BUILTINS):
            values = [self.value(arg) for arg in node.args]
            if func.id in ("min", "max") and len(values) > 1:
                return self.calls.extreme(self, func.id, values, node)
            if func.id not in ("min", "max") and len(values) == 1 + (func.id == "pow"):
                return self.call(func.id, values, node)
        raise self.ctx.error(
            node,
            f"{ast.unparse(func)} cannot be called in a script",
            hint="use the functions of T, such as T.exp",
        )

    _HANDLERS: ClassVar[dict[type[ast.AST], Callable[[Expressions, Any], Value]]] = {
        ast.Constant: _constant,
        ast.Name: _name,
        ast.Attribute: _attribute,
        ast.BinOp: _bin_op,
        ast.BoolOp: _bool_op,
        ast.Compare: _compare,
        ast.UnaryOp: _unary_op,
        ast.IfExp: _if_exp,
        ast.Subscript: _subscript,
        ast.Call: _call,
    }


def index_parts(node: ast.expr) -> list[ast.expr]:
    """Return the syntax of each index of a subscript."""
    return node.elts if isinstance(node, ast.Tuple) else [node]
