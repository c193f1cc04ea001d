"""What the tuner finds: twelve kinds of matrices x six operators, the winner over the default.

``python -m benchmarks.tune [--quick] [--budget 30] [--json FILE] [--table FILE]``
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import scipy.sparse as sps

from benchmarks import machine, programs
from benchmarks.workloads import SHRINK, matrix, rmat, uniform
from spcomp.cli.timing import geometric_mean

if TYPE_CHECKING:
    from collections.abc import Callable

    from spcomp.tune import Tuned

FEAT = 32
FOLD = 32  # columns of a matrix that are the last dimension of a tensor
Make: TypeAlias = "Callable[[int, int, Any], dict[str, Any]]"


def band(rows: int, reach: int) -> Any:
    """Return a matrix with all diagonals up to *reach* from the main one."""
    offsets = range(-reach, reach + 1)
    values = [float(1 + abs(k)) for k in offsets]
    return sps.csr_matrix(sps.diags_array(values, offsets=list(offsets), shape=(rows, rows)))


def blocks(rows: int, size: int, density: float) -> Any:
    """Return a matrix of dense blocks at random places, as of block-pruned weights."""
    places = sps.random_array((rows // size, rows // size), density=density, rng=11)
    return sps.csr_matrix(sps.kron(places, np.ones((size, size))))


def surface(side: int) -> Any:
    """Return the 5-point stencil on a square of *side* points."""
    line = sps.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(side, side))
    return sps.csr_matrix(sps.kronsum(line, line))


def neighbours(rows: int, count: int) -> Any:
    """Return a matrix with *count* elements in each row, most near the diagonal."""
    rng = np.random.default_rng(12)
    far = np.round(rng.standard_t(1.5, (rows, 2 * count)) * count).astype(np.int64)
    columns = (np.arange(rows)[:, None] + far) % rows
    picked = np.concatenate([np.unique(row)[:count] for row in columns])
    lengths = [min(len(np.unique(row)), count) for row in columns]
    at = np.repeat(np.arange(rows), lengths)
    return sps.csr_matrix((np.ones(len(picked), np.float32), (at, picked)), (rows, rows))


def roads(side: int, share: float = 0.6, piece: int = 64) -> Any:
    """Return a road-like graph: a grid with *share* of its edges, pieces of its rows renumbered."""
    rng = np.random.default_rng(21)
    graph = sps.triu(surface(side), 1).tocoo()
    kept = rng.random(graph.nnz) < share
    order = np.arange(side * side).reshape(-1, piece)
    order = order[rng.permutation(len(order))].reshape(-1)
    return symmetric(order[graph.row[kept]], order[graph.col[kept]], side * side)


def symmetric(rows: Any, columns: Any, nodes: int) -> Any:
    """Return the symmetric matrix with an element at each of these places."""
    half = sps.coo_array((np.ones(len(rows)), (rows, columns)), (nodes, nodes))
    return sps.csr_matrix(half + half.T)


def folded(csr: Any) -> Any:
    """Return the tensor (i, j, k) whose element is that of a matrix in row i, column FOLD j + k."""
    import spcomp

    coo, (m, n) = csr.tocoo(), csr.shape
    at = coo.row, coo.col // FOLD, coo.col % FOLD
    levels = "dense,compressed,compressed"
    return spcomp.Tensor.from_coo(at, coo.data, (m, -(-n // FOLD), FOLD), levels)


def spmm(feat: int) -> tuple[str, Make]:
    """Return the program of SpMM, and what makes its dense operand of *feat* columns."""
    return programs.SPMM, lambda _, n, r: {"B": r.random((n, feat), dtype=np.float32)}


KINDS: dict[str, Callable[[int], Any]] = {
    "power law": lambda by: matrix("rmat", quick=by > 1),
    "heavy power law": lambda by: rmat(30_000 // by, 1_000_000 // by, 2, (0.5, 0.22, 0.22)),
    "uniform": lambda by: uniform(200_000 // by, 10, 3),
    "stencil": lambda by: matrix("laplacian", quick=by > 1),
    "band": lambda by: band(100_000 // by, 8),
    "blocks": lambda by: blocks(16_384 // by * 2, 8, 0.01 * by / 2),
    "neighbours": lambda by: neighbours(40_000 // by, 16),
    "one long row": lambda by: matrix("hub", quick=by > 1),
    "citations": lambda _: matrix("cora"),
    "surface": lambda by: surface(1024 // by),
    "roads": lambda by: roads(1024 // by),
    "half dense": lambda by: sps.random_array((8192 // by, 2048), density=0.1, rng=13),
}
OPERATORS: dict[str, tuple[str, Make]] = {
    "spmv": (programs.SPMV, lambda _, n, r: {"X": r.random(n, dtype=np.float32)}),
    "spmm 8": spmm(8),
    "spmm": spmm(FEAT),
    "spmm 128": spmm(128),
    "sddmm": (
        programs.SDDMM,
        lambda m, n, r: {
            "X": r.random((m, FEAT), dtype=np.float32),
            "Y": r.random((n, FEAT), dtype=np.float32),
        },
    ),
    "mttkrp": (
        programs.MTTKRP,
        lambda _, n, r: {
            "B": r.random((-(-n // FOLD), FEAT), dtype=np.float32),
            "C": r.random((FOLD, FEAT), dtype=np.float32),
        },
    ),
}


@dataclass(frozen=True, slots=True)
class Line:
    """What was found for one operator and matrix: times as fast as the default, with interval."""

    operator: str
    kind: str
    rows: int
    nnz: int
    winner: str
    speedup: float
    low: float
    high: float
    seconds: float
    default: float
    conversion: float
    tried: int
    elapsed: float
    stopped: str

    def __str__(self) -> str:
        ratio = f"{self.speedup:.2f} ({self.low:.2f} to {self.high:.2f})"
        ours, default = f"{1e3 * self.seconds:.3g}", f"{1e3 * self.default:.3g}"
        names = f"| {self.operator} | {self.kind} | {self.nnz} | {default} | {ours} | {ratio}"
        return f"{names} | {self.winner} | {self.tried} |"


def measured(operator: str, kind: str, by: int, budget: float) -> Line:
    """Tune *operator* on the matrix *kind*, *by* times smaller, and return what was found."""
    import spcomp

    source, make = OPERATORS[operator]
    program = programs.parse(source)
    csr = sps.csr_matrix(KINDS[kind](by), dtype=np.float32)
    csr.sort_indices()
    sparse = folded(csr) if operator == "mttkrp" else csr
    arguments = arguments_of(program, sparse, make(*csr.shape, np.random.default_rng(0)))
    empty = spcomp.tune.Store(None)  # what earlier runs found does not help
    found: Tuned = spcomp.tune(program, arguments=arguments, budget=budget, store=empty)
    best = next(t for t in found.trials if t.candidate == found.candidate)
    return Line(
        operator,
        kind,
        csr.shape[0],
        csr.nnz,
        str(found.candidate),
        found.speedup.value,
        found.speedup.low,
        found.speedup.high,
        found.seconds,
        found.trials[0].seconds,
        best.conversion,
        len(found.trials),
        found.elapsed,
        found.stopped,
    )


def arguments_of(program: Any, csr: Any, dense: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments: *csr*, or a tensor, for what is sparse, *dense* for others in turn."""
    import spcomp

    signature = spcomp.compile(program).signature
    inputs = [p for p in signature.params if p.kind == "in"]
    sparse = [p for p in inputs if any("sparse" in axis for axis in p.layout)]
    others = [p.name for p in inputs if p not in sparse]
    named = {p.name: csr for p in sparse} | dict(zip(others, dense.values(), strict=True))
    if not sparse:  # the result lies along the matrix, which is given for its axis
        (pattern,) = (p for p in signature.params if p.layout and "sparse" in p.layout[-1])
        named[pattern.layout[-1].split()[0]] = csr
    return named


def table(lines: list[Line], where: dict[str, Any], note: str) -> str:
    """Return the results as Markdown."""
    head = (
        "# What the tuner finds\n\n"
        f"`python -m benchmarks.tune`, {where['date'][:10]}, {where['cpu']}, {where['threads']}"
        f" threads. {note}\n\nA ratio is the time of the default over that of the winner, timed"
        " in turns after the search, with an interval of 95 % for the median. 1.00 (1.00 to 1.00)"
        " means that nothing was shown to be faster. Conversions are not part of the time.\n\n"
        "| operator | matrix | elements | default, ms | winner, ms | ratio | winner | tried |\n"
        "|---|---|---|---|---|---|---|---|\n"
    )
    means = [
        f"{operator} {geometric_mean([x.speedup for x in lines if x.operator == operator]):.2f}"
        for operator in OPERATORS
        if any(x.operator == operator for x in lines)
    ]
    body = "".join(f"{line}\n" for line in lines)
    return f"{head}{body}\nGeometric means: {', '.join(means)}.\n"


def main(given: list[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    parser = argparse.ArgumentParser("python -m benchmarks.tune", description=__doc__)
    add = parser.add_argument
    add("--quick", action="store_true", help="small matrices")
    add("--budget", type=float, default=30.0, help="seconds for each line (30)")
    add("--only", nargs="+", choices=OPERATORS, default=list(OPERATORS), metavar="OP")
    add("--kinds", nargs="+", choices=KINDS, default=list(KINDS), metavar="KIND")
    add("--threads", type=int, default=2, help="default: 2")
    add("--note", default="", help="what else is to be said about the run")
    add("--json", type=Path, metavar="FILE", help="write everything")
    add("--table", type=Path, metavar="FILE", help="write the table")
    asked = parser.parse_args(given)
    from spcomp.runtime.pool import set_num_threads

    set_num_threads(asked.threads)
    where = {**machine.describe(asked.threads), "load": os.getloadavg(), "budget": asked.budget}
    lines: list[Line] = []
    for operator in asked.only:
        for kind in asked.kinds:
            by = SHRINK if asked.quick else 1
            lines.append(measured(operator, kind, by, asked.budget))
            sys.stderr.write(f"{lines[-1]}\n")
            if asked.json:
                content = {"machine": where, "lines": [asdict(line) for line in lines]}
                asked.json.write_text(json.dumps(content, indent=1) + "\n")
            if asked.table:
                asked.table.write_text(table(lines, where, asked.note))
    sys.stdout.write(table(lines, where, asked.note))
    return 0


if __name__ == "__main__":
    sys.exit(main())
