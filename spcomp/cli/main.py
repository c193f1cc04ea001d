"""The entry of the command line: the group of commands, with its error messages."""

from __future__ import annotations

from typing import Any

import click

from spcomp import __version__
from spcomp.cli.bench import bench
from spcomp.cli.build import build
from spcomp.cli.cache import cache
from spcomp.cli.doctor import doctor
from spcomp.cli.explore import explore
from spcomp.cli.look import interpret, profile
from spcomp.cli.show import show
from spcomp.cli.tune import tune
from spcomp.errors import SpcompError


class Commands(click.Group):
    """A group of commands; a SpcompError is shown on stderr, with exit code 1."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; a mistake of the user's prints a message, never a traceback."""
        try:
            return super().invoke(ctx)
        except SpcompError as error:
            click.echo(error if error.span else f"error: {error}", err=True)
            ctx.exit(1)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="spcomp", message="%(prog)s %(version)s")
def main() -> None:
    """A sparse tensor compiler: one program, three printable stages, machine code."""


main.add_command(build)
main.add_command(show)
main.add_command(explore)
main.add_command(bench)
main.add_command(tune)
main.add_command(profile)
main.add_command(interpret)
main.add_command(doctor)
main.add_command(cache)
