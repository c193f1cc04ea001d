"""``spcomp profile`` and ``spcomp interpret``: a call of a program, looked at from inside."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from spcomp.cli import options
from spcomp.cli.data import arguments_of, required_data
from spcomp.cli.load import select_one

if TYPE_CHECKING:
    from pathlib import Path

    from spcomp.kernels.kernel import Kernel


@click.command()
@options.file
@options.one_name
@required_data
@options.const
@options.fast_math
@click.option("--repeat", default=10, show_default=True, type=click.IntRange(1), help="Calls.")
@click.option("--json", "as_json", is_flag=True, help="Print it for programs to read.")
def profile(
    file: str,
    names: tuple[str, ...],
    data: dict[str, Path],
    constants: options.Constants,
    fast_math: bool,  # noqa: FBT001 - click passes options by name
    repeat: int,
    as_json: bool,  # noqa: FBT001
) -> None:
    """Print the time of each phase and nest of a call of a program in FILE."""
    kernel, arguments = _call(file, names, data, constants, fast_math=fast_math)
    found = kernel.profile(repeat=repeat, **arguments)
    click.echo(json.dumps(asdict(found), indent=2) if as_json else found)


@click.command()
@options.file
@options.one_name
@required_data
@click.option(
    "--stage",
    type=click.Choice((*options.STAGES, "code")),
    help="Run this one and print what it returns; default: compare all.",
)
@options.const
@options.fast_math
def interpret(
    file: str,
    names: tuple[str, ...],
    data: dict[str, Path],
    stage: str | None,
    constants: options.Constants,
    fast_math: bool,  # noqa: FBT001 - click passes options by name
) -> None:
    """Run a call of a program in FILE by the interpreters, and say which stage differs first.

    Exit code 1 says that one does.
    """
    kernel, arguments = _call(file, names, data, constants, fast_math=fast_math)
    if stage is not None:
        click.echo(kernel.interpret(stage, **arguments))
        return
    found = kernel.interpret(compare=True, **arguments)
    click.echo(found)
    if not found:
        click.get_current_context().exit(1)


def _call(
    file: str,
    names: tuple[str, ...],
    data: dict[str, Path],
    constants: options.Constants,
    *,
    fast_math: bool,
) -> tuple[Kernel, dict[str, Any]]:
    """Return the kernel of the one program that is asked for, and arguments for a call."""
    name, program = select_one(file, names)
    kernel = options.compiled(name, program, "cpu", constants, fast_math=fast_math)
    return kernel, arguments_of(kernel, data, constants)
