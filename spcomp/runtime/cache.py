"""Objects on disk, so that a program is compiled once per machine and not once per process.

A file is a checksum and the object. It is written under a temporary name and renamed, so that
readers see all of it or nothing; a damaged file is a miss. Nothing here ever raises for the state
of the disk: without a writable directory there is no cache.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from spcomp.codegen.cpu.llvm import LLVM_VERSION
from spcomp.target import Target

FORMAT = b"spcomp1\n"
SIZE_LIMIT = 256 << 20  # bytes; the least recently used files go first
_DIGEST = hashlib.sha256().digest_size


@dataclass(frozen=True, slots=True)
class Info:
    """What the cache holds: *entries* files of *size* bytes in *directory*."""

    directory: Path
    entries: int
    size: int
    limit: int = SIZE_LIMIT


def directory() -> Path:
    """Return where objects are kept: SPCOMP_CACHE_DIR, else the user's cache directory."""
    if chosen := os.environ.get("SPCOMP_CACHE_DIR"):
        return Path(chosen)
    import platformdirs

    return Path(platformdirs.user_cache_dir("spcomp", appauthor=False))


def key(llvm_ir: str, target: Target, *options: object) -> str:
    """Return the name of the object of *llvm_ir* for the resolved *target*."""
    text = "\0".join(
        [llvm_ir, target.cpu, target.features, *map(str, options), *_versions()]
    )  # the triple follows from the features
    return hashlib.sha256(text.encode()).hexdigest()


@cache
def _versions() -> tuple[str, ...]:
    import platform
    from importlib.metadata import PackageNotFoundError, version

    try:
        ours = version("spcomp")
    except PackageNotFoundError:
        ours = "source"
    return ours, version("llvmlite"), LLVM_VERSION, platform.system()


def get(name: str) -> bytes | None:
    """Return the object called *name*, or None; a hit makes it the most recently used."""
    path = _path(name)
    try:
        data = path.read_bytes()
    except OSError:
        return None
    head, body = data[: len(FORMAT) + _DIGEST], data[len(FORMAT) + _DIGEST :]
    if head != FORMAT + hashlib.sha256(body).digest():
        return None
    with contextlib.suppress(OSError):
        os.utime(path)
    return body


def put(name: str, obj: bytes) -> None:
    """Keep *obj* as *name*, if the directory can be written; then delete what is over the limit."""
    path = _path(name)
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix="tmp-")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(FORMAT + hashlib.sha256(obj).digest() + obj)
            Path(temporary).replace(path)
        except OSError:
            Path(temporary).unlink(missing_ok=True)
            return
        if name.endswith("0"):  # listing the directory costs: do it for one in sixteen
            _evict()


def info() -> Info:
    """Return the directory, number of entries and bytes."""
    files = _files()
    return Info(directory(), len(files), sum(size for _, size, _ in files))


def clear() -> int:
    """Delete every entry and left-over temporary file; return how many files went."""
    count = 0
    for _, _, path in _files(every=True):
        with contextlib.suppress(OSError):
            path.unlink()
            count += 1
    return count


def _path(name: str) -> Path:
    return directory() / name[:2] / f"{name}.o"


def _files(*, every: bool = False) -> list[tuple[float, int, Path]]:
    """Return (last use, size, path) of the entries, oldest first."""
    found = []
    pattern = "??/*" if every else "??/*.o"
    with contextlib.suppress(OSError):
        for path in directory().glob(pattern):
            if path.name.startswith("tmp-") or path.suffix == ".o":
                with contextlib.suppress(OSError):
                    state = path.stat()
                    found.append((state.st_mtime, state.st_size, path))
    return sorted(found)


def _evict() -> None:
    files = _files(every=True)
    total = sum(size for _, size, _ in files)
    stale = time.time() - 3600
    for used, size, path in files:
        if total > SIZE_LIMIT or (used < stale and path.name.startswith("tmp-")):
            with contextlib.suppress(OSError):
                path.unlink()
            total -= size
