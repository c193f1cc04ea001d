"""Random differentiable programs of index notation, and the check of their gradients."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import scipy.sparse as sps

import spcomp

SHAPES = {"A": "ij", "S": "ij", "R": "jk", "B": "jk", "X": "ik", "x": "j", "z": "i", "w": "k"}
SPARSE = ("A", "S", "R")
FORMATS = ("csr", "coo", "csc", "dense", "dcsr")
UNARY = (
    *("exp({})", "tanh({})", "sin({})", "cos({})", "sigmoid({})", "sqrt(1.5 + {} * {})", "abs({})"),
    *("log(2 + {} * {})", "erf({})", "expm1({})", "({}) ** 2", "({}) ** 3", "atan({})", "-({})"),
    *("log1p({} * {})", "asinh({})", "sinh({})", "exp2({})", "rsqrt(1 + {} * {})", "float64({})"),
)
BINARY = (
    *("({0} + {1})", "({0} - {1})", "({0}) * ({1})", "({0}) / (2 + ({1}) * ({1}))"),
    *("maximum({0}, {1})", "minimum({0}, {1})", "where({0} > {1}, {0}, 0.5 * {1})"),
    *("({0} if {1} > 0.7 else {1})", "hypot({0}, 1 + ({1}) * ({1}))", "floor({0}) * ({1})"),
    *("atan2({0}, 2 + ({1}) * ({1}))", "fma({0}, {1}, {0})", "(1 + ({0}) * ({0})) ** ({1})"),
    *("({0} if {1} > 0.6)", "({0} * {1})", "({0}) * ({1})", "fma({0}, 0.5, {1})"),
)


@dataclass
class Case:
    """A program, its arguments, and the operands to derive by."""

    text: str
    arguments: dict[str, Any]
    wrt: tuple[str, ...]
    rng: np.random.Generator = field(repr=False)


class _Writer:
    """Writes one program; *names*: the tensors that can be read, and their indices."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.names = dict(SHAPES)
        self.fresh = 0

    def leaf(self, indices: str, needs: str = "") -> str:
        fits = [n for n, own in self.names.items() if set(needs) <= set(own) <= set(indices)]
        if not fits or (not needs and self.rng.random() < 0.1):
            return self.rng.choice(["alpha", "0.5"])
        name = self.rng.choice(fits)
        return f"{name}[{', '.join(self.names[name])}]"

    def term(self, indices: str, depth: int, needs: str = "") -> str:
        if depth == 0:
            return self.leaf(indices, needs)
        kind, down = self.rng.random(), depth - 1
        if kind < 0.3:
            inner = self.term(indices, down, needs)
            return self.rng.choice(UNARY).format(inner, inner)
        if kind < 0.75:
            return self.rng.choice(BINARY).format(
                self.term(indices, down, needs), self.term(indices, down)
            )
        if kind < 0.85 and {*"ij"} <= {*indices}:
            return f"({self.term(indices, down, needs)} if M[i, j])"
        others = [n for n in "ijk" if n not in indices]
        if others and not needs:
            index = self.rng.choice(others)
            op = self.rng.choice(["sum", "sum", "sum", "max", "min", "prod"])
            return f"{op}({index}, {self.term(indices + index, down, index)})"
        return f"({self.term(indices, down, needs)} * {self.term(indices, down)})"

    def statement(self, name: str) -> str:
        indices = self.rng.choice(["ij", "ij", "ik", "i", "j", ""])
        value = self.term(indices, self.rng.choice([1, 1, 2, 2]), indices)
        over = [n for n in "ijk" if n not in indices and self.rng.random() < 0.5]
        if over:
            op = "sum" if self.rng.random() < 0.7 else self.rng.choice(["max", "min", "prod"])
            summed = "".join(over)
            value = f"({value}) * ({self.term(indices + summed, 1, summed)})"
            bound = over[0] if len(over) == 1 else f"({', '.join(over)})"
            value = f"{op}({bound}, {value})"
            if self.rng.random() < 0.4:
                value += f" + {self.term(indices, 1, '')}"
        target = f"{name}[{', '.join(indices)}]" if indices else name
        self.names[name] = indices
        return f"{target} = {value}"


def case(seed: int) -> Case:
    """Return the program and arguments of *seed*; the program may be refused."""
    rng, numbers = random.Random(seed), np.random.default_rng(seed)
    writer = _Writer(rng)
    names = ["t", "u", "y"][-rng.choice([1, 1, 2, 3]) :]
    text = "\n".join(writer.statement(name) for name in names)
    sizes = {name: rng.choice([1, 2, 3, 4, 5]) for name in "ijk"}
    arguments: dict[str, Any] = {}
    for name, own in {**SHAPES, "M": "ij"}.items():
        if f"{name}[" in text:
            shape = tuple(sizes[n] for n in own)
            arguments[name] = operand(name, shape, rng, numbers)
    if "alpha" in text:
        arguments["alpha"] = 0.6123
    wrt = tuple(name for name in arguments if name != "M")
    return Case(text, arguments, wrt, numbers)


def operand(name: str, shape: tuple[int, ...], rng: random.Random, numbers: Any) -> Any:
    values = numbers.uniform(0.3, 1.3, shape)
    if name not in (*SPARSE, "M"):
        return values
    kind = rng.choice(FORMATS) if name != "M" else "csr"
    if kind == "dense":
        return values
    values[numbers.random(shape) > rng.choice([0, 0.5, 0.5, 0.8, 1])] = 0
    matrix = sps.csr_array(values)
    return (
        spcomp.convert(matrix, spcomp.Format("dcsr")) if kind == "dcsr" else matrix.asformat(kind)
    )


def values_of(x: Any) -> np.ndarray:
    """The values that *x* stores."""
    if isinstance(x, (float, int, np.generic)):
        return np.asarray(x)
    return x if isinstance(x, np.ndarray) else x.values if isinstance(x, spcomp.Tensor) else x.data


def with_values(x: Any, values: np.ndarray) -> Any:
    """*x* with other values."""
    if isinstance(x, (float, int)):
        return float(values)
    if isinstance(x, np.ndarray):
        return values
    if isinstance(x, spcomp.Tensor):
        return x.with_values(values)
    other = x.copy()
    other.data = values
    return other


def dense(x: Any) -> np.ndarray:
    """The elements of *x* as an array."""
    if isinstance(x, spcomp.Tensor):
        return x.to_dense()
    return x.toarray() if hasattr(x, "toarray") else np.asarray(x)


def weighed(results: Any, weights: Sequence[Any]) -> float:
    """The sum of *results* times *weights*; the extreme of nothing is infinite, and left out."""
    several = [dense(y) for y in (results if isinstance(results, tuple) else (results,))]
    finite = [np.where(np.isfinite(y), y, 0) for y in several]
    return float(sum((y * w).sum() for y, w in zip(finite, weights, strict=True)))


def inner(grad: Any, direction: Any) -> float:
    """The inner product of a gradient and a *direction*, both like an operand."""
    return float((dense(grad) * dense(direction)).sum())


def check(
    forward: Callable[..., Any],
    gradients: Mapping[str, Any],
    arguments: Mapping[str, Any],
    weights: Sequence[Any],
    rng: np.random.Generator,
    step: float = 1e-6,
) -> None:
    """Compare *gradients* of the results of *forward* times *weights* with differences."""
    for name, grad in gradients.items():
        x = arguments[name]
        base = values_of(x)
        direction = rng.uniform(-1, 1, base.shape)
        ends = []
        for sign in (1, -1):
            moved = with_values(x, base + sign * step * direction)
            ends.append(weighed(forward(**{**arguments, name: moved}), weights))
        want = (ends[0] - ends[1]) / (2 * step)
        got = inner(grad, with_values(x, direction))
        scale = max(1.0, abs(want), *map(abs, ends))
        assert abs(got - want) <= 2e-7 * scale / min(1, step * 1e6), (name, got, want)


def pattern_of(x: Any) -> set[tuple[int, ...]] | None:
    """The coordinates that *x* stores; None if it is dense."""
    if isinstance(x, (np.ndarray, float, int, np.generic)):
        return None
    if isinstance(x, spcomp.Tensor):
        coords, _ = x.elements()
        return set(zip(*(c.tolist() for c in coords), strict=True))
    coo = x.tocoo()
    return set(zip(coo.row.tolist(), coo.col.tolist(), strict=True))
