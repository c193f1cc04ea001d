"""``spcomp cache``: what the objects on disk take, and how to be rid of them."""

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

    found = disk.info()
    rows = [
        ("directory", str(found.directory)),
        ("objects", str(found.entries)),
        ("size", size(found.size)),
        ("limit", size(found.limit)),
        *([("refused", found.refused)] if found.refused else []),
    ]
    print_table(("what", "is"), [rows])


@cache.command()
def clear() -> None:
    """Delete the objects; programs in use go on, the next ones are compiled again."""
    from spcomp.runtime import cache as disk

    where, count = disk.directory(), disk.clear()
    click.echo(f"deleted {count} files in {where}")
