"""Flat IR to LLVM IR, when asked for: the places in the source of all instructions.

They are debug locations of LLVM, which become the line tables of machine code: debuggers and
profilers then show lines of the script. Nothing of this is there unless ``debug`` was asked for.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spcomp.errors import Span
from spcomp.ir.places import place

if TYPE_CHECKING:
    from spcomp.ir.node import Node
    from spcomp.ir.visitor import Visitor

MARK = "\x00"  # stands between an instruction and the number of its place, until its function ends
_NAME = re.compile(r"^define .*?@([\w.$]+)\(")
_FLAGS = ('!{i32 2, !"Debug Info Version", i32 3}', '!{i32 7, !"Dwarf Version", i32 4}')
_NO_TYPE = "!DISubroutineType(types: !{})"


class _Lines(list[str]):
    """Lines of LLVM IR that are marked with the place for which they are written."""

    def __init__(self, debug: Debug) -> None:
        super().__init__()
        self.debug = debug

    def append(self, line: str) -> None:
        """Add *line*; instructions are indented, labels are not."""
        here = self.debug.here
        marked = here is not None and line.startswith(" ")
        super().append(f"{line}{MARK}{self.debug.number(here)}" if marked and here else line)


class Debug:
    """The places of one LLVM module; *metadata* are its numbered nodes, of which more are made.

    *tables*: what machine code has of them, as LLVM calls it.
    """

    def __init__(self, metadata: list[str], tables: str = "LineTablesOnly") -> None:
        self.metadata, self.tables = metadata, tables
        self.here: Span | None = None  # where what is being written comes from
        self.spans: list[Span] = []
        self.numbers: dict[Span, int] = {}
        self.nodes: dict[str, str] = {}
        self.unit = ""

    def lines(self) -> list[str]:
        """Return a list for the lines of a function."""
        return _Lines(self)

    def located(self, message: str) -> str:
        """Return *message* with the place that it is about."""
        return message if self.here is None else f"{self.here}: {message}"

    def number(self, span: Span) -> int:
        """Return the number that stands for *span* in marks."""
        if span not in self.numbers:
            self.numbers[span] = len(self.spans)
            self.spans.append(span)
        return self.numbers[span]

    def follow(self, visitor: Visitor[Any]) -> None:
        """Know from now on which node *visitor* is at.

        A node without a place, which a pass made, is at that of the node around it.
        """
        plain: Callable[[Node], Any] = visitor.visit

        def visit(node: Node) -> Any:
            around, self.here = self.here, place(node) or self.here
            try:
                return plain(node)
            finally:
                self.here = around

        visitor.visit = visit  # type: ignore[method-assign]

    def attach(self, functions: list[str]) -> list[str]:
        """Return *functions* with places as metadata instead of marks."""
        return [self._function(text) for text in functions]

    def footer(self) -> list[str]:
        """Return the named metadata of the module, which has all functions."""
        if not self.unit:
            return []
        flags = ", ".join(self._node(flag) for flag in _FLAGS)
        return [f"!llvm.dbg.cu = !{{{self.unit}}}", f"!llvm.module.flags = !{{{flags}}}"]

    def _function(self, text: str) -> str:
        name = _NAME.match(text)
        first = re.search(f"{MARK}(\\d+)", text)
        if name is None or first is None:  # it only calls another
            return text
        span = self.spans[int(first[1])]
        scope = self._subprogram(name[1], span)
        header, *lines = text.split("\n")
        result = [f"{header.removesuffix(' {')} !dbg {scope} {{"]
        for line in lines:
            code, marked, number = line.partition(MARK)
            instruction = line.startswith(" ")
            place_ = self.spans[int(number)] if marked else span
            end = f", !dbg {self._location(place_, scope, span.file)}" if instruction else ""
            result.append(code + end)
        return "\n".join(result)

    def _location(self, span: Span, scope: str, file: str) -> str:
        if span.file != file:
            block = f"!DILexicalBlockFile(scope: {scope}, file: {self._file(span)}"
            scope = self._node(f"{block}, discriminator: 0)")
        place_ = f"line: {span.line}, column: {span.col + 1}"
        return self._node(f"!DILocation({place_}, scope: {scope})")

    def _subprogram(self, name: str, span: Span) -> str:
        file = self._file(span)
        self.unit = self.unit or self._new(
            f"distinct !DICompileUnit(language: DW_LANG_Python, file: {file}, producer: "
            f'"spcomp", isOptimized: true, runtimeVersion: 0, emissionKind: {self.tables})'
        )
        return self._new(
            f"distinct !DISubprogram(name: {_text(name)}, scope: {file}, file: {file}, "
            f"line: {span.line}, type: {self._node(_NO_TYPE)}, scopeLine: {span.line}, "
            f"spFlags: DISPFlagDefinition | DISPFlagOptimized, unit: {self.unit})"
        )

    def _file(self, span: Span) -> str:
        path = Path(span.file)
        folder = str(path.parent) if path.is_absolute() else ""
        name = path.name if folder else span.file
        return self._node(f"!DIFile(filename: {_text(name)}, directory: {_text(folder)})")

    def _node(self, text: str) -> str:
        """Return the reference to the metadata *text*."""
        if text not in self.nodes:
            self.nodes[text] = self._new(text)
        return self.nodes[text]

    def _new(self, text: str) -> str:
        self.metadata.append(f"!{len(self.metadata)} = {text}")
        return f"!{len(self.metadata) - 1}"


def _text(value: str) -> str:
    """Return *value* as a string of LLVM IR."""
    plain = (chr(b) if 31 < b < 127 and b not in b'"\\' else f"\\{b:02X}" for b in value.encode())
    return f'"{"".join(plain)}"'
