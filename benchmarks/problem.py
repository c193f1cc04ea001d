"""What is measured: a case, its operands, the right answer, and the bytes that have to move."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
SLACK = 16.0  # rounding errors allowed beside the square root of how many terms are added


class WrongResultError(Exception):
    """A contender computes something else than the reference."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes that must move: each operand once (*compulsory*), and rows fetched per element.

    *footprint*: how large what is fetched from, or scattered to, is.
    """

    compulsory: int
    gather: int = 0
    footprint: int = 0


@dataclass(frozen=True, slots=True)
class Case:
    """One line of the results: an operator on a workload.

    Args:
        operator: A key of OPERATORS.
        workload: A name of ``workloads.MATRICES``, ``tensor``, or a MatrixMarket file.
        feat: Columns of the dense operands; 1 for vectors.
        dtype: Of all values.
        target: The ratio to reach, None for a line without one.
        group: Lines of which the geometric mean is reported.
        pairing: ``bound`` compares our bound kernel with all, ``call`` the whole call,
            ``paired`` the bound kernel with rivals that keep a handle and the call with others.
        against: The rivals that count; all if empty.
    """

    operator: str
    workload: str
    feat: int = 1
    dtype: str = "float32"
    target: float | None = None
    group: str = ""
    pairing: str = "bound"
    against: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """A short unique name."""
        feat = "" if self.operator.startswith("spmv") else f" F={self.feat}"
        kind = " f64" if self.dtype == "float64" else ""
        return f"{self.operator} {Path(self.workload).stem}{feat}{kind}"


@dataclass(slots=True, eq=False)
class Problem:
    """The operands of a case, a shared output, and what it must hold.

    *sparse* is a csr_matrix or a Csf; *dense* the other operands by name. *want* is the result in
    float64, rounded (NaN: anything); an error may be a few roundings of *scale*, which bounds the
    sum of the magnitudes of the *terms* added up.
    """

    case: Case
    sparse: Any
    dense: Mapping[str, Array]
    out: Array
    want: Array
    scale: Array
    terms: int
    traffic: Traffic

    def check(self, result: Any, who: str) -> None:
        """Raise WrongResultError unless *result* is right."""
        got = np.asarray(result)
        if got.size != self.want.size:
            raise WrongResultError(f"{who}: shape {got.shape}, expected {self.want.shape}")
        got, rows = got.reshape(self.want.shape), max(1, 2**22 // max(1, self.want[:1].size))
        eps = np.finfo(self.want.dtype).eps * (SLACK + np.sqrt(self.terms))
        for at in range(0, len(got), rows):
            part = slice(at, at + rows)
            want = self.want[part]
            bad = ~(np.abs(got[part] - want) <= eps * self.scale[part]) & ~np.isnan(want)
            if bad.any():
                index = tuple(int(i) for i in np.argwhere(bad)[0])
                raise WrongResultError(
                    f"{who}: {int(bad.sum())} wrong, the first at {(index[0] + at, *index[1:])}:"
                    f" {got[part][index]!r}, expected {want[index]!r}"
                )
