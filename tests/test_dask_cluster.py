"""Distributed tensors on worker processes: the same bits, what is sent, and faults."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
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
    want = [here(program).tobytes() for program in programs]
    assert [x.compute().tobytes() for x in programs] == want
    for workers in (1, 2, 4):
        with (
            distributed.LocalCluster(
                n_workers=workers, threads_per_worker=1, processes=False, dashboard_address=None
            ) as cluster,
            distributed.Client(cluster, set_as_default=False) as other,
        ):
            assert [x.tobytes() for x in other.gather(other.compute(programs))] == want


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


@pytest.mark.parametrize("where", [sd.place, lambda x, client: client.persist(x)])
def test_bound_blocks_stay_on_the_workers(client, where):
    B = np.random.default_rng(1).random((3000, 64))
    A = where(sd.from_scipy(matrix(), 500), client)
    kernel = spcomp.compile(SPMM)
    step = kernel.bind(A=A)
    for number in range(3):
        X = da.from_array(B + number, chunks=(750, 64))
        want = here(kernel(A=sd.from_scipy(matrix(), 500), B=X))
        assert step(B=X).compute().tobytes() == want.tobytes()


def test_a_damaged_part_is_a_clear_error_here(client, tmp_path):
    text = "%%MatrixMarket matrix coordinate real general\n3 3 2\n1 1 1.5\n2 x 1\n"
    (tmp_path / "a.mtx").write_text(text)
    with pytest.raises(FileError, match=r"a.mtx: line 2 after byte .*'x'"):
        sd.from_mtx(tmp_path / "a.mtx").compute()


def test_a_writer_that_is_killed_leaves_no_result(tmp_path):
    program = f"""
import pathlib, time, dask, dask.array as da, spcomp.dask as sd
def late(block, block_id):
    if block_id[0]:
        pathlib.Path({str(tmp_path / "begun")!r}).touch()
        time.sleep(600)
    return block
dask.config.set(scheduler="sync")
x = da.map_blocks(late, da.ones((4, 2), chunks=2), dtype=float, meta=da.ones(1).compute())
sd.write({str(tmp_path / "x")!r}, x, wave=1)
"""
    with subprocess.Popen([sys.executable, "-c", program]) as writer:
        while not (tmp_path / "begun").exists():
            assert writer.poll() is None
            time.sleep(0.01)
        writer.kill()
    assert not (tmp_path / "x").exists()
    sd.write(tmp_path / "x", da.ones((4, 2), chunks=2))
    assert here(sd.read(tmp_path / "x")).sum() == 8


@pytest.mark.filterwarnings("ignore")
def test_a_worker_that_runs_out_of_memory_is_an_error_and_nothing_is_written(tmp_path):
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 0}),
        distributed.LocalCluster(
            n_workers=1, threads_per_worker=1, memory_limit="600 MiB", dashboard_address=None
        ) as cluster,
        distributed.Client(cluster, set_as_default=False) as other,
        other.as_current(),
    ):
        B = da.ones((20, 2), chunks=10).map_blocks(hungry, meta=np.empty((0, 0)))
        with pytest.raises(distributed.KilledWorker, match="hungry"):
            sd.write(tmp_path / "x", B)
    assert not list(tmp_path.iterdir())


def hungry(block: np.ndarray) -> np.ndarray:
    """*block*, with a gigabyte, until somebody ends this process."""
    much = np.ones(1 << 27)
    time.sleep(600)
    return block + much[0]


def test_a_lost_scheduler_is_a_clear_error_and_nothing_is_written(tmp_path):
    where = tmp_path / "scheduler.json"
    module = "distributed.cli.dask_scheduler"
    options = "--port", "0", "--no-dashboard", "--scheduler-file", str(where)
    with (
        subprocess.Popen([sys.executable, "-m", module, *options]) as scheduler,
        distributed.Client(scheduler_file=where, set_as_default=False, timeout=120) as other,
        other.as_current(),
    ):
        timer = threading.Timer(1, scheduler.kill)  # there are no workers: the task waits
        timer.start()
        with pytest.raises(distributed.CancelledError, match="connection to the scheduler"):
            sd.write(tmp_path / "x", da.ones((4, 2), chunks=2))
        timer.join()
    assert [path.name for path in tmp_path.iterdir()] == ["scheduler.json"]


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


def test_placed_blocks_are_computed_again_if_their_worker_is_lost(client):
    A, B = operands()
    want = here(spcomp.compile(SPMM)(A=A, B=B))
    placed = sd.place(A, client)
    distributed.wait(placed)
    os.kill(next(iter(client.run(os.getpid).values())), signal.SIGKILL)
    found = client.compute(spcomp.compile(SPMM)(A=placed, B=B))
    assert found.result(timeout=300).tobytes() == want.tobytes()


def test_a_worker_is_killed_at_random_times():
    rng = np.random.default_rng(7)
    assert [dask_kills.run(rng)[-1] for _ in range(2)] == [True, True]
