"""Statements that share rows: one kernel beside a kernel for each statement, in interleaved runs.

``python -m benchmarks.fusion [rounds]``: a graph of arxiv's size (R-MAT), 64 features. Every kernel
writes to arrays that are there before. The last column is the sum of non-zeros alone, ``A X``: what
no fusion gets below.
"""

from __future__ import annotations

import argparse
import sys
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

import spcomp
from benchmarks.workloads import rmat

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

NODES, EDGES, WIDTH = 170_000, 600_000, 64  # edges in each direction
PROGRAMS = {
    "A X + b, ReLU": "T[i,f] = A[i,j] * V[j,f]; O[i,f] = maximum(T[i,f] + b[f], 0)",
    "normalised by degree": "d[i] = sum(j, A[i,j]); O[i,f] = A[i,j] * V[j,f] / d[i]",
    "softmax of edges": (
        "m[i] = max(j, A[i,j]); e[i,j] = exp(A[i,j] - m[i]) if A[i,j]; s[i] = sum(j, e[i,j]);"
        "w[i,j] = e[i,j] / s[i]; O[i,f] = w[i,j] * V[j,f]"
    ),
    "GAT": (
        "z[i,j] = p[i] + q[j] if A[i,j]; S[i,j] = where(z[i,j] > 0, z[i,j], 0.2 * z[i,j]);"
        "m[i] = max(j, S[i,j]); e[i,j] = exp(S[i,j] - m[i]) if A[i,j]; s[i] = sum(j, e[i,j]);"
        "w[i,j] = e[i,j] / s[i]; O[i,f] = w[i,j] * V[j,f]"
    ),
    "attention": (
        "S[i,j] = A[i,j] * Q[i,f] * K[j,f]; m[i] = max(j, S[i,j]);"
        "e[i,j] = exp(S[i,j] - m[i]) if A[i,j]; s[i] = sum(j, e[i,j]);"
        "O[i,f] = e[i,j] * V[j,f] / s[i]"
    ),
    "attention, K is V": (
        "S[i,j] = A[i,j] * Q[i,f] * V[j,f]; m[i] = max(j, S[i,j]);"
        "e[i,j] = exp(S[i,j] - m[i]) if A[i,j]; s[i] = sum(j, e[i,j]);"
        "O[i,f] = e[i,j] * V[j,f] / s[i]"
    ),
}


def arguments() -> dict[str, Any]:
    """Return the arguments of all programs."""
    rng = np.random.default_rng(3)
    graph = rmat(NODES, EDGES, 1, (0.57, 0.19, 0.19))
    rows = {name: rng.standard_normal((NODES, WIDTH), np.float32) for name in "QKV"}
    ends = {name: rng.standard_normal(NODES, np.float32) for name in "pq"}
    return {"A": graph, "b": rng.standard_normal(WIDTH, np.float32), **rows, **ends}


def fused(text: str, values: Mapping[str, Any]) -> tuple[Any, Callable[[], Any]]:
    """Return the result of *text*, and a call of one kernel for it."""
    kernel = spcomp.compile(text)
    given = {name: values[name] for name in kernel.arguments}
    out = kernel(**given)
    return out, lambda: kernel(**given, out=out)


def apart(text: str, values: Mapping[str, Any]) -> tuple[Any, Callable[[], Any]]:
    """Return the result of *text*, and calls of a kernel for each statement."""
    known, calls = dict(values), []
    for statement in text.split(";"):
        kernel = spcomp.compile(statement)
        name = statement.split("[")[0].strip()
        given = {n: known[n] for n in kernel.arguments}
        known[name] = kernel(**given)
        calls.append((kernel, given, known[name]))

    def run() -> None:
        for kernel, given, out in calls:
            kernel(**given, out=out)

    return known[name], run


def medians(calls: list[Callable[[], Any]], rounds: int) -> list[float]:
    """Return the median time of each call, in milliseconds, of *rounds* in turns."""
    times: list[list[float]] = [[] for _ in calls]
    for call in calls * 3:
        call()
    for _ in range(rounds):
        for call, taken in zip(calls, times, strict=True):
            begin = perf_counter()
            call()
            taken.append(perf_counter() - begin)
    return [float(np.median(taken)) * 1e3 for taken in times]


def main() -> None:
    """Print a line for each program."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rounds", nargs="?", type=int, default=25)
    rounds = parser.parse_args().rounds
    values = arguments()
    _, product = fused("O[i,f] = A[i,j] * V[j,f]", values)
    sys.stdout.write(f"{'':22} {'fused':>9} {'apart':>9} {'ratio':>6} {'A X':>9}\n")
    for name, text in PROGRAMS.items():
        (ours, one), (theirs, several) = fused(text, values), apart(text, values)
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-4)
        at_once, in_turn, least = medians([one, several, product], rounds)
        ratio = in_turn / at_once
        sys.stdout.write(
            f"{name:22} {at_once:6.2f} ms {in_turn:6.2f} ms {ratio:6.2f} {least:6.2f} ms\n"
        )


if __name__ == "__main__":
    main()
