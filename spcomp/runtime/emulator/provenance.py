"""Beside the kernels: the buffer that each pointer of a function points into, from its text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from spcomp.runtime.emulator import layout as at
from spcomp.runtime.emulator.text import NAME, Function, Instruction, Operand, split

LOCAL = -2  # the first alloca; the next is -3
_POINTERS = ("getelementptr", "bitcast", "addrspacecast", "freeze", "phi", "select")


def bases(function: Function, variables: Mapping[str, int], first: int) -> dict[str, int]:
    """Return the range of each pointer, by name, where its definition shows it.

    Ranges are numbered: *variables* as they are, from *first* on the parameters of a kernel that
    are pointers. Allocas have numbers from LOCAL downwards. Pointers of several origins have
    none.
    """
    known: dict[str, int] = dict(variables)
    pointers = [param for param in function.params if param.kind.startswith("ptr")]
    for k, param in enumerate(pointers):
        known[param.value] = first + k if function.kernel else at.NO_BASE
    allocas = [i for block in function.blocks for i in block.instructions if i.opcode == "alloca"]
    known |= {alloca.result: LOCAL - k for k, alloca in enumerate(allocas)}
    steps = [
        instruction
        for block in function.blocks
        for instruction in block.instructions
        if instruction.opcode in _POINTERS
    ]
    derived = {step.result for step in steps}
    changed = True
    while changed:
        changed = False
        for step in steps:
            names = [name for name in _origins(step) if name in known or name not in derived]
            origins = {known.get(name, at.NO_BASE) for name in names}
            base = origins.pop() if len(origins) == 1 else at.NO_BASE if origins else None
            if base is not None and known.get(step.result) not in (base, at.NO_BASE):
                known[step.result] = base
                changed = True
    return known


def _origins(instruction: Instruction) -> Iterator[str]:
    """Yield the names of the pointers that the result of *instruction* is computed from."""
    text = instruction.text
    if instruction.opcode == "phi":
        yield from re.findall(rf"\[ ({NAME}),", text)
        return
    if instruction.opcode == "getelementptr":
        parts = split(text)[1:2]
    elif instruction.opcode == "select":
        parts = split(text)[1:]
    else:
        parts = [text.split(" ", 1)[1].split(" to ")[0]]
    for part in parts:
        operand = Operand.of(part)
        if operand.kind.startswith("ptr") and (found := re.search(NAME, operand.value)):
            yield found[0]
