"""In position space: the step tensorize, which replaces a nest by an intrinsic of the user."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import permutations
from typing import ClassVar

from spcomp.ir.access import Load
from spcomp.ir.analysis.exprs import ZERO, from_zero, variables
from spcomp.ir.analysis.fragments import is_fragment
from spcomp.ir.analysis.names import Names
from spcomp.ir.analysis.regions import annotate_regions
from spcomp.ir.arith.injectivity import element_key
from spcomp.ir.arith.linear import same_value
from spcomp.ir.arith.memory import read_by
from spcomp.ir.arith.simplify import injective
from spcomp.ir.axis import AnyBuffer, Buffer, memory_of
from spcomp.ir.expr import BinOp, Const, Expr, Var
from spcomp.ir.func import Func
from spcomp.ir.node import Node
from spcomp.ir.position import Block
from spcomp.ir.rewrite import Rewriter, substitute
from spcomp.ir.stmt import Alloc, For, Let, Prefetch, Seq, Stmt, Store
from spcomp.ir.structural import expr_equal
from spcomp.ir.visitor import walk
from spcomp.schedule.legality.dependence import conflicts, is_atomic, loops_of
from spcomp.schedule.legality.reductions import only_reduces
from spcomp.schedule.nests.nests import Fresh, blocks_of, chain, find_block, replace_stmt, runs_once
from spcomp.schedule.nests.sites import refusal
from spcomp.schedule.steps.base import Makes, Step, names_hint
from spcomp.schedule.steps.blocks.blockize import Blockize
from spcomp.schedule.steps.tensor.intrinsics import INTRINSICS, Intrinsic, plain_stores

COMMUTES = frozenset({"+", "*", "min", "max", "and", "or", "&", "|", "^", "==", "!="})


@dataclass(frozen=True, slots=True)
class Tensorize(Step):
    """``block: for i: for k: C[x + i, k] op= ...  ->  block: implementation over C[x + i, k]``.

    *target*: a block that holds a perfect nest, or a loop, which is blockized first. It must
    compute what the description of the intrinsic does, up to names, the order of operands, and the
    order of loops that may change places. The buffers of the intrinsic become parts of those of the
    program, at any strides. *digest* says which intrinsic had the name when the step was made.
    Legal where no two elements of a written part are one element of the program, and no buffer
    that is written is also read as another one. Source: TVM's tensorize.
    """

    name: ClassVar[str] = "tensorize"
    makes: ClassVar[Makes] = "blocks"
    target: str
    intrinsic: str
    digest: str = ""

    def __post_init__(self) -> None:
        registered = isinstance(self.intrinsic, str) and self.intrinsic in INTRINSICS
        if not self.digest and registered:  # the digest is part of the cache key
            object.__setattr__(self, "digest", INTRINSICS[self.intrinsic].digest)

    def plan(self, func: Func) -> tuple[Func, Block, Binding]:
        """Return *func* with the target as a block, this block, and the intrinsic's binding."""
        if self.intrinsic not in INTRINSICS:
            hint = names_hint(sorted(INTRINSICS), "intrinsics")
            raise refusal(self, f"no intrinsic {self.intrinsic!r} is registered", hint=hint)
        if self.digest != INTRINSICS[self.intrinsic].digest:
            why = f"{self.intrinsic!r} is not the intrinsic that it was when the step was made"
            raise refusal(self, why)
        name = self.target
        loop = next((x for x in loops_of(func.body) if x.var.name == name), None)
        if loop is not None:
            differs = difference(INTRINSICS[self.intrinsic], *chain(loop))
            if differs is not None:
                raise self.error(differs, loop)
            before = {block.name for block in blocks_of(func.body)}
            func = Blockize(name).apply(func)
            name = next(b.name for b in blocks_of(func.body) if b.name not in before)
        block = find_block(func, name, self)
        loops, inner = chain(block.body) if isinstance(block.body, For) else ([], block.body)
        if any(isinstance(n, Block) and is_atomic(n) for n in (block, inner)):
            raise self.error("other iterations may update its elements at the same time", block)
        binding = match(INTRINSICS[self.intrinsic], loops, inner)
        if isinstance(binding, str):
            raise self.error(binding, block)
        return func, block, binding

    def rewrite(self, func: Func, plan: tuple[Func, Block, Binding]) -> Func:
        """Return *func* with the implementation in place of the nest."""
        func, block, binding = plan
        new_block = annotate_regions(block.replace(body=binding.build(Names(func))))
        return replace_stmt(func, block, new_block)


@dataclass(slots=True)
class Binding:
    """What the loops, parameters and buffers of an intrinsic stand for in a program.

    *loops*: by its loop variables; *scalars*: by its parameters; *parts*: for each buffer of the
    description the buffer of the program and the indices in it, in terms of *axes*, which are
    the indices in the part.
    """

    intrinsic: Intrinsic
    loops: dict[Var, For]
    scalars: dict[Var, Expr] = field(default_factory=dict)
    parts: dict[AnyBuffer, tuple[AnyBuffer, tuple[Expr | None, ...]]] = field(default_factory=dict)
    axes: dict[AnyBuffer, tuple[Var, ...]] = field(default_factory=dict)

    def unify(self, ours: Node, theirs: Node) -> bool:
        """Whether *theirs*, of the program, matches *ours*, of the description; adds bindings."""
        if isinstance(ours, Var):
            return self._name(ours, theirs)
        if type(ours) is not type(theirs):
            return False
        if isinstance(ours, (Load, Store)):
            assert isinstance(theirs, (Load, Store))
            if not self._part(ours, theirs):
                return False
            if isinstance(ours, Store) and isinstance(theirs, Store):
                return self._children((ours.value,), (theirs.value,))
            return True
        if isinstance(ours, Const) and isinstance(theirs, Const):
            return expr_equal(ours, theirs)
        if _attrs(ours) != _attrs(theirs):
            return False
        mine, other = _children(ours), _children(theirs)
        if isinstance(ours, BinOp) and ours.op in COMMUTES:
            return self._children(mine, other) or self._children(mine, other[::-1])
        return self._children(mine, other)

    def _children(self, ours: tuple[Node, ...], theirs: tuple[Node, ...]) -> bool:
        before = dict(self.scalars), dict(self.parts), dict(self.axes)
        same = len(ours) == len(theirs) and all(map(self.unify, ours, theirs))
        if not same:
            self.scalars, self.parts, self.axes = before
        return same

    def _name(self, ours: Var, theirs: Node) -> bool:
        if ours in self.loops:
            return theirs is self.loops[ours].var
        if not isinstance(theirs, Expr) or theirs.dtype != ours.dtype:
            return False
        inner = {loop.var for loop in self.loops.values()}
        return not variables(theirs) & inner and expr_equal(
            self.scalars.setdefault(ours, theirs), theirs
        )

    def _part(self, ours: Load | Store, theirs: Load | Store) -> bool:
        """Bind the buffer of *ours* to a part of that of *theirs*; whether they match."""
        if theirs.mask is not None or ours.buffer.dtype != theirs.buffer.dtype:
            return False
        if is_fragment(ours.buffer) and theirs.buffer.scope != ours.buffer.scope:
            return False
        place = self.intrinsic.places[ours.buffer]
        axes = self.axes.get(ours.buffer) or tuple(
            Var(f"x{k}", loop.dtype) if loop else Var("one", ZERO.dtype)
            for k, loop in enumerate(place)
        )
        values: dict[Var, Expr] = {
            self.loops[loop].var: axis for loop, axis in zip(place, axes, strict=True) if loop
        }
        indices = tuple(None if i is None else substitute(i, values) for i in theirs.indices)
        inner = {loop.var for loop in self.loops.values()}
        if any(variables(i) & inner for i in indices if i is not None):
            return False
        self.axes[ours.buffer] = axes
        buffer, known_ = self.parts.setdefault(ours.buffer, (theirs.buffer, indices))
        return buffer is theirs.buffer and all(map(same_value, known_, indices))

    def reason(self) -> str | None:
        """Return why the implementation may not replace the nest; None if it may."""
        written = {n.buffer for n in walk(self.intrinsic.body) if isinstance(n, Store)}
        places: dict[object, AnyBuffer] = {}
        for buffer, (part, indices) in self.parts.items():
            other = places.setdefault(memory_of(part), buffer)
            if other is not buffer and {other, buffer} & written:
                return f"{part.name} is two buffers of the intrinsic, one of them written"
            if buffer in written and not self._is_part(buffer, indices):
                return f"two elements of what is written may be one element of {part.name}"
        changed = {memory_of(self.parts[buffer][0]) for buffer in written}
        exprs = (i for _, indices in self.parts.values() for i in indices if i is not None)
        for buffer in read_by(*exprs, *self.scalars.values()):
            if memory_of(buffer) in changed:
                return f"an index or a parameter reads {buffer.name}, which is written"
        return None

    def _is_part(self, buffer: AnyBuffer, indices: tuple[Expr | None, ...]) -> bool:
        """Whether different elements of *buffer* are different elements of the program's buffer."""
        assert isinstance(buffer, Buffer)
        axes = self.axes[buffer]
        ranges = {axis: (ZERO, size) for axis, size in zip(axes, buffer.shape, strict=True)}
        places = zip(axes, buffer.shape, self.intrinsic.places[buffer], strict=True)
        wide = [a for a, size, loop in places if loop and not _is_one(size)]
        key = element_key(self.parts[buffer][0], indices)
        return all(injective(key, axis, ranges) for axis in wide)

    def build(self, names: Names) -> Stmt:
        """Return the implementation over the buffers of the program."""
        lets: list[tuple[Var, Expr]] = []
        parts: dict[AnyBuffer, tuple[AnyBuffer, tuple[Expr | None, ...]]] = {}
        for buffer, (part, indices) in self.parts.items():
            hoist = _Hoist({*self.axes[buffer]}, lets, names)
            parts[buffer] = part, tuple(None if i is None else hoist.rewrite(i) for i in indices)
        inlined = _Inline(names, replace(self, parts=parts))
        body: Stmt = inlined.rewrite(self.intrinsic.implementation.body)
        for var, value in reversed(lets):
            body = Let(var, value, body)
        return body


def match(intrinsic: Intrinsic, loops: list[For], inner: Stmt) -> Binding | str:
    """Return how *loops* around *inner* match the description of *intrinsic*, or why not."""
    if (why := difference(intrinsic, loops, inner)) is not None:
        return why
    body = plain_stores(inner)
    if body is None:
        return "it has a condition, starts a reduction, or is more than stores"
    why = "it does not compute what the description says"
    used = variables(intrinsic.body)
    for order in _orders(intrinsic.loops, loops):
        names = {
            described.var: loop for described, loop in zip(intrinsic.loops, order, strict=True)
        }
        binding = Binding(intrinsic, names)
        single = {x.var: ZERO for var, x in names.items() if var not in used and runs_once(x)}
        if not binding.unify(intrinsic.body, substitute(body, single)):
            continue
        refused = binding.reason()
        if refused is None and list(order) != loops and not _may_change_places(loops, inner):
            refused = "its loops are in another order, which matters"
        if refused is None:
            return binding
        why = refused
    return why


def difference(intrinsic: Intrinsic, loops: list[For], inner: Stmt) -> str | None:
    """Return why *loops* around *inner* cannot match *intrinsic*, by a quick test; None: may be."""
    if not all(from_zero(loop) and isinstance(loop.end, Const) for loop in loops):
        return "a trip count is not a constant"
    trips = " x ".join(str(_trips(loop)) for loop in loops)
    expected = " x ".join(str(_trips(loop)) for loop in intrinsic.loops)
    if sorted(map(_trips, loops)) != sorted(map(_trips, intrinsic.loops)):
        return f"its loops run {trips} times, those of the intrinsic {expected}"
    stmts = inner.body if isinstance(inner, Block) else inner
    ours, theirs = (s.body if isinstance(s, Seq) else (s,) for s in (intrinsic.body, stmts))
    plain = all(isinstance(stmt, Store) for stmt in theirs)
    if (plain and len(ours) != len(theirs)) or not all(map(_same_kind, ours, theirs)):
        return "it does not compute what the description says"
    return None


def _same_kind(ours: Stmt, theirs: Stmt) -> bool:
    """Whether *theirs*, if it is a store, stores the same kind of value as *ours*."""
    if not (isinstance(ours, Store) and isinstance(theirs, Store)):
        return True
    a, b = ours.value, theirs.value
    kind = type(a) is type(b) and getattr(a, "op", "") == getattr(b, "op", "")
    return ours.buffer.dtype == theirs.buffer.dtype and (kind or isinstance(a, Var))


def _trips(loop: For) -> int:
    assert isinstance(loop.end, Const)
    return int(loop.end.value)


def _orders(ours: tuple[For, ...], theirs: list[For]) -> Iterator[tuple[For, ...]]:
    for order in permutations(theirs):
        if [_trips(x) for x in order] == [_trips(x) for x in ours]:
            yield order


def _may_change_places(loops: list[For], inner: Stmt) -> bool:
    """Whether all loops are independent, or add to sums that are formed in any order."""
    reducing = only_reduces(inner)
    return all(reducing or not conflicts(loop) for loop in loops)


def _attrs(node: Node) -> tuple[object, ...]:
    skip = {"span", *node.CHILDREN}
    return tuple(getattr(node, name) for name in node.FIELDS if name not in skip)


def _children(node: Node) -> tuple[Node, ...]:
    children: list[Node] = []
    for name in node.CHILDREN:
        child = getattr(node, name)
        children.extend(child if isinstance(child, tuple) else () if child is None else (child,))
    return tuple(children)


class _Hoist(Rewriter):
    """Replaces loads that do not depend on *axes* by variables, whose values are in *lets*."""

    def __init__(self, axes: set[Var], lets: list[tuple[Var, Expr]], names: Names) -> None:
        self.axes, self.lets, self.names = axes, lets, names

    def visit_Load(self, load: Load) -> Node:
        if variables(load) & self.axes:
            return self.visit_Node(load)
        for var, value in self.lets:
            if expr_equal(load, value):
                return var
        var = self.names.var(f"{load.buffer.name}_at", load.dtype)
        self.lets.append((var, load))
        return var


class _Inline(Fresh):
    """Copies an implementation into the program, with new names, onto parts of its buffers."""

    def __init__(self, names: Names, binding: Binding) -> None:
        intrinsic = binding.intrinsic
        pairs = zip(intrinsic.implementation.params, intrinsic.description.params, strict=True)
        partner = dict(pairs)
        scalars = {p: binding.scalars[d] for p, d in partner.items() if d in binding.scalars}
        super().__init__(names, "", scalars)
        self.binding = binding
        self.local: dict[AnyBuffer, AnyBuffer] = {}

    def _at(
        self, buffer: AnyBuffer, indices: tuple[Expr | None, ...]
    ) -> tuple[AnyBuffer, tuple[Expr | None, ...]]:
        """Return the buffer of the program, and the indices in it."""
        place = [self.rewrite(i) for i in indices if i is not None]
        if buffer in self.local:
            return self.local[buffer], tuple(place)
        partner = self.binding.intrinsic.partners[buffer]
        part, at = self.binding.parts[partner]
        values = dict(zip(self.binding.axes[partner], place, strict=True))
        return part, tuple(None if i is None else substitute(i, values) for i in at)

    def visit_Alloc(self, alloc: Alloc) -> Node:
        buffer = alloc.buffer
        self.local[buffer] = buffer.replace(name=self.names.unique(buffer.name))
        return alloc.replace(buffer=self.local[buffer], body=self.rewrite(alloc.body))

    def visit_Load(self, access: Load | Prefetch) -> Node:
        part, at = self._at(access.buffer, access.indices)
        return access.replace(buffer=part, indices=at)

    visit_Prefetch = visit_Load

    def visit_Store(self, store: Store) -> Node:
        part, at = self._at(store.buffer, store.indices)
        return store.replace(buffer=part, indices=at, value=self.rewrite(store.value))


def _is_one(size: Expr) -> bool:
    return isinstance(size, Const) and size.value == 1
