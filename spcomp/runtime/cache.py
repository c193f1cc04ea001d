"""Objects on disk, so that a program is compiled once per machine and not once per process.

The directory is the user's alone: one that belongs to another user, or that others may write to, is
not used. A file has a length, a code and the object. The code authenticates the object and its name
by a secret of the directory, so a file that is damaged, exchanged or foreign is a miss. Files are
written under a temporary name and renamed, so readers see all of a file or nothing. Nothing here
raises because of the state of the disk: without a usable directory there is no cache.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import secrets
import stat
import tempfile
import time
import warnings
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from spcomp.codegen.llvm.module import LLVM_VERSION
from spcomp.errors import SpcompWarning
from spcomp.target import Target

FORMAT = b"spcomp2\n"
SIZE_LIMIT = 256 << 20  # bytes; the least recently used files go first
MOST = 64 << 20  # bytes of one object
_HEAD = len(FORMAT) + 8 + hashlib.sha256().digest_size
_KEY = 32  # bytes of the secret, which is in the file "key"
_FLAGS = ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_BINARY")  # where the system has them
_OPEN = os.O_RDONLY | sum(getattr(os, flag, 0) for flag in _FLAGS)
_warned: set[str] = set()


@dataclass(frozen=True, slots=True)
class Info:
    """The contents of the cache: *entries* files of *size* bytes in *directory*.

    *refused* says why the directory is not used, or is empty.
    """

    directory: Path
    entries: int
    size: int
    limit: int = SIZE_LIMIT
    refused: str = ""


def directory() -> Path:
    """Return the directory of objects: SPCOMP_CACHE_DIR, or else the user's cache directory."""
    if chosen := os.environ.get("SPCOMP_CACHE_DIR"):
        return Path(os.path.expanduser(chosen))  # noqa: PTH111 (it leaves what it does not know)
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
    """Return the object of *name*, or None; a hit makes it the most recently used."""
    root = _usable_directory()
    secret = _read(root / "key", _KEY, private=True) if root is not None else None
    if root is None or secret is None:
        return None
    path = _path(root, name)
    data = _read(path, MOST)
    if data is None:
        return None
    head, body = data[:_HEAD], data[_HEAD:]
    if not hmac.compare_digest(head, _header(secret, name, body)):
        return None
    with contextlib.suppress(OSError):
        os.utime(path)
    return body


def put(name: str, obj: bytes) -> None:
    """Store *obj* as *name* if the directory is writable; then delete files over the limit."""
    with contextlib.suppress(OSError):
        directory().mkdir(mode=0o700, parents=True, exist_ok=True)
    root = _usable_directory()
    if root is None or _HEAD + len(obj) > MOST:
        return
    with contextlib.suppress(OSError):
        secret = _read(root / "key", _KEY, private=True) or _new_secret(root)
        path = _path(root, name)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        _write(path, _header(secret, name, obj) + obj)
        if name.endswith(("00", "40", "80", "c0")):  # listing all costs: do it for one in 64
            _evict()


def info() -> Info:
    """Return the directory, number of entries and bytes."""
    files = _files()
    size = sum(size for _, size, _ in files)
    return Info(directory(), len(files), size, refused=_refusal(directory()))


def clear() -> int:
    """Delete all entries and left-over temporary files; return how many."""
    count = 0
    for _, _, path in _files(temporary=True):
        with contextlib.suppress(OSError):
            path.unlink()
            count += 1
    return count


def _usable_directory() -> Path | None:
    """Return the directory, or None, with a warning once, if other users may write to it."""
    root = directory()
    if refused := _refusal(root):
        if refused not in _warned:
            _warned.add(refused)
            warnings.warn(f"{refused}: programs are not kept on disk", SpcompWarning, stacklevel=2)
        return None
    return root


def _refusal(root: Path) -> str:
    """Return why the directory *root* cannot be trusted, or an empty text."""
    try:
        state = root.stat()
    except OSError:
        return ""
    if not _is_ours(state):
        return f"the cache directory {root} belongs to another user"
    shared = hasattr(os, "getuid") and state.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    if shared and ("SPCOMP_CACHE_DIR" in os.environ or not _close_to_others(root)):
        return f"others may write to the cache directory {root} (chmod go-w makes it yours)"
    return ""


def _close_to_others(root: Path) -> bool:
    """Make *root* private: it is the user's cache directory, which nobody meant to share."""
    try:
        root.chmod(0o700)
    except OSError:
        return False
    return True


def _is_ours(state: os.stat_result) -> bool:
    return not hasattr(os, "geteuid") or state.st_uid == os.geteuid()


def _read(path: Path, most: int, *, private: bool = False) -> bytes | None:
    """Return the content of the file *path*; None if it is not ours or exceeds *most* bytes.

    *private* also refuses a file that others may read.
    """
    try:
        handle = os.open(path, _OPEN)
    except (OSError, ValueError):
        return None
    try:
        state = os.fstat(handle)
        open_to = 0o077 if private and hasattr(os, "getuid") else 0
        if not stat.S_ISREG(state.st_mode) or not _is_ours(state) or state.st_mode & open_to:
            return None
        if not 0 < state.st_size <= most:
            return None
        with open(handle, "rb", closefd=False) as file:
            return file.read(most)
    except OSError:
        return None
    finally:
        os.close(handle)


def _new_secret(root: Path) -> bytes:
    """Create the secret of *root*; of several processes or threads, the first one's stays."""
    path, secret = root / "key", secrets.token_bytes(_KEY)
    with contextlib.suppress(OSError, NotImplementedError):  # it exists, or links are not supported
        _write(path, secret, first=True)
    if (existing := _read(path, _KEY, private=True)) is not None:
        return existing
    _write(path, secret)
    return _read(path, _KEY, private=True) or b""


def _header(secret: bytes, name: str, body: bytes) -> bytes:
    """Return the bytes before *body* in the file of *name*: format, length and code."""
    start = FORMAT + len(body).to_bytes(8, "little")
    return start + hmac.digest(secret, start + name.encode() + b"\0" + body, "sha256")


def _write(path: Path, data: bytes, *, first: bool = False) -> None:
    """Write *data* to *path*, completely or not at all; if *first*, only if no such file exists.

    Raises OSError, and NotImplementedError on systems without hard links.
    """
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix="tmp-")  # for its owner only
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        if first:
            path.hardlink_to(temporary)
        else:
            Path(temporary).replace(path)
    finally:
        Path(temporary).unlink(missing_ok=True)


def _path(root: Path, name: str) -> Path:
    return root / name[:2] / f"{name}.o"


def _files(*, temporary: bool = False) -> list[tuple[float, int, Path]]:
    """Return (last use, size, path) of the entries, oldest first."""
    files: list[tuple[float, int, Path]] = []
    if _refusal(directory()):  # its links may lead anywhere
        return files
    with contextlib.suppress(OSError):
        for path in directory().glob("??/*"):
            if path.suffix == ".o" or (temporary and path.name.startswith("tmp-")):
                with contextlib.suppress(OSError):
                    state = path.lstat()
                    files.append((state.st_mtime, state.st_size, path))
    return sorted(files)


def _evict() -> None:
    files = _files(temporary=True)
    total = sum(size for _, size, _ in files)
    stale = time.time() - 3600
    for used, size, path in files:
        if total > SIZE_LIMIT or (used < stale and path.name.startswith("tmp-")):
            with contextlib.suppress(OSError):
                path.unlink()
            total -= size
