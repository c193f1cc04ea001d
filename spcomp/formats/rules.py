"""Before the route: a rule that says how a part of a sparse buffer is stored in another format."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from spcomp.errors import FormatError, expect
from spcomp.ir.arith.indexmap import IndexMap
from spcomp.ir.axis import SparseBuffer
from spcomp.ir.expr import Const, Var
from spcomp.ir.func import Func
from spcomp.ir.visitor import walk


@dataclass(frozen=True, slots=True, eq=False)
class FormatRewriteRule:
    """One part of a decomposition: axes and buffers of a new format, and how coordinates map.

    Args:
        name: Appended, behind ``_``, to the names of all that the part declares.
        new_format_desc: A program without statements that declares the new axes and, under their
            old names, the new buffers. Its parameters are added to those of the program; one that
            is a parameter of the program already, the same object, is shared.
        buffers_to_rewrite: The names of the buffers.
        axes_before_rewrite: The names of their axes in the program.
        axes_after_rewrite: The names of the axes that are iterated instead, outermost first.
        axis_map: For each axis before, the axes after that its coordinate is made of.
        idx_map: The coordinates after, from those before; an IndexMap or a function.
        inv_idx_map: The coordinates before, from those after.
        padded: The part also stores coordinates that are not in the matrix, as zeros; those that
            are in it and zero lie in another part.
        where: Which coordinates the part may hold, a condition on those before; None for all.
            Only conversions ask for it: an element goes to the first part that can hold it.

    A dense_variable axis after, of which idx_map says 0 and which inv_idx_map does not use, is
    *free*: it cuts the fibers of its child, which is sparse_fixed, into pieces.

    Raises:
        FormatError: for names that are not declared, or maps of the wrong width.
        ArgumentError: for arguments of other types.

    Source: SparseTIR (ASPLOS 2023), section 3.2.1.
    """

    name: str
    new_format_desc: Func
    buffers_to_rewrite: Sequence[str]
    axes_before_rewrite: Sequence[str]
    axes_after_rewrite: Sequence[str]
    axis_map: Mapping[str, Sequence[str]]
    idx_map: IndexMap | Callable[..., Any]
    inv_idx_map: IndexMap | Callable[..., Any]
    padded: bool = False
    where: IndexMap | Callable[..., Any] | None = None
    forward: IndexMap = field(init=False, repr=False)
    backward: IndexMap = field(init=False, repr=False)
    within: IndexMap | None = field(init=False, repr=False)
    free: frozenset[str] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._check_types()
        object.__setattr__(self, "forward", _index_map(self.idx_map))
        object.__setattr__(self, "backward", _index_map(self.inv_idx_map))
        within = None if self.where is None else _index_map(self.where)
        object.__setattr__(self, "within", within)
        axes = {axis.name for axis in self.new_format_desc.axes}
        self._declared("axis", self.axes_after_rewrite, axes)
        self._declared("axis", (a for after in self.axis_map.values() for a in after), axes)
        buffers = {buffer.name for buffer in self.new_format_desc.buffers}
        self._declared("buffer", self.buffers_to_rewrite, buffers)
        for buffer in self.new_format_desc.buffers:
            if buffer.name in self.buffers_to_rewrite:
                along = [axis.name for axis in getattr(buffer, "axes", ())]
                if set(along) != set(self.axes_after_rewrite):
                    message = f"new_format_desc has {buffer.name} along {', '.join(along)}"
                    raise self.error(message, "they should be the axes after the rewrite")
        if set(self.axis_map) != set(self.axes_before_rewrite):
            raise self.error(f"axis_map is for {', '.join(self.axis_map)}", "map each axis before")
        sizes = len(self.axes_before_rewrite), len(self.axes_after_rewrite)
        for which, found, wanted in (
            ("idx_map", self.forward, sizes),
            ("inv_idx_map", self.backward, sizes[::-1]),
        ):
            if (len(found.params), len(found.results)) != wanted:
                raise self.error(
                    f"{which} maps {len(found.params)} to {len(found.results)} coordinates",
                    f"it should map {wanted[0]} to {wanted[1]}",
                )
        if within is not None and (len(within.params), len(within.results)) != (sizes[0], 1):
            raise self.error(
                "where is no condition", f"it should map {sizes[0]} coordinates to one"
            )
        object.__setattr__(self, "free", frozenset(self._free()))
        if self.padded and len(self.buffers_to_rewrite) != 1:
            raise self.error("it is padded and rewrites several buffers", "write one rule for each")

    def _check_types(self) -> None:
        expect("name", self.name, str, "a string")
        expect("new_format_desc", self.new_format_desc, Func, "a program that declares the format")
        for name in ("buffers_to_rewrite", "axes_before_rewrite", "axes_after_rewrite"):
            expect(name, getattr(self, name), (list, tuple), "a list of names")
        expect("axis_map", self.axis_map, Mapping, "a mapping from names to lists of names")
        if not self.buffers_to_rewrite:
            raise self.error("it rewrites no buffer", "buffers_to_rewrite names one or more")

    def _free(self) -> Iterator[str]:
        """Yield the axes after that stand for no coordinate, but for the pieces of fibers."""
        kinds = {axis.name: axis.kind for axis in self.new_format_desc.axes}
        used = {n for r in self.backward.results for n in walk(r) if isinstance(n, Var)}
        after, params = self.axes_after_rewrite, self.backward.params
        for name, result, param in zip(after, self.forward.results, params, strict=True):
            is_zero = isinstance(result, Const) and result.value == 0
            if kinds[name] == "dense_variable" and is_zero and param not in used:
                yield name

    def error(self, message: str, hint: str) -> FormatError:
        """Return the error that says what is wrong with this rule."""
        return FormatError(f"rule {self.name!r}: {message}", hint=hint)

    def _declared(self, what: str, used: Iterable[str], known: set[str]) -> None:
        for name in used:
            if name not in known:
                listed = ", ".join(sorted(known))
                raise self.error(f"new_format_desc declares no {what} {name!r}", f"it has {listed}")


def _index_map(given: IndexMap | Callable[..., Any]) -> IndexMap:
    return given if isinstance(given, IndexMap) else IndexMap.from_func(given)


class ComposableFormat(ABC):
    """A way to store a sparse buffer: a pure description, from which rules follow.

    Its parts together hold each stored element exactly once.
    """

    __slots__ = ()

    @property
    def is_open(self) -> bool:
        """Whether something of it is chosen when the matrix is known."""
        return False

    def chosen(self, lengths: Any, columns: int) -> ComposableFormat:  # noqa: ARG002
        """Return the format for a matrix of *columns* columns, its rows of *lengths*, an array."""
        return self

    def filled(self) -> ComposableFormat:
        """Return the format with something in the place of what is open: to see if buffers fit."""
        return self

    @abstractmethod
    def rules(self, buffer: SparseBuffer) -> tuple[FormatRewriteRule, ...]:
        """Return one rule per part of *buffer*; raises FormatError if it cannot be stored so."""


def rows_of(rank: int) -> tuple[str, ...]:
    """Return the levels that a tensor of *rank* dimensions has before it is put in parts."""
    return ("dense", *("compressed",) * (rank - 1))


@dataclass(frozen=True, slots=True)
class Kept(ComposableFormat):
    """The format that a buffer is declared in: the program over it stays as it is."""

    def rules(self, buffer: SparseBuffer) -> tuple[FormatRewriteRule, ...]:  # noqa: ARG002
        """Return none: nothing is rewritten."""
        return ()


@dataclass(frozen=True, slots=True)
class Composed(ComposableFormat):
    """The format that *parts*, rules for a buffer, make together."""

    parts: tuple[FormatRewriteRule, ...]

    def rules(self, buffer: SparseBuffer) -> tuple[FormatRewriteRule, ...]:
        """Return the parts."""
        for part in self.parts:
            if tuple(part.buffers_to_rewrite) != (buffer.name,):
                listed = ", ".join(part.buffers_to_rewrite)
                raise part.error(f"it rewrites {listed}", f"it should rewrite {buffer.name} only")
        return self.parts

    def __str__(self) -> str:
        return f"Composed({', '.join(part.name for part in self.parts)})"
