"""Beside writing: a file that is replaced as a whole, or stays as it was."""

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
    """Yield a temporary file beside *path*, which replaces it if nothing is raised inside.

    Raises OSError from the system, for a full disk too, and then leaves no temporary file.
    """
    temporary = path.with_name(f".{uuid.uuid4().hex}.tmp")
    try:
        with temporary.open("xb") as file:
            yield file
        temporary.replace(path)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
