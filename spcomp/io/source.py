"""First step of reading: a regular file, plain or gzipped, as lines or blocks of bytes."""

from __future__ import annotations

import contextlib
import ctypes
import gzip
import os
import re
import stat
import sys
import zlib
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, NoReturn, cast

from spcomp.errors import ArgumentError, FileError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

BLOCK = 1 << 22  # bytes that are read at a time
REPORT = 1 << 14  # lines after which progress is reported
LONGEST = 1 << 16  # bytes: a longer line is not one of numbers
PROSE = 1 << 24  # the most bytes of consecutive comments and blank lines
BOM = b"\xef\xbb\xbf"
WORDS = re.compile(rb"[^ \t]+")


class Source:
    """A file to read, with its name for messages and its size on disk in bytes."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        try:
            self.path = Path(path)
        except TypeError:
            raise ArgumentError(
                f"argument path: got {type(path).__name__}, expected a path"
            ) from None
        self.name = str(self.path)
        with self.file_errors():
            status = self.path.stat()
        if not stat.S_ISREG(status.st_mode):
            kind = "a directory" if stat.S_ISDIR(status.st_mode) else "not a regular file"
            self.refuse(0, f"it is {kind}")
        self.size = status.st_size
        self.zipped = self.path.suffix == ".gz"
        self.number = self.begin = self.offset = 0  # of the line last read, with both its ends
        self.report: Callable[[int], object] = lambda _: None  # the bytes that have been read

    def refuse(self, line: int, reason: str, *, hint: str = "") -> NoReturn:
        """Raise FileError; *line* 0 stands for the whole file."""
        raise self.error(line, reason, hint=hint)

    def error(self, line: int, reason: str, *, hint: str = "") -> FileError:
        """Return the error that says where and why this file is refused."""
        where = f"{self.name}:{line}" if line else self.name
        return FileError(f"{where}: {reason}", hint=hint)

    @contextmanager
    def file_errors(self) -> Iterator[None]:
        """Turn errors of the system and of gzip that are raised inside into FileError."""
        try:
            yield
        except (gzip.BadGzipFile, zlib.error, EOFError) as error:
            self._damaged(error)
        except OSError as error:
            raise self.error(0, _reason(error)) from None
        except MemoryError:
            raise self.error(0, "its content does not fit into memory") from None

    def _damaged(self, error: Exception) -> NoReturn:
        raise self.error(0, f"the compressed file is damaged: {_lower(str(error))}") from None

    @contextmanager
    def opened(self) -> Iterator[IO[bytes]]:
        """Yield the file, open and uncompressed; its errors are raised as FileError."""
        with self.file_errors():
            opener = gzip.open if self.zipped else open
            with opener(self.path, "rb") as file:
                yield cast("IO[bytes]", file)

    def lines(self, number: int = 0, offset: int = 0) -> Iterator[tuple[int, bytes]]:
        """Yield number and text of each line after line *number*, which ends at byte *offset*.

        Line ends and the byte order mark are left out. The attributes ``number``, ``begin`` and
        ``offset`` are those of the line just yielded.
        """
        with self.opened() as file:
            file.seek(offset)
            self.number, self.offset = number, offset
            while line := file.readline(LONGEST):
                number, offset = number + 1, offset + len(line)
                if len(line) == LONGEST:
                    self.refuse(number, f"the line is longer than {LONGEST} bytes")
                if number % REPORT == 0:
                    self.report(offset)
                if number == 1:
                    line = line.removeprefix(BOM)
                self.number, self.begin, self.offset = number, self.offset, offset
                yield number, line.rstrip(b"\r\n")

    def entries(
        self, comment: bytes | None, number: int = 0, offset: int = 0
    ) -> Iterator[tuple[int, list[bytes]]]:
        """Yield number and words of each line that is not blank and does not begin with *comment*.

        Raises FileError after too many blank lines and comments: a small compressed file can hold
        more of them than anybody wants to wait for.
        """
        last = offset
        for line, text in self.lines(number, offset):
            words = WORDS.findall(text)
            if words and (comment is None or not words[0].startswith(comment)):
                last = self.offset
                yield line, words
            elif self.offset - last > PROSE:
                self.refuse(line, f"more than {PROSE >> 10} KiB of comments and blank lines")

    def require_room(self, line: int, size: int) -> None:
        """Raise FileError if memory lacks the *size* bytes that the lines up to *line* take."""
        if size > memory():
            room = f"{size / 2**30:.1f} GiB"
            self.refuse(line, f"the entries up to here take {room}, more than the memory")


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:].rstrip(".")


def _reason(error: OSError) -> str:
    match error:
        case FileNotFoundError():
            return "there is no such file"
        case PermissionError():
            return "there is no permission to use it"
    return _lower(error.strerror or str(error))


def memory() -> int:
    """Return how many bytes of memory this process may use, as far as the system tells."""
    most = _installed()
    try:
        return min(most, int(Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii")))
    except (OSError, ValueError):  # no such limit
        return most


def _installed() -> int:
    """Return the bytes of memory that the machine has."""
    if sys.platform == "win32":
        kibibytes = ctypes.c_uint64()
        success = ctypes.windll.kernel32.GetPhysicallyInstalledSystemMemory(ctypes.byref(kibibytes))
        return kibibytes.value << 10 if success else sys.maxsize
    with contextlib.suppress(AttributeError, ValueError, OSError):  # not every system counts them
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return sys.maxsize


def require_room(source: Source, line: int, shape: tuple[int, ...], size: int) -> None:
    """Raise FileError if memory lacks the *size* bytes that the declared *shape* alone takes."""
    if size > memory():
        source.refuse(
            line,
            f"the shape {shape} takes {size / 2**30:.0f} GiB before any entry,"
            f" there are {memory() / 2**30:.0f} GiB of memory",
        )
