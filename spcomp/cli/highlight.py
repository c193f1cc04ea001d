"""Prints a stage: coloured on a terminal, the bare text into a pipe."""

from __future__ import annotations

import sys

import click

LEXERS = {"llvm": "llvm", "asm": "gas"}  # every other stage is Python


def emit(text: str, stage: str) -> None:
    """Write *text*, which is the *stage* of a program, to stdout."""
    text = text.rstrip("\n")
    if not sys.stdout.isatty():
        click.echo(text)
        return
    from rich.console import Console
    from rich.syntax import Syntax

    syntax = Syntax("", LEXERS.get(stage, "python"), background_color="default")
    Console().print(syntax.highlight(text), soft_wrap=True, end="")
