"""Machine code as a shared library in a file: debuggers and profilers read its lines from there.

They know nothing of code that only lies in memory. The files stay when the process ends, since
profilers read them later; the system clears its folder for temporary files.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

from spcomp.codegen import cpu
from spcomp.codegen.abi import PARALLEL_FOR, PAUSE
from spcomp.runtime.jit import LoadedCode
from spcomp.target import Target

_NUMBERS = itertools.count()
_STUBS = {  # what a library calls instead of a function elsewhere, at an address that it is told
    name: f"""@{name}.at = global ptr null
define {result} @{name}({", ".join(f"{kind} %{k}" for k, kind in enumerate(kinds))}) {{
  %f = load ptr, ptr @{name}.at
  %r = tail call {result} %f({", ".join(f"{kind} %{k}" for k, kind in enumerate(kinds))})
  ret {result} %r
}}
"""
    for name, result, kinds in (
        (PARALLEL_FOR, "i32", ("ptr", "ptr", "i64", "i64")),
        (PAUSE, "i64", ("ptr",)),
    )
}


def load(
    obj: bytes, name: str, symbols: Iterable[str], imports: Mapping[str, int]
) -> LoadedCode | None:
    """Return what ``jit.load`` does of *obj*, called *name*; None where no library can be made.

    This needs Linux, and a linker that the C compiler runs.
    """
    linker = shutil.which(os.environ.get("CC") or "cc")
    if linker is None or sys.platform != "linux":
        return None
    stem = _folder() / f"{name[:40]}-{next(_NUMBERS)}"
    files = [stem.with_suffix(".o")]
    files[0].write_bytes(obj)
    if imports:
        files.append(stem.with_suffix(".stubs.o"))
        files[1].write_bytes(cpu.object_code("\n".join(map(_STUBS.__getitem__, imports)), Target()))
    path = stem.with_suffix(".so")
    command = [linker, "-shared", "-o", str(path), *map(str, files), "-lm"]
    run = subprocess.run(command, capture_output=True, check=False)
    for file in files:
        file.unlink()
    if run.returncode:
        return None
    library = ctypes.CDLL(str(path))
    for imported, address in imports.items():
        ctypes.c_void_p.in_dll(library, f"{imported}.at").value = address
    found = {symbol: ctypes.addressof(ctypes.c_byte.in_dll(library, symbol)) for symbol in symbols}
    return LoadedCode(found, library)


@cache
def _folder() -> Path:
    """Return the folder of this process's libraries, which only its user can reach."""
    return Path(tempfile.mkdtemp(prefix="spcomp-debug-"))
