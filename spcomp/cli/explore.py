"""``spcomp explore``: a live page that shows all stages of the programs in a file."""

from __future__ import annotations

import linecache
import threading
import webbrowser
from pathlib import Path

import click

from spcomp.cli import options
from spcomp.cli.load import load, select
from spcomp.errors import ArgumentError
from spcomp.explore.page import Page
from spcomp.explore.server import State, server, watch


@click.command()
@options.file
@options.names
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Default: a free one.")
@click.option("--open/--no-open", "opens", default=True, help="Open the browser.")
@options.target
@options.const
@options.fast_math
def explore(
    file: str,
    names: tuple[str, ...],
    port: int,
    opens: bool,  # noqa: FBT001 - click passes options by name
    target: str,
    constants: options.Constants,
    fast_math: bool,  # noqa: FBT001
) -> None:
    """Show all stages of the programs in FILE on a page that follows the file."""

    def page() -> Page:
        linecache.checkcache(file)
        try:
            programs = select(load(file, names), names)
            fixed = options.constants_of(constants, programs)
        except click.UsageError as error:  # the file has changed
            raise ArgumentError(error.format_message()) from error
        title = Path(file).name
        return options.explored(title, programs, target, fixed, fast_math=fast_math).page

    state, stop = State(Page(Path(file).name, ())), threading.Event()
    try:
        web = server(state, port)
    except OSError as error:
        raise click.BadParameter(f"port {port}: {error.strerror}", param_hint="--port") from error
    address = "http://{}:{}/".format(*web.server_address[:2])
    click.echo(f"{address} shows {file}; Ctrl-C ends it")
    threading.Thread(target=watch, args=(Path(file), state, page, stop), daemon=True).start()
    if opens:
        webbrowser.open(address)
    try:
        web.serve_forever()
    except KeyboardInterrupt:
        pass
    finally:
        stop.set()
        web.server_close()
