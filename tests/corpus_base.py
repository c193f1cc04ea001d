"""What a program of the corpus is: source, inputs drawn for a case, and a dense oracle."""

from __future__ import annotations

import copy
import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

from spcomp.script.parse import parse_source
from tests import oracle

CASES = ("random", "empty_rows", "full_row", "nnz0", "one", "zero", "indptr_offset")
FLOATS = ("float32", "float64")
HALVES = (*FLOATS, "float16", "bfloat16")
NUMBERS = (*FLOATS, "int32")
ALL = (*HALVES, "int32")
HEADER = "from spcomp import script as T\n\n\n"
GARBAGE = 77  # what outputs hold before the call: a result that was not written shows

Arrays = dict[str, np.ndarray]
Inputs = dict[str, Any]  # parameter name -> flat array or Python number


@dataclass(frozen=True, slots=True)
class Compressed:
    """The arrays of a variable axis; *indices* is None for a dense one."""

    indptr: np.ndarray
    indices: np.ndarray | None = None

    @property
    def nnz(self) -> int:
        """Positions over all fibers, the unused ones before ``indptr[0]`` included."""
        return int(self.indptr[-1])


class Draw:
    """Sizes, structures and values for one call, as the case says."""

    def __init__(
        self,
        rng: np.random.Generator,
        case: str = "random",
        dtype: str = "float32",
        idtype: str = "int32",
    ) -> None:
        self.rng, self.case, self.dtype, self.idtype = rng, case, dtype, idtype

    def size(self, nominal: int) -> int:
        """Return a length: 1 or 0 in the cases of these names."""
        return {"one": 1, "zero": 0}.get(self.case, nominal)

    def fiber(self, length: int, row: int, rows: int) -> list[int]:
        """Return the coordinates, ascending, stored in fiber *row* of *rows*."""
        if self.case == "nnz0" or (self.case == "empty_rows" and row % 2 == 0):
            return []
        if self.case == "one" or (self.case == "full_row" and row == rows // 2):
            return list(range(length))
        return np.flatnonzero(self.rng.random(length) < 0.4).tolist()

    def sample(self, length: int, count: int) -> list[int]:
        """Return *count* of the coordinates below *length*, ascending."""
        return sorted(self.rng.permutation(length)[:count].tolist())

    def offset(self) -> int:
        """Return ``indptr[0]``: how many unused positions precede the first fiber."""
        return 2 if self.case == "indptr_offset" else 0

    def compressed(self, rows: int, length: int) -> Compressed:
        """Draw a sparse_variable axis of *rows* fibers with coordinates below *length*."""
        fibers = [self.fiber(length, row, rows) for row in range(rows)]
        junk = [length - 1] * self.offset() if length else []
        indptr = np.cumsum([len(junk), *map(len, fibers)])
        return Compressed(self.ids(indptr), self.ids(junk + [j for f in fibers for j in f]))

    def ragged(self, rows: int, length: int) -> Compressed:
        """Draw a dense_variable axis of *rows* fibers of at most *length* positions."""
        counts = [len(self.fiber(length, row, rows)) for row in range(rows)]
        return Compressed(self.ids(np.cumsum([self.offset() if length else 0, *counts])))

    def fixed(self, rows: int, length: int, columns: int) -> np.ndarray:
        """Draw the indices of a sparse_fixed axis: *columns* of *length* in each of *rows*."""
        return self.ids([j for _ in range(rows) for j in self.sample(length, columns)])

    def ids(self, values: Any) -> np.ndarray:
        """Return *values* as an index array."""
        return np.asarray(values, self.idtype)

    def integers(self, count: int, low: int, high: int, dtype: str = "int32") -> np.ndarray:
        """Draw *count* integers in ``low..high - 1``."""
        return self.rng.integers(low, max(high, low + 1), count).astype(dtype)

    def values(self, *shape: int) -> np.ndarray:
        """Draw a flat array of as many elements as *shape* has: small integers, or -1..1."""
        count = int(np.prod(shape))
        if self.dtype == "int32":
            return self.integers(count, -4, 5)
        return self.encode(self.rng.uniform(-1, 1, count))

    def encode(self, values: np.ndarray) -> np.ndarray:
        """Return *values* in the program's dtype (bfloat16 as its bits)."""
        if self.dtype == "bfloat16":
            return oracle.to_bfloat16(values)
        return values.astype(self.dtype)

    def output(self, *shape: int) -> np.ndarray:
        """Return a flat array of *shape* for results, filled with GARBAGE."""
        return self.encode(np.full(int(np.prod(shape)), GARBAGE))


@dataclass(frozen=True)
class Program:
    """One program, in every dtype and index type that makes sense for it.

    *source* is a script with values of float32 and ``idtype="int32"``; *make* draws its inputs;
    *oracle* computes, from exact inputs (float64 and int64), what each output holds after the
    call, by handle (``{axis}_indptr`` and ``{axis}_indices`` for assembled axes); *magnitude*,
    the sums of the magnitudes of the terms: by default, *oracle* with every float positive.
    """

    source: str
    make: Callable[[Draw], Inputs]
    oracle: Callable[[SimpleNamespace], Arrays]
    dtypes: tuple[str, ...] = FLOATS
    idtypes: tuple[str, ...] = ("int32", "int64")
    cases: tuple[str, ...] = CASES
    magnitude: Callable[[SimpleNamespace], Arrays] | None = None
    warns: str = ""  # what the warning of the compiler must mention
    assembles: bool = False
    function: Callable[[], Any] | None = None  # a decorated one, for closures

    @property
    def name(self) -> str:
        """The name of the function."""
        found = re.search(r"^def (\w+)\(", self.source, re.MULTILINE)
        assert found is not None
        return found[1]

    def text(self, dtype: str = "float32", idtype: str = "int32") -> str:
        """Return the script for values of *dtype* and index arrays of *idtype*."""
        body = self.source.strip().replace("float32", dtype)
        for spelled in ('idtype="int32"', 'indices), "int32"'):
            body = body.replace(spelled, spelled.replace("int32", idtype))
        return HEADER + body + "\n"

    def build(self, dtype: str = "float32", idtype: str = "int32") -> Any:
        """Parse the program; returns a CoordFunc."""
        if self.function is not None:
            return self.function()
        (func,) = parse_source(self.text(dtype, idtype), f"{self.name}.py")
        return func

    def inputs(
        self, case: str = "random", dtype: str = "float32", idtype: str = "int32", seed: int = 0
    ) -> Inputs:
        """Draw the arguments by parameter name; those of assembled outputs are left out."""
        return self.make(Draw(np.random.default_rng(seed), case, dtype, idtype))

    def expected(self, inputs: Mapping[str, Any]) -> Arrays:
        """Return what each result holds after a call with *inputs*."""
        with np.errstate(all="ignore"), warnings.catch_warnings():
            return self.oracle(oracle.exact_inputs(inputs))

    def check(
        self,
        inputs: Mapping[str, Any],
        results: Mapping[str, Any],
        dtype: str = "float32",
        what: str = "",
    ) -> None:
        """Assert that *results* of a call with *inputs* (as they were before it) are right."""
        x = oracle.exact_inputs(inputs)
        want = self.expected(inputs)
        with np.errstate(all="ignore"):
            scale = (self.magnitude or (lambda y: self.oracle(oracle.absolute(y))))(x)
        for name, values in want.items():
            label = f"{self.name} {what}: {name}"
            oracle.assert_close(results[name], values, scale[name], dtype, label)


def variants(program: Program) -> list[tuple[str, str]]:
    """Return the pairs (dtype, idtype) to run *program* in: each dtype, and each index type."""
    first = program.dtypes[0]
    more = [(dtype, "int32") for dtype in program.dtypes[1:]]
    return [(first, idtype) for idtype in program.idtypes] + more


def fresh(inputs: Inputs) -> Inputs:
    """Return a copy of *inputs* that a call may write to."""
    return copy.deepcopy(inputs)
