"""``spcomp bench``: a user's kernel on a user's matrix, against libraries, in turns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from spcomp.cli import options, timing
from spcomp.cli.load import load, select
from spcomp.cli.peers import RIVALS, Product, product_of, rival
from spcomp.cli.table import print_table
from spcomp.errors import ArgumentError, FileError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spcomp.compiler.kernel import Kernel
    from spcomp.compiler.signature import Param

TOLERANCE = 1e-3  # relative to the greatest element: rivals may add in another order


def _files(_ctx: click.Context, _param: click.Parameter, given: tuple[str, ...]) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for text in given:
        name, equals, file = text.partition("=")
        if not (name and equals) or Path(file).suffix not in (".mtx", ".npy"):
            raise click.BadParameter(f"{text!r} is not NAME=FILE.mtx or NAME=FILE.npy")
        found[name] = Path(file)
    return found


def _libraries(
    _ctx: click.Context, _param: click.Parameter, given: tuple[str, ...]
) -> tuple[str, ...]:
    asked = [name.strip() for text in given for name in text.split(",")]
    for name in asked:
        if name not in RIVALS:
            raise click.BadParameter(f"{name!r} is not one of {', '.join(RIVALS)}")
    return tuple(name for name in RIVALS if name in asked)


@click.command()
@options.file
@options.names
@click.option(
    "--data", multiple=True, required=True, callback=_files, metavar="NAME=FILE",
    help="An argument, or an axis and its pattern: .mtx (sparse) or .npy; others are random.",
)  # fmt: skip
@click.option(
    "--vs", multiple=True, callback=_libraries, metavar="LIB,...",
    help=f"Rivals for products of a matrix: {', '.join(RIVALS)}.",
)  # fmt: skip
@options.const
@click.option("--rounds", default=15, show_default=True, type=click.IntRange(2))
@click.option("--threads", type=click.IntRange(1), help="For all.  [default: as the machine says]")
@click.option("--json", "as_json", is_flag=True, help="Print every sample for programs to read.")
def bench(
    file: str,
    names: tuple[str, ...],
    data: dict[str, Path],
    vs: tuple[str, ...],
    constants: options.Constants,
    rounds: int,
    threads: int | None,
    as_json: bool,  # noqa: FBT001 - click passes options by name
) -> None:
    """Time a program in FILE on the given arguments, in turns with libraries."""
    from spcomp.runtime.pool import get_num_threads, set_num_threads

    programs = select(load(file), names)
    if len(programs) > 1:
        raise click.BadParameter(f"name one of {', '.join(programs)}", param_hint="NAME")
    ((name, program),) = programs.items()
    kernel = options.compiled(name, program, "cpu", constants)
    if threads:
        set_num_threads(threads)
    arguments = _arguments(kernel, data, constants)
    calls, result = _ours(kernel, arguments, data)
    product = product_of(options.source(program))
    if product is not None:
        calls |= _rivals(vs, product, arguments, result, threads or get_num_threads())
    samples = timing.measure(calls, rounds=rounds)
    ratios = {
        library: timing.ratio({library: (samples[library], samples["spcomp bound"])})
        for library in calls
        if library in vs
    }
    if as_json:
        click.echo(json.dumps(_document(samples, ratios), indent=2))
        return
    if vs and product is None:
        click.echo(f"no library computes {name}: it is not the product of a matrix", err=True)
    _print(name, product, samples, ratios)


def _arguments(
    kernel: Kernel, data: Mapping[str, Path], constants: Mapping[str, int | float]
) -> dict[str, Any]:
    """Return the inputs of *kernel* by name: those of *data*, and random ones of the right size."""
    inputs = {p.name: p for p in kernel.signature.params if p.kind in ("in", "inout")}
    params = _patterns(kernel) | inputs
    given = {}
    for name, path in data.items():
        if name not in params:
            raise click.BadParameter(
                f"{kernel.name} has no input {name!r}; there is {', '.join(params)}",
                param_hint="--data",
            )
        given[name] = _read(path, params[name])
    sizes: dict[str, Any] = dict(constants)
    for name, argument in given.items():
        sizes.update(zip(params[name].shape, argument.shape, strict=False))
    rng = np.random.default_rng(0)
    for name, param in inputs.items():
        if name not in given:
            given[name] = _random(rng, param, _shape(param, sizes))
    return given


def _random(rng: np.random.Generator, param: Param, shape: tuple[int, ...]) -> Any:
    try:
        return rng.random(shape).astype(param.dtype)
    except MemoryError:
        raise ArgumentError(
            f"argument {param.name}: of shape {shape}, does not fit into memory",
            hint="give smaller sizes with --const",
        ) from None


def _patterns(kernel: Kernel) -> dict[str, Param]:
    """Return the outputs along a sparse axis, by the axis: an argument for it is their pattern."""
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
            return np.load(path)
        found: Any = read(path, duplicates="sum")
        return scipy.sparse.csr_matrix(found).astype(param.dtype)
    except (OSError, ValueError, EOFError) as error:
        known = isinstance(error, FileError)  # it names the file
        why = str(error) if known else f"{path} cannot be read: {error}"
        raise ArgumentError(f"argument {param.name}: {why}") from error


def _shape(param: Param, sizes: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the shape of an argument that is not given; raises click's usage error."""
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


def _ours(
    kernel: Kernel, arguments: Mapping[str, Any], data: Mapping[str, Path]
) -> tuple[dict[str, Any], Any]:
    """Return the calls that time us, and the result."""
    fixed = {name: arguments[name] for name in data if data[name].suffix == ".mtx"}
    rest = {name: value for name, value in arguments.items() if name not in fixed}
    bound = kernel.bind(**fixed)
    result = bound(**rest)
    out = {"out": result} if type(result) is np.ndarray else {}
    calls = {
        "spcomp": lambda: kernel(**arguments, **out),
        "spcomp bound": lambda: bound(**rest, **out),
    }
    return calls, np.array(result) if out else result


def _rivals(
    libraries: tuple[str, ...],
    product: Product,
    arguments: Mapping[str, Any],
    result: Any,
    threads: int,
) -> dict[str, Any]:
    """Return the call of each of *libraries* by name; one that is not installed is left out."""
    calls = {}
    for library in libraries:
        try:
            call = rival(library, product, arguments, threads)
        except ImportError as error:
            click.echo(f"{library} is left out, it is not installed: {error}", err=True)
            click.echo("hint: pip install spcomp[bench]", err=True)
        else:
            calls[library] = _checked(library, call, product, result)
    return calls


def _checked(library: str, call: Any, product: Product, result: Any) -> Any:
    """Return the rival's *call*; raises ArgumentError if it disagrees with us."""
    theirs = np.asarray(call())
    bound = TOLERANCE * max(1.0, float(np.abs(result).max(initial=0)))
    if theirs.shape != result.shape or not np.allclose(theirs, result, rtol=0, atol=bound):
        raise ArgumentError(f"{library} computes {product} and gets another result")
    return call


def _document(
    samples: Mapping[str, timing.Samples], ratios: Mapping[str, timing.Ratio]
) -> dict[str, Any]:
    return {
        "median_seconds": {name: timing.median(taken) for name, taken in samples.items()},
        "ratios": {
            n: {"value": r.value, "low": r.low, "high": r.high, "clean": r.clean}
            for n, r in ratios.items()
        },
        "samples": {name: [s.seconds for s in taken] for name, taken in samples.items()},
    }


def _print(
    name: str,
    product: Product | None,
    samples: Mapping[str, timing.Samples],
    ratios: Mapping[str, timing.Ratio],
) -> None:
    rows = []
    for who, taken in samples.items():
        r = ratios.get(who)
        dirty = sum(sample.dirty for sample in taken)
        rows.append(
            (
                *(who, f"{1e3 * timing.median(taken):#.3g} ms"),
                f"{'' if r.clean else '~ '}{r.value:.2f}" if r else "",
                f"{r.low:.2f}..{r.high:.2f}" if r else "",
                f"{dirty} of {len(taken)}",
            )
        )
    caption = f"{name}{f': {product}' if product else ''}; ratio: their time over spcomp bound"
    if not all(r.clean for r in ratios.values()):
        caption += "; ~: of disturbed samples, too few are clean"
    print_table(("", ">median", ">ratio", "95 %", ">disturbed"), [rows], caption)
