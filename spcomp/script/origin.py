"""Text to spans, where no file has the text: of ``exec``, ``python -c`` and standard input."""

from __future__ import annotations

import linecache
import os
import sys
from collections.abc import Iterator
from hashlib import blake2b
from types import CodeType, FrameType


def name_of_text(text: str) -> str:
    """Return a name, in place of a file's, that errors call *text*."""
    return f"<script {blake2b(text.encode('utf-8', 'replace'), digest_size=4).hexdigest()}>"


def unfiled(code: CodeType) -> tuple[str, list[str]] | None:
    """Return a name for the text that *code*, a function, was compiled from, and its lines.

    The text is an argument of Python, its standard input if that can be read again, or a string
    that a calling function still holds, as that of ``exec``. None if none of them compiles to
    *code*. Errors find lines of the text by its name.
    """
    for text in _texts(code):
        if _compiles_to(text, code):
            name = name_of_text(text)
            lines = text.splitlines(keepends=True)
            linecache.cache[name] = (len(text), None, lines, name)
            return name, lines
    return None


def _texts(code: CodeType) -> Iterator[str]:
    """Yield texts that have a definition with the name of *code*."""
    arguments = sys.orig_argv
    if code.co_filename == "<string>" and "-c" in arguments[:-1]:
        yield arguments[arguments.index("-c") + 1]
    if code.co_filename == "<stdin>" and (text := _standard_input()):
        yield text
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001
    while frame is not None:
        for value in list(frame.f_locals.values()):
            if isinstance(value, str) and f"def {code.co_name}" in value:
                yield value
        frame = frame.f_back


def _standard_input() -> str:
    """Return the file that standard input is; empty if it is a pipe or a terminal."""
    try:
        size = os.fstat(0).st_size
        return os.pread(0, size, 0).decode() if hasattr(os, "pread") else ""
    except (OSError, UnicodeDecodeError):
        return ""


def _compiles_to(text: str, code: CodeType) -> bool:
    try:
        tree = compile(text, code.co_filename, "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return False
    return any(_key(other) == _key(code) for other in _codes(tree))


def _codes(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _codes(constant)


def _key(code: CodeType) -> tuple[object, ...]:
    names = code.co_names, code.co_varnames, code.co_freevars
    return code.co_name, code.co_firstlineno, code.co_code, names
