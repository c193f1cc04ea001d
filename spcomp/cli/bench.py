"""``spcomp bench``: times a user's program on a user's matrix, alternating with libraries."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from spcomp.cli import options, timing
from spcomp.cli.data import arguments_of, required_data
from spcomp.cli.load import select_one
from spcomp.cli.peers import RIVALS, Product, product_of, rival
from spcomp.cli.table import print_table
from spcomp.errors import ArgumentError
from spcomp.ir.program import CoordFunc

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spcomp.ir.func import Func
    from spcomp.kernels.kernel import Kernel

TOLERANCE = 1e-3  # relative to the largest element, as rivals may add in another order


def _libraries(
    _ctx: click.Context, _param: click.Parameter, texts: tuple[str, ...]
) -> tuple[str, ...]:
    chosen = [name.strip() for text in texts for name in text.split(",")]
    for name in chosen:
        if name not in RIVALS:
            raise click.BadParameter(f"{name!r} is not one of {', '.join(RIVALS)}")
    return tuple(name for name in RIVALS if name in chosen)


@click.command()
@options.file
@options.one_name
@required_data
@click.option(
    "--vs", multiple=True, callback=_libraries, metavar="LIB,...",
    help=f"Rivals for products of a matrix: {', '.join(RIVALS)}.",
)  # fmt: skip
@options.const
@options.fast_math
@click.option("--rounds", default=15, show_default=True, type=click.IntRange(2))
@click.option("--threads", type=click.IntRange(1), help="For all.  [default: as the machine says]")
@click.option("--json", "as_json", is_flag=True, help="Print every sample for programs to read.")
def bench(
    file: str,
    names: tuple[str, ...],
    data: dict[str, Path],
    vs: tuple[str, ...],
    constants: options.Constants,
    fast_math: bool,  # noqa: FBT001
    rounds: int,
    threads: int | None,
    as_json: bool,  # noqa: FBT001 - click passes options by name
) -> None:
    """Time a program in FILE on the given arguments, alternating with libraries."""
    from spcomp.runtime.pool import get_num_threads, set_num_threads

    name, program = select_one(file, names)
    kernel = options.compiled(name, program, "cpu", constants, fast_math=fast_math)
    if threads:
        set_num_threads(threads)
    arguments = arguments_of(kernel, data, constants)
    calls, result = _ours(kernel, arguments, data)
    product = product_of(written := options.written(program))
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
        click.echo(_why_alone(name, written), err=True)
    _print(name, product, samples, ratios)


def _why_alone(name: str, written: Func) -> str:
    """Return why nothing is compared with the program *name*, which was *written* like that."""
    if not isinstance(written, CoordFunc):
        return (
            f"{name} is written below the coordinate level, where no product of a matrix is "
            "recognised: it is compared with no library"
        )
    return f"no library computes {name}: it is not the product of a matrix"


def _ours(
    kernel: Kernel, arguments: Mapping[str, Any], data: Mapping[str, Path]
) -> tuple[dict[str, Any], Any]:
    """Return the calls of spcomp that are timed, and their result."""
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
    """Return the call of each library by name, without those that are not installed."""
    calls = {}
    for library in libraries:
        try:
            call = rival(library, product, arguments, threads)
        except ImportError as error:
            click.echo(f"{library} is left out, it is not installed: {error}", err=True)
            click.echo("hint: pip install spcomp[bench]", err=True)
        else:
            calls[library] = _agreeing(library, call, product, result)
    return calls


def _agreeing(library: str, call: Any, product: Product, result: Any) -> Any:
    """Return the rival's *call*; raises ArgumentError if its result differs from ours."""
    theirs = np.asarray(call())
    finite = np.isfinite(result)
    bound = TOLERANCE * max(1.0, float(np.abs(result).max(initial=0, where=finite)))
    if theirs.shape != result.shape or not np.allclose(
        theirs, result, rtol=0, atol=bound, equal_nan=True
    ):
        raise ArgumentError(f"{library} computes {product} and gets another result")
    return call


def _document(
    samples: Mapping[str, timing.Samples], ratios: Mapping[str, timing.Ratio]
) -> dict[str, Any]:
    return {
        "median_seconds": {name: timing.median(series) for name, series in samples.items()},
        "ratios": {
            n: {"value": r.value, "low": r.low, "high": r.high, "clean": r.clean}
            for n, r in ratios.items()
        },
        "samples": {name: [s.seconds for s in series] for name, series in samples.items()},
    }


def _print(
    name: str,
    product: Product | None,
    samples: Mapping[str, timing.Samples],
    ratios: Mapping[str, timing.Ratio],
) -> None:
    rows = []
    for who, series in samples.items():
        r = ratios.get(who)
        dirty = sum(sample.dirty for sample in series)
        rows.append(
            (
                *(who, f"{1e3 * timing.median(series):#.3g} ms"),
                f"{'' if r.clean else '~ '}{r.value:.2f}" if r else "",
                f"{r.low:.2f}..{r.high:.2f}" if r else "",
                f"{dirty} of {len(series)}",
            )
        )
    caption = f"{name}{f': {product}' if product else ''}; ratio: their time over spcomp bound"
    if not all(r.clean for r in ratios.values()):
        caption += "; ~: of disturbed samples, too few are clean"
    print_table(("", ">median", ">ratio", "95 %", ">disturbed"), [rows], caption)
