"""Index notation to index notation: assigned parts of tensors become results of their own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from spcomp.errors import ScriptError
from spcomp.notation.algebra import Windowed
from spcomp.notation.nodes import Access, Assignment, Program, Scalar, walk
from spcomp.notation.prepare import free_name


def with_assigned_parts(program: Program) -> tuple[Program, Mapping[str, Windowed]]:
    """Return *program* with each assigned part as a result, and the windows that these are.

    Raises ScriptError if the tensor is also read, or assigned as a whole.
    """
    parts = {s.target.name for s in program.statements if s.target.windows}
    if not parts:
        return program, {}
    taken = {s.target.name for s in program.statements}
    for stmt in program.statements:
        for term in walk(stmt.value):
            if not isinstance(term, (Access, Scalar)):
                continue
            taken.add(term.name)
            if term.name in parts:
                raise ScriptError(
                    f"{term.name} is read, and assigned in part",
                    term.at,
                    hint="read it in a program of its own, run after or before",
                )
    statements: list[Assignment] = []
    windows: dict[str, Windowed] = {}
    for stmt in program.statements:
        target = stmt.target
        if target.name in parts and not target.windows:
            raise ScriptError(f"{target.name} is assigned in part, and as a whole", target.at)
        if target.windows:
            name = free_name(target.name, taken) if target.name in windows else target.name
            windows[name] = Windowed(target.name, target.windows)
            target = Access(name, target.indices, at=target.at)
        statements.append(replace(stmt, target=target))
    return Program(tuple(statements)), windows
