"""What index notation means, on masked numpy: a value and whether it is there, at every point."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy.special import erf, expit

from spcomp.notation.algebra import with_reductions
from spcomp.notation.nodes import (
    Access,
    Assignment,
    Call,
    Declared,
    Expr,
    Masked,
    Number,
    Op,
    Program,
    Reduce,
    Scalar,
    walk,
)
from spcomp.notation.semiring import Semiring, plus_times

Masks = Mapping[str, tuple[Any, Any]]  # by name: values, and where they are present
_OPS: dict[str, Any] = {
    "+": np.add,
    "-": np.subtract,
    "*": np.multiply,
    "/": np.divide,
    "//": np.floor_divide,
    "%": np.mod,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.logical_and,
    "or": np.logical_or,
    "&": np.bitwise_and,
    "|": np.bitwise_or,
    "^": np.bitwise_xor,
    "<": np.less,
    "<=": np.less_equal,
    ">": np.greater,
    ">=": np.greater_equal,
    "==": np.equal,
    "!=": np.not_equal,
    "neg": np.negative,
    "not": np.logical_not,
    "~": np.invert,
    "first": lambda a, _: a,
    "second": lambda _, b: b,
    "pair": lambda a, _: np.ones_like(a),
}
_CALLS: dict[str, Any] = {
    "maximum": np.maximum,
    "minimum": np.minimum,
    "where": np.where,
    "pow": np.power,
    "sigmoid": expit,
    "erf": erf,
}
_NEUTRAL = {"+": 0, "*": 1, "min": np.inf, "max": -np.inf, "or": False, "and": True}


def neutral(op: str, dtype: Any) -> Any:
    """What *op* leaves everything with, in *dtype*."""
    dtype = np.dtype(dtype)
    if op in ("min", "max") and dtype.kind in "iu":
        return getattr(np.iinfo(dtype), "max" if op == "min" else "min")
    return dtype.type(_NEUTRAL[op])


class Oracle:
    """Evaluates terms over the grid of all indices of one statement."""

    def __init__(
        self,
        sizes: Mapping[str, int],
        arrays: Masks,
        semiring: Semiring,
        sparse: frozenset[str],
    ) -> None:
        self.names, self.sizes = list(sizes), sizes
        self.arrays, self.semiring, self.sparse = arrays, semiring, sparse

    def shown(self, term: Expr) -> Any:
        """Where *term* has something: a reduction, where there is something to reduce."""
        match term:
            case Reduce(indices=indices, body=body):
                present = self.term(body)[1]
                axes = tuple(self.axis(name) for name in indices)
                return present.any(axis=axes, keepdims=True)
            case Op(op="+" | "-", args=(left, right)):
                return self.shown(left) | self.shown(right)
            case Op(op="neg", args=(inner,)):
                return self.shown(inner)
        return self.term(term)[1]

    def axis(self, name: str) -> int:
        return self.names.index(name)

    def term(self, term: Expr) -> tuple[Any, Any]:
        """The value and the presence of *term*, each broadcastable to the grid."""
        ones = (1,) * len(self.names)
        match term:
            case Number(value=value):
                return value, np.ones(ones, bool)
            case Scalar(name=name):
                return self.arrays[name][0], np.ones(ones, bool)
            case Access():
                return self.access(term)
            case Reduce(op=op, indices=indices, body=body):
                return self.reduce(op, indices, body)
            case Masked():
                return self.masked(term)
            case Op(op="+" | "-", args=(left, right)):
                return self.sum(term.op, left, right)
            case Declared():
                return self.declared(term)
            case Op(op=name, args=args) | Call(func=name, args=args):
                return self.apply(term, name, [self.term(arg) for arg in args])
        raise TypeError(term)

    def declared(self, term: Declared) -> tuple[Any, Any]:
        found = np.broadcast_arrays(*(self.term(arg)[1] for arg in term.args))
        if term.presence == "and":
            return self.term(term.body)[0], np.logical_and.reduce(found)
        filled = {n: (np.where(p, v, 0), np.ones_like(p)) for n, (v, p) in self.arrays.items()}
        value = Oracle(self.sizes, filled, self.semiring, self.sparse).term(term.body)[0]
        return value, np.logical_or.reduce(found)

    def access(self, term: Access) -> tuple[Any, Any]:
        parts = []
        for array in self.arrays[term.name]:
            grid = np.einsum(
                np.asarray(array),
                [self.axis(i) for i in term.indices],
                sorted({self.axis(i) for i in term.indices}),
            )
            shape = [self.sizes[n] if n in term.indices else 1 for n in self.names]
            parts.append(grid.reshape(shape))
        return parts[0], parts[1]

    def apply(self, term: Expr, name: str, parts: list[tuple[Any, Any]]) -> tuple[Any, Any]:
        if isinstance(term, Op) and name == "*":
            name = self.semiring.mul
        table = _OPS if isinstance(term, Op) else _CALLS
        func = table.get(name) or getattr(np, name)
        present = np.logical_and.reduce(np.broadcast_arrays(*(p for _, p in parts)))
        return func(*(v for v, _ in parts)), present

    def sum(self, op: str, left: Expr, right: Expr) -> tuple[Any, Any]:
        (a, has_a), (b, has_b) = self.term(left), self.term(right)
        op = self.semiring.add if op == "+" else op
        add = "+" if op == "-" else op
        dtype = np.result_type(a, b)
        a = np.where(has_a, a, neutral(add, dtype))
        b = np.where(has_b, b, neutral(add, dtype))
        return _OPS[op](a, b), has_a | has_b

    def reduce(self, op: str, indices: tuple[str, ...], body: Expr) -> tuple[Any, Any]:
        value, present = self.term(body)
        if np.asarray(value).dtype == bool and op not in ("or", "and"):
            value = np.asarray(value).astype(np.int64)
        shape = list(np.broadcast_shapes(np.shape(value), present.shape))
        for name in indices:
            shape[self.axis(name)] = self.sizes[name]
        least = neutral(op.removeprefix("arg"), np.asarray(value).dtype)
        value = np.where(present, value, least)
        value = np.broadcast_to(value, shape)
        axes = tuple(self.axis(name) for name in indices)
        if op in ("argmax", "argmin"):
            found = getattr(np, op)(value, axis=axes[0], keepdims=True)
            some = np.broadcast_to(present, shape).any(axis=axes, keepdims=True)
            return np.where(some, found, -1), np.ones((1,) * len(self.names), bool)
        done = _OPS[op].reduce(value, axis=axes, keepdims=True)
        if op == "+" and value.dtype.kind in "iu":
            done = done.astype(value.dtype)
        return done, np.ones((1,) * len(self.names), bool)

    def masked(self, term: Masked) -> tuple[Any, Any]:
        value, present = self.term(term.value)
        cond, stored = self.term(term.cond)
        test = stored
        if getattr(term.cond, "name", None) not in self.sparse:
            test = stored & (np.asarray(cond) != 0)
        if term.other is None:
            return value, present & test
        other, has_other = self.term(term.other)
        return np.where(test, value, other), np.where(test, present, has_other)


def statement(
    stmt: Assignment,
    arrays: Masks,
    sizes: Mapping[str, int],
    semiring: Semiring = plus_times,
    sparse: frozenset[str] = frozenset(),
) -> tuple[Any, Any]:
    """The result of *stmt* as a dense one holds it, and where a sparse one has to store it."""
    stmt = with_reductions(stmt, semiring)
    used = dict.fromkeys(
        i for t in (*walk(stmt.value), stmt.target) if isinstance(t, Access) for i in t.indices
    )
    oracle = Oracle({name: sizes[name] for name in used}, arrays, semiring, sparse)
    value, present = oracle.term(stmt.value)
    value = np.where(present, value, neutral(semiring.add, np.asarray(value).dtype))
    shape = [sizes[n] if n in stmt.target.indices else 1 for n in used]
    own = [n for n in used if n in stmt.target.indices]
    order = [own.index(n) for n in stmt.target.indices]
    final = [sizes[n] for n in own]
    value, shown = (
        np.broadcast_to(x, shape).reshape(final).transpose(order)
        for x in (value, oracle.shown(stmt.value))
    )
    return value, shown


def run(
    program: Program,
    arrays: Masks,
    sizes: Mapping[str, int],
    semiring: Semiring = plus_times,
    sparse: frozenset[str] = frozenset(),
) -> dict[str, tuple[Any, Any]]:
    """The result of every statement, by name; results are dense to those that follow."""
    known = dict(arrays)
    for stmt in program.statements:
        known[stmt.target.name] = statement(stmt, known, sizes, semiring, sparse)
    return known
