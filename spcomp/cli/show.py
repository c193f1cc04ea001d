"""``spcomp show``: the stages of a program in colour, or its axis forest."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from spcomp.cli import options
from spcomp.cli.data import arguments_of, data
from spcomp.cli.highlight import emit
from spcomp.cli.load import load, select
from spcomp.target import target as as_target

if TYPE_CHECKING:
    from spcomp.ir.func import Func

SOURCES = ("llvm", "asm", "ptx")


@click.command()
@options.file
@options.names
@click.option(
    "--stage",
    "stages",
    type=click.Choice((*options.STAGES, *SOURCES)),
    multiple=True,
    help="May be repeated.",
)
@click.option("--forest", is_flag=True, help="Draw the axes instead.")
@click.option(
    "--svg", type=click.Path(dir_okay=False), metavar="FILE", help="Write the axes as a picture."
)
@click.option(
    "--html",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="Write all stages, linked line by line, as a page.",
)
@data
@options.target
@options.const
@options.fast_math
def show(
    file: str,
    names: tuple[str, ...],
    stages: tuple[str, ...],
    forest: bool,  # noqa: FBT001 - click passes options by name
    svg: str | None,
    html: str | None,
    data: dict[str, Path],
    target: str,
    constants: options.Constants,
    fast_math: bool,  # noqa: FBT001
) -> None:
    """Print the stages of the programs in FILE, or of those named."""
    _check_stages(stages, target)
    programs = select(load(file, names), names)
    if forest or svg is not None:
        _forest({name: options.source(value) for name, value in programs.items()}, svg)
        return
    fixed = options.constants_of(constants, programs)
    if data:
        if html is None or len(programs) != 1:
            raise click.UsageError("--data is for --html, and for one program")
        ((name, program),) = programs.items()
        kernel = options.compiled(name, program, target, fixed[name], fast_math=fast_math)
        page = kernel.explore(**arguments_of(kernel, data, fixed[name]))
    elif html is not None:
        page = options.explored(Path(file).name, programs, target, fixed, fast_math=fast_math)
    if html is not None:
        options.write(Path(html), page.html.encode())
        return
    for name, program in programs.items():
        kernel = options.compiled(name, program, target, fixed[name], fast_math=fast_math)
        for stage in stages or options.stages(program):
            text = kernel.source(stage) if stage in SOURCES else kernel.stage(stage)
            if len(programs) > 1 or len(stages) != 1:
                comment = {"llvm": ";", "ptx": "//"}.get(stage, "#")
                text = f"{comment} {name}: {stage}\n{text}\n"
            emit(text, stage)


def _check_stages(stages: tuple[str, ...], target: str) -> None:
    """Raise click's usage error for a stage that there is not for *target*."""
    other, whose = ("ptx", "cuda:sm_NN") if as_target(target).kind == "cpu" else ("asm", "cpu")
    if other in stages:
        raise click.BadParameter(f"{other} is for --target {whose}", param_hint="--stage")


def _forest(sources: dict[str, Func], svg: str | None) -> None:
    from spcomp.ir.analysis.forest import draw
    from spcomp.viz.forest import draw_forest

    if svg is not None:
        if len(sources) != 1:
            raise click.UsageError(f"--svg draws one program; name one of {', '.join(sources)}")
        (source,) = sources.values()
        options.write(Path(svg), draw_forest(source.axes).svg.encode())
    for name, source in sources.items():
        if len(sources) > 1:
            click.echo(f"# {name}")
        click.echo(draw(source.axes, source.buffers))
