"""Beside reading: what lies in an HDF5 file, read by a process of its own.

The HDF5 library may crash or never return on a damaged file, so it does not get ours.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from spcomp.errors import ArgumentError
from spcomp.io.source import memory

if TYPE_CHECKING:
    from spcomp.io.source import Source

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
SECONDS, SLOWEST = 60, 10 << 20  # that a file may take: these, and one for so many bytes
READER = """\
import re, sys
import h5py, numpy
path, attribute, wanted, made, most = sys.argv[1:]
with h5py.File(path, "r") as file:
    text = file.attrs.get(attribute)
    found = {attribute: numpy.array(text)} if isinstance(text, str) else {}
    for name in filter(re.compile(wanted).fullmatch, file):
        data = file[name] if isinstance(file.get(name, getlink=True), h5py.HardLink) else None
        if not isinstance(data, h5py.Dataset) or data.is_virtual or data.external:
            continue
        if data.nbytes > int(most):
            sys.exit(f"array {name} takes {data.nbytes} bytes, there are {most}")
        if data.dtype.kind in "biuf":
            found[name] = data[()]
with open(made, "wb") as file:
    numpy.savez(file, **found)
"""


def needed() -> None:
    """Raise ArgumentError if h5py is not installed."""
    if importlib.util.find_spec("h5py") is None:
        raise ArgumentError(
            "argument path: binsparse files need h5py", hint="pip install spcomp[binsparse]"
        )


def arrays(source: Source, attribute: str, wanted: str) -> dict[str, Array]:
    """Return the arrays of numbers in the root whose names match *wanted*, and the *attribute*.

    That is an array of one text; it is left out if it is none, as arrays are that lie in other
    files. Raises FileError for what the library does not read.
    """
    needed()
    with tempfile.TemporaryDirectory() as folder:
        made = str(Path(folder, "arrays.npz"))
        arguments = [str(source.path), attribute, wanted, made, str(memory())]
        try:
            done = subprocess.run(
                [sys.executable, "-P", "-c", READER, *arguments],
                capture_output=True,
                check=False,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                timeout=SECONDS + source.size // SLOWEST,
            )
        except subprocess.TimeoutExpired:
            source.refuse(0, "it is damaged: reading it does not end")
        if done.returncode:
            lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
            why = lines[-1] if done.returncode > 0 and lines else "the HDF5 library crashes on it"
            source.refuse(0, f"it is damaged or no HDF5 file: {why}")
        with np.load(made, allow_pickle=False) as found:
            return {name: found[name] for name in found.files}
