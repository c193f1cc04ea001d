"""Beside the route: the decisions about a program of index notation, as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from spcomp.notation.algebra import ALWAYS
from spcomp.notation.layout import Layout, Operand, has_slots
from spcomp.notation.loops import Loop, OperandLevel
from spcomp.notation.nodes import Op, accesses
from spcomp.notation.plan import Nest, Plan
from spcomp.notation.semiring import Semiring


def explain(
    plans: Sequence[Plan],
    operands: Mapping[str, Operand],
    converted: frozenset[str],
    semiring: Semiring,
    stored: Mapping[str, str],
) -> str:
    """Return the formats, domains, loops and reasons of each statement, in concrete notation.

    *stored*: the text for each operand that is stored in parts.
    """
    lines: list[str] = []
    if not semiring.is_ordinary:
        lines.append(f"over the semiring of {semiring.add} and {semiring.mul}")
    for plan in plans:
        lines.append(str(plan.stmt))
        for access in accesses(plan.stmt.value):
            if access.name in operands:
                operand = operands[access.name]
                how = ", converted" if access.name in converted else ""
                kept = "used as it is"
                if not has_slots(operand.layout):
                    kept = f"iterated as {operand.layout}"
                shown = f"{operand.given}, {kept}" if operand.given else str(operand.layout)
                shown = stored.get(access.name, shown)
                lines.append(f"  {access}: {shown}, {operand.dtype}{how}")
        output = plan.output
        how = "assembled, " if output.is_assembled else ""
        lines.append(f"  {plan.stmt.target}: {output.layout}, {how}{output.why}")
        layouts = {name: operand.layout for name, operand in operands.items()}
        for nest in plan.nests:
            lines += [f"  {line}" for line in _nest(nest, layouts)]
        if output.keys is not None and output.keys.op is not None:
            lines.append(f"  {plan.stmt.target}: {output.keys.op} of what is at one place, sorted")
    return "\n".join(lines)


def _nest(nest: Nest, layouts: Mapping[str, Layout]) -> Iterator[str]:
    depth = 0
    for at, loop in enumerate((*nest.loops, None)):
        for temp in nest.temps:
            if temp.depth == at:
                yield from ("  " * depth + line for line in _nest(temp.nest, layouts))
        if loop is not None:
            reduced = ", reduced" if loop.index in nest.over else ""
            yield "  " * depth + f"for {loop.index} in {_domain(loop)}{reduced}: {loop.why}"
            depth += 1
    pad = "  " * depth
    if nest.present != ALWAYS:
        yield f"{pad}if stored {nest.present}:"
        pad += "  "
    how = "=" if nest.op is None else f"{nest.op}="
    yield f"{pad}{nest.target} {how} {Op('neg', (nest.value,)) if nest.minus else nest.value}"


def _domain(loop: Loop) -> str:
    parts = [_place(place) for place in loop.parts]
    match loop.kind:
        case "dense":
            return "all coordinates"
        case "one":
            return parts[0]
        case "along":
            return f"all coordinates, along {', '.join(parts)}"
    return f"{loop.kind}({', '.join(parts)})"


def _place(place: OperandLevel) -> str:
    return f"level {place.level} of {place.name}"
