"""Under ``spcomp show``: prints a stage, in colour on a terminal, as plain text into a pipe."""

from __future__ import annotations

import sys

import click

# Names have the colour of the terminal's text, so that they are readable on any background.
COLOURS = {
    ("Comment",): "bright_black",
    ("Keyword",): "magenta",
    ("Literal", "Number"): "cyan",
    ("Literal", "String"): "green",
    ("Name", "Decorator"): "blue",
}
LEXERS = {"llvm": "llvm", "asm": "gas"}  # every other stage is Python


def emit(text: str, stage: str) -> None:
    """Write *text*, the *stage* of a program, to stdout."""
    text = text.rstrip("\n")
    if not sys.stdout.isatty():
        click.echo(text)
        return
    from rich.console import Console
    from rich.style import Style
    from rich.syntax import ANSISyntaxTheme, Syntax

    theme = ANSISyntaxTheme({kind: Style(color=colour) for kind, colour in COLOURS.items()})
    syntax = Syntax("", LEXERS.get(stage, "python"), theme=theme)
    Console().print(syntax.highlight(text), soft_wrap=True, end="")
