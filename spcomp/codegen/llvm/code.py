"""Flat IR to LLVM IR, the base: instructions as text, names, blocks, and what is in scope."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from spcomp.codegen.llvm.debug import Debug
from spcomp.codegen.llvm.ops import (
    ARITHMETIC,
    EXACT,
    is_literal,
    register,
    row,
    splat,
    suffix,
    vector,
)
from spcomp.dtypes import DType, handle
from spcomp.errors import InternalError
from spcomp.ir.axis import AnyBuffer
from spcomp.ir.expr import Var
from spcomp.knobs import Knobs

Key: TypeAlias = Var | AnyBuffer
STACK_LIMIT = 64 << 10  # bytes of buffers that a function may keep on its stack
MEMORY = ("load", "store", "atomicrmw", "cmpxchg", "call void @llvm.nvvm.barrier")
STATUS = Var("status", handle)  # the word that failures are written to; see Code.fail


class Library(Protocol):
    """The functions of floats that are no instructions, such as ``sin``."""

    def __call__(self, code: Code, dtype: DType, func: str, *args: str) -> str:
        """Return *func* of the operands *args*, which have the type of *dtype* in registers."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """What differs between the machines that LLVM IR is written for.

    *library*: the functions of floats. *has_half*: float16 is converted by an instruction.
    *blends*: a float is not selected by a condition without a branch, but by a vector of bits.
    *has_masks*: vectors are loaded and stored under a mask by an instruction. *tables*: in which
    form the code has places in the source, if that was asked for.
    """

    library: Library
    has_half: bool
    blends: bool
    has_masks: bool
    tables: str = "LineTablesOnly"


@dataclass(slots=True)
class Unit:
    """What the functions of one LLVM module share.

    *knobs*: thresholds of the target. *flags*: what LLVM may change about the arithmetic of floats.
    *debug*: knows the places of instructions in the source, if that was asked for.
    """

    knobs: Knobs
    dialect: Dialect
    flags: str = EXACT
    declarations: dict[str, str] = field(default_factory=dict)
    functions: list[str] = field(default_factory=list)
    metadata: list[str] = field(default_factory=list)
    debug: Debug | None = None

    @classmethod
    def of(cls, knobs: Knobs, dialect: Dialect, flags: str, *, debug: bool) -> Unit:
        """Return an empty module, whose instructions have places if *debug*."""
        unit = cls(knobs, dialect, flags)
        unit.debug = Debug(unit.metadata, dialect.tables) if debug else None
        return unit

    def text(self, *attributes: str) -> str:
        """Return the module as LLVM IR, with the groups *attributes* of facts about functions."""
        functions, footer = self.functions, list[str]()
        if self.debug is not None:
            functions = self.debug.attach(functions)
            footer = self.debug.footer()
        parts = [*self.declarations.values(), *functions, *attributes, *self.metadata, *footer]
        return "\n".join(parts) + "\n"

    def declare(self, name: str, result: str, arguments: str, facts: str = "") -> str:
        """Declare an external function once, with *facts*; return its name with the ``@``."""
        text = f"declare {result} @{name}({arguments}) {facts}".rstrip()
        self.declarations.setdefault(name, text)
        return f"@{name}"

    def loop_metadata(self, facts: list[str]) -> str:
        """Return the reference to a new loop identity that has *facts*."""
        nodes = [self.fact(fact) for fact in facts]
        number = len(self.metadata)
        self.metadata.append(f"!{number} = distinct !{{{', '.join([f'!{number}', *nodes])}}}")
        return f"!{number}"

    def fact(self, fact: str) -> str:
        """Return the reference to the metadata that holds *fact*."""
        text = f" = !{{{fact}}}"
        for number, line in enumerate(self.metadata):
            if line == f"!{number}{text}":
                return f"!{number}"
        self.metadata.append(f"!{len(self.metadata)}{text}")
        return f"!{len(self.metadata) - 1}"


class Code:
    """The body of one function, written forwards; *block* is the block being written."""

    def __init__(self, unit: Unit) -> None:
        self.unit = unit
        self.lines: list[str] = [] if unit.debug is None else unit.debug.lines()
        self.allocas: list[str] = []
        self.stack = 0  # bytes of buffers among them
        self.block = "entry"
        self.place = ""  # metadata of instructions that touch memory: the line they come from
        self._names = 0

    def name(self) -> str:
        """Return a fresh register."""
        self._names += 1
        return f"%v{self._names}"

    def value(self, instruction: str) -> str:
        """Write ``%name = instruction``; return the name."""
        self._names += 1
        name = f"%v{self._names}"
        place = self.place if self.place and instruction.startswith(MEMORY) else ""
        self.lines.append(f"  {name} = {instruction}{place}")
        return name

    def splat(self, value: str, dtype: DType, lanes: int) -> str:
        """Return the vector of *lanes* copies of the operand *value* of the scalar *dtype*."""
        scalar, kind = register(dtype), register(dtype.with_lanes(lanes))
        if is_literal(value):
            return splat(kind, value)
        first = self.value(f"insertelement {kind} poison, {scalar} {value}, i64 0")
        order = f"{vector('i32', lanes)} zeroinitializer"
        return self.value(f"shufflevector {kind} {first}, {kind} poison, {order}")

    def do(self, instruction: str) -> None:
        """Write an instruction without a result."""
        place = self.place if self.place and instruction.startswith(MEMORY) else ""
        self.lines.append(f"  {instruction}{place}")

    def fits_stack(self, size: int) -> bool:
        """Whether *size* more bytes may live on the function's stack; if so, count them."""
        fits = self.stack + size <= STACK_LIMIT
        self.stack += size if fits else 0
        return fits

    def alloca(self, llvm_type: str, align: int) -> str:
        """Return a stack slot that lives as long as the function."""
        name = self.name()
        self.allocas.append(f"  {name} = alloca {llvm_type}, align {align}")
        return name

    def label(self, hint: str) -> str:
        """Return a fresh label, to be used by ``start`` and branches."""
        self._names += 1
        return f"{hint}{self._names}"

    def start(self, label: str) -> None:
        """Begin the block *label*; the block before must have ended."""
        self.lines.append(f"{label}:")
        self.block = label

    def jump(self, label: str) -> None:
        """End the block with a jump to *label*."""
        self.lines.append(f"  br label %{label}")

    def branch(self, cond: str, then: str, otherwise: str) -> None:
        """End the block with a branch on the i1 *cond*."""
        self.lines.append(f"  br i1 {cond}, label %{then}, label %{otherwise}")

    def arithmetic(self, op: str, dtype: DType, lhs: str, rhs: str, *more: str) -> str:
        """Return ``lhs op rhs`` of operands of *dtype* by the instruction for it; *more* flags."""
        all_of_it = " ".join((self.unit.flags, *more))
        flags = f" {all_of_it}" if dtype.is_float and op in "+-*/" else ""
        name = ARITHMETIC[op][row(dtype)]
        return self.value(f"{name}{flags} {register(dtype)} {lhs}, {rhs}")

    def intrinsic(self, name: str, llvm_type: str, *operands: str, flags: str = "") -> str:
        """Call ``llvm.name`` overloaded on *llvm_type*, its type for operands and result."""
        function = self.unit.declare(
            f"llvm.{name}.{suffix(llvm_type)}", llvm_type, ", ".join([llvm_type] * len(operands))
        )
        arguments = ", ".join(f"{llvm_type} {operand}" for operand in operands)
        return self.value(f"call {flags} {llvm_type} {function}({arguments})")

    def choose(
        self, cond: str, dtype: DType, then: Callable[[], str], otherwise: Callable[[], str]
    ) -> str:
        """Return the value of *then* or *otherwise*; only one of them runs."""
        yes, no, join = self.label("then"), self.label("else"), self.label("join")
        self.branch(cond, yes, no)
        arms = []
        for label, arm in ((yes, then), (no, otherwise)):
            self.start(label)
            operand = arm()
            arms.append(f"[ {operand}, %{self.block} ]")
            self.jump(join)
        self.start(join)
        return self.value(f"phi {register(dtype)} {arms[0]}, {arms[1]}")

    def when(self, cond: str, then: Callable[[], None]) -> None:
        """Run *then* if *cond*."""
        yes, join = self.label("then"), self.label("join")
        self.branch(cond, yes, join)
        self.start(yes)
        then()
        self.jump(join)
        self.start(join)

    def fail(self, status: str, code: int) -> None:
        """Record *code* in the status word, which holds the code minus one as an unsigned number.

        The smallest is kept, so that the outcome does not depend on the order of the threads.
        """
        self.do(f"atomicrmw umin ptr {status}, i32 {code - 1} monotonic")


@dataclass(slots=True)
class Scope:
    """Operands by variable or buffer; those of the enclosing function are captured."""

    parent: Scope | None = None
    names: dict[Key, str] = field(default_factory=dict)
    captures: dict[Key, str] = field(default_factory=dict)

    def __setitem__(self, key: Key, operand: str) -> None:
        self.names[key] = operand

    def __getitem__(self, key: Key) -> str:
        operand = self.find(key)
        if operand is None:
            raise InternalError("flatten_buffers", f"{key.name} is used but not defined")
        return operand

    def find(self, key: Key) -> str | None:
        """Return the operand of *key*, or None."""
        operand = self.names.get(key)
        if operand is not None or self.parent is None:
            return operand
        outer = self.parent.find(key)
        if outer is None or not outer.startswith("%"):
            return outer  # literals and globals need no capture
        operand = f"%c{len(self.captures)}"
        self.captures[key] = self.names[key] = operand
        return operand

    def pointer(self, buffer: AnyBuffer) -> str:
        """Return the address of *buffer*'s first element."""
        return self[buffer if buffer.data is None else buffer.data]
