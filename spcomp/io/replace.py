"""Beside writing: a file that is replaced whole, or stays as it was."""

from __future__ import annotations

import contextlib
import uuid
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Give a temporary file beside *path*, which takes its place if nothing is raised inside.

    Raises OSError for what the system says, a full disk too; no temporary file is left then.
    """
    temporary = path.with_name(f".{uuid.uuid4().hex}.tmp")
    try:
        with temporary.open("xb") as file:
            yield file
        temporary.replace(path)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
