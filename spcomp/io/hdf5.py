"""Beside reading: the arrays of an HDF5 file, read in a process of its own.

The HDF5 library may crash or never return on a damaged file, so it does not run in our process.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from spcomp.arrays import Array
from spcomp.errors import ArgumentError
from spcomp.io.source import memory

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spcomp.io.source import Source

SECONDS, SLOWEST = 60, 10 << 20  # the time a file may take, plus a second for so many bytes
READER = """\
import json, re, sys
import h5py, numpy
path, attribute, wanted, made, most, parts = sys.argv[1:]
parts = json.loads(parts)
with h5py.File(path, "r") as file:
    text = file.attrs.get(attribute)
    found = {attribute: numpy.array(text)} if isinstance(text, str) else {}
    for name in filter(re.compile(wanted).fullmatch, file):
        data = file[name] if isinstance(file.get(name, getlink=True), h5py.HardLink) else None
        if not isinstance(data, h5py.Dataset) or data.is_virtual or data.external:
            continue
        part = slice(*parts[name]) if name in parts and data.ndim == 1 else ()
        count = len(range(*part.indices(len(data)))) if part else data.size
        size = count * data.dtype.itemsize
        if size > int(most):
            sys.exit(f"array {name} takes {size} bytes, there are {most}")
        if data.dtype.kind in "biuf":
            found[name] = data[part]
with open(made, "wb") as file:
    numpy.savez(file, **found)
"""


def require_h5py() -> None:
    """Raise ArgumentError if h5py is not installed."""
    if importlib.util.find_spec("h5py") is None:
        raise ArgumentError(
            "argument path: binsparse files need h5py", hint="pip install spcomp[binsparse]"
        )


def arrays(
    source: Source, attribute: str, names: str, parts: Mapping[str, tuple[int, int]] | None = None
) -> dict[str, Array]:
    """Return the arrays of numbers in the root whose names match *names*, and the *attribute*.

    *parts*: for arrays of one dimension, by name, the first and last position that are read.

    The attribute is an array of one text, and left out if it is anything else. Arrays in other
    files are left out, too. Raises FileError for a file that the library cannot read.
    """
    require_h5py()
    with tempfile.TemporaryDirectory() as folder:
        target = str(Path(folder, "arrays.npz"))
        arguments = [str(source.path), attribute, names, target, str(memory())]
        arguments.append(json.dumps(parts or {}))
        try:
            process = subprocess.run(
                [sys.executable, "-P", "-c", READER, *arguments],
                capture_output=True,
                check=False,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                timeout=SECONDS + source.size // SLOWEST,
            )
        except subprocess.TimeoutExpired:
            source.refuse(0, "it is damaged: reading it does not end")
        if process.returncode:
            lines = process.stderr.decode("utf-8", "replace").strip().splitlines()
            why = (
                lines[-1] if process.returncode > 0 and lines else "the HDF5 library crashes on it"
            )
            source.refuse(0, f"it is damaged or no HDF5 file: {why}")
        with np.load(target, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
