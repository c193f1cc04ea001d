"""Beside the kernels: reads the text of LLVM IR as LLVM prints it, types, operands, functions."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from spcomp.errors import EmulationError

NAME = r'[@%](?:"[^"]*"|[\w.$-]+)'
_OPEN, _CLOSE = "([{<", ")]}>"
_SCALARS = {"half": 2, "bfloat": 2, "float": 4, "double": 8, "ptr": 8}
_BEFORE_TYPES = re.compile(  # words between an opcode or "define" and the type
    r"\b(fast|n(nan|inf|sz)|arcp|contract|afn|reassoc|(fast|c|cold)cc|ptx_(kernel|device)|noundef"
    r"|internal|private|external|hidden|protected|(weak|linkonce)(_odr)?|dso_local|zeroext|signext"
    r"|(local_)?unnamed_addr|(range|nofpclass)\([^)]*\)|align \d+) "
)


def split(text: str) -> list[str]:
    """Return the parts of *text* between commas that no bracket encloses."""
    parts, depth, begin, quoted = [], 0, 0, False
    for k, char in enumerate(text):
        if char == '"':
            quoted = not quoted
        elif quoted:
            continue
        elif char in _OPEN:
            depth += 1
        elif char in _CLOSE:
            depth -= 1
        elif char == "," and depth == 0:
            parts.append(text[begin:k].strip())
            begin = k + 1
    return [*parts, text[begin:].strip()] if text.strip() else []


def split_type(text: str) -> tuple[str, str]:
    """Return the type that *text* begins with, and the rest."""
    if found := re.match(r"ptr addrspace\(\d+\)", text):
        end = found.end()
    elif text[0] in _OPEN:
        end = _closing(text, 0) + 1
    else:
        end = len(re.split(r"[ ,]", text, maxsplit=1)[0])
    return text[:end], text[end:].strip()


def size_of(kind: str) -> tuple[int, int]:
    """Return the bytes of a value of type *kind* in memory, and of one element of it."""
    if kind.startswith("ptr"):
        return 8, 8
    if kind in _SCALARS:
        return _SCALARS[kind], _SCALARS[kind]
    if found := re.fullmatch(r"i(\d+)", kind):
        size = 1 << (max(1, -(-int(found[1]) // 8)) - 1).bit_length()
        return size, size
    if found := re.fullmatch(r"[<\[](\d+) x (.*)[>\]]", kind):
        size, element = size_of(found[2])
        return int(found[1]) * size, element
    if kind.startswith("{"):
        sizes = [size_of(part) for part in split(kind[1:-1])]
        offset = 0
        for size, element in sizes:
            offset = -(-offset // element) * element + size
        most = max((element for _, element in sizes), default=1)
        return -(-offset // most) * most, min((element for _, element in sizes), default=1)
    raise EmulationError(f"the emulator does not know the type {kind}", kind="unsupported")


@dataclass(frozen=True, slots=True)
class Operand:
    """An operand: its type, what it is, and the attributes between them."""

    kind: str
    value: str
    attributes: str = ""

    @classmethod
    def of(cls, text: str) -> Operand:
        """Return the operand that *text* writes as type, attributes, value."""
        kind, rest = split_type(text)
        words = rest.split(" ")
        number = 0
        while number < len(words) - 1 and re.match(
            r"(align|noundef|nonnull|noalias|readonly|readnone|writeonly|captures|nocapture|zeroext"
            r"|signext|dereferenceable|range|inreg|returned|nofree|\d+$|none\))",
            words[number],
        ):
            number += 1
        return cls(kind, " ".join(words[number:]), " ".join(words[:number]))

    @property
    def space(self) -> int:
        """The address space of a pointer."""
        found = re.search(r"addrspace\((\d+)\)", self.kind)
        return int(found[1]) if found else 0

    def __str__(self) -> str:
        return f"{self.kind} {self.value}"


@dataclass(frozen=True, slots=True)
class Instruction:
    """An instruction: the value that it defines, if any, its text without metadata, its line."""

    result: str
    text: str
    line: str = ""

    @property
    def opcode(self) -> str:
        """The first word, without what a call may begin with."""
        words = self.text.split(" ", 2)
        return words[1] if words[0] in ("tail", "musttail", "notail") else words[0]

    def __str__(self) -> str:
        return f"{self.result} = {self.text}" if self.result else self.text


@dataclass(frozen=True, slots=True)
class Call:
    """A call: what it returns, the name of the function, the operands."""

    kind: str
    callee: str
    operands: list[Operand]

    @classmethod
    def of(cls, instruction: Instruction) -> Call:
        """Return what *instruction* calls; raises EmulationError for inline assembly."""
        text = instruction.text[instruction.text.index("call ") + 5 :]
        found = re.search(r"(@(?:\"[^\"]*\"|[\w.$-]+))\(", text)
        if found is None or " asm " in text:
            what = "inline assembly" if " asm " in text else "calls of pointers"
            raise EmulationError(
                f"the emulator cannot run {what}: {instruction}",
                kind="unsupported",
                lines=(instruction.line or str(instruction),),
            )
        kind = _BEFORE_TYPES.sub("", text[: found.start()]).strip()
        inside = text[found.end() : _closing(text, found.end() - 1)]
        return cls(kind, found[1], [Operand.of(part) for part in split(inside)])


def _closing(text: str, begin: int) -> int:
    depth = 0
    for k in range(begin, len(text)):
        depth += (text[k] in _OPEN) - (text[k] in _CLOSE)
        if depth == 0:
            return k
    return len(text)


@dataclass(slots=True)
class Block:
    """A basic block: its label and its instructions."""

    label: str
    instructions: list[Instruction] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Function:
    """A function that the module defines."""

    name: str
    kernel: bool
    kind: str
    params: list[Operand]
    attributes: str
    blocks: list[Block]


@dataclass(frozen=True, slots=True)
class Module:
    """A module: global variables, declarations, functions, groups of attributes."""

    variables: list[str]
    declarations: list[str]
    functions: list[Function]
    attributes: dict[str, str]


_METADATA = re.compile(r", !([\w.]+) !(\d+)")
_DEFINE = re.compile(r"define (.*?)(@(?:\"[^\"]*\"|[\w.$-]+))\(")


def read(text: str) -> Module:
    """Return the module that LLVM printed as *text*."""
    found = re.findall(r'^!(\d+) = (?:distinct )?!\{!"([^"]*)"\}$', text, re.MULTILINE)
    notes = {number: _unescaped(note) for number, note in found}
    module = Module([], [], [], dict(re.findall(r"^attributes (#\d+) = (.*)$", text, re.MULTILINE)))
    lines = iter(text.splitlines())
    for line in lines:
        if line.startswith("@"):
            module.variables.append(line)
        elif line.startswith("declare "):
            module.declarations.append(re.sub(r" #\d+$", "", line))
        elif line.startswith("define "):
            body = []
            for inner in lines:
                if inner == "}":
                    break
                body.append(inner)
            module.functions.append(_function(line, body, notes))
        elif re.match(r"%\S+ = type ", line):
            raise EmulationError(
                f"the emulator does not know named types: {line}", kind="unsupported"
            )
    return module


def _unescaped(text: str) -> str:
    """Return what *text* stands for: LLVM writes some bytes as a backslash and two digits."""
    parts = re.split(r"\\(\\|[0-9A-Fa-f]{2})", text)
    raw = [
        part.encode() if k % 2 == 0 or part == "\\" else bytes.fromhex(part)
        for k, part in enumerate(parts)
    ]
    return b"".join(raw).decode(errors="replace")


def _named(text: str) -> str:
    """Return *text* whose unnamed values have names."""
    return re.sub(r"%(\d+)\b", r"%v.\1", text)


def _function(line: str, body: list[str], notes: dict[str, str]) -> Function:
    found = _DEFINE.match(line)
    assert found is not None
    end = _closing(line, found.end() - 1)
    params = [Operand.of(_named(part)) for part in split(line[found.end() : end])]
    first = sum(param.value.startswith("%v.") for param in params)
    function = Function(
        found[2],
        "ptx_kernel " in found[1],
        _BEFORE_TYPES.sub("", found[1]).strip(),
        params,
        line[end + 1 :],
        [],
    )
    for text in _joined(body):
        if label := re.match(r'("[^"]*"|[\w.$-]+):(?:\s|$)', text):
            name = f"v.{label[1]}" if label[1].isdigit() else label[1]
            function.blocks.append(Block(name))
            continue
        if not function.blocks:
            function.blocks.append(Block(f"v.{first}"))
        function.blocks[-1].instructions.append(_instruction(_named(text), notes))
    return function


def _joined(body: list[str]) -> list[str]:
    """Return the lines of *body*, those of a switch as one."""
    result: list[str] = []
    inside = False
    for raw in body:
        line = raw.strip()
        if not line or line.startswith((";", "#dbg_")):
            continue
        if inside:
            result[-1] += " " + line
        else:
            result.append(line)
        inside = (inside or line.startswith("switch ")) and not line.split(", !")[0].endswith("]")
    return result


def _instruction(text: str, notes: dict[str, str]) -> Instruction:
    text = text.replace("musttail call", "tail call", 1)  # a check may follow
    tags = dict(_METADATA.findall(text))
    plain = re.sub(r" #\d+$", "", _METADATA.sub("", text))
    result, found, rest = plain.partition(" = ")
    if not found or not re.fullmatch(NAME, result):
        result, rest = "", plain
    return Instruction(result, rest, notes.get(tags.get("at", ""), ""))
