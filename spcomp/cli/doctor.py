"""``spcomp doctor``: what a report of a problem needs to say about the machine."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import platform
import subprocess
from typing import TYPE_CHECKING

import click

from spcomp import __version__
from spcomp.cli import native
from spcomp.cli.table import print_table, size
from spcomp.errors import BackendError, SpcompError

if TYPE_CHECKING:
    from collections.abc import Iterator

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
def doctor() -> None:
    """Print versions, target, threads, cache and CUDA, and run a small program."""
    result = _self_test()
    groups = [_versions(), _machine(), _tools(), [("self-test", result)]]
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
    from spcomp.codegen.cpu.llvm import LLVM_VERSION
    from spcomp.codegen.cpu.machine import resolve
    from spcomp.runtime.pool import get_num_threads
    from spcomp.target import Target

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

    kept = cache.info()
    yield "cache", kept.refused or f"{kept.directory} ({kept.entries} objects, {size(kept.size)})"
    yield "C compiler", _c_compiler()
    yield "CUDA", _cuda()


def _c_compiler() -> str:
    path = native.compiler()
    if path is None:
        return "none"
    run = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
    return f"{path} ({(run.stdout.splitlines() or ['unknown version'])[0]})"


def _cuda() -> str:
    try:
        cuda = importlib.import_module("numba.cuda")  # by name: it reports, it does not depend
    except ImportError as error:
        return f"not available: {error}"
    return "available" if cuda.is_available() else "not available: no driver or no device"


def _self_test() -> str:
    """Compile a small program, run it, and say how it went."""
    import numpy as np
    import scipy.sparse as sps

    from spcomp.compiler.compile import compile  # noqa: A004
    from spcomp.script.parse import parse_source

    matrix = sps.csr_array(np.triu(np.ones((5, 5), np.float32)))
    try:
        (program,) = parse_source(SCRIPT, "<self-test>")
        right = np.array_equal(compile(program)(A=matrix), matrix.sum(axis=1))
    except SpcompError as error:
        return str(error)
    return "passed" if right else "a wrong result"
