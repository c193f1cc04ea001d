"""Beside reading: a progress bar on stderr for a large file, on a terminal."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from spcomp.io.source import Source

LARGE = 1 << 25  # bytes: from this size on, reading takes long enough to show progress


@contextmanager
def progress_bar(source: Source) -> Iterator[None]:
    """Show how much of *source* has been read inside, if it is large and stderr a terminal."""
    if source.size < LARGE or not sys.stderr.isatty():
        yield
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        total = None if source.zipped else source.size  # the unpacked size is not known
        task = bar.add_task(f"reading {source.path.name}", total=total)
        source.report = lambda position: bar.update(task, completed=position)
        yield
