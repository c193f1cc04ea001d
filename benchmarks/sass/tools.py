"""NVIDIA's compilers as subprocesses: CUDA C++ to PTX, to a cubin, to the text of its code."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

from benchmarks.contenders import MissingError
from spcomp.runtime.cuda.ptxas import tool as cuda_tool


def tool(name: str) -> str:
    """Return the path of *name*: of ``$CUDA_HOME``, the search path, or packages of Python.

    Raises:
        MissingError: it is nowhere.
    """
    found = cuda_tool(name)
    if found is None:
        raise MissingError(f"no {name}: not on the path, in CUDA_HOME or in nvidia's packages")
    return found


def ptx_of(source: Path, arch: str) -> str:
    """Return the PTX that nvcc makes of a ``.cu`` file."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "kernel.ptx")
        _run(
            tool("nvcc"), "-O3", "-std=c++17", f"-arch={arch}", "-ptx", str(source), "-o", str(out)
        )
        return out.read_text()


def cubin_of(ptx: str, arch: str) -> bytes:
    """Return the machine code that ptxas makes of *ptx*, as the driver would at first use."""
    with tempfile.TemporaryDirectory() as folder:
        source, out = Path(folder, "kernel.ptx"), Path(folder, "kernel.cubin")
        source.write_text(ptx)
        _run(tool("ptxas"), "-O3", f"-arch={arch}", str(source), "-o", str(out))
        return out.read_bytes()


def sass_of(cubin: bytes) -> str:
    """Return what nvdisasm prints of *cubin*."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "kernel.cubin")
        path.write_bytes(cubin)
        return _run(tool("nvdisasm"), str(path))


def disassembly(code: str | bytes | Path, arch: str) -> str:
    """Return the machine code, as text, of PTX, of a cubin, or of a .cu, .ptx or .cubin file."""
    if isinstance(code, Path):
        if code.suffix == ".cu":
            code = ptx_of(code, arch)
        else:
            code = code.read_bytes() if code.suffix == ".cubin" else code.read_text()
    return sass_of(cubin_of(code, arch) if isinstance(code, str) else code)


def _run(*command: str) -> str:
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    if run.returncode:
        raise ValueError(f"{Path(command[0]).name}: {run.stderr.strip() or run.stdout.strip()}")
    return run.stdout
