"""In graphs of torch.compile: a program of what is computed along edges, and reduced at nodes.

Edges are visited by the place that they go to, so that each row of a result is computed by itself.
What is computed for an edge is not stored: from the aggregation it is followed back to what is
gathered at one of the edge's ends, and to tensors with a row for each edge.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import torch

from spcomp.torch.inductor.match import Aggregation, Index, gathered
from spcomp.torch.inductor.pointwise import (
    LOGIC,
    arguments_of,
    as_number,
    is_compared,
    literal,
    text_of,
)
from spcomp.torch.inductor.shapes import aten, broadcast, hint, identity, same, unviewed, value

Subs = tuple[str | None, ...]  # an index for each dimension but the first; None: the only one
NARROW = 16  # numbers for an edge that are rather stored than computed again
MOST_STEPS = 60  # functions in one statement


@dataclass(frozen=True, slots=True)
class Buffer:
    """An array *name*.

    *lead*: what its rows are, ``I`` places, ``N`` rows of the source, ``E`` edges in their order,
    ``J`` edges by place; or nothing. *sizes*: of its other dimensions. *whole*: nothing is missing
    that becomes part of the result after the program. *filled*: places without edges become 0.
    """

    name: str
    lead: str
    sizes: tuple[Any, ...]
    whole: bool = True
    filled: bool = False


@dataclass(frozen=True, slots=True)
class Statement:
    """Assigns *term* to the element *to*, or reduces it there, in loops over places and edges.

    *loops*: further ones, by index and size; the last *inner* of them are reduced. Otherwise
    the edges of a place are, if there is a *reduce*. *along*: there is a loop over edges.
    """

    to: str
    term: str
    loops: tuple[tuple[str, Any], ...]
    reduce: str | None
    inner: int = 0
    along: bool = True


@dataclass(slots=True)
class Program:
    """What runs for the edges of each place; *count* of them go to *places* by the vector *index*.

    *source*: the vector whose rows are read at an edge, besides those at its place; None: none yet.
    *inputs*: the tensors that are read, in order. *results*: names of the aggregations, *stored*
    of what is kept for each edge. *after*: nodes that need a result. *apart*: nodes with a row for
    each edge that torch computes, once: they are compared with their extremes.
    """

    index: Index
    count: Any
    places: Any
    dtype: torch.dtype
    apart: frozenset[torch.fx.Node] = frozenset()
    source: Index | None = None
    rows: Any = None  # of what is read at the source
    inputs: dict[tuple[str, torch.fx.Node], Buffer] = field(default_factory=dict)
    results: dict[torch.fx.Node, Buffer] = field(default_factory=dict)
    stored: dict[torch.fx.Node, Buffer] = field(default_factory=dict)
    statements: list[Statement] = field(default_factory=list)
    after: frozenset[torch.fx.Node] = frozenset()
    _steps: int = 0
    _follows_rows: bool = True
    _is_everywhere: bool = False  # what is read is read at places without edges, too

    @classmethod
    def of(cls, found: Aggregation, apart: frozenset[torch.fx.Node]) -> Program:
        """Return the program of one aggregation."""
        for steps in (0, MOST_STEPS):
            made, count = value(found.node), value(found.index.node).shape[0]
            empty = cls(found.index, count, made.shape[0], made.dtype, apart)
            program = empty._with(found, steps)
            if program is not None and (steps or not program.reads_scattered):
                break
        assert program is not None  # the second time, the message is an input
        return program

    def joined(self, found: Aggregation, after: frozenset[torch.fx.Node]) -> Program | None:
        """Return the program with *found* as well, None if that cannot be.

        *after*: all nodes that need a result of this one.
        """
        made, count = value(found.node), value(found.index.node).shape[0]
        if any(_is_empty(value(node)) != _is_empty(made) for node in self.results):
            return None
        if made.dtype != self.dtype or not same((made.shape[0], count), (self.places, self.count)):
            return None
        program = replace(
            self,
            inputs=dict(self.inputs),
            results=dict(self.results),
            stored=dict(self.stored),
            statements=list(self.statements),
            after=after,
        )
        return program._with(found, 0)  # noqa: SLF001 (its own)

    @property
    def reads_scattered(self) -> bool:
        """Whether it reads several rows for each edge, in the order of places, and nothing else.

        PyTorch goes through them in their own order, and then there is one row for an edge.
        """
        leads = [lead for lead, _ in self.inputs if lead != "J"]
        return leads.count("E") > 1 and not {"I", "N"} & {*leads}

    # -- statements -------------------------------------------------------------------------------

    def _with(self, found: Aggregation, steps: int) -> Program | None:
        """Add *found*, and return the program; None if an input is none."""
        shape = tuple(value(found.node).shape[1:])
        subs = _subs(shape)
        self._steps = steps
        self._follows_rows = found.reduce == "sum" or not is_compared(found.message)
        loops = tuple((s, n) for s, n in zip(subs, shape, strict=True) if s)
        term = self._edge(found.message, subs, len(loops))
        whole = found.base is None and found.reduce != "mean"
        whole &= found.reduce == "sum" or not found.includes
        filled = found.reduce in ("max", "min") and not found.is_open
        buffer = Buffer(f"Y{len(self.results)}", "I", shape, whole, filled)
        reduce = "sum" if found.reduce == "mean" else found.reduce
        self.statements.append(Statement(_read(buffer, subs), term, loops, reduce))
        self.index = Index(self.index.node, wraps=self.index.wraps and found.index.wraps)
        self.results[found.node] = buffer
        return self if self._is_sound() else None

    def finished(
        self, old: torch.fx.Node, new: torch.fx.Node, after: frozenset[torch.fx.Node]
    ) -> bool:
        """Compute *new*, what is made of the result *old* row by row, in its place, if it is that.

        *after*: as in :meth:`joined`.
        """
        shape, buffer = tuple(value(old).shape), self.results[old]
        made = value(new)
        if new in self.results or not buffer.whole:
            return False
        if made is None or made.dtype != self.dtype or text_of(new) is None:
            return False
        if not same(made.shape, shape):
            return False
        inputs = dict(self.inputs)
        self.after, self._steps = after, 0
        subs = _subs(shape[1:])
        self._is_everywhere = True
        term = self._row(new, subs)
        self._is_everywhere = False
        if not self._is_sound():
            self.inputs = inputs
            return False
        to, last = _read(buffer, subs), self.statements[-1]
        if last.to == to and not last.along:  # one statement is enough
            term = term.replace(to, last.term)
            self.statements.pop()
        loops = tuple((s, n) for s, n in zip(subs, shape[1:], strict=True) if s)
        self.statements.append(Statement(to, term, loops, None, along=False))
        self.results = {new if node is old else node: at for node, at in self.results.items()}
        return True

    def _is_sound(self) -> bool:
        """Whether all inputs are there before the program, and of its type."""
        nodes = [node for _, node in self.inputs]
        return all(n not in self.after and value(n).dtype == self.dtype for n in nodes)

    def _store(self, node: Any, summed: tuple[int, ...] = ()) -> Buffer:
        """Return where *node*, with the dimensions *summed* added up, is kept for each edge."""
        if node in self.stored:
            return self.stored[node]
        term = node.args[0] if summed else node
        shape = tuple(value(term).shape[1:])
        subs, steps = _subs(shape), self._steps
        self._steps = 0
        dims = sorted(range(len(shape)), key=lambda d: d + 1 in summed)
        loops = tuple((s, shape[d]) for d in dims if (s := subs[d]))
        text = self._edge(term, subs, len(loops), top=not summed)
        self._steps = steps
        kept = [d for d in range(len(shape)) if d + 1 not in summed]
        buffer = Buffer(f"P{len(self.stored)}", "J", tuple(shape[d] for d in kept))
        to = _read(buffer, tuple(subs[d] for d in kept))
        inner = len([d for d in summed if subs[d - 1]])
        self.statements.append(Statement(to, text, loops, "sum" if inner else None, inner))
        self.stored[node] = buffer
        return buffer

    # -- what is read -----------------------------------------------------------------------------

    def _edge(self, node: Any, subs: Subs, live: int, *, top: bool = False) -> str:
        """Return the text of *node* at edge j of place i; *live*: the loops of the statement."""
        node, subs = unviewed(node, subs)
        number = literal(node)
        if number is not None:
            return number
        if node in self.apart:
            return self._input("E", node, subs)
        if (known := self._kept(node, subs)) is not None:
            return known
        text = self._function(node)
        if text is None:
            return self._input("E", node, subs)
        own = len([s for s in subs if s])
        is_narrow = prod(hint(n) or NARROW + 1 for n in value(node).shape[1:]) <= NARROW
        is_often = is_narrow and len(node.users) > 1
        can_store = value(node).dtype == self.dtype and _are_known(value(node).shape[1:])
        if not top and can_store and (own < live or is_often):
            return _read(self._store(node), subs)
        args = enumerate(arguments_of(node))
        texts = [(self._argument(arg, node, subs, live), arg, node, at) for at, arg in args]
        return str(text(*(as_number(*each) for each in texts)))

    def _kept(self, node: Any, subs: Subs) -> str | None:
        """Return the text of *node* if it is stored, or a sum that is, or rows at an end."""
        summed = self._summed(node)
        if summed is not None:
            dims, keeps = summed
            own = tuple(s for d, s in enumerate(subs) if not keeps or d + 1 not in dims)
            return _read(self._store(node, dims), own)
        if node in self.stored:
            return _read(self.stored[node], subs)
        end = gathered(node)
        return None if end is None else self._end(*end, subs)

    def _argument(self, arg: Any, node: Any, subs: Subs, live: int) -> str:
        """Return the text of *arg*, an argument of *node*."""
        number = literal(arg)
        if number is not None:
            return number
        shape, of = value(node).shape, value(arg).shape
        if self._is_edge(arg, len(shape)):
            return self._edge(arg, broadcast(of[1:], shape[1:], subs), live)
        return self._constant(arg, shape, subs)

    def _is_edge(self, arg: Any, rank: int) -> bool:
        of = value(arg)
        return of is not None and 0 < rank == of.dim() and same(of.shape[:1], (self.count,))

    def _end(self, rows: Any, index: Index, subs: Subs) -> str | None:
        """Return the text of *rows* at an end of the edge; None: it is a third one."""
        if value(rows).dtype != self.dtype:
            return None
        size, key = value(rows).shape[:1], identity(index.node)
        if key == identity(self.index.node) and same(size, (self.places,)):
            self.index = Index(self.index.node, wraps=self.index.wraps and index.wraps)
            return self._row(rows, subs)
        if self.source is None:
            self.source, self.rows = index, size[0]
        if key != identity(self.source.node) or not same(size, (self.rows,)):
            return None
        self.source = Index(self.source.node, wraps=self.source.wraps and index.wraps)
        return self._input("N", rows, subs)

    def _row(self, node: Any, subs: Subs) -> str:
        """Return the text of *node*, which has a row for each place, at place i."""
        node, subs = unviewed(node, subs)
        result = self.results.get(node)
        if result is not None and result.whole and not (result.filled and self._is_everywhere):
            return _read(result, subs)
        text = text_of(node)
        can_follow = self._follows_rows and self._steps <= MOST_STEPS and self._has_numbers(node)
        if not self._is_own(node) or text is None or not can_follow or node in self.apart:
            return self._input("I", node, subs)
        self._steps += 1
        args = enumerate(arguments_of(node))
        texts = [(self._beside(arg, node, subs), arg, node, at) for at, arg in args]
        return str(text(*(as_number(*each) for each in texts)))

    def _is_own(self, node: Any) -> bool:
        """Whether *node* is computed here: it must be, or nothing else needs it."""
        if node in self.after:
            return True
        can_be = value(node).dtype == torch.bool or len(node.users) == 1
        return can_be and self._is_everywhere  # not once for each edge

    def _has_numbers(self, node: Any) -> bool:
        """Whether *node* takes numbers of our type, and conditions only where it can."""
        for at, arg in enumerate(arguments_of(node)):
            if literal(arg) is not None:
                continue
            if value(arg) is None:
                return False
            if value(arg).dtype == torch.bool:
                if at >= LOGIC.get(node.target, 0) and value(node).dtype != self.dtype:
                    return False
            elif value(arg).dtype != self.dtype:
                return False
        return True

    def _beside(self, arg: Any, node: Any, subs: Subs) -> str:
        """Return the text of *arg*, an argument of *node*, a function of rows."""
        number = literal(arg)
        if number is not None:
            return number
        shape, of = value(node).shape, value(arg).shape
        if len(of) == len(shape) and same(of[:1], shape[:1]):
            return self._row(arg, broadcast(of[1:], shape[1:], subs))
        return self._constant(arg, shape, subs)

    def _constant(self, arg: Any, shape: Any, subs: Subs) -> str:
        """Return the text of *arg*, the same for all rows of *shape*."""
        of = value(arg).shape
        lead = len(of) == len(shape)  # one row for all
        return self._input("", arg, (None,) * lead + broadcast(of[lead:], shape[1:], subs))

    def _input(self, lead: str, node: Any, subs: Subs) -> str:
        """Return the text of an element of *node*; *lead* says what its first dimension is."""
        shape = tuple(value(node).shape)
        if lead == "E" and same(shape[1:], (1,) * (len(shape) - 1)):
            lead = "J"  # one number for an edge is sorted before: looking it up takes longer
        if (lead, node) not in self.inputs:
            sizes = shape[1:] if lead else shape or (1,)
            self.inputs[lead, node] = Buffer(f"A{len(self.inputs)}", lead, sizes)
        return _read(self.inputs[lead, node], subs)

    # -- what can be followed ---------------------------------------------------------------------

    def _function(self, node: Any) -> Any:
        """Return what spells *node* as a function of what can be read, None if nothing does."""
        text = text_of(node)
        if text is None or self._steps >= MOST_STEPS or not self._has_numbers(node):
            return None
        for arg in (arg for arg in arguments_of(node) if literal(arg) is None):
            if value(arg).dim() > value(node).dim():
                return None
            if value(arg).dtype == torch.bool and not self._is_condition(arg):
                return None
        self._steps += 1
        return text

    def _is_condition(self, node: Any) -> bool:
        rank = value(node).dim()
        inner, _ = unviewed(node, (None,) * (rank - 1))
        return self._is_edge(inner, value(inner).dim()) and self._function(inner) is not None

    def _summed(self, node: Any) -> tuple[tuple[int, ...], bool] | None:
        """Return which dimensions *node* adds up, and whether they stay, if it does so."""
        if node.target is not aten.sum.dim_IntList or node.kwargs or self._steps >= MOST_STEPS:
            return None
        inner = value(node.args[0])
        rank = inner.dim()
        dims = tuple(sorted(d % rank for d in node.args[1] or ()))
        if not dims or dims[0] == 0 or inner.dtype != self.dtype:
            return None
        if not self._is_edge(node.args[0], rank) or not _are_known(value(node).shape[1:]):
            return None
        return dims, len(node.args) > 2 and bool(node.args[2])


def _subs(shape: tuple[Any, ...]) -> Subs:
    return tuple(None if same((n,), (1,)) else f"k{d}" for d, n in enumerate(shape))


def _are_known(sizes: Iterable[Any]) -> bool:
    return all(isinstance(size, int) for size in sizes)


def _is_empty(tensor: torch.Tensor) -> bool:
    return any(isinstance(size, int) and size == 0 for size in tensor.shape)


def _read(buffer: Buffer, subs: Subs) -> str:
    """Return the text of an element; ``@`` stands for the position of an edge."""
    lead = {"I": ["i"], "J": ["i", "j"], "N": ["j"], "E": ["@"], "": []}[buffer.lead]
    at = [s or "0" for s in subs] or ([] if lead else ["0"])
    return f"{buffer.name}[{', '.join([*lead, *at])}]"
