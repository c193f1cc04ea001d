"""Before the route: rules, each of which stores a part of a sparse buffer in another format."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from spcomp.dtypes import int64
from spcomp.errors import FormatError, expect
from spcomp.ir.access import Load
from spcomp.ir.arith.indexmap import IndexMap
from spcomp.ir.axis import SparseBuffer
from spcomp.ir.expr import Const, Var, const
from spcomp.ir.func import Func
from spcomp.ir.visitor import walk


@dataclass(frozen=True, slots=True, eq=False)
class FormatRewriteRule:
    """One part of a decomposition: axes and buffers of a new format, and maps of coordinates.

    Args:
        name: Appended, after ``_``, to the names of everything that the part declares.
        new_format_desc: A program without statements that declares the new axes and, under their
            old names, the new buffers. Its parameters are added to those of the program; one that
            is a parameter of the program already, the same object, is shared.
        buffers_to_rewrite: The names of the buffers.
        axes_before_rewrite: The names of their axes in the program.
        axes_after_rewrite: The names of the axes that are iterated instead, outermost first.
        axis_map: For each axis before the rewrite, the axes after it that make up its coordinate.
        idx_map: From the coordinates before the rewrite to those after it; an IndexMap or a
            function. None if these do not follow from them: where an element lies, stored
            coordinates say, and only the format's own conversion puts it there.
        inv_idx_map: From the coordinates after the rewrite to those before it; with idx_map None,
            elements of buffers of ``new_format_desc`` that hold them.
        padded: The part also stores, as zeros, coordinates that are not in the matrix; zeros of the
            matrix lie in another part.
        where: A condition on the coordinates before the rewrite that the part may hold; None for
            all. Only conversions use it: an element goes to the first part that can hold it.

    A rule may rewrite buffers some of which lie along further dense_fixed axes, if both maps leave
    the coordinates of these axes as they are: see ``core``.

    A dense_variable axis after the rewrite for which idx_map is 0, and which inv_idx_map does not
    use, is *free*: it cuts the fibers of its child, which is sparse_fixed, into pieces.

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
    idx_map: IndexMap | Callable[..., Any] | None
    inv_idx_map: IndexMap | Callable[..., Any]
    padded: bool = False
    where: IndexMap | Callable[..., Any] | None = None
    forward: IndexMap = field(init=False, repr=False)
    backward: IndexMap = field(init=False, repr=False)
    within: IndexMap | None = field(init=False, repr=False)
    free: frozenset[str] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._check_types()
        object.__setattr__(self, "backward", _index_map(self.inv_idx_map))
        nowhere = IndexMap(
            tuple(Var(name, int64) for name in self.axes_before_rewrite),
            (const(0, int64),) * len(self.axes_after_rewrite),
        )
        forward = nowhere if self.idx_map is None else _index_map(self.idx_map)
        object.__setattr__(self, "forward", forward)
        reads = any(isinstance(n, Load) for result in self.backward.results for n in walk(result))
        if self.idx_map is None and not reads:
            raise self.error("idx_map is None", "give it, or read coordinates in inv_idx_map")
        within = None if self.where is None else _index_map(self.where)
        object.__setattr__(self, "within", within)
        axes = {axis.name for axis in self.new_format_desc.axes}
        self._declared("axis", self.axes_after_rewrite, axes)
        self._declared("axis", (a for after in self.axis_map.values() for a in after), axes)
        buffers = {buffer.name for buffer in self.new_format_desc.buffers}
        self._declared("buffer", self.buffers_to_rewrite, buffers)
        lost = set(self.axes_after_rewrite).difference(*self._along().values())
        if lost:
            raise self.error(f"no buffer lies along {', '.join(lost)}", "leave the axis out")
        if set(self.axis_map) != set(self.axes_before_rewrite):
            raise self.error(f"axis_map is for {', '.join(self.axis_map)}", "map each axis before")
        sizes = len(self.axes_before_rewrite), len(self.axes_after_rewrite)
        for which, index_map, expected in (
            ("idx_map", self.forward, sizes),
            ("inv_idx_map", self.backward, sizes[::-1]),
        ):
            if (len(index_map.params), len(index_map.results)) != expected:
                raise self.error(
                    f"{which} maps {len(index_map.params)} to {len(index_map.results)} coordinates",
                    f"it should map {expected[0]} to {expected[1]}",
                )
        if within is not None and (len(within.params), len(within.results)) != (sizes[0], 1):
            raise self.error(
                "where is no condition", f"it should map {sizes[0]} coordinates to one"
            )
        object.__setattr__(self, "free", frozenset(self._free()))
        if self.padded and len(self.buffers_to_rewrite) != 1:
            raise self.error("it is padded and rewrites several buffers", "write one rule for each")

    @property
    def is_stored(self) -> bool:
        """Whether arrays hold the coordinates of elements before the rewrite."""
        return self.idx_map is None

    def core(self) -> FormatRewriteRule:
        """Return the rule for the axes along which all of its buffers lie.

        It rewrites the buffers that lie along nothing else; others follow, with their further axes.
        Raises FormatError if a further axis does not stay as it is.
        """
        along = self._along()
        common = [a for a in self.axes_after_rewrite if all(a in axes for axes in along.values())]
        if self.is_stored or len(common) == len(self.axes_after_rewrite):
            return self
        params = dict(zip(self.axes_before_rewrite, self.forward.params, strict=True))
        after = dict(zip(self.axes_after_rewrite, self.backward.params, strict=True))
        to = dict(zip(self.axes_after_rewrite, self.forward.results, strict=True))
        back = dict(zip(self.axes_before_rewrite, self.backward.results, strict=True))
        stays = {b: a for b in params for a in after if to[a] is params[b] and back[b] is after[a]}
        kinds = {axis.name: axis.kind for axis in self.new_format_desc.axes}
        before = [b for b in params if stays.get(b) not in {*after} - {*common}]
        forward = IndexMap(tuple(params[b] for b in before), tuple(to[a] for a in common))
        backward = IndexMap(tuple(after[a] for a in common), tuple(back[b] for b in before))
        buffers = [name for name, axes in along.items() if len(axes) == len(common)]
        further = [a for a in after if a not in common]
        sound = all(kinds[a] == "dense_fixed" for a in further) and buffers and self.within is None
        if not sound or len(before) + len(further) != len(params) or not _closed(forward, backward):
            listed = "; ".join(f"{name} along {', '.join(axes)}" for name, axes in along.items())
            raise self.error(f"it rewrites {listed}", "further axes must stay as they are")
        return replace(
            self,
            buffers_to_rewrite=buffers,
            axes_before_rewrite=before,
            axes_after_rewrite=common,
            axis_map={axis: self.axis_map[axis] for axis in before},
            idx_map=forward,
            inv_idx_map=backward,
        )

    def _along(self) -> dict[str, list[str]]:
        """Return the axes of each rewritten buffer; raises FormatError for one of another rule."""
        described = {buffer.name: buffer for buffer in self.new_format_desc.buffers}
        along: dict[str, list[str]] = {}
        for name in self.buffers_to_rewrite:
            along[name] = [axis.name for axis in getattr(described[name], "axes", ())]
            if not along[name] or not {*along[name]} <= {*self.axes_after_rewrite}:
                message = f"new_format_desc has {name} along {', '.join(along[name])}"
                raise self.error(message, "they should be axes after the rewrite")
        return along

    def _check_types(self) -> None:
        expect("name", self.name, str, "a string")
        expect("new_format_desc", self.new_format_desc, Func, "a program that declares the format")
        for name in ("buffers_to_rewrite", "axes_before_rewrite", "axes_after_rewrite"):
            expect(name, getattr(self, name), (list, tuple), "a list of names")
        expect("axis_map", self.axis_map, Mapping, "a mapping from names to lists of names")
        if not self.buffers_to_rewrite:
            raise self.error("it rewrites no buffer", "buffers_to_rewrite names one or more")

    def _free(self) -> Iterator[str]:
        """Yield the free axes, which number the pieces of fibers."""
        if self.is_stored:
            return
        kinds = {axis.name: axis.kind for axis in self.new_format_desc.axes}
        used = {n for r in self.backward.results for n in walk(r) if isinstance(n, Var)}
        after, params = self.axes_after_rewrite, self.backward.params
        for name, result, param in zip(after, self.forward.results, params, strict=True):
            is_zero = isinstance(result, Const) and result.value == 0
            if kinds[name] == "dense_variable" and is_zero and param not in used:
                yield name

    def error(self, message: str, hint: str) -> FormatError:
        """Return the error for a mistake in this rule."""
        return FormatError(f"rule {self.name!r}: {message}", hint=hint)

    def _declared(self, what: str, used: Iterable[str], names: set[str]) -> None:
        for name in used:
            if name not in names:
                listed = ", ".join(sorted(names))
                raise self.error(f"new_format_desc declares no {what} {name!r}", f"it has {listed}")


def _closed(*maps: IndexMap) -> bool:
    """Whether the results of *maps* use no variables but their parameters."""
    return all(
        node in index_map.params
        for index_map in maps
        for result in index_map.results
        for node in walk(result)
        if isinstance(node, Var)
    )


def _index_map(value: IndexMap | Callable[..., Any]) -> IndexMap:
    return value if isinstance(value, IndexMap) else IndexMap.from_func(value)


class ComposableFormat(ABC):
    """A way to store a sparse buffer in parts: a pure description that gives the rules.

    The parts together hold each stored element exactly once.
    """

    __slots__ = ()

    @property
    def is_open(self) -> bool:
        """Whether the matrix decides something about the format."""
        return False

    def chosen(self, lengths: Any, columns: int) -> ComposableFormat:  # noqa: ARG002
        """Return the format for a matrix of *columns* columns with rows of *lengths*, an array."""
        return self

    def filled(self) -> ComposableFormat:
        """Return the format with defaults where the matrix decides, to check that buffers fit."""
        return self

    @abstractmethod
    def rules(self, buffer: SparseBuffer) -> tuple[FormatRewriteRule, ...]:
        """Return a rule for each part; raises FormatError if *buffer* cannot have the format."""


def rows_of(rank: int) -> tuple[str, ...]:
    """Return the levels of a tensor of *rank* dimensions before it is converted to parts."""
    return ("dense", *("compressed",) * (rank - 1))


@dataclass(frozen=True, slots=True)
class Kept(ComposableFormat):
    """The format in which a buffer is declared, so that the program stays as it is."""

    def rules(self, buffer: SparseBuffer) -> tuple[FormatRewriteRule, ...]:  # noqa: ARG002
        """Return no rules, since nothing is rewritten."""
        return ()


@dataclass(frozen=True, slots=True)
class Composed(ComposableFormat):
    """The format that consists of *parts*, rules for one buffer."""

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
