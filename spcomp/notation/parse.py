"""A string to index notation: Python's own syntax, read as mathematics."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from spcomp.errors import ScriptError, Span, did_you_mean
from spcomp.ir.expr import ARITY as CALL_ARITY
from spcomp.ir.promotion import BINARY_OPS
from spcomp.notation.access import Subscript, access_of, index_set, window_of
from spcomp.notation.nodes import (
    REDUCTIONS,
    TYPES,
    Access,
    Assignment,
    Call,
    Expr,
    IndexValue,
    Masked,
    Number,
    Op,
    Program,
    Reduce,
    Scalar,
    stored_fault,
    target_fault,
)
from spcomp.notation.text import Text, parse_text
from spcomp.notation.windows import IndexSet, Window

_UNARY: dict[type[ast.AST], str] = {ast.USub: "neg", ast.Not: "not", ast.Invert: "~"}
ARITY = CALL_ARITY | dict.fromkeys((*TYPES, "stored"), 1) | {"where": 3}
EXTREMES = {"maximum": "max", "minimum": "min"}


def parse(source: str, functions: frozenset[str] = frozenset()) -> Program:
    """Return the statements of *source*, separated by lines or semicolons.

    *functions*: the names of the user's functions. Raises ScriptError with the place in the string.
    """
    text, module = parse_text(source)
    if not module.body:
        raise ScriptError("there is no statement", text.place(1, 0), hint='write "y[i] = x[i]"')
    return Program(tuple(_Parser(text, stmt, functions).statement(stmt) for stmt in module.body))


class _Parser:
    """Reads one statement; its indices are the bare names that stand in brackets."""

    def __init__(self, text: Text, stmt: ast.stmt, functions: frozenset[str]) -> None:
        self.text, self.functions = text, functions
        self.indices = {
            name
            for node in ast.walk(stmt)
            if isinstance(node, ast.Subscript)
            for part in _parts(node.slice)
            if (name := _index_name(part)) is not None
        }

    def statement(self, stmt: ast.stmt) -> Assignment:
        """Return *stmt* as an assignment."""
        if isinstance(stmt, ast.AugAssign) and isinstance(stmt.op, (ast.Add, ast.Sub)):
            target, value = self._target(stmt.target), self.expr(stmt.value)
            subtracts = isinstance(stmt.op, ast.Sub)
            if subtracts:
                value = Op("neg", (value,), at=value.at)
            return Assignment(
                target, value, accumulates=True, subtracts=subtracts, at=self.text.span(stmt)
            )
        if isinstance(stmt, ast.Assign) and len(stmt.targets) == 1:
            target = self._target(stmt.targets[0])
            return Assignment(target, self.expr(stmt.value), at=self.text.span(stmt))
        hint = "write C[i, k] = ..., or C[i, k] += ..."
        raise self.text.error(stmt, "a statement assigns one tensor, with = or +=", hint)

    def _target(self, node: ast.expr) -> Access:
        if isinstance(node, ast.Name):
            return Access(node.id, (), at=self.text.span(node))
        if not isinstance(node, ast.Subscript):
            raise self.text.error(node, "only a tensor can be assigned", "write C[i, k] = ...")
        target = self._subscript(node)
        if fault := target_fault(target):
            raise self.text.error(node, fault)
        return target

    def expr(self, node: ast.expr) -> Expr:
        """Return *node* as a term."""
        handler = self._HANDLERS.get(type(node))
        if handler is None:
            raise self.text.error(node, f"{ast.unparse(node)} has no meaning here")
        return handler(self, node)

    def _constant(self, node: ast.Constant) -> Expr:
        if not isinstance(node.value, (bool, int, float)):
            hint = "" if node.value is not None else "A[i, j] is None: nothing is stored there"
            raise self.text.error(node, f"{ast.unparse(node)} is no number", hint)
        return Number(node.value, at=self.text.span(node))

    def _name(self, node: ast.Name) -> Expr:
        kind = IndexValue if node.id in self.indices else Scalar
        return kind(node.id, at=self.text.span(node))

    def _bin_op(self, node: ast.BinOp) -> Expr:
        at = self.text.span(node)
        args = self.expr(node.left), self.expr(node.right)
        if isinstance(node.op, ast.Pow):
            return Call("pow", args, at=at)
        if isinstance(node.op, ast.MatMult):
            hint = "write the indices: A[i, j] * B[j, k]"
            raise self.text.error(node, "@ has no meaning in index notation", hint)
        return Op(BINARY_OPS[type(node.op)], args, at=at)

    def _bool_op(self, node: ast.BoolOp) -> Expr:
        result = self.expr(node.values[0])
        for value in node.values[1:]:
            result = Op(BINARY_OPS[type(node.op)], (result, self.expr(value)), at=result.at)
        return result

    def _compare(self, node: ast.Compare) -> Expr:
        if len(node.ops) > 1:
            raise self.text.error(
                node, "comparisons do not chain here", "join two of them with and"
            )
        if isinstance(node.ops[0], (ast.Is, ast.IsNot)):
            return self._is_none(node)
        if type(node.ops[0]) not in BINARY_OPS:
            raise self.text.error(node, "in has no meaning here", "use == or !=")
        args = self.expr(node.left), self.expr(node.comparators[0])
        return Op(BINARY_OPS[type(node.ops[0])], args, at=self.text.span(node))

    def _is_none(self, node: ast.Compare) -> Expr:
        """``A[i, j] is None``: not stored."""
        none = node.comparators[0]
        if not isinstance(none, ast.Constant) or none.value is not None:
            hint = "use == or !=; A[i, j] is None asks whether nothing is stored there"
            raise self.text.error(node, "is has no meaning here, but before None", hint)
        stored = self._stored(node, (self.expr(node.left),))
        absent = isinstance(node.ops[0], ast.Is)
        return Op("not", (stored,), at=stored.at) if absent else stored

    def _stored(self, node: ast.expr, args: tuple[Expr, ...]) -> Expr:
        if fault := stored_fault(args):
            raise self.text.error(node, *fault)
        return Call("stored", args, at=self.text.span(node))

    def _unary_op(self, node: ast.UnaryOp) -> Expr:
        value = self.expr(node.operand)
        if isinstance(node.op, ast.UAdd):
            return value
        if isinstance(value, Number) and isinstance(node.op, ast.USub):
            return Number(-value.value, at=self.text.span(node))
        return Op(_UNARY[type(node.op)], (value,), at=self.text.span(node))

    def _if_exp(self, node: ast.IfExp) -> Expr:
        absent = isinstance(node.orelse, ast.Constant) and node.orelse.value is ...
        other = None if absent else self.expr(node.orelse)
        value, cond = self.expr(node.body), self.expr(node.test)
        return Masked(value, cond, other, at=self.text.span(node))

    def _subscript(self, node: ast.Subscript) -> Access:
        if not isinstance(node.value, ast.Name):
            of_it = isinstance(node.value, ast.Attribute) and node.value.attr == "T"
            hint = "a transpose is read with its indices swapped: A[j, i]" if of_it else ""
            if isinstance(node.value, ast.Subscript) and isinstance(node.value.value, ast.Name):
                hint = f"write {node.value.value.id}[i, j]"
            raise self.text.error(node, "only a tensor, called by its name, has indices", hint)
        parts = (self._index(part) for part in _parts(node.slice))
        return access_of(node.value.id, parts, self.text.span(node))

    def _index(self, part: ast.expr) -> Subscript:
        """Return what stands in brackets for one dimension."""
        if isinstance(part, ast.Subscript):
            return self._subscript(part)
        if isinstance(part, ast.Name):
            return part.id, None
        if isinstance(part, ast.Slice):
            return self._window(part, (part.lower, part.upper, part.step), counts=False)
        if isinstance(part, ast.Call) and isinstance(part.func, ast.Name) and not part.keywords:
            if len(part.args) == 1 and isinstance(part.args[0], ast.List | ast.Set):
                return part.func.id, self._index_set(part.args[0])
            if not 1 <= len(part.args) <= 3:
                raise self.text.error(part, "a window takes start, stop and step")
            return part.func.id, self._window(part, _ends(part.args), counts=True)
        whole = self._whole(part)
        if whole is None:
            hint = "an index is a name, a part of one, i(0, 10, 2) or i([1, 5]), a slice, a number"
            if any(isinstance(inner, ast.Subscript) for inner in ast.walk(part)):
                hint = "an index vector stands alone, X[p[i], k]: compute it before"
            raise self.text.error(part, f"{ast.unparse(part)} is no index", hint)
        return whole

    def _index_set(self, node: ast.List | ast.Set) -> IndexSet:
        numbers = [self._whole(element) for element in node.elts]
        return index_set(numbers, is_set=isinstance(node, ast.Set), at=self.text.span(node))

    def _window(self, node: ast.expr, ends: Sequence[ast.expr | None], *, counts: bool) -> Window:
        numbers = [self._end(end) for end in ends]
        return window_of(numbers, counts=counts, at=self.text.span(node))

    def _end(self, end: ast.expr | None) -> Any:
        """Return the number that *end* is; None if nothing is written."""
        if end is None or (isinstance(end, ast.Constant) and end.value is None):
            return None
        whole = self._whole(end)
        return end if whole is None else whole

    def _whole(self, node: ast.expr) -> int | None:
        sign = 1
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            sign, node = -1, node.operand
        if isinstance(node, ast.Constant) and type(node.value) is int:
            return sign * node.value
        return None

    def _call(self, node: ast.Call) -> Expr:
        func = node.func
        if not isinstance(func, ast.Name) or node.keywords:
            name = func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "")
            hint = f"write {name}(...)" if name in {*ARITY, *EXTREMES} else ""
            hint = f"write {name}(k, A[i, k])" if name in REDUCTIONS else hint
            raise self.text.error(node, f"{ast.unparse(func)} cannot be called so", hint)
        name, at = func.id, self.text.span(node)
        if name in REDUCTIONS and name not in self.functions:
            over = self._over(node.args[0]) if node.args else None
            if over is not None and len(node.args) == 2:
                return Reduce(REDUCTIONS[name], over, self.expr(node.args[1]), at=at)
            if name not in ("max", "min") or len(node.args) < 2 or over is not None:
                hint = f"write {name}(k, A[i, k])"
                raise self.text.error(node, _reduction_fault(name, node.args), hint)
        args = tuple(self.expr(arg) for arg in node.args)
        if name in self.functions:
            return Call(name, args, at=at)
        if name in ("max", "min", *EXTREMES) and len(args) >= 2:
            return self._extreme(EXTREMES.get(name, name), args, at)
        if ARITY.get(name) != len(args):
            raise self.text.error(node, *_call_fault(name, len(args)))
        if name == "stored":
            return self._stored(node, args)
        return Call(name, args, at=at)

    def _extreme(self, op: str, args: tuple[Expr, ...], at: Span) -> Expr:
        result = args[0]
        for other in args[1:]:
            result = Call(f"{op}imum", (result, other), at=at)
        return result

    def _over(self, node: ast.expr) -> tuple[str, ...] | None:
        """Return the indices of a reduction; None if *node* is no index or tuple of indices."""
        parts = node.elts if isinstance(node, ast.Tuple) else [node]
        names = tuple(part.id for part in parts if isinstance(part, ast.Name))
        fits = len(names) == len(parts) > 0 and self.indices.issuperset(names)
        return names if fits else None

    _HANDLERS: ClassVar[dict[type[ast.AST], Callable[[_Parser, Any], Expr]]] = {
        ast.Constant: _constant,
        ast.Name: _name,
        ast.BinOp: _bin_op,
        ast.BoolOp: _bool_op,
        ast.Compare: _compare,
        ast.UnaryOp: _unary_op,
        ast.IfExp: _if_exp,
        ast.Subscript: _subscript,
        ast.Call: _call,
    }


def _parts(node: ast.expr) -> list[ast.expr]:
    return list(node.elts) if isinstance(node, ast.Tuple) else [node]


def _index_name(part: ast.expr) -> str | None:
    """Return the index that ``i`` or ``i(0, 10)`` in brackets names."""
    name = part.func if isinstance(part, ast.Call) else part
    return name.id if isinstance(name, ast.Name) else None


def _ends(args: Sequence[ast.expr]) -> Sequence[ast.expr | None]:
    """Return start, stop and step of ``i(stop)`` or ``i(start, stop, step)``."""
    return [None, args[0], None] if len(args) == 1 else [*args, None][:3]


def _reduction_fault(name: str, args: Sequence[ast.expr]) -> str:
    """Return what is wrong with the reduction *name* of *args*."""
    if len(args) == 2 and isinstance(args[0], ast.Name):
        return f"{name} runs over {args[0].id}, which is no index of anything"
    return f"{name} takes an index and a value"


_WRITTEN = {  # functions of other libraries, and how to write them here
    "softmax": "write three lines: m[i] = max(j, A[i, j])  and  e[i, j] = exp(A[i, j] - m[i]) if"
    " A[i, j]  and  C[i, j] = e[i, j] / sum(k, e[i, k])",
    "relu": "write maximum(x, 0)",
    "clip": "write minimum(maximum(x, low), high)",
    "sign": "write where(x > 0, 1, where(x < 0, -1, 0))",
    "square": "write x ** 2",
    "power": "write x ** y",
    "ln": "write log(x)",
    "fabs": "write abs(x)",
    "silu": "write x * sigmoid(x)",
    "mean": "write sum(j, A[i, j]) / n, and give n, how many there are",
    "norm": "write sqrt(sum(i, x[i] ** 2))",
    "dot": "write x[i] * y[i]: an index that is not in the result is summed",
    "count": "write sum(j, 1 if A[i, j]), which counts what is stored, or sum(j, A[i, j] > 0)",
    "cumsum": "no statement adds up to an index: numpy.cumsum takes a dense result",
    "if_then_else": "write a if c else b",
    "select": "write a if c else b",
}
_WRITTEN |= {"nnz": _WRITTEN["count"], "matmul": _WRITTEN["dot"], "len": _WRITTEN["mean"]}


def _call_fault(name: str, got: int) -> tuple[str, str]:
    """Return why the function *name* does not take *got* arguments, and a hint."""
    if name not in ARITY and name not in EXTREMES:
        known = did_you_mean(name, (*ARITY, *EXTREMES, *REDUCTIONS))
        meaning = f"functions={{{name!r}: lambda x: ...}} gives it a meaning"
        return f"no {name} is known", _WRITTEN.get(name) or f"{known} {meaning}".strip()
    count = ARITY.get(name, 0)
    takes = f"{count} argument{'s' * (count > 1)}" if count else "two or more arguments"
    return f"{name} takes {takes}, got {got}", ""
