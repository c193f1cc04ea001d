"""Before the route: a storage format of tensors, nested levels in some order of dimensions."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from operator import index

from spcomp.display.html import heading, table
from spcomp.display.levels import levels
from spcomp.dtypes import DType, int32
from spcomp.dtypes import dtype as dtype_of
from spcomp.errors import FormatError
from spcomp.formats.levels import LEVELS, LevelFormat, level

SLOTS = -1  # in an order: a level that stores no dimension, but numbers places for levels below
_PART = re.compile(r"[^,(]+(?:\([^)]*\))?")
_DIMENSIONS = " of dimensions "


@dataclass(frozen=True, slots=True, init=False)
class Format:
    """How a tensor is stored: its levels, outermost first, and the dimension that each stores.

    Args:
        levels: A name (``"csc"``, ``"bsr(4)"``, ``"dense,hashed"``, see :meth:`parse`), or one
            text or LevelFormat per level: ``("dense", "compressed")``.
        order: The dimension that each level stores; None for 0, 1, and so on. A dimension may be
            split over several levels: those after the first are ``dense(size)``, and hold its
            coordinate modulo their sizes. -1 is a level of numbered places without a dimension.
        idtype: The type of the index arrays, int32 or int64.

    Raises:
        FormatError: for levels that do not describe a tensor.
    """

    levels: tuple[str, ...]
    order: tuple[int, ...]
    idtype: DType = int32

    def __init__(
        self,
        levels: str | Sequence[str | LevelFormat],
        order: Sequence[int] | None = None,
        idtype: DType | str = int32,
    ) -> None:
        if isinstance(levels, str):
            parsed = Format.parse(levels)
            levels, order = parsed.levels, parsed.order if order is None else order
        texts = _texts(levels)
        try:
            dims = tuple(range(len(texts)) if order is None else map(index, order))
        except TypeError:
            raise FormatError(f"the order {order!r} is no tuple of integers") from None
        try:
            kind = dtype_of(idtype) if isinstance(idtype, str) else idtype
        except ValueError:
            raise FormatError(f"index arrays cannot be {idtype}") from None
        object.__setattr__(self, "levels", texts)
        object.__setattr__(self, "order", dims)
        object.__setattr__(self, "idtype", kind)
        _check(self)

    @staticmethod
    def parse(text: str, rank: int | None = None) -> Format:
        """Return the format that *text* names, as ``str`` prints it; raises FormatError.

        A name for any rank, such as ``csf``, has *rank* dimensions, by default two.
        """
        levels, _, order = text.partition(_DIMENSIONS)
        named = NAMED.get(levels.split("(")[0].strip())
        if named is not None and not order:
            result = named.format(levels, rank)
        else:
            dims = [part.strip() for part in order.split(",")] if order else None
            if dims is not None and not all(re.fullmatch(r"-1|\d+", dim) for dim in dims):
                raise FormatError(f"{text!r} is no format: dimensions are numbers")
            parts = _PART.findall(levels)
            if len(parts) == 1 and parts[0].partition("(")[0].strip() not in LEVELS:
                raise _unknown(text, rank)
            result = Format(parts, None if dims is None else [int(dim) for dim in dims])
        if rank is not None and result.rank != rank:
            raise FormatError(f"{text!r} is no format of {rank} dimensions")
        return result

    @property
    def kinds(self) -> tuple[LevelFormat, ...]:
        """The levels as LevelFormats."""
        return tuple(level(text) for text in self.levels)

    @property
    def rank(self) -> int:
        """The number of dimensions of the tensors."""
        return max(self.order, default=-1) + 1

    @property
    def name(self) -> str:
        """The name of the format, or its levels and their dimensions."""
        if self.is_dense and self.is_plain:
            return "dense"
        for named in NAMED.values():
            if (name := named.name_of(self)) is not None:
                return name
        return text_of(self.levels, self.order)

    def __str__(self) -> str:
        return self.name

    def _repr_html_(self) -> str:
        rows = (
            (at, text, "-" if dim == SLOTS else dim, ", ".join(kind.arrays) or "none", kind.locates)
            for at, (text, dim, kind) in enumerate(
                zip(self.levels, self.order, self.kinds, strict=True)
            )
        )
        head = ("level", "kind", "dimension", "arrays", "how a coordinate is found")
        stored = ("-" if dim == SLOTS else dim for dim in self.order)
        return heading(self.name) + table(head, rows) + levels(self.levels, [*stored]).svg

    def __repr__(self) -> str:
        order = "" if self.is_plain else f", order={self.order}"
        idtype = "" if self.idtype == int32 else f", idtype={str(self.idtype)!r}"
        return f"Format({self.levels}{order}{idtype})"

    @property
    def is_plain(self) -> bool:
        """Whether level k stores dimension k."""
        return self.order == tuple(range(len(self.order)))

    @property
    def is_dense(self) -> bool:
        """Whether every element is stored."""
        return all(kind.full for kind in self.kinds)

    @property
    def is_split(self) -> bool:
        """Whether a level stores a part of a dimension, or no dimension."""
        return len(self.order) > self.rank

    @property
    def is_rooted(self) -> bool:
        """Whether the first level has all coordinates, so that no root has to be added."""
        return not self.levels or self.kinds[0].axis == "dense_fixed"

    @property
    def depth(self) -> int:
        """The number of levels without the dense ones at the end."""
        inner = [at for at, kind in enumerate(self.kinds) if not kind.full]
        return inner[-1] + 1 if inner else 0

    def strides(self) -> tuple[int, ...]:
        """Return the stride of each level in its dimension: 1, unless the dimension is split."""
        return tuple(
            prod(
                kind.size or 1
                for kind, other in zip(self.kinds[at + 1 :], self.order[at + 1 :], strict=True)
                if other == dim
            )
            if dim != SLOTS
            else 0
            for at, dim in enumerate(self.order)
        )

    def extents(self, shape: Sequence[int]) -> tuple[int | None, ...]:
        """Return the number of coordinates of each level of a tensor of *shape*; None: any."""
        return tuple(
            None if dim == SLOTS else kind.size or -(-shape[dim] // stride)
            for kind, dim, stride in zip(self.kinds, self.order, self.strides(), strict=True)
        )


@dataclass(frozen=True, slots=True)
class Named:
    """A name for formats, with its levels, or a function from the rank to the levels.

    *sizes*: how many numbers the name takes, ``bsr(2, 3)``, for the ``dense(0)`` of *levels*. A
    single number stands for all of them; the default is 4.
    """

    name: str
    levels: tuple[str, ...] | Callable[[int], tuple[str, ...]]
    order: tuple[int, ...] | None = None
    sizes: int = 0

    def fits(self, rank: int | None) -> bool:
        """Whether a tensor of *rank* dimensions, of any number if None, has such a format."""
        if rank is None or not isinstance(self.levels, tuple):
            return True
        return rank == (len(self.levels) if self.order is None else len({*self.order} - {SLOTS}))

    def format(self, text: str, rank: int | None) -> Format:
        """Return the format called *text*, of *rank* dimensions; raises FormatError."""
        levels = self.levels if isinstance(self.levels, tuple) else self.levels(rank or 2)
        match = re.fullmatch(r"\s*\w+\s*(?:\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\))?\s*", text)
        sizes = [int(number) for number in match.groups() if number] if match else []
        if match is None or len(sizes) > self.sizes:
            pattern = self.name + ("", "(size)", "(rows, columns)")[self.sizes]
            raise FormatError(f"{text!r} is no format", hint=f"its name is {pattern}")
        if len(sizes) < 2:
            sizes = (sizes or [4]) * self.sizes
        sized = [f"dense({sizes.pop(0)})" if part == "dense(0)" else part for part in levels]
        return Format(sized, self.order)

    def name_of(self, other: Format) -> str | None:
        """Return the name of *other* if it is a format of this name, or None."""
        sizes = [kind.size for kind in other.kinds if kind.size is not None]
        if len(sizes) != self.sizes or not other.levels:
            return None
        numbers = ", ".join(map(str, sizes[:1] if len(set(sizes)) == 1 else sizes))
        text = f"{self.name}({numbers})" if sizes else self.name
        usual = self.format(text, other.rank)
        return text if (usual.levels, usual.order) == (other.levels, other.order) else None


_COO = "compressed(nonunique)"
_BLOCKS = ("compressed", "dense(0)", "dense(0)")
NAMED: Mapping[str, Named] = {
    named.name: named
    for named in (
        Named("dense", lambda rank: ("dense",) * rank),
        Named("csr", ("dense", "compressed")),
        Named("csc", ("dense", "compressed"), (1, 0)),
        Named("dcsr", ("compressed", "compressed")),
        Named("dcsc", ("compressed", "compressed"), (1, 0)),
        Named("sparse", ("compressed",)),
        Named("csf", lambda rank: ("compressed",) * rank),
        Named("coo", lambda rank: (_COO, *("singleton",) * (rank - 1))),
        Named("coo3", (_COO, "singleton", "singleton")),
        Named("ell", ("dense", "fixed")),
        Named("dia", ("dense", "offset")),
        Named("bitmap", lambda rank: (*("dense",) * (rank - 1), "bitmap")),
        Named(
            "hash", lambda rank: ("hashed",) if rank == 1 else ("dense", *("hashed",) * (rank - 1))
        ),
        Named("rle", lambda rank: (*("dense",) * (rank - 1), "runs")),
        Named("bsr", ("dense", *_BLOCKS), (0, 1, 0, 1), sizes=2),
        Named("dbsr", ("compressed", *_BLOCKS), (0, 1, 0, 1), sizes=2),
        Named("sell", ("dense", "ragged", "dense(0)", "singleton"), (0, SLOTS, 0, 1), sizes=1),
    )
}
"""The formats that have a name."""


def text_of(levels: Sequence[str], order: Sequence[int]) -> str:
    """Return *levels* as text, with their dimensions if these are not in natural order."""
    plain = list(order) == list(range(len(order)))
    return ",".join(levels) + ("" if plain else _DIMENSIONS + ",".join(map(str, order)))


def _texts(levels: Sequence[str | LevelFormat]) -> tuple[str, ...]:
    """Return *levels* as they are printed; raises FormatError."""
    if not isinstance(levels, (tuple, list)):
        raise FormatError(f"levels are {type(levels).__name__}, expected a tuple")
    return tuple(str(level(str(part))) for part in levels)


def _check(result: Format) -> None:
    """Raise FormatError unless the levels and dimensions of *result* describe tensors."""
    levels, order = result.levels, result.order
    text = ",".join(levels)
    stores = set(order) - {SLOTS}
    if len(order) != len(levels) or len(stores) != result.rank or min(stores, default=0) < 0:
        raise FormatError(
            f"the order {order} does not say which dimensions {len(levels)} levels store",
            hint="give the number of a dimension for each level, every dimension at least once",
        )
    if result.idtype.kind != "int" or result.idtype.bits not in (32, 64):
        raise FormatError(f"index arrays cannot be {result.idtype}", hint="they are int32 or int64")
    stored: set[int] = set()
    for at, (kind, dim) in enumerate(zip(result.kinds, order, strict=True)):
        if dim == SLOTS and kind.name != "ragged":
            raise FormatError(f"{text}: a level that stores no dimension is ragged")
        if (kind.size is not None) != (dim in stored):
            raise FormatError(
                f"{text}: level {at} stores dimension {dim} as {kind}",
                hint="a dimension that is split has a level of any kind, then dense(size) ones",
            )
        above = order[at - 1] if at else SLOTS
        if kind.name == "offset" and (above == SLOTS or order.count(above) > 1):
            raise FormatError(f"{text}: an offset level stands below the dimension it follows")
        stored |= {dim} - {SLOTS}


def _unknown(text: str, rank: int | None) -> FormatError:
    """Return the error for *text*, which is not the name of a format."""
    names = ", ".join(name for name, named in NAMED.items() if named.fits(rank))
    hint = f"formats: {names}, or a level for each dimension: {', '.join(LEVELS)}"
    if text.startswith("hyb"):
        hint = 'hyb has several parts: formats={"A": "hyb"} of compile, or spcomp.convert(A, "hyb")'
    if text.lower() in NAMED:
        hint = f"names are in small letters: {text.lower()!r}"
    of = "" if rank is None else f" of {rank} dimensions"
    return FormatError(f"{text!r} is no format{of}", hint=hint)
