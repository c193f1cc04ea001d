"""The text of nvdisasm as values: instructions, the registers they use, facts of kernels."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_KERNEL = re.compile(r"^[ \t]*(?:\.section\s+\.text\.|Function : )([^\s,]+)", re.MULTILINE)
_NEXT = re.compile(r"^(//-{5,}|\s*Function : )", re.MULTILINE)
_INSTRUCTION = re.compile(r"/\*([0-9a-f]{4,})\*/\s+(?:@(!?U?P[\dT]+)\s+)?([A-Z][\w.]*)\s*([^;]*);")
_ARCH = re.compile(r"\.target\s+(sm_(\d+)[af]?)")
_LABEL = re.compile(r"^\s*(\.L\w*):", re.MULTILINE)
_TARGET = re.compile(r"\.L\w+")
_REGISTER = re.compile(r"(?<![A-Z])R(\d+)(\.64)?")
_PREDICATE = re.compile(r"!?U?P[\dT]")
_ENDS = re.compile(r"BRA|BRX|JMP|JMX|EXIT|RET|KILL")  # after these comes another block
_NO_RESULT = re.compile(r"ST|RED(?!UX)|[A-Z]*SETP|FCHK|LDGSTS|R2P|R2UR")
_WIDTHS = {".256": 256, ".128": 128, ".64": 64, ".U16": 16, ".S16": 16, ".U8": 8, ".S8": 8}
# Multiply-adds of a lane in products of matrices, by the shape (m, n, k) that the opcode names.
_SHAPES = {"884": 8, "1684": 16, "1688": 32, "16816": 64, "16832": 128, "16864": 256}

KINDS = {  # the first that matches the beginning of an opcode
    "move": r"IMAD\.MOV|U?MOV|S2U?R|CS2R|R2UR|R2P|P2R",
    "multiply-add": r"FFMA|DFMA|HFMA2|HMMA|DMMA|IMMA|QMMA|[HIQ]GMMA",
    "float": r"[FDH](ADD|MUL|MNMX|SEL|SET|CHK|SWZ)|MUFU|[FI]2[FI]|FRND",
    "global load": r"LDG(?!DEPBAR)|LD\b",
    "global store": r"STG|ST\b",
    "atomic": r"ATOM|RED(?!UX)",
    "shared": r"LDS|STS|STSM|ATOMS",
    "local": r"LDL|STL",
    "constant": r"U?LDCU?",
    "shuffle": r"SHFL|VOTE|MATCH|C?REDUX",
    "control": (
        r"BRA|BRX|JMP|JMX|EXIT|BSSY|BSYNC|BREAK|BMOV|CALL|RET|WARPSYNC|ENDCOLLECTIVE|BAR|NOP"
        r"|YIELD|NANOSLEEP|DEPBAR|LDGDEPBAR|MEMBAR|ERRBAR|CCTL|SYNCS|KILL"
    ),
    "integer": r"U?(I|LEA|LOP|SHF|SEL|PRMT|VI|ISET|PLOP|BREV|FLO|POPC|SGXT|BMSK|LEPC|VABS)",
    "other": "",
}
_KINDS = {kind: re.compile(pattern) for kind, pattern in KINDS.items()}


@dataclass(frozen=True, slots=True)
class Instruction:
    """One machine instruction; *guard* is the predicate under which it runs, such as ``!P0``."""

    address: int
    guard: str
    opcode: str
    operands: tuple[str, ...]

    @property
    def kind(self) -> str:
        """One of ``KINDS``."""
        if self.opcode.startswith("HFMA2") and self.operands[1:3] == ("-RZ", "RZ"):
            return "move"  # of a constant, on a unit that is free
        if self.opcode.startswith("ATOMS"):
            return "shared"
        return next(kind for kind, pattern in _KINDS.items() if pattern.match(self.opcode))

    @property
    def width(self) -> int:
        """The bits that a lane moves with a load or store."""
        return next((bits for part, bits in _WIDTHS.items() if part in self.opcode), 32)

    @property
    def multiply_adds(self) -> int:
        """How many multiply-adds a lane does."""
        if self.kind != "multiply-add":
            return 0
        shape = re.search(r"MMA\.(?:SP\.)?(\d+)", self.opcode)
        if shape:
            return _SHAPES.get(shape[1], 0)
        return 2 if self.opcode.startswith(("HFMA2", "FFMA2")) else 1

    @property
    def writes(self) -> frozenset[int]:
        """The numbers of the registers that it writes."""
        at = self._result()
        if at is None:
            return frozenset()
        first = int(self.operands[at].split(".")[0][1:])
        return frozenset(range(first, first + self._result_words()))

    @property
    def reads(self) -> frozenset[int]:
        """The numbers of the registers that it reads (of pairs in arithmetic the first)."""
        numbers: set[int] = set()
        for at, operand in enumerate(self.operands):
            if at == self._result():
                continue
            words = self.width // 32 if self._is_data(operand) else 1
            for number, pair in _REGISTER.findall(operand):
                numbers.update(range(int(number), int(number) + (2 if pair else max(words, 1))))
        return frozenset(numbers)

    def _result(self) -> int | None:
        """Which operand is the result: the first that is no predicate, if it is a register."""
        if _NO_RESULT.match(self.opcode) or self.kind == "control":
            return None
        plain = [at for at, o in enumerate(self.operands) if not _PREDICATE.match(o)]
        return plain[0] if plain and re.match(r"R\d", self.operands[plain[0]]) else None

    def _is_data(self, operand: str) -> bool:
        return self.opcode.startswith(("ST", "RED", "ATOM")) and "[" not in operand

    def _result_words(self) -> int:
        if self.kind in ("global load", "shared", "local", "constant", "atomic"):
            return max(self.width // 32, 1)
        pair = self.opcode.startswith(("D", "CS2R")) or ".WIDE" in self.opcode
        return 2 if pair and ".32" not in self.opcode else 1

    @property
    def ends_block(self) -> bool:
        """Whether another instruction than the next may follow."""
        return bool(_ENDS.match(self.opcode))

    @property
    def falls_through(self) -> bool:
        """Whether the next instruction may follow."""
        unconditional = not self.guard and not any(_PREDICATE.match(o) for o in self.operands)
        return not (self.ends_block and unconditional and not self.is_divergence)

    @property
    def is_divergence(self) -> bool:
        """Whether it goes to a copy of the code for warps whose lanes have parted."""
        return self.opcode.startswith("BRA.DIV")


@dataclass(frozen=True, slots=True)
class Listing:
    """One kernel: its instructions by address, where its labels stand, and what it occupies."""

    kernel: str
    instructions: tuple[Instruction, ...]
    labels: dict[str, int] = field(default_factory=dict)
    arch: str = ""  # such as sm_90
    registers: int = 0
    stack: int = 0  # bytes of a thread
    shared: int = 0  # static bytes of a block
    threads: int = 0  # of a block, at most; 0 if it does not say

    def targets(self, instruction: Instruction) -> tuple[int, ...]:
        """Return the addresses that *instruction* may go to, the next one left out."""
        if not instruction.ends_block or instruction.opcode.startswith("RET"):
            return ()
        text = ",".join(instruction.operands)
        named = [self.labels[name] for name in _TARGET.findall(text) if name in self.labels]
        plain = re.search(r"(?:^|,)0x([0-9a-f]+)$", text)
        return tuple(named) or ((int(plain[1], 16),) if plain else ())


def listings(text: str) -> dict[str, Listing]:
    """Return the kernels in *text*, which nvdisasm or ``cuobjdump -sass`` printed, by name."""
    found: dict[str, Listing] = {}
    for match in _KERNEL.finditer(text):
        end = _NEXT.search(text, match.end())
        body = text[match.end() : end.start() if end else len(text)]
        kernel = match[1].strip('"')
        found[kernel] = _listing(kernel, body, text)
    return found


def _listing(kernel: str, body: str, whole: str) -> Listing:
    instructions: list[Instruction] = []
    labels: dict[str, int] = {}
    waiting: list[str] = []
    for line in body.splitlines():
        if label := _LABEL.match(line):
            waiting.append(label[1])
        if match := _INSTRUCTION.search(line):
            address = int(match[1], 16)
            labels |= dict.fromkeys(waiting, address)
            waiting = []
            operands = tuple(o.strip() for o in match[4].split(",") if o.strip())
            instructions.append(Instruction(address, match[2] or "", match[3], operands))
    arch = _ARCH.search(whole)
    return Listing(
        kernel, tuple(instructions), labels, arch[1] if arch else "",
        registers=_fact(whole, "REGCOUNT", kernel), stack=_fact(whole, "FRAME_SIZE", kernel),
        shared=_shared(whole, kernel), threads=_threads(whole, kernel),
    )  # fmt: skip


def _fact(text: str, name: str, kernel: str) -> int:
    pattern = rf"EIATTR_{name}\n(?:(?!EIATTR).)*?index@\({re.escape(kernel)}\)\n.*?0x([0-9a-f]+)\n"
    found = re.search(pattern, text, re.DOTALL)
    return int(found[1], 16) if found else 0


def _section(text: str, name: str) -> str:
    found = re.search(rf"^\s*\.section\s+{re.escape(name)},.*?(?=^//-{{5,}}|\Z)", text, re.M | re.S)
    return found[0] if found else ""


def _shared(text: str, kernel: str) -> int:
    """From Hopper on the section begins with the 1024 bytes that the system keeps."""
    size = sum(map(int, re.findall(r"\.zero\s+(\d+)", _section(text, f".nv.shared.{kernel}"))))
    arch = _ARCH.search(text)
    return size - 1024 if arch and int(arch[2]) >= 90 and size >= 1024 else size


def _threads(text: str, kernel: str) -> int:
    section = _section(text, f".nv.info.{kernel}")
    found = re.search(r"EIATTR_(?:MAX_THREADS|REQNTID)\n((?:(?!EIATTR).)*)", section, re.DOTALL)
    if not found:
        return 0
    x, y, z = (int(word, 16) for word in re.findall(r"\.word\s+0x([0-9a-f]+)", found[1])[:3])
    return x * y * z
