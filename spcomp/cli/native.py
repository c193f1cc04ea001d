"""Under ``spcomp build``: the object file, library and header of a kernel, for use from C."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from spcomp.cli import header as c_header
from spcomp.errors import BackendError
from spcomp.ir.expr import Var

if TYPE_CHECKING:
    from spcomp.ir.func import Func
    from spcomp.kernels.kernel import Kernel

LIBRARY = {"win32": ".dll", "darwin": ".dylib"}.get(sys.platform, ".so")
_LIBRARIES = ("-lm", "-lpthread") if LIBRARY == ".so" else ()  # elsewhere they are parts of libc
_VERBS = {
    "in": "read",
    "out": "written",
    "inout": "read and written",
    "assembled": "written; the host program allocates it once the size is known",
}


def compiler() -> str | None:
    """Return the path of the C compiler, which ``CC`` may name; None if there is none."""
    names = [os.environ["CC"]] if os.environ.get("CC") else ["cc", "gcc", "clang"]
    return next((path for name in names if (path := shutil.which(name))), None)


def object_file(kernel: Kernel) -> bytes:
    """Return an object file that needs no other code of spcomp: it contains the thread pool."""
    from spcomp.runtime.pool import object_with_pool

    emitted = kernel.emitted
    if not emitted.pooled:
        return kernel.object_bytes
    return object_with_pool(emitted.llvm_ir, kernel.target)


def library(kernel: Kernel, linker: str | None) -> bytes:
    """Return a shared library linked by *linker*; raises BackendError if that fails."""
    if linker is None:
        raise BackendError(
            "no C compiler to link the library with",
            hint="install one, set CC to its path, or leave out so: --emit obj,header",
        )
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "kernel.o"), Path(folder, f"kernel{LIBRARY}")
        source.write_bytes(object_file(kernel))
        command = [linker, "-shared", "-o", str(target), str(source), *_LIBRARIES]
        try:
            run = subprocess.run(command, capture_output=True, text=True, check=False)
        except OSError as error:
            raise _unlinked(kernel, linker, error.strerror or str(error)) from None
        if run.returncode:
            raise _unlinked(kernel, linker, run.stderr.strip())
        if not target.exists():
            raise _unlinked(kernel, linker, "it wrote no library")
        return target.read_bytes()


def _unlinked(kernel: Kernel, linker: str, reason: str) -> BackendError:
    return BackendError(
        f"{linker} cannot link {kernel.name}: {reason}",
        hint="a library is for this machine; for another, link the object file there",
    )


def header(name: str, kernel: Kernel, source: Func) -> str:
    """Return the C header of *kernel*, the program of which is *source*."""
    notes = _sizes(source)
    for param in kernel.signature.params:
        if param.kind in _VERBS:
            shape = f"({', '.join(param.shape)})" if param.shape else ""
            layout = f" along {', '.join(param.layout)}" if param.layout else ""
            notes[param.handle] = f"{param.name}{shape}{layout}, {_VERBS[param.kind]}"
    return c_header.header(name, kernel.emitted, notes)


def _sizes(source: Func) -> dict[str, str]:
    """Return a description of the parameters that axes consist of, by name."""
    notes: dict[str, str] = {}
    for axis in source.axes:
        roles = (
            ("length", axis.length),
            ("number of positions", axis.nnz),
            ("size of a fiber", axis.nnz_cols),
            ("where each fiber begins, and the end", axis.indptr),
            ("coordinates", axis.indices),
        )
        for role, param in roles:
            if isinstance(param, Var):
                notes.setdefault(param.name, f"axis {axis.name}: {role}")
    return notes
