"""``spcomp tune``: searches the fastest formats and steps for a user's program and matrix."""

from __future__ import annotations

import json
from contextlib import contextmanager
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from spcomp.cli import options
from spcomp.cli.data import arguments_of, data_files
from spcomp.cli.load import load, select
from spcomp.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from spcomp.tune.search import Progress, Session
    from spcomp.tune.tuned import Tuned

ROWS = 12  # candidates that are printed, the fastest
PLOTS = (".svg", ".png", ".html")


def _seconds(_ctx: click.Context, _param: click.Parameter, value: float) -> float:
    if not 0 < value < inf:
        raise click.BadParameter(f"{value:g} is not a positive number of seconds")
    return value


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False), required=False)
@options.one_name
@click.option(
    "--data", multiple=True, callback=data_files, metavar="NAME=FILE",
    help="An argument, or an axis and its pattern: .mtx (sparse) or .npy; others are random.",
)  # fmt: skip
@click.option(
    "--budget", default=60.0, show_default=True, callback=_seconds, help="Seconds, all in all.",
)  # fmt: skip
@options.const
@options.fast_math
@click.option(
    "--strategy", type=click.Choice(["evolution", "tpe"]), help="tpe needs optuna.",
)  # fmt: skip
@click.option("--seed", default=0, show_default=True, help="Of random choices.")
@click.option("--threads", type=click.IntRange(1), help="For all.  [default: as the machine says]")
@click.option("--json", "as_json", is_flag=True, help="Print everything for programs to read.")
@click.option("--calls", type=click.IntRange(1), help="In which a conversion has to pay off.")
@click.option(
    "--plot", type=click.Path(dir_okay=False),
    help="Draw the search, as .svg, .png or .html (needs matplotlib).",
)  # fmt: skip
@click.option(
    "--export", type=click.File("w", "utf-8"), help="Write all that is known as lines of JSON."
)
@click.option(
    "--import", "load_from", type=click.File("r", "utf-8", errors="replace"),
    help="Add what --export wrote.",
)  # fmt: skip
def tune(
    file: str | None,
    names: tuple[str, ...],
    data: dict[str, Path],
    load_from: Any,
    export: Any,
    **asked: Any,
) -> None:
    """Search the fastest way to run a program in FILE on the given arguments.

    The winner is kept: spcomp.compile(program, tuned=True) uses it. Ctrl-C ends the search with
    what was found so far.
    """
    from spcomp.tune.store import user_store

    if file is None and export is None and load_from is None:
        raise click.UsageError("give FILE, --import or --export")
    if load_from is not None:
        count = user_store().load(load_from, load_from.name)
        click.echo(f"{count} records read from {load_from.name}", err=True)
    if file is not None:
        _search(file, names, data, **asked)
    if export is not None:
        lines = list(user_store().export())
        export.writelines(lines)
        click.echo(f"{len(lines)} records written to {export.name}", err=True)


def _search(
    file: str,
    names: tuple[str, ...],
    data: dict[str, Path],
    *,
    budget: float,
    constants: options.Constants,
    fast_math: bool,
    strategy: str | None,
    seed: int,
    threads: int | None,
    calls: int | None,
    as_json: bool,
    plot: str | None,
) -> None:
    from spcomp.kernels.compile import compile as compiled
    from spcomp.runtime.pool import set_num_threads
    from spcomp.tune.search import Session
    from spcomp.tune.task import Task

    if not data:
        raise click.UsageError("give the matrix: --data NAME=FILE.mtx")
    programs = select(load(file, names), names)
    if len(programs) > 1:
        raise click.BadParameter(f"name one of {', '.join(programs)}", param_hint="NAME")
    ((name, program),) = programs.items()
    constants = options.constants_of(constants, programs)[name]
    if threads:
        set_num_threads(threads)
    if plot is not None:
        _check_plot(Path(plot))
    how: dict[str, Any] = {"constants": constants, "fast_math": fast_math}
    arguments = arguments_of(compiled(program, **how, tuned=False), data, constants)
    task = Task.of(program, arguments, **how)
    with _bar(budget, quiet=as_json) as show:
        session = Session(
            task, budget=budget, strategy=strategy, seed=seed, progress=show, calls=calls
        )
        found = _finished(session)
    if as_json:
        click.echo(json.dumps(found.to_json(), indent=2))
    else:
        _print(found)
    if plot is not None:
        found.plot(plot)


def _finished(session: Session) -> Tuned:
    """Return what *session* finds; after Ctrl-C, what it has found."""
    try:
        session.run()
    except KeyboardInterrupt:
        return session.result("interrupted")
    return session.result()


def _check_plot(path: Path) -> None:
    """Raise ArgumentError, before the search and not after it, if *path* cannot be drawn."""
    from importlib.util import find_spec

    if find_spec("matplotlib") is None:
        raise ArgumentError("--plot needs matplotlib", hint="pip install spcomp[viz]")
    if path.suffix not in PLOTS:
        raise ArgumentError(f"--plot draws no {path.name!r}", hint=f"kinds: {', '.join(PLOTS)}")
    if not path.parent.is_dir():
        raise ArgumentError(f"--plot: there is no folder {str(path.parent)!r}")


@contextmanager
def _bar(budget: float, *, quiet: bool) -> Iterator[Callable[[Progress], None]]:
    """Yield what shows the progress on stderr: the best so far, and the time left."""
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (
        BarColumn(bar_width=24),
        TimeRemainingColumn(compact=True),
        TextColumn("{task.fields[tried]} tried, best {task.fields[best]}", markup=False),
    )
    with Bar(*columns, console=Console(stderr=True), disable=quiet, transient=True) as bar:
        shown = bar.add_task("tune", total=budget, tried=0, best="...")

        def show(progress: Progress) -> None:
            best = f"{progress.speedup.value:.2f}: {progress.best}"
            done = min(progress.elapsed, budget)
            bar.update(shown, completed=done, tried=progress.tried, best=best)

        yield show


def _print(found: Tuned) -> None:
    from spcomp.cli.table import print_table

    timed = [t for t in found.trials if t.speedup is not None]
    timed.sort(key=lambda t: -(t.speedup.value if t.speedup else 0.0))
    rows = [
        (
            f"{1e3 * t.seconds:#.3g} ms",
            f"{t.speedup.value:.2f}" if t.speedup else "",
            f"{t.speedup.low:.2f}..{t.speedup.high:.2f}" if t.speedup else "",
            f"{1e3 * t.conversion:#.3g} ms" if t.conversion else "",
            str(t.candidate),
        )
        for t in timed[:ROWS]
    ]
    others = len(found.trials) - len(timed)
    caption = f"{len(timed)} timed, {others} others (same code, refused, or cannot be faster)"
    columns = (">call", ">speed-up", "95 %", ">conversion", "candidate")
    print_table(columns, [rows], caption)
    click.echo(str(found))
    click.echo(str(found.trace))
