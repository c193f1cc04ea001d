"""Below everything: what first calls compile and learn, said on stderr where SPCOMP_LOG=1 asks."""

from __future__ import annotations

import os
import sys


def says() -> bool:
    """Whether the environment asks for it."""
    return os.environ.get("SPCOMP_LOG", "0") not in ("", "0")


def say(name: str, text: str) -> None:
    """Print what happens to the program *name*, if the environment asks for it."""
    if says():
        print(f"spcomp: {name}: {text}", file=sys.stderr, flush=True)  # noqa: T201


def duration(seconds: float) -> str:
    """Return *seconds* in milliseconds."""
    return f"{1e3 * seconds:.1f} ms"
