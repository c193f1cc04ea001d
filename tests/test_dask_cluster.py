"""Distributed tensors on worker processes: the same bits, what is sent, and faults."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sps

import spcomp
from spcomp.errors import ArgumentError, FileError

pytest.importorskip("distributed", reason="needs Dask and distributed")
import dask
import dask.array as da
import distributed

import spcomp.dask as sd
from tests import dask_kills

pytestmark = [
    pytest.mark.dask,
    pytest.mark.long,
    pytest.mark.filterwarnings("ignore::Warning:distributed"),
    pytest.mark.filterwarnings("ignore:.*(socket|event loop|transport|subprocess).*"),
]
SPMM = "C[i, k] = A[i, j] * B[j, k]"
SETTINGS = {**dask_kills.SETTINGS, "distributed.scheduler.work-stealing": False}


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


@pytest.mark.parametrize("chunks", [500, (900, 1100), ("nonzeros", 3)])
def test_what_is_sent_is_what_the_plan_says(client, chunks):
    kernel, B = spcomp.compile(SPMM), operands()[1]
    want = here(kernel(A=sd.from_scipy(matrix(), chunks), B=B))
    A, B = (sd.place(x, client) for x in (sd.from_scipy(matrix(), chunks), B))
    plan = kernel.plan(A=A, B=B, workers=2)
    before = received(client)
    C = sd.place(kernel(A=A, B=B), client, plan)
    distributed.wait(C)
    count = received(client) - before
    assert plan.estimate.total > 1 << 20
    assert plan.estimate.total / 1.05 <= count <= plan.estimate.total * 1.05
    assert C.compute().tobytes() == want.tobytes()


def test_results_are_placed_by_the_plan_of_their_call(client):
    A, B = operands()
    kernel = spcomp.compile(SPMM)
    for plan in (kernel.plan(A=A, B=B), kernel.plan(A=A, B=B, workers=3)):
        with pytest.raises(ArgumentError, match="not one for 2 workers"):
            sd.place(kernel(A=A, B=B), client, plan)
    with pytest.raises(ArgumentError, match="another call"):
        sd.place(kernel(A=A, B=2 * B), client, kernel.plan(A=A, B=B, workers=2))


def received(client: Any) -> int:
    """The bytes of results that workers got from each other."""
    logs = client.run(lambda dask_worker: [e["total"] for e in dask_worker.transfer_incoming_log])
    return sum(map(sum, logs.values()))


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


def slow(block: np.ndarray, folder: Path) -> np.ndarray:
    """*block*, after a while; *folder* tells which process has begun."""
    (folder / str(os.getpid())).touch()
    time.sleep(0.3)
    return block


def test_a_worker_that_is_killed_changes_nothing(client, tmp_path):
    A, B = operands()
    want = here(spcomp.compile(SPMM)(A=A, B=B))
    late = B.map_blocks(slow, tmp_path, meta=np.empty((0, 0)))
    found = client.compute(spcomp.compile(SPMM)(A=A, B=late))
    while not (begun := list(tmp_path.iterdir())):
        time.sleep(0.01)
    os.kill(int(begun[0].name), signal.SIGKILL)
    assert found.result(timeout=300).tobytes() == want.tobytes()


def test_a_worker_is_killed_at_random_times():
    rng = np.random.default_rng(7)
    assert [dask_kills.run(rng)[-1] for _ in range(2)] == [True, True]
