"""The tests that need a GPU, before anything is measured: without pytest, which may be missing."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
GENTLE = (
    0.8  # of the time: then no further test begins; a test that hangs is ended at the end of it
)
LONG = 300  # characters of a failure
MARKED = re.compile(r"pytest\.mark\.gpu\b")


def marked(folder: Path = ROOT / "tests") -> list[Path]:
    """Return the files with tests that need a GPU."""
    files = sorted(folder.glob("test_*.py"))
    return [file for file in files if MARKED.search(file.read_text(encoding="utf-8"))]


def run(seconds: float, folder: Path) -> dict[str, Any]:
    """Run them for at most *seconds*; return a summary. What they print is in ``tests.log``."""
    names = [str(file.relative_to(ROOT)) for file in marked()]
    if not names:
        return {"summary": "no test is marked gpu", "status": 0, "seconds": 0.0}
    log, begin = folder / "tests.log", time.time()
    command = [sys.executable, "-m", "benchmarks.gpu.plain", f"{GENTLE * seconds:.1f}", *names]
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    with log.open("w", encoding="utf-8") as file:
        try:
            ended = subprocess.run(
                command,
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": path},
                stdout=file,
                stderr=subprocess.STDOUT,
                timeout=seconds,
                check=False,
            )
            status = ended.returncode
        except subprocess.TimeoutExpired:
            status = -1
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    said = [line[:LONG] for line in lines if line.startswith("FAILED")]
    summary = "out of time" if status < 0 else next(reversed(lines), "nothing was said")
    took = time.time() - begin
    return {"summary": summary, "status": status, "failed": said[:40], "seconds": took}
