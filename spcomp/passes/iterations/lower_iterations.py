"""I to II: sparse iterations to nested loops and blocks, coordinates to positions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar
from typing import cast as typed

from spcomp.errors import LoweringError
from spcomp.ir.analysis.copies import Fresh
from spcomp.ir.analysis.exprs import ZERO, conjunction, conjuncts, variables
from spcomp.ir.analysis.forest import check_layouts
from spcomp.ir.analysis.names import Names
from spcomp.ir.analysis.positions import Auxiliary, Pos
from spcomp.ir.analysis.reduction import guarded_step
from spcomp.ir.analysis.regions import annotate_regions
from spcomp.ir.axis import AnyBuffer, Attach, Intersect, SparseBuffer, Union, domain_axes
from spcomp.ir.coordinate import SpIter
from spcomp.ir.expr import Expr, binary
from spcomp.ir.module import Module
from spcomp.ir.position import Block, BlockIter, Case, Cursor, Merge, MergeKind
from spcomp.ir.program import CoordFunc, PosFunc
from spcomp.ir.stmt import Alloc, Evaluate, Fail, For, If, Let, Print, Seq, Stmt, Store, While, seq
from spcomp.ir.structural import fingerprint
from spcomp.ir.visitor import Visitor, walk
from spcomp.knobs import Knobs
from spcomp.passes.assembly.assemble import ONE_PASS, Assembly, assemble
from spcomp.passes.base import Pass, Stage
from spcomp.passes.decompose.preprocess import PREPROCESS
from spcomp.passes.iterations.domains import LoopOpener
from spcomp.passes.iterations.iteration_plan import IterationPlan, plan_iteration, without_absent
from spcomp.passes.iterations.locate import Locator
from spcomp.passes.iterations.scope import Binding, Lookup, OpenLoop, Scope
from spcomp.passes.iterations.search_blocks import SearchBlocks
from spcomp.passes.merge.lattice import Lattice


@dataclass(frozen=True, slots=True)
class LowerIterations(Pass):
    """``with sp_iter([I, J], "SR", "f"): s`` becomes loops, blocks ``f0``, ``f1`` ... around ``s``.

    A function with assembled outputs becomes two, ``f_count`` and ``f_fill``, and a host program.
    *search_blocks*: in a function without assembled outputs, searches run before everything else,
    in blocks that are preprocessing. Source: SparseTIR (ASPLOS 2023), section 3.3, Sparse
    Iteration Lowering.
    """

    name: ClassVar[str] = "lower_iterations"
    takes: ClassVar[Stage] = Stage.COORDINATE
    gives: ClassVar[Stage] = Stage.POSITION
    knobs: Knobs = field(repr=False)
    search_blocks: bool = False

    def run(self, module: Module[Any]) -> Module[Any]:
        """Lower every function; a single one with assembled axes becomes several phases."""
        for func in module.funcs:
            check_layouts(func)
        if module.is_single and any(axis.is_assembled for axis in module.source.axes):
            plan = assemble(module.funcs[0], self.knobs)
            funcs = tuple(lower_function(f, a) for f, a in plan.phases)
            return Module(module.source, funcs, plan.host)
        lowered = [lower_function(func, Assembly(), self.search_blocks) for func in module.funcs]
        return module.with_funcs(*lowered)


def lower_function(
    func: CoordFunc,
    assembly: Assembly,
    search_blocks: bool = False,  # noqa: FBT001, FBT002
) -> PosFunc:
    """Return *func* in position space."""
    aux = Auxiliary(func.axes)
    lowerer = _Lowerer(func, aux, assembly)
    if search_blocks:
        lowerer.locator.blocks = SearchBlocks(lowerer.locator.names, lowerer.locator.written)
    scope = Scope(func.params)
    body = scope.segment.wrap(-1, lowerer.lower(func.body, scope))
    body = _with_searches(lowerer.locator.blocks, body)
    handles = set(func.params)  # a phase does not have all parameters of its source
    extra = tuple(b for h, b in (aux.buffers | aux.shifts).items() if h in handles)
    buffers = tuple(b for b in func.buffers if b.data in handles)
    axes = tuple(a for a in func.axes if {a.indptr, a.indices} <= {None, *handles})
    domains = tuple(d for d in (*aux.domains, *func.domains) if d.buffer in (*extra, *buffers))
    attrs = dict(func.attrs)
    if lowerer.locator.order_needed:
        attrs["order_needed"] = tuple(sorted(lowerer.locator.order_needed))
    if assembly.one_pass is not None:
        attrs[ONE_PASS] = assembly.one_pass
    return PosFunc(
        func.name,
        func.params,
        axes,
        (*extra, *buffers),
        annotate_regions(body),
        domains,
        tuple(attrs.items()),
        span=func.span,
    )


def _with_searches(blocks: SearchBlocks | None, body: Stmt) -> Stmt:
    """Return *body* after the nests of the search blocks."""
    search_blocks = blocks.blocks if blocks else []
    nests = []
    for k, block in enumerate(search_blocks):
        marks = SpIter((), (), "", "search", None, block.store, (PREPROCESS,))
        prefix = f"binary_search_block_{k}_"
        nests.append(_Nest(prefix, block.loops, block.store, Scope(), marks).build())
    body = seq(*nests, body)
    for block in reversed(search_blocks):
        body = Alloc(block.buffer, body)
    return body


class _Lowerer(Visitor[Stmt]):
    """Lowers statements; the current scope is an attribute, saved around every sp_iter."""

    COVERS = (SpIter, Seq, Let, Store, If, For, While, Alloc, Evaluate, Fail, Print)

    def __init__(self, func: CoordFunc, aux: Auxiliary, assembly: Assembly) -> None:
        written = frozenset(n.buffer for n in walk(func.body) if isinstance(n, Store))
        self.locator = Locator(aux, Names(func), written, assembly, func.domains)
        self.aux, self.assembly = aux, assembly
        self.scope = Scope()
        self.skips_misses = False
        self.allocated: set[AnyBuffer] = set()

    def lower(self, stmt: Stmt, scope: Scope) -> Stmt:
        """Return *stmt* lowered in *scope*."""
        saved, self.scope = self.scope, scope
        result = self.visit(stmt)
        self.scope = saved
        return result

    # -- iterations ---------------------------------------------------------------------------

    def visit_SpIter(self, it: SpIter) -> Stmt:
        """Build the loops, after the init nest if that goes outside."""
        plan = plan_iteration(it)
        loops = self._nest(it, plan, 0, self.scope, it.name)
        if plan.init == "outside":
            return seq(self._init_nest(it, plan, self.scope), loops)
        return loops

    def _nest(self, it: SpIter, plan: IterationPlan, start: int, outer: Scope, prefix: str) -> Stmt:
        """Lower the loops from *start* on: those up to the next merge, then the rest inside it."""
        scope = Scope(outer=outer)
        remaining = without_absent(plan, start, scope.lacks)
        if remaining is None:
            starts = plan.init == "inside" and start <= plan.first_reduction
            return self._init_nest(it, plan, scope) if starts else Seq(())
        plan = remaining
        merges = [
            k
            for k in range(start, len(plan.loops))
            if isinstance(plan.loops[k].domain, (Union, Intersect))
        ]
        stop = merges[0] if merges else len(plan.loops)
        opener = LoopOpener(self.locator, it)
        loops = [opener.open(plan.loops[k], scope, k - start) for k in range(start, stop)]
        inner = self._merge(it, plan, stop, scope, opener) if merges else self._body(it, scope)
        nest = _Nest(prefix, loops, inner, scope, it)
        if plan.init == "inside" and start <= plan.first_reduction and it.init is not None:
            level = plan.first_reduction - start
            if level >= nest.last_group() and not merges and not plan.init_reduces:
                nest.init = self._init(it.init, scope)
            elif level <= len(loops):
                nest.before = (level, self._init_nest(it, plan, scope))
        return nest.build()

    def _body(self, it: SpIter, scope: Scope) -> Stmt:
        """Return the body, guarded such that each variable has a coordinate."""
        present = conjunction(scope.bindings[var].present for var in it.vars)
        outer = self.locator.holds
        self.locator.holds = outer | frozenset(map(fingerprint, conjuncts(present)))
        inner = self.lower(it.body, scope)
        self.locator.holds = outer
        return inner if present is None else guarded_step(present, inner)

    def _init(self, init: Stmt, scope: Scope) -> Stmt:
        saved = self.skips_misses, self.locator.hoists
        self.skips_misses, self.locator.hoists = True, False
        result = self.lower(init, scope)
        self.skips_misses, self.locator.hoists = saved
        return result

    def _init_nest(self, it: SpIter, plan: IterationPlan, scope: Scope) -> Stmt:
        """Return a nest that only initialises."""
        assert it.init is not None
        kinds = "S" * len(plan.init_vars)
        nest = SpIter(
            plan.init_vars, plan.init_domains, kinds, f"{it.name}_init", None, it.init, span=it.span
        )
        saved, self.skips_misses = self.skips_misses, True
        result = self.lower(nest, scope)
        self.skips_misses = saved
        return result

    def _merge(
        self, it: SpIter, plan: IterationPlan, level: int, scope: Scope, opener: LoopOpener
    ) -> Stmt:
        """Return the co-iteration of loop *level*, with the rest of the nest in each case."""
        domain, (var,) = plan.loops[level].domain, plan.loops[level].vars
        assert isinstance(domain, (Union, Intersect))
        names = self.locator.names
        coordinate = names.var(var.name)
        cursors, places = [], []
        for part, axis in zip(domain.parts, domain_axes(domain), strict=True):
            parent = opener.parent_of(part, axis, scope)
            if isinstance(part, Attach) and parent is not None and not scope.skips(parent.guard):
                raise LoweringError(
                    f"{axis.name} is merged under the coordinates of {part.to.name}, which may"
                    " not be its rows",
                    it.span,
                    hint="give both axes the same length",
                )
            pos = names.var(f"{axis.name}_p")
            begin, end = self.aux.begin(axis, parent), self.aux.end(axis, parent)
            indices = self.aux.buffers[axis.indices] if axis.indices is not None else None
            cursors.append(Cursor(pos, indices, begin, end, span=it.span))
            places.append(Pos(axis, parent, relative=binary("-", pos, begin), absolute=pos))
            self.locator.rely_on_order(axis, it)
        kind: MergeKind = "union" if isinstance(domain, Union) else "intersect"
        cases = []
        for present in Lattice(kind, tuple(place.axis.name for place in places)).points:
            tag = "".join(map(str, map(int, present)))
            inner = Scope(outer=scope)
            for bound in (coordinate, *(c.pos for c in cursors)):
                inner.segment.levels[bound] = -1
            inner.bind(
                var,
                Binding(
                    lambda: coordinate,
                    {
                        p.axis: p
                        for p, is_present in zip(places, present, strict=True)
                        if is_present
                    },
                    {
                        p.axis: p.parent
                        for p, is_present in zip(places, present, strict=True)
                        if not is_present
                    },
                ),
            )
            body = self._nest(it, plan, level + 1, inner, f"{it.name}_{tag}_")
            cases.append(Case(present, inner.segment.wrap(-1, body), span=it.span))
        return Merge(kind, coordinate, tuple(cursors), tuple(cases), span=it.span)

    # -- other statements ---------------------------------------------------------------------

    def _expr(self, expr: Expr) -> Expr:
        return self.locator.translate(expr, self.scope)

    def visit_Seq(self, stmt: Seq) -> Stmt:
        """Lower the statements in order."""
        return seq(*(self.visit(s) for s in stmt.body))

    def visit_Let(self, stmt: Let) -> Stmt:
        """Lower the value in its place: it may read what was just written."""
        mark = len(self.locator.local)
        value = self._expr(stmt.value)
        lookups = self._set_aside(mark)
        new = stmt.replace(value=value, body=self.visit(stmt.body))
        self.locator.local.extend(lookups)
        return self.locator.with_local(new, mark)

    def visit_Store(self, stmt: Store) -> Stmt:
        """Guard a write that cannot be proved to hit; a miss fails the call."""
        mark = len(self.locator.local)
        buffer = stmt.buffer
        if isinstance(buffer, SparseBuffer) and self.assembly.axis_of(buffer) is not None:
            new = self._create(stmt, buffer)
        elif self.assembly.counts_only and buffer.data is not None:
            new = Seq(())
        else:
            if isinstance(buffer, SparseBuffer) and self.assembly.marked & {*buffer.axes}:
                self.locator.sure = fingerprint((buffer, *stmt.indices))
            new = self._store(stmt, self._expr(stmt.value), buffer)
            self.locator.sure = None
        return self.locator.with_local(new, mark)

    def _create(self, stmt: Store, buffer: SparseBuffer) -> Stmt:
        """Return the write to an assembled buffer, which creates the element if it is new."""
        value = stmt.value if self.assembly.counts_only else self._expr(stmt.value)
        place = self.locator.assembled_place(buffer, stmt.indices, self.scope, stmt)
        new = self.assembly.store(stmt, value, place, self.aux)
        if place.within is None or not self.assembly.ascending:
            return new
        miss = f"write to a coordinate outside of {place.axis.name}"
        return If(place.within, new, Fail(miss, span=stmt.span), span=stmt.span)

    def _store(self, stmt: Store, value: Expr, buffer: AnyBuffer) -> Stmt:
        if isinstance(buffer, SparseBuffer):
            access = self.locator.access(buffer, stmt.indices, self.scope)
        else:
            access = self.locator.dense_access(buffer, stmt.indices, self.scope)
        miss = Fail(f"write to a coordinate that is not stored in {buffer.name}", span=stmt.span)
        if access.absent:
            return Seq(()) if self.skips_misses else miss
        new = stmt.replace(indices=access.indices, value=value)
        if access.guard is None:
            return new
        return If(access.guard, new, None if self.skips_misses else miss, span=stmt.span)

    def visit_If(self, stmt: If) -> Stmt:
        """Lower condition and sides."""
        mark = len(self.locator.local)
        cond = self._expr(stmt.cond)
        lookups = self._set_aside(mark)
        then = self.visit(stmt.then)
        otherwise = None if stmt.otherwise is None else self.visit(stmt.otherwise)
        self.locator.local.extend(lookups)
        new = stmt.replace(cond=cond, then=then, otherwise=otherwise)
        return self.locator.with_local(new, mark)

    def visit_For(self, stmt: For) -> Stmt:
        """Lower a dense loop written by the user; its variable is an ordinary value."""
        mark = len(self.locator.local)
        begin, end = self._expr(stmt.begin), self._expr(stmt.end)
        lookups = self._set_aside(mark)
        new = stmt.replace(begin=begin, end=end, body=self.visit(stmt.body))
        self.locator.local.extend(lookups)
        return self.locator.with_local(new, mark)

    def _set_aside(self, mark: int) -> list[Lookup]:
        """Take off and return the lookups from *mark* on, while inner statements add theirs."""
        lookups = self.locator.local[mark:]
        del self.locator.local[mark:]
        return lookups

    def visit_While(self, stmt: While) -> Stmt:
        """Lower a while loop; its condition may not need a search, which would not be repeated."""
        hoists, self.locator.hoists = self.locator.hoists, False
        outer, self.locator.conditional = self.locator.conditional, True
        mark = len(self.locator.local)
        cond = self._expr(stmt.cond)
        self.locator.conditional = outer
        self.locator.refuse_local(mark, "the condition of a while loop", stmt)
        self.locator.hoists = hoists
        return stmt.replace(cond=cond, body=self.visit(stmt.body))

    def visit_Alloc(self, stmt: Alloc) -> Stmt:
        """Keep the allocation; in further cases of a merge it gets a new buffer."""
        new = stmt.replace(body=self.visit(stmt.body))
        if stmt.buffer not in self.allocated:
            self.allocated.add(stmt.buffer)
            return new
        return typed("Stmt", Fresh(self.locator.names, "", {}).rewrite(new))

    def visit_Evaluate(self, stmt: Evaluate) -> Stmt:
        """Lower the value."""
        mark = len(self.locator.local)
        return self.locator.with_local(stmt.replace(value=self._expr(stmt.value)), mark)

    def visit_Fail(self, stmt: Fail) -> Stmt:
        """Lower the values."""
        return self._lower_message(stmt)

    def visit_Print(self, stmt: Print) -> Stmt:
        """Lower the values."""
        return self._lower_message(stmt)

    def _lower_message(self, stmt: Fail | Print) -> Stmt:
        mark = len(self.locator.local)
        values = tuple(map(self._expr, stmt.values))
        return self.locator.with_local(stmt.replace(values=values), mark)


@dataclass(slots=True)
class _Nest:
    """Loops, split into groups with a block each, around a leaf."""

    prefix: str
    loops: Sequence[OpenLoop]
    leaf: Stmt
    scope: Scope
    it: SpIter
    init: Stmt | None = None  # carried by the innermost block
    before: tuple[int, Stmt] | None = None  # stands before the loop of that level

    def _cuts(self) -> list[int]:
        """Return the levels where a group starts, as its loops use what the group before binds."""
        segment, cuts = self.scope.segment, [0]
        for level in range(1, len(self.loops)):
            bound = {loop.block_var for loop in self.loops[cuts[-1] : level]}
            if (
                segment.has(level - 1)
                or bound & variables(self.loops[level].extent)
                or (self.before is not None and self.before[0] == level)
            ):
                cuts.append(level)
        return cuts

    def last_group(self) -> int:
        """Return the level where the innermost group starts."""
        return self._cuts()[-1]

    def build(self) -> Stmt:
        """Return the nest, inside out."""
        segment, stmt = self.scope.segment, self.leaf
        cuts = [*self._cuts(), len(self.loops)]
        init = self.init
        for k in range(len(cuts) - 2, -1, -1):
            low, high = cuts[k], cuts[k + 1]
            if self.before is not None and self.before[0] == high > 0:
                stmt = seq(self.before[1], stmt)
            body = segment.wrap(high - 1, stmt) if high else stmt
            stmt = self._block(k, self.loops[low:high], init, body)
            init = None
            for loop in reversed(self.loops[low:high]):
                stmt = For(loop.var, ZERO, loop.extent, stmt, span=self.it.span)
        if self.before is not None and self.before[0] == 0:
            stmt = seq(self.before[1], stmt)
        return segment.wrap(-1, stmt)

    def _block(self, k: int, loops: Sequence[OpenLoop], init: Stmt | None, body: Stmt) -> Block:
        iters = tuple(
            BlockIter(x.block_var, x.extent, x.var, "R" if x.reduces else "S", span=self.it.span)
            for x in loops
        )
        attrs = (("sparse", True), *self.it.attrs)
        name = f"{self.prefix}{k}"
        return Block(name, iters, (), (), init, body, None, attrs, span=self.it.span)
