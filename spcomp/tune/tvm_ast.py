"""Beside flat IR: a statement of TVM, written as nested lists, as a flat function."""

from __future__ import annotations

from typing import Any

from spcomp.dtypes import DType, dtype, int64
from spcomp.errors import ArgumentError
from spcomp.ir.access import Load
from spcomp.ir.axis import Buffer
from spcomp.ir.expr import CALLS, BinOp, BinOpKind, Call, Cast, Expr, Select, UnOp, Var, const
from spcomp.ir.program import FlatFunc
from spcomp.ir.stmt import THREADS, For, If, LoopKind, Stmt, Store, seq

_LOOPS: dict[str, LoopKind] = {
    "serial": "serial",
    "parallel": "parallel",
    "vectorize": "vectorized",
    "unroll": "unroll",
}
# fmt: off
_OPERATORS: dict[str, BinOpKind] = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "mod": "%", "floordiv": "//", "floormod": "%",
    "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!=",
    "min": "min", "max": "max", "and": "and", "or": "or",
}
# fmt: on


def from_tvm_ast(ast: list[Any]) -> FlatFunc:
    """Return a statement of TVM, lowered to one-dimensional accesses, as a flat function.

    It is for ``get_itervar_feature``: the buffers have no sizes, so it cannot run. Nodes are
    ``[for, var, uid, extent, kind, body]``, ``[attr, key, var, uid, extent, body]``,
    ``[store, buffer, value, index]``, ``[load, dtype, buffer, index]``, ``[seq, ...]``,
    ``[if, condition, then, else]``, ``[var, name, uid]``, ``[imm, dtype, value]``,
    ``[operator, dtype, a, b]``, ``[call, dtype, name, ...]`` and ``[cast, dtype, value]``. Raises
    ArgumentError for any other.
    """
    return FlatFunc("tvm", (), (), (), _Reader().stmt(ast))


class _Reader:
    def __init__(self) -> None:
        self.vars: dict[tuple[str, int], Var] = {}
        self.buffers: dict[str, Buffer] = {}

    def stmt(self, ast: Any) -> Stmt:
        match ast:
            case ["for", str(name), int(uid), extent, str(kind), body] if kind in _LOOPS:
                end = self.expr(extent)
                return For(self._var(name, uid), const(0), end, self.stmt(body), _LOOPS[kind])
            case ["attr", "thread_extent", str(name), int(uid), int(extent), body]:
                return self._bound(self._var(name, uid), extent, body, name)
            case ["attr", "virtual_thread", str(name), int(uid), int(extent), body]:
                return self._bound(self._var(name, uid), extent, body, "vthread")
            case ["attr", str(key), *_, body] if key not in ("thread_extent", "virtual_thread"):
                return self.stmt(body)
            case ["store", str(name), value, index]:
                stored = self.expr(value)
                buffer = self._buffer(name, str(stored.dtype))
                return Store(buffer, (self.expr(index),), stored)
            case ["seq", *parts]:
                return seq(*map(self.stmt, parts))
            case ["if", cond, then, *otherwise] if len(otherwise) <= 1:
                other = next((self.stmt(side) for side in otherwise if side is not None), None)
                return If(self.expr(cond), self.stmt(then), other)
        raise _unknown(ast, "statement")

    def expr(self, ast: Any) -> Expr:
        match ast:
            case ["var", str(name), int(uid)]:
                return self._var(name, uid)
            case ["imm", str(type_), int() | float() as value]:
                return const(value, _dtype(type_))
            case ["load", str(type_), str(name), index]:
                return Load(self._buffer(name, type_), (self.expr(index),))
            case ["cast", str(type_), value]:
                return Cast(self.expr(value), _dtype(type_))
            case ["not", _, value]:
                return UnOp("not", self.expr(value))
            case ["select", _, cond, then, otherwise]:
                return Select(self.expr(cond), self.expr(then), self.expr(otherwise))
            case [str(op), _, lhs, rhs] if op in _OPERATORS:
                return BinOp(_OPERATORS[op], self.expr(lhs), self.expr(rhs))
            case ["call", _, str(name), *args]:
                return self._call(name.removeprefix("tir."), args, ast)
        raise _unknown(ast, "expression")

    def _call(self, name: str, args: list[Any], ast: Any) -> Expr:
        values = tuple(map(self.expr, args))
        if name == "likely" and len(values) == 1:
            return values[0]
        if name == "if_then_else" and len(values) == 3:
            return Select(*values)
        if name in CALLS and values:
            return Call(name, values)
        raise _unknown(ast, "call")

    def _bound(self, var: Var, extent: int, body: Any, thread: str) -> Stmt:
        if thread not in THREADS:
            raise ArgumentError(f"no index of a grid: {thread!r}", hint=", ".join(THREADS))
        return For(var, const(0), const(extent), self.stmt(body), "bound", thread)

    def _var(self, name: str, uid: int) -> Var:
        return self.vars.setdefault((name, uid), Var(name, int64))

    def _buffer(self, name: str, type_: str) -> Buffer:
        return self.buffers.setdefault(name, Buffer(name, None, (const(0),), _dtype(type_)))


def _dtype(name: str) -> DType:
    try:
        return dtype(name)
    except ValueError as error:
        raise ArgumentError(str(error)) from error


def _unknown(ast: Any, what: str) -> ArgumentError:
    return ArgumentError(f"not a TVM {what}: {ast!r:.200}")
