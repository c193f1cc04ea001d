"""Under ``spcomp bench`` and ``spcomp tune``: arguments of kernels, from files and by chance."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from spcomp.errors import ArgumentError, FileError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spcomp.compiler.interface import Param
    from spcomp.kernels.kernel import Kernel


def data_files(
    _ctx: click.Context, _param: click.Parameter, texts: tuple[str, ...]
) -> dict[str, Path]:
    """Return the files of ``--data NAME=FILE`` by name; raises click's usage error."""
    files: dict[str, Path] = {}
    for text in texts:
        name, equals, file = text.partition("=")
        if not (name and equals) or Path(file).suffix not in (".mtx", ".npy"):
            raise click.BadParameter(f"{text!r} is not NAME=FILE.mtx or NAME=FILE.npy")
        files[name] = Path(file)
    return files


data, required_data = (
    click.option(
        "--data", multiple=True, required=required, callback=data_files, metavar="NAME=FILE",
        help="An argument, or an axis and its pattern: .mtx (sparse) or .npy; others are random.",
    )
    for required in (False, True)
)  # fmt: skip


def arguments_of(
    kernel: Kernel, data: Mapping[str, Path], constants: Mapping[str, int | float]
) -> dict[str, Any]:
    """Return the inputs of *kernel* by name: those of *data*, and random ones of the right size."""
    inputs = {p.name: p for p in kernel.signature.params if p.kind in ("in", "inout")}
    params = _patterns(kernel) | inputs
    arguments = {}
    for name, path in data.items():
        if name not in params:
            raise click.BadParameter(
                f"{kernel.name} has no input {name!r}; there is {', '.join(params)}",
                param_hint="--data",
            )
        arguments[name] = _read(path, params[name])
    sizes: dict[str, Any] = dict(constants)
    for name, argument in arguments.items():
        sizes.update(zip(params[name].shape, argument.shape, strict=False))
    rng = np.random.default_rng(0)
    for name, param in inputs.items():
        if name not in arguments:
            arguments[name] = _random(rng, param, _shape(param, sizes))
    return arguments


def _random(rng: np.random.Generator, param: Param, shape: tuple[int, ...]) -> Any:
    try:
        return rng.random(shape).astype(param.dtype)
    except MemoryError:
        raise ArgumentError(
            f"argument {param.name}: of shape {shape}, does not fit into memory",
            hint="give smaller sizes with --const",
        ) from None


def _patterns(kernel: Kernel) -> dict[str, Param]:
    """Return the outputs along a sparse axis, by the axis, whose argument is their pattern."""
    axes = {p: p.layout[-1].split() for p in kernel.signature.params if p.layout}
    return {
        axis: param
        for param, (axis, kind) in axes.items()
        if kind == "sparse_variable" and param.kind == "out"
    }


def _read(path: Path, param: Param) -> Any:
    import scipy.sparse

    from spcomp.io.read import read

    try:
        if path.suffix == ".npy":
            return _numbers(np.load(path))
        matrix: Any = read(path, duplicates="sum")
        return scipy.sparse.csr_matrix(matrix).astype(param.dtype)
    except (OSError, ValueError, EOFError) as error:
        names_file = isinstance(error, FileError)  # it names the file
        why = str(error) if names_file else f"{path} cannot be read: {error}"
        raise ArgumentError(f"argument {param.name}: {why}") from error


def _numbers(array: Any) -> Any:
    if getattr(array, "dtype", np.dtype(object)).kind not in "biufcV":
        raise ValueError(f"it holds {getattr(array, 'dtype', type(array).__name__)}, no numbers")
    return array


def _shape(param: Param, sizes: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the shape of an argument without data; raises click's usage error."""
    if any(not axis.endswith("dense_fixed") for axis in param.layout):
        raise click.BadParameter(f"give {param.name}, it is sparse", param_hint="--data")
    for extent in param.shape:
        if extent.removeprefix("-").isdecimal() and int(extent) < 0:
            raise click.BadParameter(f"{param.name} has the extent {extent}", param_hint="--const")
        if not extent.isdecimal() and extent not in sizes:
            raise click.BadParameter(
                f"{extent}, a size of {param.name}, is not known; give --const {extent}=64",
                param_hint="--const",
            )
    return tuple(int(sizes.get(extent, extent)) for extent in param.shape)
