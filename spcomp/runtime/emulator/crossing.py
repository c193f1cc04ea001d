"""Beside the kernels: the values of a kernel that are used after a thread has waited.

LLVM would compute such a value again after each wait, with all that it is made of, rather than
keep it: for long chains of arithmetic the code then grows with the square of their length.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from spcomp.runtime.emulator.text import NAME, Function, Instruction, Operand, split, split_type

_BINARY = re.compile(r"(f?(add|sub|mul)|[fus](div|rem)|shl|[al]shr|and|or|xor)$")
_CASTS = re.compile(r"(trunc|[zs]ext|fptrunc|fpext|fpto[us]i|[us]itofp|bitcast|ptrtoint|inttoptr)$")
_FLAGS = re.compile(
    r"^\w+( (nuw|nsw|exact|disjoint|nneg|samesign|inbounds|nusw|fast|n(nan|inf|sz)|arcp"
    r"|contract|afn|reassoc)\b)*"
)


def repeated_kind(instruction: Instruction) -> str | None:
    """Return the type of what *instruction* computes if LLVM may compute it again, else None."""
    opcode, rest = instruction.opcode, _FLAGS.sub("", instruction.text).strip()
    if _BINARY.match(opcode):
        return split_type(rest)[0]
    if _CASTS.match(opcode) or opcode == "addrspacecast":
        return rest.rsplit(" to ", 1)[1]
    if opcode in ("icmp", "fcmp"):
        vector = re.match(r"<(\d+) x ", split_type(rest.split(" ", 1)[1])[0])
        return f"<{vector[1]} x i1>" if vector else "i1"
    if opcode in ("select", "getelementptr"):
        return Operand.of(split(rest)[1]).kind
    return None


def crossing(function: Function, waits: Callable[[Instruction], bool]) -> frozenset[str]:
    """Return the names of values that are used elsewhere than between the waits of a block."""
    defined: dict[str, int] = {}
    ends: dict[str, int] = {}
    places: list[tuple[Instruction, int]] = []
    part = 0
    for block in function.blocks:
        part += 1
        for instruction in block.instructions:
            places.append((instruction, part))
            part += waits(instruction)
            defined[instruction.result] = part
        ends[block.label] = part
    return frozenset(
        name
        for instruction, at in places
        for name, used in _uses(instruction, at, ends)
        if defined.get(name, used) != used
    )


def _uses(instruction: Instruction, at: int, ends: dict[str, int]) -> Iterator[tuple[str, int]]:
    """Yield the values that *instruction* uses, and where: a phi, at the ends of other blocks."""
    if instruction.opcode == "phi":
        for name, label in re.findall(rf"\[ ({NAME}), %(\"[^\"]*\"|[\w.$-]+) \]", instruction.text):
            yield name, ends[label]
        return
    for name in re.findall(NAME, instruction.text):
        yield name, at
