"""A call that was accepted once, as a value: what to fetch, what must be as it was, what to run.

A Plan is a list of instructions for the call entry (``codegen.cpu.entry``), which repeats the call
for arguments of the same kind. It prints as what it is; ``encode`` is what the entry reads.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from spcomp.codegen.cpu.entry import HEADER, LIMIT, STEP, Op

C_CONTIGUOUS, ALIGNED, WRITEABLE = 0x1, 0x100, 0x400  # of PyArrayObject_fields.flags
WARNS = 0x80000000  # numpy wants to warn of a write
_MASK = (1 << 64) - 1


class Extents(tuple[int, ...]):
    """The extents of an array: words of a program, where another tuple is an object."""

    __slots__ = ()


Operand: TypeAlias = int | Extents | Any  # what is neither is an object, by reference


@dataclass(frozen=True, slots=True)
class Step:
    """One instruction and its operands."""

    op: Op
    args: tuple[Operand, ...]

    def __str__(self) -> str:
        shown = (a if isinstance(a, (int, str, tuple)) else getattr(a, "__name__", str(a))
                 for a in self.args)  # fmt: skip
        return f"{self.op.name.lower()} {', '.join(map(str, shown))}"


@dataclass(slots=True)
class Plan:
    """Instructions in order, which end in a call of *function*.

    *names*: how many arguments a call gives; *objects*: how many objects the instructions number.
    """

    function: str
    names: int = 0
    objects: int = 0
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
    def guard(
        k: int, dtype: np.dtype[Any], shape: tuple[int, ...], slot: int, *, written: bool
    ) -> tuple[Op, tuple[Operand, ...]]:
        """Return the instruction that object *k* is an array like that, contiguous and aligned.

        Its address goes to *slot*, if that is not negative.
        """
        wanted = C_CONTIGUOUS | ALIGNED | (WRITEABLE if written else 0)
        mask = wanted | (WARNS if written else 0)
        return Op.ARRAY, (k, dtype, len(shape), Extents(shape), mask, wanted, slot)

    @property
    def fits(self) -> bool:
        """Whether the entry has room for it."""
        return self.objects <= LIMIT

    def __str__(self) -> str:
        return "\n".join(map(str, self.steps))

    def encode(self) -> tuple[bytes, tuple[Any, ...]]:
        """Return the words that the entry reads, and the objects that they are addresses of."""
        kept: list[Any] = [NotImplemented, None, AttributeError, np.ndarray, tuple, int]
        words = [self.names, self.objects, *map(id, kept)]
        pool: list[int] = []
        base = HEADER + STEP * len(self.steps)
        for step in self.steps:
            operands = [int(step.op)]
            for arg in step.args:
                if type(arg) is int:
                    operands.append(arg)
                elif type(arg) is Extents:
                    operands.append(base + len(pool))
                    pool += arg
                else:
                    kept.append(arg)
                    operands.append(id(arg))
            words += operands + [0] * (STEP - len(operands))
        words += pool
        return struct.pack(f"<{len(words)}Q", *(word & _MASK for word in words)), tuple(kept)
