"""Beside I to II, co-iteration as data: which operands may meet at a coordinate.

Source: merge lattices, Kjolstad et al. (OOPSLA 2017), section 5.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import TypeAlias

from spcomp.ir.position import MergeKind

Point: TypeAlias = tuple[bool, ...]  # for each operand whether it is present


@dataclass(frozen=True, slots=True)
class Lattice:
    """The points of a merge of *operands* (names): which of them may meet at a coordinate.

    >>> print(Lattice("union", ("A", "B")))
    {A, B} {A} {B}
    >>> print(Lattice("intersect", ("A", "B")))
    {A, B}
    """

    kind: MergeKind
    operands: tuple[str, ...]

    @property
    def points(self) -> tuple[Point, ...]:
        """The combinations of operands at a coordinate; those with the first operand come first."""
        if self.kind == "intersect":
            return ((True,) * len(self.operands),)
        return tuple(
            point for point in product((True, False), repeat=len(self.operands)) if any(point)
        )

    def below(self, point: Point) -> tuple[Point, ...]:
        """Return the points that remain after one or more operands of *point* have run out."""
        pairs = ((other, zip(other, point, strict=True)) for other in self.points if other != point)
        return tuple(other for other, sides in pairs if all(mine <= its for mine, its in sides))

    def __str__(self) -> str:
        return " ".join(map(self.text, self.points))

    def text(self, point: Point) -> str:
        """Return the operands that are present at *point*, as a set."""
        present = (
            name for name, is_present in zip(self.operands, point, strict=True) if is_present
        )
        return f"{{{', '.join(present)}}}"
