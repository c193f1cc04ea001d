"""In position space: the steps compute_inline and reverse_compute_inline."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from spcomp.dtypes import int64
from spcomp.errors import ScheduleError, Span
from spcomp.ir.access import Load, Search
from spcomp.ir.analysis.exprs import both, conjunction, conjuncts, variables
from spcomp.ir.analysis.reduction import as_reduction
from spcomp.ir.analysis.regions import annotate_regions
from spcomp.ir.arith.injectivity import element_key
from spcomp.ir.arith.memory import reads_of, writes_of
from spcomp.ir.arith.simplify import injective
from spcomp.ir.axis import AnyBuffer, memory_of
from spcomp.ir.expr import BinOp, Expr, Var, cast
from spcomp.ir.func import Func
from spcomp.ir.node import Node
from spcomp.ir.position import Block
from spcomp.ir.rewrite import Replace, Rewriter, substitute
from spcomp.ir.stmt import Alloc, Prefetch, Seq, Stmt, Store, seq
from spcomp.ir.visitor import walk
from spcomp.schedule.legality.dependence import depends
from spcomp.schedule.nests.carried import carries
from spcomp.schedule.nests.coverage import reads_are_stored, stored_conditions
from spcomp.schedule.nests.nearby import prover_at
from spcomp.schedule.nests.nests import replace_stmt
from spcomp.schedule.nests.places import site_values, unconditional_nodes
from spcomp.schedule.nests.sites import Site, buffer_name, check_concurrent, refusal, site_of
from spcomp.schedule.steps.base import Makes, Step


@dataclass(frozen=True, slots=True)
class ComputeInline(Step):
    """``for i: X[i] = f(i); for a: s(X[a + 1])  ->  for a: s(f(a + 1))``.

    Legal where only *block* writes the buffer, which is allocated in the program; each index of its
    store is one of its iters; what it reads has not changed where the buffer is read; and only
    elements that it stores are read, not in an earlier iteration around. Source: TVM's
    compute_inline.
    """

    name: ClassVar[str] = "compute_inline"
    makes: ClassVar[Makes] = "blocks"
    block: str

    def plan(self, func: Func) -> Func:
        """Return *func* without the block; only that shows whether loops may still run at once."""
        site = site_of(func, self.block, self)
        span = site.block.span
        store = _sole_store(self, site, span)
        buffer, alloc = store.buffer, _allocation(self, func, store.buffer, span)
        picks = _picks(self, site, store.indices, (store.value,), span)
        later = _after(site)
        inside = {n for stmt in (*later, site.root) for n in walk(stmt)}
        for node in walk(alloc.body):
            if getattr(node, "buffer", None) is buffer and isinstance(node, Load | Store | Search):
                if node not in inside or (not isinstance(node, Load) and node is not store):
                    raise refusal(self, f"{buffer.name} is not only read after the block", span)
                if isinstance(node, Load) and (node.mask is not None or None in node.indices):
                    raise refusal(self, f"{buffer.name} is read under a mask", span)
        if memory_of(buffer) in reads_of(store.value):
            raise refusal(self, f"{buffer.name} is not only read after the block", span)
        if changes := reads_of(store.value) & writes_of(seq(*later)):
            what = buffer_name(changes, store.value)
            raise refusal(self, f"{what} changes before {buffer.name} is read", span)
        _check_reads(self, func, site, picks, alloc)
        use = _Inline(buffer, picks, store.value)
        body = Replace(site.root, seq()).rewrite(alloc.body)
        return check_concurrent(self, func, replace_stmt(func, alloc, use.rewrite(body)), span)


@dataclass(frozen=True, slots=True)
class ReverseComputeInline(Step):
    """``for i: X[i] = f; for a: Y[a] = g(X[a])  ->  for i: Y[i] = g(f)``.

    Legal where only *block* reads the buffer, which is allocated in the program; each index of its
    read is one of its loops; and one other block stores each element once, without a reduction,
    and in the same iteration of loops around. Source: TVM's reverse_compute_inline.
    """

    name: ClassVar[str] = "reverse_compute_inline"
    makes: ClassVar[Makes] = "blocks"
    block: str

    def plan(self, func: Func) -> Func:
        """Return *func* without the block; only that shows whether loops may still run at once."""
        site = site_of(func, self.block, self)
        result = _Reversed(self, func, site).build()
        return check_concurrent(self, func, result, site.block.span)


def _sole_store(step: Step, site: Site, span: Span | None) -> Store:
    """Return the store that is all of the block at *site* and its nest; else raises."""
    block = site.block
    if not isinstance(block.body, Store) or block.body.mask is not None or block.init is not None:
        raise refusal(step, f"block {block.name} does not just store one element", span)
    blocks = [n for n in walk(site.root, skip=Expr) if isinstance(n, Block | Store)]
    if blocks != [block, block.body]:
        raise refusal(step, f"the nest of {block.name} holds more than the block", span)
    return block.body


def _allocation(step: Step, func: Func, buffer: AnyBuffer, span: Span | None) -> Alloc:
    """Return the allocation of *buffer*; raises if there is none, or stores are rounded."""
    allocs = [n for n in walk(func.body) if isinstance(n, Alloc) and n.buffer is buffer]
    if not allocs:
        raise refusal(step, f"{buffer.name} is not allocated here", span)
    if buffer.dtype.is_float and buffer.dtype.bits < 32:
        raise refusal(step, f"{buffer.name} rounds what is stored to {buffer.dtype}", span)
    return allocs[0]


def _picks(
    step: Step,
    site: Site,
    indices: tuple[Expr | None, ...],
    used: tuple[Expr, ...],
    span: Span | None,
) -> tuple[Var, ...]:
    """Return the variables that *indices* are; raises if *used* needs others of the nest."""
    bound = site.bound | set(site.block.values)
    picks = tuple(i for i in indices if isinstance(i, Var) and i in bound)
    if len(picks) < len(indices) or len(set(picks)) < len(picks):
        raise refusal(step, "its iters do not say the element one by one", span)
    if {v for expr in used for v in variables(expr)} & bound - set(picks):
        raise refusal(step, "what it stores depends on more than the place", span)
    return picks


def _check_reads(step: Step, func: Func, site: Site, picks: tuple[Var, ...], alloc: Alloc) -> None:
    """Raise unless what the block at *site* stores is its value where the buffer is read."""
    buffer, store, span = alloc.buffer, site.block.body, site.block.span
    assert isinstance(store, Store)
    steady = variables(store.value) <= {*picks, *func.params}
    steady = steady and not reads_of(store.value) & writes_of(alloc.body)
    if not steady and carries(func, buffer, site.block):
        raise refusal(step, f"{buffer.name} may be read where an earlier iteration stored it", span)
    if any(isinstance(n, Load | Search) for n in walk(store.value)):
        conds = stored_conditions(site, picks)
        if conds is None or not reads_are_stored(func, seq(*_after(site)), buffer, picks, conds):
            raise refusal(step, f"{buffer.name} may be read where the block stores nothing", span)


def _after(site: Site) -> list[Stmt]:
    """Return the statements after the nest of *site* in the list where it stands."""
    around = site.above[-1] if site.above else None
    if not isinstance(around, Seq):
        return []
    k = next(k for k, stmt in enumerate(around.body) if stmt is site.root)
    return list(around.body[k + 1 :])


class _Inline(Rewriter):
    """Replaces reads of *buffer* by *value*, with the indices in place of *picks*."""

    def __init__(self, buffer: AnyBuffer, picks: tuple[Var, ...], value: Expr) -> None:
        self.buffer, self.picks, self.value = buffer, picks, value

    def visit_Load(self, load: Load) -> Node:
        new = self.visit_Node(load)
        assert isinstance(new, Load)
        if load.buffer is not self.buffer:
            return new
        indices = [cast(index, int64) for index in new.indices if index is not None]
        return substitute(self.value, dict(zip(self.picks, indices, strict=True)))

    def visit_Prefetch(self, prefetch: Prefetch) -> Node:
        return seq() if prefetch.buffer is self.buffer else self.visit_Node(prefetch)

    def visit_Block(self, block: Block) -> Node:
        new = self.visit_Node(block)
        return new if new is block or not isinstance(new, Block) else annotate_regions(new)

    def visit_Region(self, region: Node) -> Node:
        return region


class _Reversed:
    """A block that moves into its producer, the one that stores what it reads."""

    def __init__(self, step: ReverseComputeInline, func: Func, site: Site) -> None:
        self.step, self.func, self.site = step, func, site
        span = site.block.span
        self.store = _sole_store(step, site, span)
        self.load = self._load()
        self.buffer = self.load.buffer
        self.alloc = _allocation(step, func, self.buffer, span)
        self.producer = self._find_producer()
        self.producer_store = _sole_store(step, self.producer, span)

    def error(self, why: str) -> ScheduleError:
        return self.step.error(why, self.site.block)

    def _load(self) -> Load:
        """Return the block's only load from a buffer that is allocated in the program."""
        private = {n.buffer for n in walk(self.func.body) if isinstance(n, Alloc)}
        loads = [n for n in walk(self.store) if isinstance(n, Load) and n.buffer in private]
        if len(loads) != 1 or loads[0].mask is not None:
            raise self.error("it does not read one element of one buffer that is allocated here")
        if loads[0] not in unconditional_nodes(self.store):
            # it must run also where it does not read, but there the producer may store nothing
            raise self.error(f"it reads {loads[0].buffer.name} under a condition only")
        return loads[0]

    def _find_producer(self) -> Site:
        stores = [n for n in walk(self.func.body) if isinstance(n, Store)]
        stores = [n for n in stores if n.buffer is self.buffer]
        blocks = [n for n in walk(self.func.body, skip=Expr) if isinstance(n, Block)]
        producers = [b for b in blocks if b.body in stores]
        if len(stores) != 1 or len(producers) != 1:
            raise self.error(f"{self.buffer.name} is not stored by one block, once")
        return site_of(self.func, producers[0].name, self.step)

    def build(self) -> Func:
        """Return the function with the block in its producer."""
        reads = [n for n in walk(self.func.body) if isinstance(n, Load | Search)]
        if [n for n in reads if n.buffer is self.buffer] != [self.load]:
            raise self.error(f"{self.buffer.name} is read elsewhere too")
        if carries(self.func, self.buffer, self.producer.block):
            raise self.error(f"{self.buffer.name} is read in a later iteration than it is stored")
        self._check_order()
        values, where = self._values()
        inner = substitute(
            Replace(self.load, self.producer_store.value).rewrite(self.store), values
        )
        producer = self.producer.block
        block = producer.replace(body=inner, where=both(where, producer.where))
        body = Replace(self.site.root, seq()).rewrite(self.alloc.body)
        body = Replace(producer, annotate_regions(block)).rewrite(body)
        return replace_stmt(self.func, self.alloc, body)

    def _check_order(self) -> None:
        """Raise unless the block may run as early as its producer."""
        later = _after(self.producer)
        if self.site.root not in later:
            raise self.error(f"it does not follow {self.producer.block.name} directly")
        for stmt in later[: later.index(self.site.root)]:
            if conflict := depends(stmt, self.site.root):
                raise self.error(f"what stands between them touches {conflict}")
        other = writes_of(self.producer.root) - {memory_of(self.buffer)}
        touched = reads_of(self.producer.root) | writes_of(self.producer.root)
        if other & reads_of(self.site.root) or touched & writes_of(self.site.root):
            raise self.error(f"{self.producer.block.name} touches what it writes")

    def _values(self) -> tuple[dict[Var, Expr], Expr | None]:
        """Return the values of the block's variables in its producer, and the condition to run."""
        own = site_values(self.site)
        place = [None if i is None else substitute(i, own) for i in self.load.indices]
        loops = {loop.var: loop for loop in self.site.loops}
        if any(p not in loops for p in place) or set(place) != set(loops):
            raise self.error("its loops do not say the element one by one")
        if len(place) != len(loops):
            raise self.error("its loops do not say the element one by one")
        stored_at = [None if i is None else cast(i, int64) for i in self.producer_store.indices]
        ranges = {x.var: (x.begin, x.end) for x in self.producer.loops}
        producer_values = site_values(self.producer)
        at = tuple(None if i is None else substitute(i, producer_values) for i in stored_at)
        stored = element_key(self.buffer, at)
        if not all(injective(stored, var, ranges) for var in ranges):
            raise self.error(f"{self.producer.block.name} may store an element twice")
        target = tuple(None if i is None else substitute(i, own) for i in self.store.indices)
        mine = {x.var: (x.begin, x.end) for x in self.site.loops}
        key = element_key(self.store.buffer, target)
        once = all(injective(key, var, mine) for var in mine)
        if not once and as_reduction(self.store) is None:
            raise self.error("two iterations may store one element, in another order")
        at_loops = {p: i for p, i in zip(place, stored_at, strict=True) if isinstance(p, Var) and i}
        values = {var: substitute(value, at_loops) for var, value in own.items()} | at_loops
        return values, self._where(at_loops, values)

    def _where(self, at: dict[Var, Expr], values: dict[Var, Expr]) -> Expr | None:
        """Return the condition of the block, and that it reads the element; None: always."""
        terms: list[Expr] = []
        names = self.producer.block.values
        inside = prover_at(self.func, (*self.producer.above, *self.producer.path))
        for loop in self.site.loops:
            value = at[loop.var]
            low, high = (substitute(end, at) for end in (loop.begin, loop.end))
            bounds = (BinOp("<=", low, value), BinOp("<", value, high))
            terms += [term for term in bounds if not inside(substitute(term, names))]
        own = conjuncts(self.site.block.where)
        return conjunction((*terms, *(substitute(term, values) for term in own)))
