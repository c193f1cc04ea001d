"""``spcomp cache``: shows and deletes the compiled objects on disk."""

from __future__ import annotations

import click

from spcomp.cli.table import print_table, size


@click.group()
def cache() -> None:
    """Show or empty the directory of compiled objects (SPCOMP_CACHE_DIR)."""


@cache.command()
def info() -> None:
    """Print where objects are kept, how many there are, and their size."""
    from spcomp.runtime import cache as disk

    state = disk.info()
    rows = [
        ("directory", str(state.directory)),
        ("objects", str(state.entries)),
        ("size", size(state.size)),
        ("limit", size(state.limit)),
        *([("refused", state.refused)] if state.refused else []),
    ]
    print_table(("what", "is"), [rows])


@cache.command()
def clear() -> None:
    """Delete the objects; programs in use keep running, later ones are compiled again."""
    from spcomp.runtime import cache as disk

    where, count = disk.directory(), disk.clear()
    click.echo(f"deleted {count} files in {where}")
