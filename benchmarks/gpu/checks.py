"""The tests that need a GPU, before anything is measured: by pytest, or plainly without it."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
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
    tool = "pytest" if importlib.util.find_spec("pytest") else "benchmarks.gpu.plain"
    options = ["-q", "-m", "gpu", "-p", "no:cacheprovider"] if tool == "pytest" else []
    log, begin = folder / "tests.log", time.time()
    with log.open("w", encoding="utf-8") as file:
        try:
            command = [sys.executable, "-m", tool, *options, *names]
            ended = subprocess.run(
                command,
                cwd=ROOT,
                stdout=file,
                stderr=subprocess.STDOUT,
                timeout=seconds,
                check=False,
            )
            status = ended.returncode
        except subprocess.TimeoutExpired:
            status = -1
    lines = log.read_text(encoding="utf-8").splitlines()
    said = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    summary = "out of time" if status < 0 else next(reversed(lines), "nothing was said")
    took = time.time() - begin
    return {
        "summary": summary,
        "status": status,
        "failed": said[:40],
        "tool": tool,
        "seconds": took,
    }
