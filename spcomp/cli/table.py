"""Under the commands: rich tables, and sizes in readable units."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def size(count: float) -> str:
    """Return a number of bytes with a unit, ``7.0 KiB``."""
    units = ["B", "KiB", "MiB", "GiB"]
    while count >= 1024 and len(units) > 1:
        count /= 1024
        del units[0]
    return f"{count:.0f} B" if units[0] == "B" else f"{count:.1f} {units[0]}"


def print_table(
    columns: Sequence[str], groups: Iterable[Iterable[Sequence[str]]], caption: str | None = None
) -> None:
    """Print groups of rows under *columns*; a column named ``>x`` is aligned to the right."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.ROUNDED, caption=caption)
    for column in columns:
        name = column.lstrip(">")
        table.add_column(name, justify="right" if column != name else "left", overflow="fold")
    for rows in groups:
        for row in rows:
            table.add_row(*row)
        table.add_section()
    Console(highlight=False, markup=False).print(table)
