"""Text of a script to spans, the places of its syntax in the user's file."""

from __future__ import annotations

import ast
import inspect
import linecache
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from spcomp.errors import ScriptError, Span, SpcompError
from spcomp.locks import syntax_tree
from spcomp.script.origin import unfiled

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


@dataclass(frozen=True, slots=True)
class Source:
    """Python text that is parsed; its line 1 is line ``1 + shift`` of *file*."""

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
    """Parse *text*, which errors call *file*; raises ScriptError if it is not Python."""
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
        lines, above = inspect.findsource(function)
    except OSError as error:
        found = unfiled(function.__code__)
        if found is None:
            span = Span(file, function.__code__.co_firstlineno)
            hint = "define it in a file or a notebook, or give its text to spcomp.parse"
            raise ScriptError(f"the source of {name} cannot be read", span, hint=hint) from error
        (file, lines), above = found, function.__code__.co_firstlineno - 1
    lines = lines[above:]
    inside = lines[0][:1].isspace()  # an indented definition keeps its columns inside a statement
    head, shift = ("if 1:\n", above - 1) if inside else ("", above)
    try:
        tree = syntax_tree(text := head + "".join(_indented(lines)))
    except SyntaxError:  # something in it is indented less
        tree = _parse(text := head + "".join(inspect.getblock(lines)), file, shift)
    top = tree.body[0]
    definition = top.body[0] if isinstance(top, ast.If) else top
    source = Source(file, tuple(text.splitlines()), shift)
    if not isinstance(definition, ast.FunctionDef):
        raise source.error(definition, f"{name} is not a plain function", hint="define it with def")
    return source, definition


def _indented(lines: list[str]) -> list[str]:
    """Return the definition that *lines* begin with, up to a line that is indented as it is.

    That is what ``inspect.getblock`` finds with a tokenizer, for ten times as long.
    """
    indent = len(lines[0]) - len(lines[0].lstrip())
    known = (at for at, line in enumerate(lines) if line.lstrip().startswith("def "))
    for at in range(next(known, 0) + 1, len(lines)):
        begins = lines[at].lstrip()
        if begins[:1] not in ("", "#", ")") and len(lines[at]) - len(begins) <= indent:
            return lines[:at]
    return lines


def names_around(
    function: Callable[..., Any], names: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the Python names that *function* may use: globals, *names*, what it closes over."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    closed = {name: cell.cell_contents for name, cell in cells if _filled(cell)}
    return {**function.__globals__, **(names or {}), **closed}


def _filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:  # a name that is assigned after the definition
        return False
    return True


def _parse(text: str, file: str, shift: int = 0) -> ast.Module:
    try:
        tree: ast.Module = syntax_tree(text)
    except SyntaxError as error:
        span = Span(file, (error.lineno or 1) + shift, max(0, (error.offset or 1) - 1))
        raise ScriptError(f"this is not Python: {error.msg}", span) from error
    return tree


@dataclass(frozen=True, slots=True)
class Macro:
    """A function decorated with ``T.macro``, whose statements replace calls of it in scripts."""

    function: Callable[..., Any]

    def __call__(self, *_: Any, **__: Any) -> None:
        """Raise ScriptError, since a macro has a meaning only in a script."""
        name = self.function.__name__
        raise ScriptError(f"the macro {name} has a meaning only in a script")
