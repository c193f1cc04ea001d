"""Text of a script to spans: where in the user's file a piece of syntax stands."""

from __future__ import annotations

import ast
import inspect
import linecache
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from spcomp.errors import ScriptError, Span, SpcompError

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, slots=True)
class Source:
    """Python text as it was parsed; its line 1 is line ``1 + shift`` of *file*."""

    file: str
    lines: tuple[str, ...]
    shift: int = 0

    def span(self, node: ast.AST) -> Span:
        """Return the place of *node* in the file, its column counted in characters."""
        line, col = getattr(node, "lineno", 1), getattr(node, "col_offset", 0)
        if col and line <= len(self.lines) and not self.lines[line - 1].isascii():
            col = len(self.lines[line - 1].encode()[:col].decode())
        return Span(self.file, line + self.shift, col)

    def error(
        self,
        node: ast.AST,
        message: str,
        *,
        hint: str = "",
        kind: type[SpcompError] = ScriptError,
    ) -> SpcompError:
        """Return the error of *kind* at *node*."""
        return kind(message, self.span(node), hint=hint)


def read_text(text: str, file: str) -> tuple[Source, ast.Module]:
    """Parse *text*, to be shown as *file* in errors; raises ScriptError if it is not Python."""
    lines = text.splitlines(keepends=True)
    if linecache.getlines(file) != lines:  # not on disk: errors show lines of it all the same
        linecache.cache[file] = (len(text), None, lines, file)
    return Source(file, tuple(lines)), _parse(text, file)


def read_function(function: Callable[..., Any]) -> tuple[Source, ast.FunctionDef]:
    """Parse the source of *function*; raises ScriptError if there is none."""
    name = getattr(function, "__name__", repr(function))
    if not inspect.isfunction(function):
        raise ScriptError(f"{name} is not a function", hint="decorate a function defined with def")
    file = function.__code__.co_filename
    try:
        lines, first = inspect.getsourcelines(function)
    except OSError as error:
        span = Span(file, function.__code__.co_firstlineno)
        raise ScriptError(
            f"the source of {name} cannot be read", span, hint="define it in a file"
        ) from error
    text, shift = "".join(lines), first - 1
    if lines[0][:1].isspace():  # an indented definition keeps its columns inside a statement
        text, shift = "if 1:\n" + text, shift - 1
    top = _parse(text, file, shift).body[0]
    found = top.body[0] if isinstance(top, ast.If) else top
    source = Source(file, tuple(text.splitlines()), shift)
    if not isinstance(found, ast.FunctionDef):
        raise source.error(found, f"{name} is not a plain function", hint="define it with def")
    return source, found


def _parse(text: str, file: str, shift: int = 0) -> ast.Module:
    try:
        return ast.parse(text)
    except SyntaxError as error:
        span = Span(file, (error.lineno or 1) + shift, max(0, (error.offset or 1) - 1))
        raise ScriptError(f"this is not Python: {error.msg}", span) from error
