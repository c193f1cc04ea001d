"""Beside the route: the forest of axes and their parents; what may be iterated, fused, laid out."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spcomp.errors import FormatError
from spcomp.ir.axis import AnyBuffer, Attach, Axis, Buffer, Domain, SparseBuffer, domain_axes
from spcomp.ir.func import Func
from spcomp.ir.printer.program import print_expr
from spcomp.ir.stmt import Alloc
from spcomp.ir.visitor import statements
from spcomp.locks import cached_property

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import networkx as nx


@dataclass(frozen=True, slots=True)
class Conflict:
    """Why values cannot be laid along some axes, and how to declare them instead."""

    message: str
    hint: str


@dataclass(frozen=True)
class Forest:
    """The axes of a function, in the order of declaration, seen as a forest."""

    axes: tuple[Axis, ...]

    @classmethod
    def of(cls, axes: Iterable[Axis]) -> Forest:
        """Return the forest of *axes*; nothing is checked yet."""
        return cls(tuple(axes))

    @cached_property
    def graph(self) -> nx.DiGraph[Axis]:
        """The forest as a networkx graph, edges from parent to child; do not change it."""
        import networkx as nx  # 0.1 s, and most compilations need no graph

        graph: nx.DiGraph[Axis] = nx.DiGraph()
        graph.add_nodes_from(self.axes)
        graph.add_edges_from((a.parent, a) for a in self.axes if a.parent is not None)
        return graph

    def to_networkx(self) -> nx.DiGraph[str]:
        """Return a graph of the axes' names, each node with its ``kind``."""
        import networkx as nx

        graph: nx.DiGraph[str] = nx.relabel_nodes(self.graph, lambda axis: axis.name)
        nx.set_node_attributes(graph, {axis.name: axis.kind for axis in self.graph}, "kind")
        return graph

    @property
    def roots(self) -> tuple[Axis, ...]:
        """The axes without a parent."""
        return tuple(axis for axis in self.axes if axis.parent is None)

    def children(self, axis: Axis) -> tuple[Axis, ...]:
        """Return the axes whose parent is *axis*."""
        return tuple(child for child in self.axes if child.parent is axis)

    def ancestors(self, axis: Axis) -> tuple[Axis, ...]:
        """Return the parent of *axis*, its parent, up to the root."""
        return tuple(axis.ancestors())

    def path(self, axis: Axis) -> tuple[Axis, ...]:
        """Return the axes from the root down to *axis*."""
        return axis.path()

    def depth(self, axis: Axis) -> int:
        """Return how many ancestors *axis* has."""
        return len(self.ancestors(axis))

    @property
    def order(self) -> tuple[Axis, ...]:
        """The axes, every one after its parent, else as declared. Raises FormatError on a cycle."""
        import networkx as nx

        self._check_cycle()
        place = {axis: at for at, axis in enumerate(self.axes)}
        key = lambda axis: place.get(axis, -1)  # noqa: E731
        return tuple(nx.lexicographical_topological_sort(self.graph, key=key))

    def check(self) -> None:
        """Raise FormatError if the axes are no forest.

        The errors: a cycle, a parent that is not declared, two axes of one name, a root that is
        not dense_fixed, or a dense_fixed axis with a parent.
        """
        names: dict[str, Axis] = {}
        for axis in self.axes:
            if names.setdefault(axis.name, axis) is not axis:
                raise FormatError(
                    f"two axes are named {axis.name!r}", axis.span, hint="rename one of them"
                )
        self._check_cycle()
        for axis in self.axes:
            self._check_parent(axis)

    def _check_parent(self, axis: Axis) -> None:
        if axis.parent is None:
            if axis.kind != "dense_fixed":
                raise FormatError(
                    f"{axis.kind} axis {axis.name!r} has no parent",
                    axis.span,
                    hint="only a dense_fixed axis can be a root",
                )
        elif axis.kind == "dense_fixed":
            raise FormatError(
                f"dense_fixed axis {axis.name!r} has a parent",
                axis.span,
                hint="declare it without one: it is the same for all positions",
            )
        elif axis.parent not in self.axes:
            raise FormatError(
                f"the parent of axis {axis.name!r}, {axis.parent.name!r}, is not declared",
                axis.span,
                hint=f"declare {axis.parent.name!r} in the same program",
            )

    def _check_cycle(self) -> None:
        import networkx as nx

        if nx.is_directed_acyclic_graph(self.graph):
            return
        cycle = [edge[0] for edge in nx.find_cycle(self.graph)]
        names = " -> ".join(repr(axis.name) for axis in (*cycle, cycle[0]))
        raise FormatError(
            f"axes are their own ancestors: {names}",
            cycle[0].span,
            hint="a parent is declared before its children",
        )


def misordered(domains: Sequence[Domain], bound: Iterable[Axis] = ()) -> Axis | None:
    """Return the first axis of *domains* that would run before, or without, what it depends on.

    An axis depends on its parent, in ``attach(axis, to)`` on the axis *to*; *bound* are the axes
    of the enclosing iterations. None: the order is legal.
    """
    bound_axes = set(bound)
    for domain in domains:
        for axis in domain_axes(domain):
            required = domain.to if isinstance(domain, Attach) else axis.parent
            if required is not None and required not in bound_axes:
                return axis
            bound_axes.add(axis)
    return None


def fusable(axes: Sequence[Axis]) -> bool:
    """Say whether *axes* are two or more, each the parent of the next."""
    return len(axes) > 1 and all(b.parent is a for a, b in itertools.pairwise(axes))


def layout_conflict(axes: Sequence[Axis]) -> Conflict | None:
    """Return why no address can be computed for an element along *axes*; None if one can.

    An axis comes once, after all its ancestors, and of two variable axes in one tree one descends
    from the other: the sizes of siblings multiply within each fiber, and no indptr adds that up.
    """
    for at, axis in enumerate(axes):
        before = axes[:at]
        if axis in before:
            return Conflict(
                f"{axis.name} occurs twice in one buffer",
                "declare a second axis of the same length",
            )
        for above in axis.ancestors():
            if above not in before:
                position = "comes after it" if above in axes else "is not an axis of the buffer"
                names = ", ".join(a.name for a in axis.path())
                return Conflict(
                    f"{axis.name} hangs on {above.name}, which {position}",
                    f"list the axes from the root down: {names}",
                )
        for other in before if axis.is_variable else ():
            path = axis.path()
            if other.is_variable and other.path()[0] is path[0] and other not in path:
                return Conflict(
                    f"{other.name} and {axis.name}: two variable siblings in one buffer have no"
                    " addressable layout",
                    f"hang the second on an axis of its own: declare it with {other.name} as"
                    f" its parent, T.{axis.kind}({other.name}, ...)",
                )
    return None


def check_layouts(func: Func) -> None:
    """Raise FormatError for a buffer of *func* whose elements have no address.

    The script language refuses such a buffer where it is declared, except in published programs.
    """
    local = (node.buffer for node in statements(func.body) if isinstance(node, Alloc))
    for buffer in (*func.buffers, *local):
        if (
            isinstance(buffer, SparseBuffer)
            and (conflict := layout_conflict(buffer.axes)) is not None
        ):
            raise FormatError(f"{buffer.name}: {conflict.message}", buffer.span, hint=conflict.hint)


def draw(axes: Sequence[Axis], buffers: Sequence[AnyBuffer] = ()) -> str:
    """Return the forest as text: a line per axis below its parent, then a line per buffer."""
    forest = Forest.of(axes)
    lines = [line for root in forest.roots for line in _branch(forest, root, "", "")]
    for buffer in buffers:
        if isinstance(buffer, Buffer):
            along = [print_expr(size) for size in buffer.shape]
        else:
            along = [axis.name for axis in buffer.axes]
        lines.append(f"{buffer.name}({', '.join(along)}) {buffer.dtype}")
    return "\n".join(lines)


def _branch(forest: Forest, axis: Axis, lead: str, below: str) -> Iterator[str]:
    """Yield the lines of *axis* and what hangs below it; *lead* opens its own line."""
    yield f"{lead}{axis.name} {_describe(axis)}"
    children = forest.children(axis)
    for child in children:
        last = child is children[-1]
        yield from _branch(
            forest,
            child,
            below + ("└── " if last else "├── "),
            below + ("    " if last else "│   "),
        )


def _describe(axis: Axis) -> str:
    sizes = (axis.length, axis.nnz_cols, axis.nnz)
    arrays = (("indptr", axis.indptr), ("indices", axis.indices))
    parts = [print_expr(size) for size in sizes if size is not None]
    parts += [f"{role}={var.name}" for role, var in arrays if var is not None]
    notes = {
        "assembled": axis.is_assembled,
        "unsorted": not axis.sorted,
        "repeated": not axis.unique,
        "padded": axis.padded,
        "shifted": axis.shifted,
        "hashed": axis.hashed,
    }
    marks = "".join(f" {note}" for note, holds in notes.items() if holds)
    return f"{axis.kind}({', '.join(parts)}){marks}"
