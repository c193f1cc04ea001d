"""Beside the kernels: one function from LLVM IR for NVPTX to LLVM IR for this machine."""

from __future__ import annotations

import re
from collections.abc import Iterator

from spcomp.errors import EmulationError
from spcomp.runtime.emulator import layout as at
from spcomp.runtime.emulator.crossing import crossing, repeated_kind
from spcomp.runtime.emulator.intrinsics import (
    COPIES,
    MEETINGS,
    NOTHING,
    SCRATCH,
    WAITS,
    function,
    register,
)
from spcomp.runtime.emulator.provenance import bases
from spcomp.runtime.emulator.sites import Site, Sites
from spcomp.runtime.emulator.text import (
    NAME,
    Call,
    Function,
    Instruction,
    Operand,
    size_of,
    split,
    split_type,
)

_MEMORY = re.compile(r"llvm\.(memcpy|memmove|memset)(?:\.inline)?\.")
_UNCHECKED = re.compile(r"llvm\.(masked|vp)\.")


def _waits(instruction: Instruction) -> bool:
    """Return whether a thread waits at *instruction*."""
    found = re.search(r"@llvm\.nvvm\.([\w.]+)\(", instruction.text)
    return found is not None and found[1] in MEETINGS


class FunctionText:
    """The text of one *function*; *defined* are the names of all functions of the module."""

    def __init__(
        self, function: Function, sites: Sites, defined: frozenset[str], *, check: bool
    ) -> None:
        self.function, self.sites, self.defined, self.check = function, sites, defined, check
        self.lines: list[str] = []
        self.allocas: list[str] = []
        self.locals: dict[int, tuple[str, int, int]] = {}  # name, bytes, align, by their base
        self.ends: dict[str, str] = {}  # the label of the last part of each block
        self.numbers = 0
        self.label = ""
        self.waits = function.kernel and any(
            _waits(instruction) for block in function.blocks for instruction in block.instructions
        )
        self.crossing = crossing(function, _waits) if self.waits else frozenset()
        self.bases = bases(function, sites.variables, sites.shared)

    def text(self) -> str:
        """Return the definition."""
        for block in self.function.blocks:
            self.label = block.label
            self.lines.append(f"{block.label}:")
            for instruction in block.instructions:
                self.instruction(instruction)
            self.ends[block.label] = self.label
        lines = [self._renamed(line) for line in self.lines]
        head, first = self._head()
        return "\n".join([head, *first, *lines, "emu.exit:", *self._exit(), "}"])

    def _renamed(self, line: str) -> str:
        """Return *line*; if it is a phi, with the labels that its predecessors now end with."""
        if " = phi " not in line:
            return line
        return re.sub(
            r", %(\"[^\"]*\"|[\w.$-]+) \]",
            lambda found: f", %{self.ends.get(found[1], found[1])} ]",
            line,
        )

    def _head(self) -> tuple[str, list[str]]:
        """Return the first line and the instructions before the body."""
        function, body = self.function, self.function.blocks[0].label
        if not function.kernel:
            params = ", ".join(str(param) for param in function.params)
            head = f"define internal {function.kind} {function.name}({params}) #0 {{"
            return head, ["emu.begin:", *self.allocas, f"  br label %{body}"]
        loads = []
        for k, param in enumerate(function.params):
            loads.append(f"  %emu.p{k} = getelementptr i64, ptr %emu.args, i64 {k}")
            loads.append(f"  {param.value} = load {param.kind}, ptr %emu.p{k}, align 8")
        name = function.name[1:].strip('"')
        kind = " presplitcoroutine" if self.waits else ""
        head = f'define void @"emu.kernel.{name}"(ptr %emu.args, ptr %emu.frame){kind} #0 {{'
        if not self.waits:
            return head, [
                "emu.begin:",
                *self.allocas,
                *self._measure("0"),
                *loads,
                f"  br label %{body}",
            ]
        begin = ["emu.begin:", *self.allocas]
        begin += ["  %emu.id = call token @llvm.coro.id(i32 64, ptr null, ptr null, ptr null)"]
        begin += ["  %emu.size = call i64 @llvm.coro.size.i64()", *self._measure("%emu.size")]
        enter = ["  %emu.handle = call ptr @llvm.coro.begin(token %emu.id, ptr %emu.frame)"]
        return head, [*begin, *enter, *loads, f"  br label %{body}"]

    @staticmethod
    def _measure(size: str) -> list[str]:
        """Return the instructions that, without a frame, tell its size instead of running."""
        return [
            "  %emu.none = icmp eq ptr %emu.frame, null",
            "  br i1 %emu.none, label %emu.measure, label %emu.enter",
            "emu.measure:",
            f"  store i64 {size}, ptr %emu.args",
            "  ret void",
            "emu.enter:",
        ]

    def _exit(self) -> list[str]:
        if not self.function.kernel:
            kind = self.function.kind
            return ["  ret void" if kind == "void" else f"  ret {kind} zeroinitializer"]
        if self.waits:
            return ["  call void @llvm.coro.end(ptr null, i1 false, token none)", "  ret void"]
        return ["  ret void"]

    # -- instructions

    def do(self, *lines: str) -> None:
        """Write *lines*."""
        self.lines.extend(f"  {line}" for line in lines)

    def fresh(self) -> int:
        """Return a number that no other name has."""
        self.numbers += 1
        return self.numbers

    def begin(self, label: str) -> None:
        """Begin a part of the block."""
        self.label = label
        self.lines.append(f"{label}:")

    def go_on_if(self, condition: str) -> None:
        """Leave the function unless *condition*."""
        n = self.fresh()
        self.do(f"br i1 {condition}, label %emu.go{n}, label %emu.exit")
        self.begin(f"emu.go{n}")

    def instruction(self, instruction: Instruction) -> None:
        """Write *instruction*."""
        opcode = instruction.opcode
        if opcode == "alloca":
            self._alloca(instruction)
        elif opcode == "ret" and self.function.kernel:
            self.do("br label %emu.exit")
        elif opcode == "call":
            self._call(instruction, Call.of(instruction))
        elif opcode in ("invoke", "callbr", "indirectbr"):
            raise self.unsupported(opcode, instruction)
        elif opcode == "unreachable":
            self._fault(at.TRAPPED, instruction)
        else:
            for site, pointer, size in self.accesses(instruction):
                self.access(site, pointer, str(size))
            if self.check and opcode in ("udiv", "sdiv", "urem", "srem"):
                self._division(instruction)
            self._plain(instruction)

    def unsupported(self, what: str, instruction: Instruction) -> EmulationError:
        """Return the error for *what*, which cannot be emulated."""
        site = Site(str(instruction), instruction.line)
        return EmulationError(
            f"the emulator does not know {what}, in {site.place}",
            kind="unsupported",
            lines=(site.place,),
        )

    def _alloca(self, instruction: Instruction) -> None:
        """Write an alloca, at the begin of the function."""
        kind, rest = split_type(instruction.text.removeprefix("alloca "))
        count = re.match(r", i\d+ (\S+?)(,|$)", rest)
        if count and not count[1].isdigit():
            raise self.unsupported("arrays of a size known at run time", instruction)
        size = size_of(kind)[0] * int(count[1] if count else 1)
        self.allocas.append(f"  {instruction}")
        found = re.search(r"align (\d+)", rest)
        align = int(found[1]) if found else 1
        self.locals[self.bases[instruction.result]] = instruction.result, size, align
        self.do(f"call void @llvm.memset.p0.i64(ptr {instruction.result}, i8 -1, i64 {size}, i1 0)")

    def _plain(self, instruction: Instruction) -> None:
        """Write *instruction* as it is, but such that LLVM keeps a value that crosses a wait."""
        text = re.sub(r' syncscope\("[^"]*"\)', "", instruction.text)
        kind = repeated_kind(instruction) if instruction.result in self.crossing else None
        if kind is None or size_of(kind)[0] > SCRATCH:
            self.do(f"{instruction.result} = {text}" if instruction.result else text)
            return
        n = self.fresh()
        self.do(
            f"%emu.k{n} = {text}",
            f"store volatile {kind} %emu.k{n}, ptr @emu.scratch, align 64",
            f"{instruction.result} = load volatile {kind}, ptr @emu.scratch, align 64",
        )

    def _fault(self, fault: int, instruction: Instruction) -> None:
        """Write the end of the function with *fault*."""
        number, n = self.sites.add(Site(str(instruction), instruction.line)), self.fresh()
        self.do(
            f"%emu.l{n} = call i64 @emu.self()",
            f"call i64 @emu.fail(i64 %emu.l{n}, i64 {fault}, i64 {number}, i64 0, i64 0)",
            "br label %emu.exit",
        )

    def _division(self, instruction: Instruction) -> None:
        """Write the check that *instruction* does not divide by 0, nor the least number by -1."""
        kind, rest = split_type(re.sub(r"^\w+ (exact )?", "", instruction.text))
        dividend, divisor = split(rest)
        if divisor.isdigit() and divisor != "0":
            return
        vector = re.fullmatch(r"<(\d+) x i(\d+)>", kind)
        n, bits = self.fresh(), int(vector[2] if vector else kind[1:])
        zero, one, least = (f"{v}" for v in (0, -1, -(1 << bits - 1)))
        if vector:
            zero, one, least = (f"splat (i{bits} {v})" for v in (zero, one, least))
        flags = kind.replace(f"i{bits}", "i1")
        self.do(f"%emu.x{n} = icmp eq {kind} {divisor}, {zero}")
        bad = f"%emu.x{n}"
        if instruction.opcode[0] == "s":
            self.do(
                f"%emu.y{n} = icmp eq {kind} {dividend}, {least}",
                f"%emu.z{n} = icmp eq {kind} {divisor}, {one}",
                f"%emu.b{n} = and {flags} %emu.y{n}, %emu.z{n}",
                f"%emu.w{n} = or {flags} %emu.x{n}, %emu.b{n}",
            )
            bad = f"%emu.w{n}"
        if vector:
            self.do(f"%emu.v{n} = call i1 @llvm.vector.reduce.or.v{vector[1]}i1({flags} {bad})")
            bad = f"%emu.v{n}"
        self.do(f"br i1 {bad}, label %emu.bad{n}, label %emu.go{n}")
        self.begin(f"emu.bad{n}")
        self._fault(at.DIVIDED, instruction)
        self.begin(f"emu.go{n}")

    # -- accesses of memory

    def accesses(self, instruction: Instruction) -> Iterator[tuple[Site, Operand, int]]:
        """Yield how *instruction* accesses memory: the site, the pointer, the bytes."""
        opcode, text = instruction.opcode, instruction.text
        if not self.check or opcode not in ("load", "store", "atomicrmw", "cmpxchg"):
            return
        parts = split(
            re.sub(r"^(load|store|atomicrmw|cmpxchg)( atomic| volatile| weak)*", "", text)
        )
        atomic = opcode in ("atomicrmw", "cmpxchg") or " atomic " in text
        if opcode == "load":
            kind, pointer = parts[0], parts[1]
        elif opcode == "store":
            kind, pointer = split_type(parts[0])[0], parts[1]
        else:
            pointer = parts[0] if opcode == "cmpxchg" else parts[0].split(" ", 1)[1]
            kind = split_type(parts[1])[0]
        pointer = re.sub(
            r" syncscope\(.*| (unordered|monotonic|acquire|release|seq_cst)$", "", pointer
        )
        found = re.search(r", align (\d+)$", text)
        access = at.ATOMIC if atomic else at.WRITE if opcode == "store" else at.READ
        size, element = size_of(kind)
        scope = at.BLOCK_SCOPE if 'syncscope("block")' in text else 0
        operand = Operand.of(pointer)
        align = int(found[1]) if found else element
        yield self.site(instruction, operand, access, align, scope), operand, size

    def site(
        self, instruction: Instruction, pointer: Operand, access: int, align: int, scope: int = 0
    ) -> Site:
        """Return the site of an *access* through *pointer*."""
        base = self.base(pointer)
        return Site(str(instruction), instruction.line, access, pointer.space, base, align, scope)

    def base(self, pointer: Operand) -> int:
        """Return the range that *pointer* points into, as far as the text shows it."""
        name = re.search(NAME, pointer.value)
        return self.bases.get(name[0], at.NO_BASE) if name else at.NO_BASE

    def access(self, site: Site, pointer: Operand, size: str) -> None:
        """Write the check of an access of *size* bytes."""
        if pointer.space not in (at.GENERIC, at.GLOBAL, at.SHARED) or site.base == at.ELSEWHERE:
            return
        name, most, align = self.locals.get(site.base, ("", 0, 1))
        if pointer.value == name and size.isdigit() and int(size) <= most and site.align <= align:
            return  # the whole variable, or its begin
        number, n = self.sites.add(site, int(size) if size.isdigit() else 1), self.fresh()
        operands = f"i64 %emu.a{n}, i64 {size}, i64 {number}"
        check = (
            f"@emu.may_local({operands}, ptr {name}, i64 {most})"
            if name
            else f"@emu.may({operands})"
        )
        self.do(f"%emu.a{n} = ptrtoint {pointer} to i64", f"%emu.c{n} = call i1 {check}")
        self.go_on_if(f"%emu.c{n}")

    # -- calls

    def _call(self, instruction: Instruction, call: Call) -> None:
        name = call.callee.removeprefix("@llvm.nvvm.")
        if call.callee in self.defined:
            self.do(str(instruction))
            if self.check:
                n = self.fresh()
                self.do(f"%emu.c{n} = call i1 @emu.well()")
                self.go_on_if(f"%emu.c{n}")
        elif name == call.callee:
            self._ordinary(instruction, call)
        elif (meeting := MEETINGS.get(name)) is not None:
            self._meet(instruction, call, *meeting)
        elif name in COPIES:
            self._copy(instruction, call, COPIES[name])
        elif name in WAITS:
            self._wait(call, WAITS[name])
        elif (where := register(name)) is not None:
            self.do(f"{instruction.result} = call i32 {where}()")
        elif name not in NOTHING:
            values = [operand.value for operand in call.operands]
            if (text := function(name, call.kind, values)) is None:
                raise self.unsupported(f"llvm.nvvm.{name}", instruction)
            self.do(f"{instruction.result} = {text}")

    def _ordinary(self, instruction: Instruction, call: Call) -> None:
        """Write the call of an intrinsic that every machine has."""
        if call.callee in ("@llvm.trap", "@llvm.debugtrap", "@llvm.ubsantrap"):
            self._fault(at.TRAPPED, instruction)
            self.begin(f"emu.dead{self.fresh()}")
            return
        found = _MEMORY.match(call.callee[1:])
        if _UNCHECKED.match(call.callee[1:]):
            raise self.unsupported(call.callee[1:], instruction)
        if self.check and found:
            to, source, size = call.operands[:3]
            self._span(instruction, to, at.WRITE, size.value)
            if found[1] != "memset":
                self._span(instruction, source, at.READ, size.value)
        self.do(str(instruction))

    def _span(self, instruction: Instruction, pointer: Operand, access: int, size: str) -> None:
        found = re.search(r"align (\d+)", pointer.attributes)
        site = self.site(instruction, pointer, access, int(found[1]) if found else 1)
        self.access(site, pointer, size)

    def _meet(self, instruction: Instruction, call: Call, kind: int, first: int) -> None:
        """Write what a thread tells before it waits, the suspension, and what it is told after."""
        if not self.function.kernel:
            raise self.unsupported(f"{call.callee[1:]} outside a kernel", instruction)
        operands = [*call.operands[first:], *call.operands[:first]]
        site = Site(str(instruction), instruction.line, space=at.SHARED, align=16)
        if kind >= at.LDMATRIX:
            site = self.site(instruction, operands[0], at.READ, 16)
        number, n = self.sites.add(site), self.fresh()
        self.do(f"%emu.o{n} = call ptr @emu.wait(i32 {kind}, i32 {number})")
        for k, operand in enumerate(operands):
            self.do(
                f"%emu.o{n}.{k} = getelementptr i64, ptr %emu.o{n}, i64 {k}",
                f"store {operand}, ptr %emu.o{n}.{k}, align 8",
            )
        self.do(
            f"%emu.s{n} = call i8 @llvm.coro.suspend(token none, i1 false)",
            f"switch i8 %emu.s{n}, label %emu.exit [",
            f"  i8 0, label %emu.go{n}",
            "  i8 1, label %emu.exit",
            "]",
        )
        self.begin(f"emu.go{n}")
        if instruction.result:
            self.do(
                f"%emu.r{n} = call ptr @emu.result()",
                f"{instruction.result} = load {call.kind}, ptr %emu.r{n}, align 8",
            )

    def _copy(self, instruction: Instruction, call: Call, size: int) -> None:
        """Write the begin of an asynchronous copy."""
        to, source = call.operands[:2]
        number = self.sites.add(self.site(instruction, to, at.WRITE, size))
        self.sites.add(self.site(instruction, source, at.READ, size))
        n = self.fresh()
        self.do(
            f"%emu.l{n} = call i64 @emu.self()",
            f"%emu.t{n} = ptrtoint {to} to i64",
            f"%emu.f{n} = ptrtoint {source} to i64",
        )
        taken = str(size)
        if len(call.operands) > 2:
            taken = f"%emu.n{n}"
            self.do(f"{taken} = zext {call.operands[2]} to i64")
        self._checked(
            f"@emu.copy_async(i64 %emu.l{n}, i64 %emu.t{n}, i64 %emu.f{n}, i64 {size}, i64 {taken},"
            f" i64 {number})"
        )

    def _wait(self, call: Call, what: str) -> None:
        """Write the end of asynchronous copies."""
        n = self.fresh()
        self.do(f"%emu.l{n} = call i64 @emu.self()")
        operands = [f"i64 %emu.l{n}"]
        for operand in call.operands:
            self.do(f"%emu.n{n} = zext {operand} to i64")
            operands.append(f"i64 %emu.n{n}")
        self._checked(f"@emu.{what}({', '.join(operands)})")

    def _checked(self, call: str) -> None:
        """Write *call*, and leave the function if it returns 0."""
        n = self.fresh()
        self.do(f"%emu.r{n} = call i64 {call}", f"%emu.c{n} = icmp ne i64 %emu.r{n}, 0")
        self.go_on_if(f"%emu.c{n}")
