"""For the explorer: LLVM IR and assembly as lines that know where in the source they are from."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from spcomp.errors import Span

if TYPE_CHECKING:
    from collections.abc import Iterator

    from spcomp.ir.printer.program import Line

_NODE = re.compile(r"^(![0-9]+) = (?:distinct )?!(DI\w+)\((.*)\)$")
_FIELD = re.compile(r'(\w+): ("(?:[^"]*)"|![0-9]+|\w+)')
_PLACE = re.compile(r",? !dbg (![0-9]+)")
_DEBUG = re.compile(r'^(![0-9]+ = (distinct )?!(DI|{i32 [0-9]+, !"D)|!llvm\.(dbg|module\.flags))')
_FILE = re.compile(r'^\s*\.file\s+([0-9]+)\s+"([^"]*)"(?:\s+"([^"]*)")?')
_LOC = re.compile(r"^\s*\.loc\s+([0-9]+)\s+([0-9]+)(?:\s+([0-9]+))?")
_SYMBOL = re.compile(r"^[A-Za-z_][\w.$]*:")
_NOISE = re.compile(  # of assembly: what only tools that read line tables use
    r"^\s*\.(cfi_|file|ident|addrsig|size|type|local|comm|p2align)|^\.?L(tmp|func)\w*:|^\$L__tmp"
)
_SECTION = re.compile(r'^\s*\.section\s+"?\.?(debug|note)|^\s*\.section\s+__DWARF')
_TEXT = re.compile(r"^\s*\.(text|section|data|globl|visible|entry|version)\b")


def llvm_lines(text: str) -> list[Line]:
    """Return the lines of the LLVM IR *text* without its debug metadata, which says the places."""
    nodes = dict(_nodes(text))
    result: list[Line] = []
    for line in text.splitlines():
        if _DEBUG.match(line):
            continue
        found = _PLACE.search(line)
        where = None if found is None or line.startswith("define") else _span(found[1], nodes)
        result.append((_PLACE.sub("", line), () if where is None else (where,)))
    return result


def assembly_lines(text: str) -> list[Line]:
    """Return the lines of the assembly, or PTX, *text* without directives for debuggers.

    An instruction that the line table gives no line is at that of the one before.
    """
    files = dict(_files(text))  # in PTX they are at the end
    result: list[Line] = []
    here: tuple[Span, ...] = ()
    skips = False
    for line in text.splitlines():
        if found := _LOC.match(line):
            number = int(found[2])
            if number:
                file = files.get(found[1], "")
                here = (Span(file, number, max(0, int(found[3] or 1) - 1)),)
        if _SECTION.match(line):
            skips = True
        elif skips and _TEXT.match(line):
            skips = False
        if _SYMBOL.match(line):
            here = ()
        if skips or found or _NOISE.match(line) or not line.strip():
            continue
        is_code = line[:1].isspace() and not line.lstrip().startswith((".", "//", "#"))
        result.append((line.replace("\t", "    "), here if is_code else ()))
    return result


def _files(text: str) -> Iterator[tuple[str, str]]:
    for found in filter(None, map(_FILE.match, text.splitlines())):
        yield found[1], _joined(found[2], found[3]) if found[3] else found[2]


def _nodes(text: str) -> Iterator[tuple[str, tuple[str, dict[str, str]]]]:
    for line in text.splitlines():
        if found := _NODE.match(line):
            fields = {name: value.strip('"') for name, value in _FIELD.findall(found[3])}
            yield found[1], (found[2], fields)


def _span(number: str, nodes: dict[str, tuple[str, dict[str, str]]]) -> Span | None:
    kind, place = nodes.get(number, ("", {}))
    if kind != "DILocation" or place["line"] == "0":
        return None
    _, scope = nodes[place["scope"]]
    _, file = nodes[scope["file"]]
    name = _plain(_joined(file["directory"], file["filename"]))
    return Span(name, int(place["line"]), max(0, int(place.get("column", "1")) - 1))


def _joined(folder: str, name: str) -> str:
    return f"{folder.rstrip('/')}/{name}" if folder and not name.startswith("/") else name


def _plain(text: str) -> str:
    """Return *text* without the escapes of LLVM's strings."""
    data = re.sub(r"\\([0-9A-F]{2})", lambda m: chr(int(m[1], 16)), text)
    return data.encode("latin-1", "replace").decode("utf-8", "replace") if data != text else text
