"""``spcomp doctor``: prints what a bug report needs to say about the machine."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from spcomp import __version__
from spcomp.cli import native
from spcomp.cli.table import print_table, size
from spcomp.errors import BackendError, SpcompError
from spcomp.knobs import knobs_of
from spcomp.target import Target

if TYPE_CHECKING:
    from collections.abc import Iterator

    from spcomp.runtime.cuda.driver import DeviceProperties

LIBRARIES = ["numpy", "scipy", "llvmlite", "networkx", "numba", "numba-cuda", "torch"]
SCRIPT = """
@T.prim_func
def rows(a: T.handle, y: T.handle, indptr: T.handle, indices: T.handle,
         m: T.int32, n: T.int32, nnz: T.int32) -> None:
    I = T.dense_fixed(m)
    J = T.sparse_variable(I, (n, nnz), (indptr, indices), "int32")
    A = T.match_sparse_buffer(a, (I, J), "float32")
    Y = T.match_sparse_buffer(y, (I,), "float32")
    with T.sp_iter([I, J], "SR", "rows") as [i, j]:
        with T.init():
            Y[i] = 0.0
        Y[i] = Y[i] + A[i, j]
"""


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print it for programs, with all thresholds.")
def doctor(*, as_json: bool) -> None:
    """Print versions, target, threads, cache and CUDA, and run a small program."""
    result = _self_test()
    groups = [list(rows) for rows in (_versions(), _machine(), _tools(), [("self-test", result)])]
    if as_json:
        document = {what: text for rows in groups for what, text in rows}
        facts = {"knobs": asdict(knobs_of(Target())), "gpus": [asdict(gpu) for gpu in _gpus()]}
        click.echo(json.dumps(document | facts, indent=2))
    else:
        print_table(("what", "is"), groups)
    if result != "passed":
        raise BackendError("the self-test failed", hint="please report this table")


def _versions() -> Iterator[tuple[str, str]]:
    yield "spcomp", __version__
    yield "python", f"{platform.python_version()} ({platform.python_implementation()})"
    for name in LIBRARIES:
        try:
            yield name, importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            yield name, "not installed"


def _machine() -> Iterator[tuple[str, str]]:
    from spcomp.codegen.cpu.machine import resolve
    from spcomp.codegen.llvm.module import LLVM_VERSION
    from spcomp.runtime.pool import get_num_threads

    host = resolve(Target())
    features = [name[1:] for name in host.features.split(",") if name.startswith("+")]
    yield "system", platform.platform()
    yield "LLVM", LLVM_VERSION
    yield "target", host.cpu
    yield "features", " ".join(sorted(features))
    yield "vector width", f"{host.vector_bits} bits"
    yield "threads", f"{get_num_threads()} of {os.cpu_count()} processors"


def _tools() -> Iterator[tuple[str, str]]:
    from spcomp.runtime import cache
    from spcomp.runtime.cuda import driver

    info = cache.info()
    yield "cache", info.refused or f"{info.directory} ({info.entries} objects, {size(info.size)})"
    yield "C compiler", _c_compiler()
    yield "ptxas", _ptxas()
    yield "CUDA", f"not available: {reason}" if (reason := driver.missing()) else "available"
    for gpu in _gpus():
        yield f"GPU {gpu.number}", _described(gpu)


def _c_compiler() -> str:
    path = native.compiler()
    if path is None:
        return "none"
    run = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
    return f"{path} ({(run.stdout.splitlines() or ['unknown version'])[0]})"


def _ptxas() -> str:
    path = shutil.which("ptxas")
    if path is None:
        return "not found (tests check PTX with it; calls do not need it)"
    run = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
    lines = [line for line in run.stdout.splitlines() if "release" in line]
    return f"{path} ({lines[0].rpartition('release ')[2] if lines else 'unknown version'})"


def _gpus() -> list[DeviceProperties]:
    """Return what the GPUs are; none if CUDA is not available."""
    from spcomp.runtime.cuda.driver import device_count, device_properties, missing

    return [] if missing() else [device_properties(number) for number in range(device_count())]


def _described(gpu: DeviceProperties) -> str:
    cuda = "{}.{}".format(*gpu.driver)
    return (
        f"{gpu.name} ({gpu.target}, {gpu.multiprocessors} multiprocessors,"
        f" {size(gpu.memory_bytes)}, L2 {size(gpu.l2_bytes)}, shared memory"
        f" {size(gpu.shared_limit)} a block, driver for CUDA {cuda})"
    )


def _self_test() -> str:
    """Compile and run a small program; return ``passed`` or what went wrong."""
    import numpy as np
    import scipy.sparse as sps

    from spcomp.kernels.compile import compile  # noqa: A004
    from spcomp.script.parse import parse_source

    matrix = sps.csr_array(np.triu(np.ones((5, 5), np.float32)))
    try:
        (program,) = parse_source(SCRIPT, "<self-test>")
        right = np.array_equal(compile(program)(A=matrix), matrix.sum(axis=1))
    except SpcompError as error:
        return str(error)
    return "passed" if right else "a wrong result"
