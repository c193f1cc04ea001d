"""Beside launches: NVIDIA's assembler, which makes machine code of PTX ahead of time, if found."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sysconfig
import tempfile
from dataclasses import dataclass
from pathlib import Path

from spcomp.errors import BackendError

_ENTRY = re.compile(r"Compiling entry function '([^']+)'")
_SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")


@dataclass(frozen=True, slots=True)
class Usage:
    """What a thread of a kernel takes: *registers*, and bytes that are *spilled* from them.

    *shared_bytes*: those of a block whose size the kernel itself declares.
    """

    registers: int
    spilled: int
    shared_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Assembled:
    """Machine code for one architecture, a cubin, and what each kernel in it takes."""

    cubin: bytes
    usage: dict[str, Usage]


def tool(name: str) -> str | None:
    """Return the path of the program *name* of the CUDA toolkit, None if it is nowhere.

    It is looked for in ``$CUDA_HOME``, NVIDIA's packages of Python, and on the search path.
    """
    homes = [os.environ[v] for v in ("CUDA_HOME", "CUDA_PATH") if v in os.environ]
    packages = Path(sysconfig.get_path("purelib"), "nvidia")
    folders = [*(Path(home, "bin") for home in homes), *sorted(packages.glob("**/bin"))]
    found = shutil.which(name, path=os.pathsep.join(map(str, folders))) if folders else None
    return found or shutil.which(name) or shutil.which(name, path="/usr/local/cuda/bin")


def assemble(ptx: str, arch: str) -> Assembled:
    """Return the machine code of *ptx* for *arch*; raises BackendError without ptxas, or by it."""
    ptxas = tool("ptxas")
    if ptxas is None:
        raise BackendError(
            "there is no ptxas, which makes machine code of PTX",
            hint="pip install nvidia-cuda-nvcc, or set CUDA_HOME to a CUDA toolkit",
        )
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "kernel.ptx"), Path(folder, "kernel.cubin")
        source.write_text(ptx)
        command = [ptxas, "-v", "-O3", f"-arch={arch}", str(source), "-o", str(target)]
        try:
            run = subprocess.run(command, capture_output=True, text=True, check=False)
        except OSError as error:
            raise BackendError(f"{ptxas} cannot be run: {error.strerror}") from None
        if run.returncode or not target.exists():
            said = (run.stderr.strip() or run.stdout.strip()).replace(str(source), "the PTX")
            raise BackendError(f"ptxas refuses the PTX for {arch}: {said}")
        return Assembled(target.read_bytes(), _usage(run.stdout + run.stderr))


def _usage(log: str) -> dict[str, Usage]:
    """Return what each kernel takes, by name, as ptxas -v says."""
    pieces = _ENTRY.split(log)[1:]
    return {name: _usage_of(text) for name, text in zip(pieces[::2], pieces[1::2], strict=True)}


def _usage_of(text: str) -> Usage:
    spills, used, shared = _SPILLS.search(text), _USED.search(text), _SHARED.search(text)
    return Usage(
        int(used[1]) if used else 0,
        max(map(int, spills.groups())) if spills else 0,
        int(shared[1]) if shared else 0,
    )
