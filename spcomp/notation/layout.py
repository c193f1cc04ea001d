"""Beside the route: how an operand is stored, as far as choosing loops needs to know."""

from __future__ import annotations

from dataclasses import dataclass

from spcomp.dtypes import DType, int32
from spcomp.errors import ArgumentError

SPARSE = frozenset({"compressed", "fixed"})
NAMES: dict[str, tuple[tuple[str, ...], tuple[int, ...]]] = {
    "csr": (("dense", "compressed"), (0, 1)),
    "csc": (("dense", "compressed"), (1, 0)),
    "dcsr": (("compressed", "compressed"), (0, 1)),
    "dcsc": (("compressed", "compressed"), (1, 0)),
    "ell": (("dense", "fixed"), (0, 1)),
}


@dataclass(frozen=True, slots=True)
class Layout:
    """The levels of a tensor from the outermost in, and which dimension each of them stores.

    Level kinds: dense, compressed, fixed, ragged. *idtype* is the type of the index arrays.
    """

    levels: tuple[str, ...]
    order: tuple[int, ...]
    idtype: DType = int32

    @property
    def is_dense(self) -> bool:
        """Whether every element is stored."""
        return all(level == "dense" for level in self.levels)

    @property
    def is_rooted(self) -> bool:
        """Whether the first level is dense, so that no root of one position has to be added."""
        return not self.levels or self.levels[0] == "dense"

    @property
    def depth(self) -> int:
        """How many levels form the tree: all but the dense ones at the end."""
        inner = [at for at, level in enumerate(self.levels) if level != "dense"]
        return inner[-1] + 1 if inner else 0

    def check(self, name: str) -> None:
        """Raise ArgumentError for a nest of levels that axes cannot describe."""
        if "dense" in self.levels[1 : self.depth]:
            raise ArgumentError(
                f"argument {name}: a dense level stands below another and above a sparse one",
                hint="dense levels may come first, once, or last",
            )

    def __str__(self) -> str:
        if self.is_dense:
            plain = self.order == tuple(range(len(self.order)))
            return "dense" if plain else "dense, columns first"
        for name, (levels, order) in NAMES.items():
            if (levels, order) == (self.levels, self.order):
                return name
        if set(self.levels) == {"compressed"} and self.order == tuple(range(len(self.order))):
            return "sparse" if len(self.levels) == 1 else "csf"
        return f"{','.join(self.levels)} of dimensions {','.join(map(str, self.order))}"


@dataclass(frozen=True, slots=True)
class Operand:
    """An argument as the planner sees it; a *weak* one is a Python number without a dtype."""

    layout: Layout
    dtype: DType
    weak: bool = False


def dense(rank: int) -> Layout:
    """Return the layout of a numpy array."""
    return Layout(("dense",) * rank, tuple(range(rank)))


def named(name: str, rank: int, idtype: DType = int32) -> Layout:
    """Return the layout called *name* for a tensor of *rank* dimensions; raises ArgumentError."""
    if name == "dense":
        return dense(rank)
    if name in NAMES and rank == len(NAMES[name][1]):
        return Layout(*NAMES[name], idtype)
    if name in ("csf", "sparse") and rank >= 1:
        return Layout(("compressed",) * rank, tuple(range(rank)), idtype)
    known = ", ".join(("dense", *NAMES, "csf"))
    raise ArgumentError(
        f"argument formats: {name!r} is no format of {rank} dimensions", hint=f"formats: {known}"
    )
