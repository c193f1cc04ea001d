"""A call that was accepted once, as a value: what to fetch, what must be as it was, what to run.

A Plan is a list of instructions for the call entry (``runtime.native.entry_ir``), which repeats the
call for arguments of the same kind. It prints as what it is; ``encode`` is what the entry reads.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from spcomp.arrays import Array
from spcomp.runtime.native.entry_ir import HEADER, LIMIT, STEP, Op

C_CONTIGUOUS, ALIGNED, WRITEABLE = 0x1, 0x100, 0x400  # of PyArrayObject_fields.flags
WARNS = 0x80000000  # numpy wants to warn of a write
_MASK = (1 << 64) - 1


class Words(tuple[int, ...]):
    """Numbers of one operand, such as extents of an array; another tuple is an object."""

    __slots__ = ()


Operand: TypeAlias = int | Words | Any  # what is neither is an object, by reference
Instruction: TypeAlias = tuple[Op, tuple[Operand, ...]]


@dataclass(frozen=True, slots=True)
class Step:
    """One instruction and its operands."""

    op: Op
    args: tuple[Operand, ...]

    def __str__(self) -> str:
        args = (getattr(arg, "func", arg) for arg in self.args)  # of a partial
        shown = (getattr(arg, "__name__", arg) for arg in args)
        return f"{self.op.name.lower()} {', '.join(map(str, shown))}"


@dataclass(slots=True)
class Plan:
    """Instructions in order, and the names of the *functions* that they call.

    *names*: how many arguments a call gives; *objects* and *slots*: how many there are of them.
    """

    functions: list[str] = field(default_factory=list)
    names: int = 0
    objects: int = 0
    slots: int = 0
    steps: list[Step] = field(default_factory=list)

    def add(self, op: Op, *args: Operand) -> None:
        """Append an instruction."""
        self.steps.append(Step(op, args))

    def fetch(self, op: Op, *args: Operand) -> int:
        """Append an instruction that makes a new object; return its number."""
        self.objects += 1
        self.add(op, self.objects - 1, *args)
        return self.objects - 1

    def take(self, name: str) -> int:
        """Fetch the argument *name*."""
        self.names += 1
        return self.fetch(Op.TAKE, name)

    @staticmethod
    def guard(k: int, like: Array, *, written: bool = False) -> Instruction:
        """Return the instruction that object *k* is an array *like* this, contiguous, aligned."""
        wanted = C_CONTIGUOUS | ALIGNED | (WRITEABLE if written else 0)
        mask = wanted | (WARNS if written else 0)
        return Op.ARRAY, (k, like.dtype, like.ndim, Words(like.shape), mask, wanted)

    @property
    def fits(self) -> bool:
        """Whether the entry has room for it."""
        return max(self.objects, self.slots) <= LIMIT

    def __str__(self) -> str:
        return "\n".join(map(str, self.steps))

    def encode(self) -> tuple[bytes, tuple[Any, ...]]:
        """Return the words that the entry reads, and the objects that they are addresses of."""
        kept: list[Any] = [NotImplemented, None, AttributeError, np.ndarray]
        words = [self.names, self.objects, *map(id, kept)]
        pool: list[int] = []
        base = HEADER + STEP * len(self.steps)
        for step in self.steps:
            operands = [int(step.op)]
            for place, arg in enumerate(step.args):
                if type(arg) is int and not (place and step.op is Op.LIKE):
                    operands.append(arg)
                elif type(arg) is Words:
                    operands.append(base + len(pool))
                    pool += arg
                else:
                    kept.append(arg)
                    operands.append(id(arg))
            words += operands + [0] * (STEP - len(operands))
        words += pool
        return struct.pack(f"<{len(words)}Q", *(word & _MASK for word in words)), tuple(kept)
