"""Below everything: spans, and errors that say where, what is wrong and what to do."""

from __future__ import annotations

import difflib
import functools
import linecache
import os
import sys
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from types import FrameType, TracebackType
from typing import ParamSpec, TypeVar

WIDTH = 160  # characters of a source line that a message shows
P = ParamSpec("P")
R = TypeVar("R")
E = TypeVar("E", bound=BaseException)
_PACKAGE = os.path.join(os.path.dirname(__file__), "")  # noqa: PTH118, PTH120 (imported always)


@dataclass(frozen=True, slots=True)
class Span:
    """A place in the user's source (1-based line, 0-based column, as in ``ast``)."""

    file: str
    line: int
    col: int = 0

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.col + 1}"


class SpcompError(Exception):
    """Base of all errors that the user can fix; ``str()`` shows the source line and a caret.

    Args:
        message: What is wrong, in one sentence, lower case, without a full stop.
        span: Where it was written, if known.
        hint: What to do about it.
    """

    def __init__(self, message: str, span: Span | None = None, *, hint: str = "") -> None:
        super().__init__(message)
        self.message, self.span, self.hint = message, span, hint

    def __str__(self) -> str:
        lines = [self.message]
        if self.span is not None:
            lines = [f"{self.span}: {self.message}"]
            text, at = _around(
                linecache.getline(self.span.file, self.span.line).rstrip(), self.span.col
            )
            if text:
                gutter = f"{self.span.line:>5} | "
                lines += [f"{gutter}{text}", " " * (len(gutter) + at) + "^"]
        if self.hint:
            lines.append(f"hint: {self.hint}")
        return "\n".join(lines)

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.message, self.span, self.hint)


def _around(text: str, col: int) -> tuple[str, int]:
    """Return the part of the line *text* that a message shows, and the place of *col* in it."""
    if len(text) <= WIDTH:
        return text, col
    begin = max(0, min(col - WIDTH // 2, len(text) - WIDTH))
    before, after = "..." * (begin > 0), "..." * (begin + WIDTH < len(text))
    return f"{before}{text[begin : begin + WIDTH]}{after}", col - begin + len(before)


def _rebuild(kind: type[SpcompError], message: str, span: Span | None, hint: str) -> SpcompError:
    return kind(message, span, hint=hint)


def outside(error: E) -> E:
    """Return *error* with a traceback that omits the frames of this package.

    The place and the message say what is wrong; ``SPCOMP_DEBUG=1`` keeps all frames.
    """
    if os.environ.get("SPCOMP_DEBUG", "0") in ("", "0"):
        error.__traceback__ = _outside(error.__traceback__)
        if error.__cause__ is not None:
            outside(error.__cause__)
    return error


def _outside(trace: TracebackType | None) -> TracebackType | None:
    frames = []
    while trace is not None:
        if not trace.tb_frame.f_code.co_filename.startswith(_PACKAGE):
            frames.append(trace)
        trace = trace.tb_next
    for frame in reversed(frames):
        trace = TracebackType(trace, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    return trace


def front_door(function: Callable[P, R]) -> Callable[P, R]:
    """Make *function* raise what is the user's to fix as if it happened right there."""

    @functools.wraps(function)
    def opened(*args: P.args, **named: P.kwargs) -> R:
        __tracebackhide__ = True  # IPython and pytest leave this frame out, too
        try:
            return function(*args, **named)
        except SpcompError as error:
            raise outside(error)  # noqa: B904 (it is the same error)

    return opened


def front_doors(cls: type[R]) -> type[R]:
    """Make all public methods of *cls*, and ``__init__``, front doors."""
    for name, member in list(vars(cls).items()):
        if callable(member) and (name == "__init__" or not name.startswith("_")):
            setattr(cls, name, front_door(member))
    return cls


class ScriptError(SpcompError):
    """A script or notation that is not a valid program: syntax, names, dtypes, ranks."""


class FormatError(SpcompError):
    """Axes, buffers or storage that do not describe a tensor."""


class ScheduleError(SpcompError):
    """A schedule step that does not apply, or would change what the program means."""


class LoweringError(SpcompError):
    """A legal program that the compiler cannot lower; the message names the construct."""


class BackendError(SpcompError):
    """Something that the machine lacks: a target, a tool, a device."""


class EmulationError(BackendError):
    """Something wrong in a GPU kernel that the emulator ran, or that it cannot run.

    *kind* is ``race``, ``bounds``, ``alignment``, ``read-only``, ``barrier``, ``division``,
    ``trap``, ``limit`` or ``unsupported``; *lines* says where, as "file.py:12" or as the
    instruction. *threads* and *blocks* are the indices (x, y, z) of those involved, the one that
    found it first. *buffer* is the name of the argument and *index* the element, where known.
    """

    def __init__(
        self,
        message: str,
        span: Span | None = None,
        *,
        hint: str = "",
        kind: str,
        lines: tuple[str, ...] = (),
        threads: tuple[tuple[int, int, int], ...] = (),
        blocks: tuple[tuple[int, int, int], ...] = (),
        buffer: str = "",
        index: int | None = None,
    ) -> None:
        super().__init__(message, span, hint=hint)
        self.kind, self.lines, self.threads, self.blocks = kind, lines, threads, blocks
        self.buffer, self.index = buffer, index

    def __reduce__(self) -> tuple[object, ...]:
        named = {
            name: getattr(self, name)
            for name in ("hint", "kind", "lines", "threads", "blocks", "buffer", "index")
        }
        return partial(EmulationError, **named), (self.message, self.span)


class ArgumentError(SpcompError, ValueError):
    """A wrong argument of a call; the message names it."""


class OutOfMemoryError(ArgumentError, MemoryError):
    """A call or conversion that needs more memory than there is; also a MemoryError."""


def expect(
    name: str, value: object, kinds: type | tuple[type, ...], what: str, *, hint: str = ""
) -> None:
    """Raise ArgumentError, which expects *what*, unless the argument *name* is one of *kinds*."""
    if not isinstance(value, kinds):
        got = type(value).__name__
        raise ArgumentError(f"argument {name}: got {got}, expected {what}", hint=hint)


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Return a hint with the nearest of *names* to *name*, or an empty text."""
    near = difflib.get_close_matches(name, sorted(set(names)), n=1)
    return f"did you mean {near[0]!r}?" if near else ""


def nearest_or_all(name: str, names: Collection[str]) -> str:
    """Return the hint for an unknown *name*: the nearest of *names*, or all of them."""
    return did_you_mean(name, names) or f"there is {', '.join(names) or 'none'}"


class FileError(ArgumentError):
    """A file that breaks its format; the message starts with its name and the line."""


class SpcompWarning(UserWarning):
    """Something that the compiler handles, but that the user probably did not mean."""


_silent: ContextVar[bool] = ContextVar("_silent", default=False)
_collected: ContextVar[list[str] | None] = ContextVar("_noted", default=None)


def warn(message: str) -> None:
    """Issue a SpcompWarning, unless the same program has been compiled before."""
    if (messages := _collected.get()) is not None:
        messages.append(message)
    if not _silent.get():
        warnings.warn(message, SpcompWarning, stacklevel=_level_outside())


def _level_outside() -> int:
    """Return the caller's stacklevel of the first frame outside this package."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 (stacklevel counts the same frames)
    level = 1
    while (frame := frame and frame.f_back) and frame.f_code.co_filename.startswith(_PACKAGE):
        level += 1
    return level + 1


@contextmanager
def without_warnings() -> Iterator[None]:
    """Issue no warnings inside the ``with``, for a program that has had them before."""
    token = _silent.set(True)
    try:
        yield
    finally:
        _silent.reset(token)


@contextmanager
def collect_warnings() -> Iterator[list[str]]:
    """Yield a list that collects the warnings inside the ``with``, also those not issued."""
    messages: list[str] = []
    token = _collected.set(messages)
    try:
        yield messages
    finally:
        _collected.reset(token)


class InternalError(Exception):
    """A bug in spcomp: the IR after the pass *where* breaks a law of its level.

    *law* is the message without the name of its subject, *span* the place of the subject.
    """

    def __init__(self, where: str, message: str, law: str = "", span: Span | None = None) -> None:
        super().__init__(f"a bug in spcomp: after {where}: {message}")
        self.where, self.message, self.law, self.span = where, message, law or message, span

    def __reduce__(self) -> tuple[object, ...]:
        return InternalError, (self.where, self.message)


@contextmanager
def refuse_deep_nests(kind: type[SpcompError]) -> Iterator[None]:
    """Raise *kind* for a program that nests too deeply for Python's recursion."""
    try:
        yield
    except RecursionError:
        raise kind(
            "the program nests too deeply",
            hint="split long expressions and deep nests over several statements or iterations",
        ) from None
