"""Distributed tensors on worker processes: the same bits, what is sent, and faults."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sps

import spcomp
from spcomp.errors import FileError

pytest.importorskip("distributed", reason="needs Dask and distributed")
import dask
import dask.array as da
import distributed

import spcomp.dask as sd

pytestmark = [
    pytest.mark.dask,
    pytest.mark.long,
    pytest.mark.filterwarnings("ignore::Warning:distributed"),
    pytest.mark.filterwarnings("ignore:.*(socket|event loop|transport|subprocess).*"),
]
SPMM = "C[i, k] = A[i, j] * B[j, k]"
SETTINGS = {
    "distributed.scheduler.work-stealing": False,
    "distributed.comm.timeouts.connect": "60s",
    "distributed.scheduler.allowed-failures": 10,
}


@pytest.fixture(scope="module")
def client():
    with (
        dask.config.set(SETTINGS),
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
        ) as cluster,
        distributed.Client(cluster) as client,
        dask.config.set(scheduler="distributed"),
    ):
        yield client


def matrix(rows: int = 4000, columns: int = 3000, seed: int = 0) -> sps.csr_array:
    return sps.random_array((rows, columns), density=0.01, format="csr", rng=seed)


def operands() -> tuple[Any, Any]:
    B = np.random.default_rng(1).random((3000, 64))
    return sd.from_scipy(matrix(), 500), da.from_array(B, chunks=(750, 64))


def here(collection: Any) -> Any:
    with dask.config.set(scheduler="sync"):
        return collection.compute()


def test_the_bits_do_not_depend_on_the_workers(client):
    A, B = operands()
    tiles = sd.from_scipy(matrix(), (1000, 800))
    programs = [
        spcomp.compile(SPMM)(A=A, B=B),
        spcomp.compile(SPMM)(A=tiles, B=B),
        spcomp.compile("y[j] = A[i, j] * x[i]")(A=A, x=np.linspace(0, 1, 4000)),
    ]
    for program in programs:
        want = here(program)
        assert program.compute().tobytes() == want.tobytes()
    one, *_ = client.scheduler_info()["workers"]
    future = client.compute(programs[1], workers=[one], allow_other_workers=False)
    assert future.result().tobytes() == here(programs[1]).tobytes()


def test_what_is_sent_is_what_the_plan_says(client):
    A = sps.random_array((4000, 3000), density=0.05, format="csr", rng=5)  # A is not worth moving
    A, B = (sd.place(x, client) for x in (sd.from_scipy(A, 500), operands()[1]))
    kernel = spcomp.compile(SPMM)
    plan = kernel.plan(A=A, B=B, workers=2)
    before = received(client)
    C = client.persist(kernel(A=A, B=B))
    distributed.wait(C)
    count = received(client) - before
    assert plan.estimate.total > 1 << 20
    assert plan.estimate.total / 1.05 <= count <= plan.estimate.total * 1.05


def received(client: Any) -> int:
    """The bytes of results that workers got from each other."""
    logs = client.run(lambda dask_worker: [e["total"] for e in dask_worker.transfer_incoming_log])
    return sum(map(sum, logs.values()))


def test_a_worker_that_is_killed_changes_nothing(client):
    A, B = operands()
    C = spcomp.compile(SPMM)(A=A, B=B.map_blocks(slow, dtype=float))
    want = here(spcomp.compile(SPMM)(A=A, B=B))
    pids = sorted(client.run(os.getpid).values())
    timer = threading.Timer(0.3, os.kill, (pids[0], signal.SIGKILL))
    timer.start()
    assert C.compute().tobytes() == want.tobytes()
    timer.join()
    client.wait_for_workers(2, timeout=120)


def slow(block: np.ndarray) -> np.ndarray:
    time.sleep(0.2)
    return block


def test_a_damaged_part_is_a_clear_error_here(client, tmp_path):
    text = "%%MatrixMarket matrix coordinate real general\n3 3 2\n1 1 1.5\n2 x 1\n"
    (tmp_path / "a.mtx").write_text(text)
    with pytest.raises(FileError, match=r"a.mtx: line 2 after byte .*'x'"):
        sd.from_mtx(tmp_path / "a.mtx").compute()


def test_a_kernel_is_compiled_once_in_a_process(client):
    A, _ = operands()
    spmv = spcomp.compile("y[i] = A[i, j] * x[j] * 3")
    before = client.run(asked)
    for seed in range(2):
        spmv(A=A, x=np.full(3000, seed)).compute()
    after = client.run(asked)
    made = [after[worker][0] - before[worker][0] for worker in after]
    calls = [sum(after[worker]) - sum(before[worker]) for worker in after]
    assert max(made) <= 1
    assert sum(calls) == 16


def asked() -> tuple[int, int]:
    """How many kernels were made in this process, and how often one was there already."""
    from spcomp.dask.work import kernel_of

    info = kernel_of.cache_info()
    return info.misses, info.hits


def test_a_matrix_larger_than_the_memory_goes_through_in_waves(tmp_path):
    command = [sys.executable, "-m", "tests.dask_memory", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
