"""What index notation means, on masked numpy: a value and whether it is there, at every point.

Programs are read with Python's own parser, nothing is shared with the package: a mask without an
else is to be written ``x if c else ABSENT``.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from scipy.special import erf, expit

Term: TypeAlias = tuple[Any, Any]  # a value and where it is present, broadcastable to the grid
SEMIRINGS = {
    "plus_times": ("+", "*"),
    "min_plus": ("min", "+"),
    "max_plus": ("max", "+"),
    "max_times": ("max", "*"),
    "min_max": ("min", "max"),
    "or_and": ("or", "and"),
    "plus_pair": ("+", "pair"),
    "min_second": ("min", "second"),
    "max_first": ("max", "first"),
}
REDUCTIONS = {"sum": "+", "prod": "*", "max": "max", "min": "min", "any": "or", "all": "and"}
_OPS: dict[str, Callable[..., Any]] = {
    "+": np.add,
    "-": np.subtract,
    "*": np.multiply,
    "/": np.divide,
    "//": np.floor_divide,
    "%": np.mod,
    "min": np.minimum,
    "max": np.maximum,
    "or": np.logical_or,
    "and": np.logical_and,
    "<": np.less,
    "<=": np.less_equal,
    ">": np.greater,
    ">=": np.greater_equal,
    "==": np.equal,
    "!=": np.not_equal,
    "&": np.bitwise_and,
    "|": np.bitwise_or,
    "^": np.bitwise_xor,
    "first": lambda a, _: a,
    "second": lambda _, b: b,
    "pair": lambda *_: np.int64(1),
}
_ARITHMETIC = ("+", "-", "*", "/", "//", "%", "min", "max")
_SIGNS: dict[type[ast.AST], str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.FloorDiv: "//",
    ast.Mod: "%",
    ast.BitAnd: "&",
    ast.BitOr: "|",
    ast.BitXor: "^",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.And: "and",
    ast.Or: "or",
}
_FLOATS = {"exp": np.exp, "sqrt": np.sqrt, "sigmoid": expit, "erf": erf, "tanh": np.tanh}
_CALLS = {"abs": np.abs, "maximum": np.maximum, "minimum": np.minimum, "where": np.where}
_TYPES = ("float64", "float32", "int64", "int32")


def neutral(op: str, dtype: Any) -> Any:
    """What *op* leaves everything with, in *dtype*."""
    dtype = np.dtype(dtype)
    if op in ("min", "max") and dtype.kind in "iu":
        return dtype.type(getattr(np.iinfo(dtype), "max" if op == "min" else "min"))
    if dtype.kind == "b":
        return np.bool_(op in ("and", "min", "*"))
    ends = {"+": 0, "*": 1, "min": np.inf, "max": -np.inf, "or": 0, "and": 1}
    return dtype.type(ends[op])


def number(value: Any) -> Any:
    """A bool as an int64, which it is in arithmetic."""
    return np.asarray(value).astype(np.int64) if np.asarray(value).dtype == bool else value


def combine(op: str, a: Any, b: Any) -> Any:
    """``a op b``; integers divide to float64."""
    if op in _ARITHMETIC and np.asarray(a).dtype.kind + np.asarray(b).dtype.kind == "bb":
        a, b = number(a), number(b)
    if op == "/" and np.result_type(a, b).kind in "iu":
        a = np.asarray(a).astype(np.float64)
    return _OPS[op](a, b)


@dataclass
class Oracle:
    """Evaluates statements. *sparse*: the names that a bare mask asks for stored elements."""

    arrays: dict[str, Term]
    sizes: Mapping[str, int]
    semiring: tuple[str, str] = ("+", "*")
    sparse: set[str] = field(default_factory=set)
    functions: Mapping[str, tuple[Callable[..., Any], str]] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)

    # -- statements ---------------------------------------------------------------------------

    def statement(self, stmt: ast.stmt) -> tuple[Any, Any]:
        """The result as a dense one holds it, and where a sparse one has to store it."""
        assert isinstance(stmt, (ast.Assign, ast.AugAssign))
        target = stmt.targets[0] if isinstance(stmt, ast.Assign) else stmt.target
        own = indices_of(target)
        self.names = list(dict.fromkeys([*own, *sorted(_used(stmt.value))]))
        value, present = self.addends(stmt.value, set(own))
        add = self.semiring[0]
        value = np.where(present, value, neutral(add, np.asarray(value).dtype))
        shape = tuple(self.sizes[name] for name in own)
        grid = shape + (1,) * (len(self.names) - len(own))
        done = np.broadcast_to(value, grid).reshape(shape)
        shown = np.broadcast_to(self.shown(stmt.value, set(own)), grid).reshape(shape)
        if isinstance(stmt, ast.AugAssign):
            before, stored = self.arrays[_name(target)]
            done, shown = combine(add, before, done).astype(before.dtype), stored | shown
        return done, shown

    def addends(self, node: ast.expr, bound: set[str]) -> Term:
        """*node*, where each addend is reduced over the indices that are not *bound*."""
        missing = sorted(free_indices(node) - bound)
        match node:
            case ast.Call(func=ast.Name(id=name), args=[over, body]) if (
                not missing and REDUCTIONS.get(name) == self.semiring[0]
            ):
                return self.term(node)[0], self.some(self.term(body)[1], _listed(over))
        if not missing:
            return self.term(node)
        match node:
            case ast.BinOp(left=left, op=ast.Add() | ast.Sub(), right=right):
                parts = self.addends(left, bound), self.addends(right, bound)
                return self.added(_SIGNS[type(node.op)], *parts)
            case ast.UnaryOp(op=ast.USub(), operand=inner):
                value, present = self.addends(inner, bound)
                return -number(value), present
            case ast.IfExp(body=body, orelse=ast.Name(id="ABSENT")) if not (
                set(missing) & free_indices(node.test)
            ):
                return self.where(node, self.addends(body, bound))
        term = self.term(node)
        value, _ = self.reduced(self.semiring[0], missing, term)
        return value, self.some(term[1], missing)  # of nothing: it takes no part in the sum

    def shown(self, node: ast.expr, bound: set[str]) -> Any:
        """Where *node* has something: a reduction, where there is something to reduce."""
        missing = sorted(free_indices(node) - bound)
        match node:
            case ast.BinOp(left=left, op=ast.Add() | ast.Sub(), right=right):
                return self.shown(left, bound) | self.shown(right, bound)
            case ast.UnaryOp(op=ast.USub(), operand=inner):
                return self.shown(inner, bound)
            case ast.IfExp(body=body, orelse=ast.Name(id="ABSENT")) if missing and not (
                set(missing) & free_indices(node.test)
            ):
                return self.shown(body, bound) & self.test(node)
            case ast.Call(func=ast.Name(id=name), args=[over, body]) if name in REDUCTIONS:
                if not missing:
                    return self.some(self.term(body)[1], _listed(over))
        return self.some(self.term(node)[1], missing)

    def some(self, present: Any, over: list[str]) -> Any:
        """Whether anything is present along *over*."""
        return self.along(present, over).any(axis=self.axes(over), keepdims=True)

    # -- terms --------------------------------------------------------------------------------

    def term(self, node: ast.expr) -> Term:
        """The value and the presence of *node*."""
        everywhere = np.ones((1,) * len(self.names), bool)
        match node:
            case ast.Constant(value=value):
                return value, everywhere
            case ast.Name(id=name) if name in self.names:
                return self.spread(np.arange(self.sizes[name]), [name]), everywhere
            case ast.Name(id=name):
                value, present = self.arrays[name]
                return value, everywhere & present
            case ast.Subscript():
                return self.access(node)
            case ast.IfExp():
                return self.where(node, self.term(node.body))
            case ast.UnaryOp(op=ast.USub(), operand=inner):
                value, present = self.term(inner)
                return -number(value), present
            case ast.Call(func=ast.Name(id=name)):
                return self.call(name, node.args)
        return self.operation(node)

    def operation(self, node: ast.expr) -> Term:
        """An operator: what asks whether an operand is stored has an answer everywhere."""
        match node:
            case ast.UnaryOp(op=ast.Not(), operand=inner):
                value, present = self.term(inner)
                return np.asarray(value) == 0, present
            case ast.Compare(left=inner, ops=[ast.Is() | ast.IsNot() as asks]):
                stored = self.term(inner)[1]
                found = stored if isinstance(asks, ast.IsNot) else ~stored
                return found, np.ones_like(found)
            case ast.BoolOp(op=op, values=[left, right]):
                return self.both(_SIGNS[type(op)], left, right)
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                return self.both(_SIGNS[type(op)], left, right)
            case ast.BinOp(left=left, op=ast.Pow(), right=right):
                (value, present), (power, _) = self.term(left), self.term(right)
                value = number(value)
                kept = np.asarray(value).dtype.kind == "f" or _is_number(left)
                return np.power(value if kept else np.float64(value), power), present
            case ast.BinOp(left=left, op=ast.Add() | ast.Sub() as op, right=right):
                return self.added(_SIGNS[type(op)], self.term(left), self.term(right))
            case ast.BinOp(left=left, op=op, right=right):
                sign = _SIGNS[type(op)]
                return self.both(self.semiring[1] if sign == "*" else sign, left, right)
        raise TypeError(ast.dump(node))

    def access(self, node: ast.Subscript) -> Term:
        """A tensor, or a part of it, at every point."""
        key = tuple(_window(part) for part in _parts(node.slice))
        own = indices_of(node)
        value, present = (np.asarray(array)[key] for array in self.arrays[_name(node)])
        return self.spread(value, own), self.spread(present, own)

    def spread(self, array: Any, own: list[str]) -> Any:
        """*array*, whose dimensions are the indices *own*, as part of the grid."""
        axes = [self.names.index(name) for name in own]
        array = np.einsum(array, axes, sorted(set(axes)))
        return array.reshape([self.sizes[n] if n in own else 1 for n in self.names])

    def both(self, op: str, left: ast.expr, right: ast.expr) -> Term:
        (a, has_a), (b, has_b) = self.term(left), self.term(right)
        return combine(op, a, b), has_a & has_b

    def added(self, sign: str, left: Term, right: Term) -> Term:
        """A sum, to which what is absent adds nothing."""
        op = self.semiring[0] if sign == "+" else "-"
        (a, has_a), (b, has_b) = left, right
        logical = op in ("or", "and")
        if logical:
            a, b = np.asarray(a).astype(bool), np.asarray(b).astype(bool)
        elif np.result_type(a, b).kind == "b":
            a, b = number(a), number(b)
        end = neutral("+" if op == "-" else op, np.result_type(a, b))
        kept_a = a if has_a.all() else np.where(has_a, a, end)
        kept_b = b if has_b.all() else np.where(has_b, b, end)
        return combine(op, kept_a, kept_b), has_a | has_b

    def test(self, node: ast.IfExp) -> Any:
        """Where the condition of *node* holds: a bare sparse operand asks what is stored."""
        cond, present = self.term(node.test)
        bare = isinstance(node.test, (ast.Subscript, ast.Name)) and _name(node.test) in self.sparse
        return present if bare else present & (np.asarray(cond) != 0)

    def where(self, node: ast.IfExp, body: Term) -> Term:
        """*node*, whose value is *body* where it has one."""
        (value, present), test = body, self.test(node)
        if isinstance(node.orelse, ast.Name) and node.orelse.id == "ABSENT":
            return value, present & test
        other, has_other = self.term(node.orelse)
        return np.where(test, value, other), np.where(test, present, has_other)

    def call(self, name: str, args: list[ast.expr]) -> Term:
        if name in ("argmax", "argmin"):
            return self.extreme(name, _listed(args[0])[0], self.term(args[1]))
        if name in REDUCTIONS:
            return self.reduced(REDUCTIONS[name], _listed(args[0]), self.term(args[1]))
        if name == "stored":
            stored = self.term(args[0])[1]
            return stored, np.ones_like(stored)
        parts = [self.term(arg) for arg in args]
        present = [p for _, p in parts]
        every = np.logical_and.reduce(np.broadcast_arrays(*present))
        if name in self.functions:
            func, zero = self.functions[name]
            if zero == "keep":
                return func(*(v for v, _ in parts)), every
            found = np.logical_or.reduce(np.broadcast_arrays(*present))
            return func(*(np.where(p, v, np.zeros_like(v)) for v, p in parts)), found
        values = [v if name == "where" else number(v) for v, _ in parts]
        if name in _TYPES:
            return np.asarray(parts[0][0]).astype(name), every
        if name in _FLOATS:
            floats = np.asarray(values[0])
            floats = floats.astype(np.float64) if floats.dtype.kind in "iu" else floats
            return _FLOATS[name](floats), every
        return _CALLS[name](*values), every

    # -- reductions ---------------------------------------------------------------------------

    def axes(self, over: list[str]) -> tuple[int, ...]:
        return tuple(self.names.index(name) for name in over)

    def along(self, array: Any, over: list[str]) -> Any:
        """*array* with all the coordinates of *over*."""
        shape = list(np.broadcast_shapes(np.shape(array), (1,) * len(self.names)))
        for name in over:
            shape[self.names.index(name)] = self.sizes[name]
        return np.broadcast_to(array, shape)

    def reduced(self, op: str, over: list[str], term: Term) -> Term:
        value, present = term
        value = np.asarray(value).astype(bool) if op in ("or", "and") else number(value)
        dtype = np.asarray(value).dtype
        kept = self.along(np.where(present, value, neutral(op, dtype)), over)
        done = _OPS[op].reduce(
            kept, axis=self.axes(over), keepdims=True, dtype=dtype, initial=neutral(op, dtype)
        )
        return done, np.ones((1,) * len(self.names), bool)

    def extreme(self, name: str, over: str, term: Term) -> Term:
        """The least coordinate of the greatest, or least, value that is present; -1 of none."""
        everywhere = np.ones((1,) * len(self.names), bool)
        value, present = number(term[0]), term[1]
        worst = neutral(name.removeprefix("arg"), np.asarray(value).dtype)
        shape = np.broadcast_shapes(np.shape(value), present.shape)
        value, present = np.broadcast_to(value, shape), np.broadcast_to(present, shape)
        value, present = self.along(value, [over]), self.along(present, [over])
        axis = self.names.index(over)
        if not self.sizes[over]:
            shape = tuple(1 if at == axis else n for at, n in enumerate(value.shape))
            return np.full(shape, -1), everywhere
        kept = np.where(present, value, worst)
        best = kept.max if name == "argmax" else kept.min
        best = best(axis=axis, keepdims=True)
        same = (kept == best) | ((kept != kept) & (best != best))  # the first NaN
        found = (present & same).argmax(axis, keepdims=True)
        some = present.any(axis=axis, keepdims=True)
        return np.where(some, found, -1), everywhere


# -- reading the program -------------------------------------------------------------------------


def _parts(node: ast.expr) -> list[ast.expr]:
    return list(node.elts) if isinstance(node, ast.Tuple) else [node]


def _name(node: ast.expr) -> str:
    inner = node.value if isinstance(node, ast.Subscript) else node
    assert isinstance(inner, ast.Name)
    return inner.id


def _listed(node: ast.expr) -> list[str]:
    return [_name(part) for part in _parts(node)]


def indices_of(node: ast.expr) -> list[str]:
    """The indices of an access: names, parts of them, and slices, which pair up in order."""
    found: list[str] = []
    for part in _parts(node.slice) if isinstance(node, ast.Subscript) else ():
        if isinstance(part, ast.Call):
            found.append(_name(part.func))
        elif isinstance(part, ast.Name):
            found.append(part.id)
        elif isinstance(part, ast.Slice):
            found.append(f"slice{sum(name.startswith('slice') for name in found)}")
    return found


def _window(part: ast.expr) -> Any:
    """What a part of an access takes of its dimension, as numpy says it."""
    match part:
        case ast.Name():
            return slice(None)
        case ast.Call(args=ends):
            return slice(*map(ast.literal_eval, ends))
        case ast.Slice(lower=low, upper=high, step=step):
            return slice(*(None if x is None else ast.literal_eval(x) for x in (low, high, step)))
    return ast.literal_eval(part)


def _used(node: ast.expr) -> set[str]:
    """The indices in *node*; these are called i to m, tensors and numbers otherwise."""
    accesses = [n for n in ast.walk(node) if isinstance(n, ast.Subscript)]
    return {index for access in accesses for index in indices_of(access)}


def free_indices(node: ast.AST) -> set[str]:
    """The indices of *node* that no reduction in it takes."""
    match node:
        case ast.Name(id=name):
            return {name} & set("ijklm")
        case ast.Subscript():
            return set(indices_of(node))
        case ast.Call(func=ast.Name(id=name), args=[over, body]) if name in REDUCTIONS or name in (
            "argmax",
            "argmin",
        ):
            return free_indices(body) - set(_listed(over))
    return {name for child in ast.iter_child_nodes(node) for name in free_indices(child)}


def _is_number(node: ast.expr) -> bool:
    """Whether *node* is a number, or one under a mask: Python computes with those."""
    match node:
        case ast.IfExp(body=body, orelse=ast.Name(id="ABSENT")):
            return _is_number(body)
    return isinstance(node, ast.Constant) or (
        isinstance(node, ast.Name) and node.id in ("alpha", "beta")
    )
