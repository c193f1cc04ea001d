"""I to I: an iteration over a sparse buffer becomes one iteration per part of its new format."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, ClassVar, TypeGuard

from spcomp.dtypes import int64
from spcomp.errors import FormatError, expect
from spcomp.formats.rules import FormatRewriteRule
from spcomp.ir.access import Load
from spcomp.ir.analysis.exprs import ZERO, variables
from spcomp.ir.analysis.names import Names
from spcomp.ir.arith.bounds import Env
from spcomp.ir.arith.linear import Algebra
from spcomp.ir.arith.proof import Prover
from spcomp.ir.arith.simplify import injective
from spcomp.ir.axis import (
    AnyBuffer,
    Axis,
    Domain,
    Fuse,
    SparseBuffer,
    domain_axes,
)
from spcomp.ir.coordinate import SpIter
from spcomp.ir.expr import BinOp, Expr, Var, binary, cast, const, plain
from spcomp.ir.module import Module, single
from spcomp.ir.node import Node
from spcomp.ir.program import CoordFunc
from spcomp.ir.rewrite import Rewriter, substitute
from spcomp.ir.stmt import Alloc, Seq, Stmt, Store, seq
from spcomp.ir.visitor import walk
from spcomp.passes.base import Pass, Stage
from spcomp.passes.decompose.decompose_parts import (
    Loop,
    Part,
    PartIteration,
    RewriteTarget,
    updates_of,
    used_elsewhere,
    wrong_shape,
)
from spcomp.passes.decompose.instantiate import instantiate
from spcomp.passes.decompose.preprocess import (
    axes_of,
    axes_used,
    buffers_used,
    copies,
    copies_back,
    params_used,
)


@dataclass(frozen=True, slots=True)
class DecomposeFormats(Pass):
    """``sp_iter([I, J]): init; s  ->  init over I; sp_iter([S, P]): s'; sp_iter([R, K]): s''``.

    One iteration for each rule, over the axes of its part. Init runs once, over the original
    domain; the parts only accumulate. Source: SparseTIR (ASPLOS 2023), section 3.2.1, format
    decomposition.
    """

    name: ClassVar[str] = "decompose_formats"
    takes: ClassVar[Stage] = Stage.COORDINATE
    gives: ClassVar[Stage] = Stage.COORDINATE
    rules: tuple[FormatRewriteRule, ...] = ()

    def run(self, module: Module[Any]) -> Module[Any]:
        """Decompose the function of *module*, whose interface changes. Raises FormatError."""
        decomposed: Module[Any] = format_decompose(
            module, self.rules, include_format_rewrite_blks=False
        )
        return decomposed


@dataclass(frozen=True, slots=True, eq=False)
class Decomposition:
    """The program *func* over *parts*, which replace the buffers and axes of *old*."""

    func: CoordFunc
    parts: tuple[Part, ...]
    old: RewriteTarget


def decompose(func: CoordFunc, rules: Sequence[FormatRewriteRule]) -> Decomposition:
    """Return *func* with each iteration over rewritten buffers replaced by one per rule.

    All parameters stay; ``without_unused`` drops those that are no longer used. Raises FormatError
    if the parts could compute something else, or a rule does not fit *func*.
    """
    names = Names(func)
    rules = [rule.core() for rule in rules]
    old = _rewrite_target(func, rules)
    parts = tuple(instantiate(rule, func, names, old.beside) for rule in rules)
    splitter = _Splitter(old, parts, names)
    body = splitter.rewrite(func.body)
    beside = [b for part in parts for b in part.beside.values() if b.data is not None]
    params = dict.fromkeys((*func.params, *(p for part in parts for p in part.params.values())))
    params |= dict.fromkeys(b.data for b in beside if b.data is not None)
    axes = (*func.axes, *splitter.axes, *(a for part in parts for a in part.axes.values()))
    stored = [domain for part in parts for domain in part.stored]
    buffers = (*func.buffers, *(b for part in parts for b in part.buffers.values()), *beside)
    unmarked = func.replace(
        params=tuple(params),
        axes=tuple(dict.fromkeys(axes)),
        buffers=(*buffers, *(domain.buffer for domain in stored)),
        body=body,
        domains=(*func.domains, *stored),
    )
    # the parts are one launch, if that is legal
    program = unmarked.with_attr("horizontal_fuse", True)
    assert isinstance(program, CoordFunc)
    return Decomposition(program, parts, old)


def format_decompose(
    func: CoordFunc | Module[Any],
    rules: Sequence[FormatRewriteRule],
    include_format_rewrite_blks: bool = True,  # noqa: FBT001, FBT002
) -> Any:
    """Return a program, or the Module of one, with one iteration per rule, after the copies.

    Copies come first, named ``rewrite_A_rule``: they fill the parts from the original buffer. Then
    come the inits, over the original domain, and one iteration for each rule, named after the
    original iteration and the rule. Other buffers that lie along the axes are split into parts as
    well; those that the program writes are copied back at the end, by ``restore_C_rule``.

    The parameters of each rule follow those of the program, in the order of its description and
    named ``param_rule``; none is shared between rules, nor with a parameter of the program unless
    it is the same object. Then come the handles of the parts of other buffers.

    Args:
        func: The program.
        rules: One rule for each part; see FormatRewriteRule.
        include_format_rewrite_blks: Whether to include the copies.

    Raises:
        FormatError: The parts could compute something else, or a rule does not fit *func*.

    Source: SparseTIR (ASPLOS 2023), section 3.2.1.
    """
    if isinstance(func, Module):
        if not func.is_single:
            raise FormatError(f"{func.source.name} has several phases, it cannot be decomposed")
        single_func = func.funcs[0]
        return single(format_decompose(single_func, rules, include_format_rewrite_blks))
    expect("func", func, CoordFunc, "a program in coordinate space, or the Module of one")
    expect("rules", rules, (list, tuple), "a list of FormatRewriteRules")
    for rule in rules:
        expect("rules", rule, FormatRewriteRule, "a list of FormatRewriteRules")
    decomposition = decompose(func, rules)
    if not include_format_rewrite_blks:
        return decomposition.func
    copies_ = [it for part in decomposition.parts for it in copies(part, decomposition.old)]
    outputs = {n.buffer for n in walk(func.body) if isinstance(n, Store)}
    back = [
        it for part in decomposition.parts for it in copies_back(part, decomposition.old, outputs)
    ]
    return decomposition.func.replace(body=seq(*copies_, decomposition.func.body, *back))


def without_unused(
    func: CoordFunc, before: CoordFunc, replaced: Collection[AnyBuffer] = ()
) -> CoordFunc:
    """Return *func* without the buffers, axes and parameters that only *before* used.

    The buffers *replaced* are dropped too; *before* may have them only for their pattern.
    """
    unused = (buffers_used(before) | {*replaced}) - buffers_used(func)
    func = func.replace(
        buffers=tuple(b for b in func.buffers if b not in unused),
        domains=tuple(d for d in func.domains if d.buffer not in unused),
    )
    lost = axes_used(before) - axes_used(func)
    needed = {above for axis in func.axes if axis not in lost for above in axis.path()}
    func = func.replace(axes=tuple(a for a in func.axes if a in needed))
    unused_params = params_used(before) - params_used(func)
    return func.replace(params=tuple(p for p in func.params if p not in unused_params))


def _rewrite_target(func: CoordFunc, rules: Sequence[FormatRewriteRule]) -> RewriteTarget:
    """Return what *rules* rewrite in *func*; raises FormatError if they do not fit."""
    if not rules:
        raise FormatError("no rules are given", hint="give at least one")
    _check_agreement(rules)
    first = rules[0]
    axes = {axis.name: axis for axis in func.axes}
    buffers = {b.name: b for b in func.buffers if isinstance(b, SparseBuffer)}
    for kind, required, declared in (
        ("sparse buffer", first.buffers_to_rewrite, set(buffers)),
        ("axis", first.axes_before_rewrite, set(axes)),
    ):
        for name in required:
            if name not in declared:
                names = ", ".join(sorted(declared))
                raise first.error(f"{func.name} has no {kind} {name!r}", f"it has {names}")
    before = tuple(axes[name] for name in first.axes_before_rewrite)
    for axis in before:
        if axis.padded:
            raise first.error(f"{axis.name} has padding", "declare it as a sparse_variable axis")
    for name in first.buffers_to_rewrite:
        if set(buffers[name].axes) != set(before):
            along = ", ".join(axis.name for axis in buffers[name].axes)
            raise first.error(f"{name} lies along {along}", "rewrite exactly these axes")
    rewritten = {buffers[name]: name for name in first.buffers_to_rewrite}
    local = [n.buffer for n in walk(func.body) if isinstance(n, Alloc)]
    others = (b for b in (*func.buffers, *local) if b not in rewritten and _is_beside(b, before))
    return RewriteTarget(rewritten, before, tuple(others))


def _is_beside(buffer: AnyBuffer, axes: tuple[Axis, ...]) -> TypeGuard[SparseBuffer]:
    """Whether *buffer* lies along all *axes*, side by side, and otherwise dense_fixed ones."""
    if not isinstance(buffer, SparseBuffer) or buffer.extra_storage:
        return False
    ours = [at for at, axis in enumerate(buffer.axes) if axis in axes]
    if len(ours) < len(axes) or ours[-1] - ours[0] >= len(ours):
        return False
    return all(axis in axes or axis.kind == "dense_fixed" for axis in buffer.axes) and any(
        axis.kind != "dense_fixed" for axis in axes
    )


def _check_agreement(rules: Sequence[FormatRewriteRule]) -> None:
    """Raise unless *rules* rewrite the same buffers and axes, and have distinct names."""
    first = rules[0]
    for rule in rules:
        for name in ("buffers_to_rewrite", "axes_before_rewrite"):
            if tuple(getattr(rule, name)) != tuple(getattr(first, name)):
                raise rule.error(f"its {name} differ from the first rule's", "decompose twice")
        if sum(other.name == rule.name for other in rules) > 1:
            raise rule.error("another rule has this name", "give each a name of its own")


class _Splitter(Rewriter):
    """Replaces iterations by their parts; *axes* are new ones, for the inits."""

    def __init__(self, old: RewriteTarget, parts: tuple[Part, ...], names: Names) -> None:
        self.old, self.parts, self.names = old, parts, names
        self.stored = {axis for axis in old.axes if axis.kind != "dense_fixed"}
        self.axes: list[Axis] = []

    def visit_Load(self, load: Load) -> Node:
        """Refuse to read a rewritten buffer, or one beside it, outside an iteration over it."""
        self._check(load)
        return self.visit_Node(load)

    def visit_Store(self, store: Store) -> Node:
        """Refuse to write such a buffer."""
        self._check(store)
        return self.visit_Node(store)

    def _check(self, node: Load | Store) -> None:
        buffer = node.buffer
        along = buffer.axes if isinstance(buffer, SparseBuffer) else ()
        if buffer in self.old.buffers or buffer in self.old.beside:
            raise used_elsewhere(buffer.name, node)
        for axis in self.stored.intersection(along):
            raise FormatError(
                f"{buffer.name} lies along {axis.name} too, which is stored anew",
                node.span,
                hint="declare it along axes of its own",
            )

    def visit_SpIter(self, it: SpIter) -> Node:
        """Return the inits and one iteration per part."""
        axes = {above for axis in axes_of(*it.domains) for above in axis.path()}
        if self.stored.isdisjoint(axes):
            return self.visit_Node(it)
        loops = self._loops(it)
        updates = updates_of(it, self.old)
        for node in (n for stmt in (it.init, *updates) if stmt is not None for n in walk(stmt)):
            if isinstance(node, (Load, Store)) and not self._is_part(node.buffer):
                self._check(node)
        new: list[Stmt] = []
        heads: list[Stmt | None] = [None] * len(self.parts)
        iterations = [PartIteration(it, loops, part, self.old) for part in self.parts]
        other_init, part_init = self._inits(it)
        if other_init is not None:
            axis, count = self._covered(loops, self.parts[0])
            starts = axis is not None or self._starts(loops, self.parts[0])
            heads[0] = other_init if starts else None
            if axis is None or count is not None:
                new.append(self._init(it, other_init, loops, axis, count))
        if part_init is not None:
            for at, iteration in enumerate(iterations):
                if other_init is not None or iteration.needs_own_init:
                    new.append(iteration.start(part_init))
                else:
                    heads[at] = part_init
        new += [
            iteration.build(updates, head)
            for iteration, head in zip(iterations, heads, strict=True)
        ]
        return seq(*new)

    def _inits(self, it: SpIter) -> tuple[Stmt | None, Stmt | None]:
        """Return the init of *it* in two: for buffers that stay, and for those split into parts."""
        stmts = it.init.body if isinstance(it.init, Seq) else (it.init,)
        groups: dict[bool, list[Stmt]] = {False: [], True: []}
        for stmt in (stmt for stmt in stmts if stmt is not None):
            written = {n.buffer for n in walk(stmt) if isinstance(n, Store)}
            ours = {buffer in self.old.beside for buffer in written}
            if len(ours) > 1 or not written.isdisjoint(self.old.buffers):
                raise wrong_shape(it, "one statement of its init writes what lies apart")
            groups[True in ours].append(stmt)
        return tuple(seq(*some) if some else None for some in groups.values())  # type: ignore[return-value]

    def _is_part(self, buffer: AnyBuffer) -> bool:
        return buffer in self.old.buffers or buffer in self.old.beside

    def visit_Alloc(self, alloc: Alloc) -> Node:
        """Allocate the parts."""
        new = self.visit_Node(alloc)
        if alloc.buffer not in self.old.beside:
            return new
        assert isinstance(new, Alloc)
        parts = (part.beside[alloc.buffer] for part in self.parts)
        return reduce(lambda body, part: Alloc(part, body, span=alloc.span), parts, new.body)

    def _loops(self, it: SpIter) -> list[Loop]:
        """Return the domains of *it*, fused axes one by one; raises FormatError."""
        loops: list[Loop] = []
        at = 0
        for domain in it.domains:
            axes = domain_axes(domain)
            width = len(axes) if isinstance(domain, Fuse) else 1
            variables, kinds = it.vars[at : at + width], it.kinds[at : at + width]
            at += width
            ours = any(axis in self.old.axes for axis in axes)
            if not ours and not any(a in self.old.axes for b in axes_of(domain) for a in b.path()):
                loops.append(Loop(domain, variables, kinds))
            elif isinstance(domain, (Axis, Fuse)) and ours:
                loops += [Loop(a, (v,), k) for a, v, k in zip(axes, variables, kinds, strict=True)]
            else:
                raise wrong_shape(it, f"{axes[0].name} is not iterated on its own")
        if {loop.domain for loop in loops if loop.domain in self.old.axes} != set(self.old.axes):
            names = ", ".join(axis.name for axis in self.old.axes)
            raise wrong_shape(it, f"it does not iterate over all of {names}")
        return loops

    def _covered(self, loops: list[Loop], part: Part) -> tuple[Axis | None, Expr | None]:
        """Return which elements the dense axes of *part* reach, each exactly once.

        These are coordinates of the only rewritten spatial axis: return the axis, and how many of
        its first coordinates, None for all. Their init can run with the part. No axis: none.
        """
        spatial = [x.domain for x in loops if x.kinds == "S" and x.domain in self.old.axes]
        if len(spatial) != 1 or not isinstance(axis := spatial[0], Axis):
            return None, None
        rule = part.rule
        index = part.backward.results[self.old.axes.index(axis)]
        params = dict(zip(rule.axes_after_rewrite, part.backward.params, strict=True))
        sources = {params[name]: part.axes[name] for name in rule.axis_map[axis.name]}
        if axis.kind != "dense_fixed" or any(a.kind != "dense_fixed" for a in sources.values()):
            return None, None
        ranges = {var: (ZERO, cast(a.length, int64)) for var, a in sources.items()}
        count: Expr = const(1)
        for _, extent in ranges.values():
            count = binary("*", count, extent)
        prover = Prover(Algebra(Env(), trusted=True), ranges)
        inside = BinOp("<=", ZERO, index), BinOp("<", index, count)
        # injective into as many coordinates as there are values: so each is reached
        onto = variables(index) <= set(ranges) and all(map(prover.holds, inside))
        if not onto or not all(injective((index,), var, ranges) for var in ranges):
            return None, None
        algebra = Algebra(Env(), trusted=True)
        length = cast(axis.length, int64)
        tail = algebra.of(count) - algebra.of(length)
        if tail.terms and not prover.holds(BinOp("<=", count, length)):
            return None, None
        return axis, (algebra.of(count).expr() if tail.terms else None)

    def _starts(self, loops: list[Loop], part: Part) -> bool:
        """Whether *part*, the first, can start the sums of its rows, though it has not all rows.

        It has each at most once: then sums begin in registers, and are not read.
        """
        spatial = [x.domain for x in loops if x.kinds == "S" and x.domain in self.old.axes]
        coordinates = dict(zip(self.old.axes, part.backward.results, strict=True))
        load = plain(coordinates[spatial[0]]) if len(spatial) == 1 else None
        return isinstance(load, Load) and load.buffer.distinct

    def _init(
        self, it: SpIter, init: Stmt, loops: list[Loop], covered: Axis | None, count: Expr | None
    ) -> SpIter:
        """Return the iteration that runs *init*, on *covered* from the coordinate *count* on."""
        needed, stored_axes = variables(init), _stored_axes(init)
        domains: list[Domain] = []
        vars_: list[Var] = []
        values: dict[Var, Expr] = {}
        for loop in loops:
            if loop.kinds != "S" or needed.isdisjoint(loop.vars):
                continue
            (var,), domain = loop.vars, loop.domain
            if not isinstance(domain, Axis):
                raise wrong_shape(it, f"its init runs over a {type(domain).__name__.lower()}")
            new = Var(var.name, var.type)
            values[var] = new
            if domain is covered and count is not None and not stored_axes:
                size = binary("-", cast(domain.length, int64), count)
                domain = self._axis(f"{domain.name}_tail", size)
                values[var] = binary("+", count, new)
            elif domain.kind != "dense_fixed" and domain not in stored_axes:
                domain = self._axis(f"{domain.name}_all", domain.length)
            domains.append(domain)
            vars_.append(new)
        body = substitute(init, values)
        kinds, name = "S" * len(vars_), f"{it.name}_init"
        return SpIter(tuple(vars_), tuple(domains), kinds, name, None, body, span=it.span)

    def _axis(self, wish: str, length: Expr) -> Axis:
        axis = Axis(self.names.unique(wish), "dense_fixed", length)
        self.axes.append(axis)
        return axis


def _stored_axes(init: Stmt) -> set[Axis]:
    """Return the sparse axes along which all buffers lie that *init* writes.

    A coordinate that is not stored there has no element to initialise.
    """
    stores = [node for node in walk(init) if isinstance(node, Store)]
    axes = [set(s.buffer.axes if isinstance(s.buffer, SparseBuffer) else ()) for s in stores]
    return {axis for axis in set[Axis]().union(*axes[:1]).intersection(*axes[1:]) if axis.is_sparse}
