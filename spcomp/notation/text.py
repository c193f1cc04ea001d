"""Under the parser of index notation: the user's string, and places in it that errors can show."""

from __future__ import annotations

import ast
import io
import linecache
import re
import tokenize
from dataclasses import dataclass
from hashlib import blake2b

from spcomp.errors import ScriptError, Span
from spcomp.locks import syntax_tree

ABSENT = " else ..."  # added to a mask without an else, so that Python's grammar takes it


@dataclass(frozen=True, slots=True)
class Text:
    """A string of statements; *added* has the places (line, column) where ABSENT was put."""

    source: str
    file: str
    added: tuple[tuple[int, int], ...] = ()

    def span(self, node: ast.AST) -> Span:
        """Return where *node* stands in the string as the user wrote it."""
        line, col = getattr(node, "lineno", 1), getattr(node, "col_offset", 0)
        return self.place(line, col)

    def place(self, line: int, col: int) -> Span:
        """Return the place in the user's string of a place in the completed source."""
        before = sum(1 for at, column in self.added if at == line and column < col)
        return Span(self.file, line, col - before * len(ABSENT))

    def error(self, node: ast.AST, message: str, hint: str = "") -> ScriptError:
        """Return the error for what is wrong at *node*."""
        return ScriptError(message, self.span(node), hint=hint)


def parse_text(source: str) -> tuple[Text, ast.Module]:
    """Return *source* as Python syntax; raises ScriptError if it is not."""
    source = "\n".join(line.strip() for line in source.strip().splitlines())
    try:
        source.encode()
    except UnicodeEncodeError as error:
        sign = source[error.start]
        raise ScriptError(f"the text has {sign!r}, which is no character") from None
    file = f"<notation {blake2b(source.encode(), digest_size=4).hexdigest()}>"
    linecache.cache[file] = (len(source), None, [f"{s}\n" for s in source.splitlines()], file)
    text = Text(source, file)
    if (script := re.search(r"^@\w+\.(prim_func|ir_module)\b", source, re.MULTILINE)) is not None:
        place = text.place(source.count("\n", 0, script.start()) + 1, 0)
        hint = "spcomp.compile(spcomp.parse(text)) compiles what was printed"
        raise ScriptError("this is a script, no index notation", place, hint=hint)
    try:
        try:
            completed, added = _complete(source)
        except tokenize.TokenError:  # Python's parser says better what is wrong, and where
            completed, added = source, ()
        text = Text(source, file, added)
        return text, syntax_tree(completed)
    except (SyntaxError, ValueError) as error:
        line, col, what = _where(error)
        place = text.place(min(line, source.count("\n") + 1), col)
        example = '"C[i, k] = A[i, j] * B[j, k]"'
        hint = f"write {example}"
        if any(sign in source for sign in ("&&", "||")):
            hint = 'write "and", "or"'
        elif "function call" in what:
            hint = f"an element is written with brackets: {example}"
        raise ScriptError(f"this is no index notation: {what}", place, hint=hint) from None
    except RecursionError:
        raise ScriptError("the expression nests too deeply", text.place(1, 0)) from None


def _where(error: Exception) -> tuple[int, int, str]:
    if isinstance(error, SyntaxError):
        return error.lineno or 1, max((error.offset or 1) - 1, 0), _said(error.msg)
    return 1, 0, str(error).lower()


def _said(message: str) -> str:
    """Return Python's *message* without its guesses, which are about Python."""
    return message.lower().split(" here. maybe")[0].split(". maybe")[0]


def _complete(source: str) -> tuple[str, tuple[tuple[int, int], ...]]:
    """Return *source* with an else for each ``if`` that lacks one, and where these were added."""
    open_ifs = [0]
    places: list[tuple[int, int]] = []
    end = (1, 0)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        kind, word = token.type, token.string
        closes = kind in (tokenize.NEWLINE, tokenize.ENDMARKER) or word in (")", "]", ",", ";")
        if closes:
            places += [end] * open_ifs[-1]
            open_ifs[-1] = 0
        if word in ("(", "["):
            open_ifs.append(0)
        elif word in (")", "]") and len(open_ifs) > 1:
            open_ifs.pop()
        elif kind == tokenize.NAME and word == "if":
            open_ifs[-1] += 1
        elif kind == tokenize.NAME and word == "else":
            open_ifs[-1] = max(open_ifs[-1] - 1, 0)
        if kind not in (tokenize.NL, tokenize.NEWLINE, tokenize.COMMENT):
            end = token.end
    lines = source.split("\n")
    added: list[tuple[int, int]] = []
    for line, col in places:
        moved = sum(len(ABSENT) for at, _ in added if at == line)
        text = lines[line - 1]
        lines[line - 1] = text[: col + moved] + ABSENT + text[col + moved :]
        added.append((line, col + moved))
    return "\n".join(lines), tuple(added)
