"""Random programs of index notation, their arguments, and what they must return."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import scipy.sparse as sps

import spcomp
from spcomp.compiler.bind import Frame
from spcomp.compiler.notation import NotationKernel, _handed_back
from spcomp.compiler.notation_args import coordinates
from spcomp.compiler.outputs import allocate, collect
from spcomp.ir.interpret import interpret
from spcomp.notation.parse import parse
from spcomp.notation.semiring import as_semiring
from tests import notation_oracle

SIZES = {"i": 4, "j": 5, "k": 3, "l": 2, "m": 4}  # i and m may stand at one dimension
FORMATS = {
    1: ("dense", "sparse"),
    2: ("dense", "csr", "csc", "csr", "csc", "dcsr", "dcsc", "columns", "coo"),
    3: ("dense", "csf"),
}
SEMIRINGS = ("min_plus", "max_plus", "max_times", "or_and", "plus_pair", "min_second")
DTYPES = ("float64", "float64", "int64", "float32")


@dataclass
class Case:
    """One program and its arguments."""

    text: str
    args: dict[str, Any] = field(default_factory=dict)
    masked: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    formats: dict[str, str] = field(default_factory=dict)
    semiring: str = "plus_times"

    def kernel(self) -> NotationKernel:
        return spcomp.compile(self.text, formats=self.formats, semiring=self.semiring)

    def check(self, result: Any) -> None:
        """Assert that *result* is what the oracle says."""
        sparse = frozenset(n for n, a in self.args.items() if sps.issparse(a))
        with np.errstate(all="ignore"):
            known = notation_oracle.run(
                parse(self.text), self.masked, SIZES, as_semiring(self.semiring), sparse
            )
        want, stored = known["C"]
        if isinstance(result, (np.ndarray, np.generic)):
            np.testing.assert_allclose(result, want, err_msg=str(self))
            return
        coords, values = elements(result)
        got = np.zeros(want.shape, bool)
        got[coords] = True
        assert got.sum() == len(values), f"{self}: a coordinate is stored twice"
        assert not (stored & ~got).any(), f"{self}: an element is missing"
        np.testing.assert_allclose(values, want[coords], err_msg=str(self))


def elements(result: Any) -> tuple[tuple[Any, ...], Any]:
    """The coordinates and the values that a sparse *result* stores."""
    if isinstance(result, spcomp.Tensor):
        return tuple(coordinates(result)), np.asarray(result.values).reshape(-1)
    coo = result.tocoo()
    return coo.coords, coo.data


def interpreted(kernel: NotationKernel, args: Mapping[str, Any]) -> Any:
    """What the interpreter of coordinate space computes for a call."""
    version = kernel.version(args)
    handed = {n: a.adapt(args[kernel._source(n)]) for n, a in version.arguments.items()}
    compiled = version.kernel._compiled
    frame = Frame(compiled.interface, {})
    for name, arg in handed.items():
        frame.take(name, arg, verify=True)
    frame.settle()
    allocate(frame)
    frame.settle()
    func = compiled.program
    names = {param.name for param in func.params}
    flat = {
        name: value.reshape(-1) if isinstance(value, np.ndarray) else value
        for name, value in frame.values.items()
        if name in names
    }
    made = collect(frame, interpret(func, flat))
    return _handed_back(made, version.plans[0].output.layout)


class Writer:
    """Writes one program."""

    def __init__(self, seed: int) -> None:
        self.random, self.arrays = random.Random(seed), np.random.default_rng(seed)
        self.operands: list[str] = []
        self.case = Case("")

    def write(self) -> Case:
        """Return the program of the seed."""
        if self.random.random() < 0.15:
            self.case.semiring = self.random.choice(SEMIRINGS)
        for name in "ABDE"[: self.random.choice((1, 2, 2, 3, 3, 4))]:
            self._operand(name)
        value = self._term(self.random.choice((1, 2, 2, 3)))
        if not any(operand in value for operand in self.operands):
            value = f"({value} * {self.operands[0]})"
        used = sorted(set(self._indices(value)))
        left = self.random.sample(used, self.random.randint(0, len(used)))
        value = self._reduced(value, [i for i in used if i not in left])
        target = f"C[{', '.join(left)}]" if left else "C"
        case = self.case
        case.text = f"{target} = {value}"
        case.args = {n: a for n, a in case.args.items() if f"{n}[" in value}
        case.formats = {n: f for n, f in case.formats.items() if n in case.args}
        if "alpha" in value:
            case.args["alpha"], case.masked["alpha"] = 2, (2, True)
        if self.random.random() < 0.3:
            case.formats["C"] = "dense"
        return case

    def _indices(self, value: str) -> list[str]:
        return [i for o in self.operands if o in value for i in o[2:-1].split(", ")]

    def _operand(self, name: str) -> None:
        rank = self.random.choice((1, 2, 2, 2, 3))
        indices = self.random.sample("ijkl", rank)
        shape = tuple(SIZES[i] for i in indices)
        stored = self.arrays.random(shape) < self.random.choice((0.5, 0.2, 0.8, 0.0))
        dtype = self.random.choice(DTYPES)
        values = np.where(stored, self.arrays.integers(-3, 4, shape), 0).astype(dtype)
        layout = self.random.choice(FORMATS[rank])
        arg: Any = values
        if layout in ("dense", "columns"):
            stored = np.ones(shape, bool)
            arg = np.asfortranarray(values) if layout == "columns" else values
        else:
            where = np.nonzero(stored)
            arg = sps.coo_array((values[where], where), shape=shape)
        if layout in ("csr", "csc"):
            arg = arg.asformat(layout)
        elif layout in ("dcsr", "dcsc"):
            self.case.formats[name] = layout
        self.case.args[name], self.case.masked[name] = arg, (values, stored)
        self.operands.append(f"{name}[{', '.join(indices)}]")
        if "i" in indices and self.random.random() < 0.3:
            self.operands.append(self.operands[-1].replace("i", "m"))

    def _term(self, depth: int) -> str:
        pick = self.random.random()
        if depth == 0 or pick < 0.15:
            if self.random.random() < 0.08:
                return self.random.choice(("2", "alpha", "3"))
            return self.random.choice(self.operands)
        a = self._term(depth - 1)
        if pick < 0.25:
            negated = f"-({a})" if self.case.semiring == "plus_times" else a
            return self.random.choice((f"abs({a})", negated))
        b = self._term(depth - 1)
        mask = b if b in self.operands else f"{b} > 0"
        shapes = (
            *(f"({a} * {b})",) * 8,
            *(f"({a} + {b})",) * 6,
            *(f"({a} - {b})", f"maximum({a}, {b})", f"({a} * ({b} <= 1))"),
            *(f"({a} if {mask})", f"({a} if {mask} else {b})"),
        )
        plain = self.case.semiring in ("plus_times", "plus_pair")
        return self.random.choice(shapes if plain else shapes[:14] + shapes[15:])

    def _reduced(self, value: str, over: list[str]) -> str:
        """Write some of the reductions out."""
        if not over or self.random.random() < 0.6:
            return value
        own = over[: self.random.randint(1, len(over))]
        name = self.random.choice(("sum", "max", "min", "prod", "argmax"))
        own = own[:1] if name == "argmax" else own
        indices = own[0] if len(own) == 1 else f"({', '.join(own)})"
        value = f"{name}({indices}, {value})"
        again = self.random.random() < 0.5
        return f"{value} * {self.random.choice(self.operands)}" if again else value
