"""A worker is killed at a random time, and results are the same: a program, and a part of a test.

``python -m tests.dask_kills 20`` does it 20 times, each on a new cluster of two processes.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from typing import Any

import dask
import dask.array as da
import distributed
import numpy as np
import scipy.sparse as sps

import spcomp
import spcomp.dask as sd

SETTINGS = {
    "distributed.comm.timeouts.connect": "60s",
    "distributed.scheduler.allowed-failures": 10,
    "distributed.deploy.lost-worker-timeout": "300s",  # a busy machine starts processes slowly
}
BLOCKS, PAUSE = 16, 0.05  # a run takes at least half of their product on two workers


def slow(block: np.ndarray) -> np.ndarray:
    """*block*, after a pause."""
    time.sleep(PAUSE)
    return block


def programs() -> tuple[Any, Any]:
    """A product whose right side takes its time, and the same without pauses."""
    rng = np.random.default_rng(1)
    matrix = sps.random_array((1600, 1600), density=0.01, format="csr", rng=rng)
    A, x = sd.from_scipy(matrix, 1600 // BLOCKS), rng.random((1600, 8))
    X, spmm = (
        da.from_array(x, chunks=(1600 // BLOCKS, 8)),
        spcomp.compile("C[i, k] = A[i, j] * X[j, k]"),
    )
    late = X.map_blocks(slow, meta=np.empty((0, 0)))
    return [spmm(A=A, X=spmm(A=A, X=each)) for each in (late, X)]


def run(rng: np.random.Generator) -> tuple[float, bool, bool]:
    """Kill one of two workers, which are new, after a random time.

    Returns that time, whether it was before the end, and whether the result has the right bits.
    """
    late, same = programs()
    with dask.config.set(scheduler="sync"):
        want = same.compute()
    killed = threading.Event()
    with (
        dask.config.set(SETTINGS),
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        pids = sorted(client.run(os.getpid).values())
        wait, victim = float(rng.random()) * BLOCKS * PAUSE / 2, int(rng.choice(pids))

        def kill() -> None:
            os.kill(victim, signal.SIGKILL)
            killed.set()

        timer = threading.Timer(wait, kill)
        timer.start()
        found = client.compute(late).result()
        early = killed.is_set()
        timer.join()
    return wait, early, bool(found.tobytes() == want.tobytes())


def main(runs: int) -> None:
    """Do it so many times, and print what happened."""
    rng, right, early = np.random.default_rng(0), 0, 0
    for number in range(runs):
        wait, before, same = run(rng)
        right, early = right + same, early + before
        when, what = "before" if before else "at", "the same bits" if same else "WRONG"
        sys.stdout.write(f"run {number}: after {wait:.2f} s, {when} the end: {what}\n")
        sys.stdout.flush()
    sys.stdout.write(f"{right} of {runs} results are right; {early} kills before the end\n")
    sys.exit(right != runs)


if __name__ == "__main__":
    main(int(sys.argv[1]))
