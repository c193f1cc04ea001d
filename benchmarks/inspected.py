"""SpMV as it is, bound, and inspected when it is bound, against scipy and MKL's optimised handle.

``python -m benchmarks.inspected [--rounds 9]``; MKL takes part where ``MKL_RT`` says where it is.
"""

from __future__ import annotations

import argparse
import ctypes
import re
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sps

import spcomp
from benchmarks import programs
from benchmarks.kinds import KINDS
from spcomp.cli.peers import find_mkl
from spcomp.runtime.pool import num_threads

if TYPE_CHECKING:
    from spcomp.arrays import Array

SIZE, FIRST = 2_000_000, 7_000_000  # elements, about, and those of the first kind
GENERAL = 20  # MKL's number for matrices without structure
NOT_TRANSPOSED = 10
HINT = 100_000  # calls that MKL is told to expect
HEAD = (
    *("matrix", "elements", "threads", "scipy, ms", "plain, ms", "inspected, ms", "MKL, ms"),
    *("plain of scipy", "inspected of scipy", "inspected of MKL", "format", "bind, ms"),
)


class _Description(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int), ("mode", ctypes.c_int), ("diag", ctypes.c_int))


def mkl_call(csr: Any, x: Array, y: Array, threads: int) -> Callable[[], Any] | None:
    """Return a call of MKL with a handle that was optimised for *csr*; None without MKL."""
    path = find_mkl()
    if path is None:
        return None
    mkl, pointer, handle = ctypes.CDLL(path), ctypes.c_void_p, ctypes.c_void_p()
    mkl.MKL_Set_Num_Threads(threads)
    rows, columns = map(ctypes.c_int, csr.shape)
    begins = csr.indptr.ctypes.data
    arrays = begins, begins + 4, csr.indices.ctypes.data, csr.data.ctypes.data
    general = _Description(GENERAL, 0, 0)
    failed = mkl.mkl_sparse_s_create_csr(
        ctypes.byref(handle), 0, rows, columns, *map(pointer, arrays)
    )
    failed |= mkl.mkl_sparse_set_mv_hint(handle, NOT_TRANSPOSED, general, ctypes.c_int(HINT))
    failed |= mkl.mkl_sparse_optimize(handle)
    if failed:
        raise RuntimeError(f"MKL refuses the matrix: {failed}")
    one, zero = ctypes.c_float(1), ctypes.c_float(0)
    places = pointer(x.ctypes.data), zero, pointer(y.ctypes.data)
    return lambda: mkl.mkl_sparse_s_mv(NOT_TRANSPOSED, one, handle, general, *places)


def medians(calls: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Return the median seconds of *calls*, made in turns."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds + 2):  # the first two warm up
        for name, call in calls.items():
            begin = time.perf_counter()
            call()
            seconds[name].append(time.perf_counter() - begin)
    return {name: statistics.median(found[2:]) for name, found in seconds.items()}


def lines(kind: str, rounds: int) -> list[str]:
    """Return the rows of the table for a matrix of *kind*, with one thread and with two."""
    csr = sps.csr_array(KINDS[kind](FIRST if kind == next(iter(KINDS)) else SIZE), dtype=np.float32)
    csr.sum_duplicates()
    csr.indices, csr.indptr = csr.indices.astype(np.int32), csr.indptr.astype(np.int32)
    x = np.random.default_rng(0).random(csr.shape[1], dtype=np.float32)
    y = np.zeros(csr.shape[0], np.float32)
    kernel = spcomp.compile(programs.parse(programs.SPMV))
    plain = kernel.bind(A=csr)
    begin = time.perf_counter()
    chosen = kernel.bind(A=csr, inspect=True)
    bind = time.perf_counter() - begin
    format_ = re.search(r" in (\w+\(.*?\)),", chosen.explain())
    text = format_[1] if format_ else "-"
    rows = []
    for threads in (1, 2):
        calls: dict[str, Callable[[], Any]] = {
            "scipy": lambda: csr @ x,
            "plain": lambda: plain(X=x, out=y),
            "inspected": lambda: chosen(X=x, out=y),
        }
        if (mkl := mkl_call(csr, x, y, threads)) is not None:
            calls["mkl"] = mkl
        with num_threads(threads):
            found = medians(calls, rounds)
        ms = {name: f"{1e3 * found[name]:.3g}" for name in found}
        of_mkl = f"{found['mkl'] / found['inspected']:.2f}" if "mkl" in found else "-"
        rows.append(
            f"| {kind} | {csr.nnz} | {threads} | {ms['scipy']} | {ms['plain']} |"
            f" {ms['inspected']} | {ms.get('mkl', '-')} | {found['scipy'] / found['plain']:.2f} |"
            f" {found['scipy'] / found['inspected']:.2f} | {of_mkl} | {text} | {1e3 * bind:.0f} |"
        )
    return rows


def main(given: list[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    parser = argparse.ArgumentParser("python -m benchmarks.inspected", description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS), metavar="KIND")
    asked = parser.parse_args(given)
    sys.stdout.write(f"| {' | '.join(HEAD)} |\n|{'---|' * len(HEAD)}\n")
    for kind in asked.kinds:
        sys.stdout.write("\n".join(lines(kind, asked.rounds)) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
