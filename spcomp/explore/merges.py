"""For the explorer: the co-iterations of a program, each with the points of its lattice."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spcomp.ir.places import places
from spcomp.ir.position import Merge
from spcomp.ir.visitor import statements, walk
from spcomp.passes.merge.lattice import Lattice

if TYPE_CHECKING:
    from collections.abc import Iterator

    from spcomp.ir.module import Module
    from spcomp.ir.position import Cursor
    from spcomp.ir.printer.program import Line


def merge_lines(module: Module[Any]) -> Iterator[Line]:
    """Yield lines that say which operands may meet at a coordinate, and which cases do something.

    The first line of a merge is at its place, each point of its lattice at that of its case.
    """
    merges = [node for func in module.funcs for node in walk(func.body) if isinstance(node, Merge)]
    for merge in merges:
        names = tuple(_name(cursor, k) for k, cursor in enumerate(merge.cursors))
        lattice = Lattice(merge.kind, names)
        cases = {case.present: case.body for case in merge.cases}
        yield f"{merge.kind} over {merge.coordinate.name}: {', '.join(names)}", places(merge)
        for point in lattice.points:
            below = " ".join(map(lattice.text, lattice.below(point)))
            then = f"as one ends, {below} remain" if below else "as one ends, nothing remains"
            what = "" if point in cases else "; nothing is done"
            body = statements(cases[point]) if point in cases else ()
            at = dict.fromkeys(part.span for part in body if part.span is not None)
            yield f"    {lattice.text(point)}: {then}{what}", tuple(at)


def _name(cursor: Cursor, number: int) -> str:
    """Return the name of the axis, or of the array, that *cursor* moves along."""
    if cursor.indices is None:
        return f"all {number}"
    return cursor.indices.name.removesuffix("_indices")
