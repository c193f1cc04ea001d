"""Which lines a run on a GPU has, and how much of its time each of them gets."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

GRAPHS = ("arxiv", "proteins", "uniform", "laplacian", "power", "cora")
SKEWED = ("arxiv", "proteins", "power")
SHARES = {
    "spmm": 0.34,
    "spmv": 0.07,
    "sddmm": 0.13,
    "segments": 0.12,
    "softmax": 0.06,
    "softmax_spmm": 0.08,
    "attention": 0.10,
    "spgemm": 0.05,
    "rgcn": 0.05,
}  # of the time for measurements, by operation


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the results: an operation on a workload, *feat* columns wide (1: vectors)."""

    operation: str
    workload: str
    feat: int = 1

    @property
    def label(self) -> str:
        """A short unique name."""
        return f"{self.operation} {self.workload}" + (f" F={self.feat}" if self.feat > 1 else "")


SUITE: tuple[Line, ...] = (
    *(Line("spmm", graph, feat) for feat in (128, 32) for graph in GRAPHS),
    *(Line("spmv", graph) for graph in GRAPHS),
    *(Line("sddmm", graph, feat) for feat in (128, 32) for graph in GRAPHS),
    *(
        Line("segments", graph, feat)
        for graph, feat in product(("arxiv", "power", "uniform"), (1, 32, 128))
    ),
    *(Line("softmax", graph) for graph in (*SKEWED, "cora")),
    *(Line("softmax_spmm", graph, feat) for feat in (128, 32) for graph in SKEWED),
    *(Line("spgemm", graph) for graph in ("laplacian", "sparser", "cora")),
    *(Line("rgcn", graph, 32) for graph in ("few_relations", "many_relations")),
    *(Line("attention", mask, 64) for mask in ("band", "butterfly")),
    *(Line("spmm", graph, feat) for feat in (256, 64, 512) for graph in GRAPHS),
)  # what matters most first


def select(
    operations: Sequence[str] | None, workloads: Sequence[str] | None, feats: Sequence[int] | None
) -> list[Line]:
    """Return the lines for these *operations*, *workloads* and *feats*; None means all."""
    return [
        line
        for line in SUITE
        if (operations is None or line.operation in operations)
        and (workloads is None or line.workload in workloads)
        and (feats is None or line.feat in feats)
    ]


def weight(line: Line) -> float:
    """Return the share of the whole suite's time for *line*; wide ones on many edges get more."""
    own = _size(line)
    alike = sum(_size(other) for other in SUITE if other.operation == line.operation)
    return SHARES[line.operation] * own / alike


def allowance(lines: Sequence[Line], seconds: float) -> float:
    """Return how many of the *seconds* left are for the first of the *lines* that are left."""
    return max(0.0, seconds) * weight(lines[0]) / sum(map(weight, lines))


def _size(line: Line) -> float:
    return (2.0 if line.workload == "proteins" else 1.0) * (1.5 if line.feat > 128 else 1.0)
