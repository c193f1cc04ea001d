"""I to I, around format decomposition: copies into parts, functions with and without them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any, TypeVar

from spcomp.dtypes import handle, int64
from spcomp.errors import ArgumentError, expect
from spcomp.ir.access import Load, Search
from spcomp.ir.analysis.names import Names
from spcomp.ir.analysis.regions import annotate_regions
from spcomp.ir.arith.indexmap import IndexMap
from spcomp.ir.axis import AnyBuffer, Attach, Axis, Domain, SparseBuffer, domain_axes
from spcomp.ir.coordinate import SpIter
from spcomp.ir.expr import BinOp, Expr, Var, cast, const
from spcomp.ir.func import Func
from spcomp.ir.node import Node
from spcomp.ir.position import Block, Cursor
from spcomp.ir.program import PosFunc
from spcomp.ir.rewrite import Rewriter, relink
from spcomp.ir.stmt import Alloc, Attrs, If, Let, Prefetch, Seq, Stmt, Store, is_empty, seq
from spcomp.ir.visitor import walk
from spcomp.passes.decompose.decompose_parts import Part, Rewritten

Fn = TypeVar("Fn", bound=Func)
PREPROCESS = ("preprocess", True)


def copies(part: Part, old: Rewritten) -> tuple[SpIter, ...]:
    """Return the iterations that fill the buffers of *part*: ``A_rule[s, p] = A[inverse(s, p)]``.

    Each runs over the axes of its buffer, is called ``rewrite_A_rule`` and has the attribute
    ``preprocess``. What a part stores and the matrix does not reads as the fill value.
    """
    pairs = [(buffer, part.buffers[name]) for buffer, name in old.buffers.items()]
    pairs += [pair for pair in part.beside.items() if pair[0].data is not None]
    made = []
    for buffer, new in pairs:
        own, there = _places(part, old, buffer, new)
        body = Store(new, tuple(own.values()), Load(buffer, there))
        made.append(_over(own, f"rewrite_{new.name}", body, (PREPROCESS,)))
    return tuple(made)


def copies_back(part: Part, old: Rewritten, written: Collection[AnyBuffer]) -> tuple[SpIter, ...]:
    """Return the iterations ``restore_C_rule``: ``C[inverse(s, p)] = C_rule[s, p]``, no padding.

    One for each buffer of *part* beside those of *old* that is *written* and has a handle.
    """
    made = []
    for buffer, new in part.beside.items():
        if buffer not in written or buffer.data is None:
            continue
        own, there = _places(part, old, buffer, new)
        body: Stmt = Store(buffer, there, Load(new, tuple(own.values())))
        if part.rule.padded:
            (mine,) = part.buffers.values()
            stored = Load(mine, tuple(own[axis] for axis in mine.axes))
            body = If(BinOp("!=", stored, const(0, mine.dtype)), body)
        made.append(_over(own, f"restore_{new.name}", body, ()))
    return tuple(made)


def _places(
    part: Part, old: Rewritten, buffer: SparseBuffer, new: SparseBuffer
) -> tuple[dict[Axis, Var], tuple[Expr, ...]]:
    """Return a variable for each axis of *new*, the part, and where that lies in *buffer*."""
    own = {axis: Var(axis.name.lower(), int64) for axis in new.axes}
    after = [own[part.axes[name]] for name in part.rule.axes_after_rewrite]
    before = dict(zip(old.axes, part.rule.backward.apply(after), strict=True))
    return own, tuple(before.get(axis) or own[axis] for axis in buffer.axes)


def _over(own: dict[Axis, Var], name: str, body: Stmt, attrs: Attrs) -> SpIter:
    return SpIter(tuple(own.values()), tuple(own), "S" * len(own), name, None, body, attrs)


def remove_preprocess(func: Fn) -> Fn:
    """Return *func* without its preprocessing; parameters stay, what it filled is given instead.

    Preprocessing are the outermost statements in which every iteration, or block, has the
    attribute ``preprocess``. A buffer that it fills and *func* allocates becomes a parameter, the
    last, called after the buffer with ``_ptr`` behind.
    """
    expect("func", func, Func, "a function of the script language")
    return _opened(func, lambda stmt: not _is_preprocess(stmt))


def extract_preprocess(func: Fn, *, keep_args: bool = False) -> Fn:
    """Return *func* with nothing but its preprocessing, and the parameters that this uses.

    The arrays that say where elements lie are inputs; those of the values are written. A buffer
    that *func* allocates for what is left out becomes a parameter as in remove_preprocess, so that
    what one function writes the other takes. *keep_args*: with all parameters of *func*. Raises
    ArgumentError where there is none.
    """
    expect("func", func, Func, "a function of the script language")
    if not any(_is_preprocess(stmt) for stmt in _outermost(func.body)):
        raise ArgumentError(
            f"{func.name} has no preprocessing",
            hint="format_decompose(func, rules) makes iterations that are",
        )
    made = _opened(func, _is_preprocess).replace(name=f"{func.name}_preprocess")
    return made if keep_args else remove_unused_args(made)


def _opened(func: Fn, wanted: Callable[[Stmt], bool]) -> Fn:
    """Return *func* with its *wanted* outermost statements.

    What preprocessing fills, *func* allocates and the rest reads is a parameter.
    """
    steps: dict[bool, list[Stmt]] = {True: [], False: []}
    for stmt in _outermost(func.body):
        steps[_is_preprocess(stmt)].append(stmt)
    shared = set.intersection(*(_touched(*part) for part in steps.values()))
    kept = _keep(func.body, wanted, shared)
    names = Names(func)
    made: dict[AnyBuffer, AnyBuffer] = {}
    for node in walk(func.body):
        if isinstance(node, Alloc) and node.buffer in shared:
            data = names.var(f"{node.buffer.name}_ptr", handle)
            made[node.buffer] = node.buffer.replace(data=data)
    given = relink(func.replace(body=kept), buffers=made)
    if made and isinstance(func, PosFunc):
        given = given.replace(body=annotate_regions(given.body))
    own = tuple(b.data for b in made.values() if b.data is not None)
    return given.replace(params=(*given.params, *own), buffers=(*given.buffers, *made.values()))


def _outermost(stmt: Stmt) -> Iterator[Stmt]:
    """Yield the statements that run one after the other."""
    if isinstance(stmt, Seq):
        for part in stmt.body:
            yield from _outermost(part)
    elif isinstance(stmt, (Alloc, Let)):
        yield from _outermost(stmt.body)
    else:
        yield stmt


def _keep(stmt: Stmt, wanted: Callable[[Stmt], bool], opened: set[AnyBuffer]) -> Stmt:
    """Return *stmt* with its *wanted* outermost statements; buffers *opened* exist around it."""
    if isinstance(stmt, Seq):
        return seq(*(_keep(part, wanted, opened) for part in stmt.body))
    if isinstance(stmt, (Alloc, Let)):
        body = _keep(stmt.body, wanted, opened)
        if isinstance(stmt, Alloc) and stmt.buffer not in _touched(body) - opened:
            return body
        return body if is_empty(body) else stmt.replace(body=body)
    return stmt if wanted(stmt) else Seq(())


def _is_preprocess(stmt: Stmt) -> bool:
    found = list(_marked(stmt))
    return bool(found) and all(found)


def _marked(node: Node) -> Iterator[bool]:
    """Yield for each outermost iteration or block of *node* whether it is preprocessing."""
    if isinstance(node, (SpIter, Block)):
        yield bool(dict(node.attrs).get("preprocess"))
        return
    for name in node.CHILDREN:
        child = getattr(node, name)
        for one in child if isinstance(child, tuple) else (child,):
            if one is not None:
                yield from _marked(one)


def remove_unused_args(func: Fn) -> Fn:
    """Return *func* without the buffers, axes and parameters that nothing in its body needs."""
    expect("func", func, Func, "a function of the script language")
    used = buffers_used(func)
    func = func.replace(
        buffers=tuple(b for b in func.buffers if b in used),
        domains=tuple(d for d in func.domains if d.buffer in used),
    )
    along = axes_used(func)
    func = func.replace(axes=tuple(a for a in func.axes if a in along))
    needed = params_used(func)
    return func.replace(params=tuple(p for p in func.params if p in needed))


def buffers_used(func: Func) -> set[AnyBuffer]:
    """Return the buffers that the body of *func* reads or writes."""
    return _touched(func.body)


def _touched(*stmts: Stmt) -> set[AnyBuffer]:
    used: set[AnyBuffer] = set()
    for node in (n for stmt in stmts for n in walk(stmt)):
        if isinstance(node, (Load, Store, Search, Prefetch)):
            used.add(node.buffer)
        elif isinstance(node, Cursor) and node.indices is not None:
            used.add(node.indices)
    return used


def axes_used(func: Func) -> set[Axis]:
    """Return the axes that buffers lie along and iterations run over, and those above."""
    own = [a for b in func.buffers if isinstance(b, SparseBuffer) for a in b.axes]
    own += [a for n in walk(func.body) if isinstance(n, SpIter) for a in axes_of(*n.domains)]
    return {above for axis in own for above in axis.path()}


def axes_of(*domains: Domain) -> list[Axis]:
    """Return the axes that *domains* mention."""
    found = [axis for domain in domains for axis in domain_axes(domain)]
    return found + [domain.to for domain in domains if isinstance(domain, Attach)]


def params_used(func: Func) -> set[Var]:
    """Return the variables that the body, buffers, axes and domains of *func* mention."""
    roots: list[Node | None] = [func.body, *(b.data for b in func.buffers)]
    for buffer in func.buffers:
        roots += getattr(buffer, "shape", ())
        roots += getattr(buffer, "strides", None) or ()
    for axis in func.axes:
        roots += [axis.length, axis.nnz, axis.nnz_cols, axis.indptr, axis.indices]
    for domain in func.domains:
        roots += [domain.low, domain.high]
    return {n for root in roots if root is not None for n in walk(root) if isinstance(n, Var)}


def specialize_buffer(func: Fn, name: str, idx_map: IndexMap | Callable[..., Any]) -> Fn:
    """Return *func* with what it reads of the buffer *name* computed instead: ``idx_map(indices)``.

    The buffer is declared no longer; its handle stays a parameter if an axis has it.

    Args:
        func: A program at any level.
        name: A buffer that is read, at indices: not searched, and not written.
        idx_map: One value from as many indices as the buffer has; an IndexMap or a function. The
            value is that of the buffer, cast to its dtype, at all indices that are read.

    Raises:
        ArgumentError: for a buffer that is not declared, or used in another way.
    """
    expect("func", func, Func, "a function of the script language")
    buffer = next((b for b in func.buffers if b.name == name), None)
    if buffer is None:
        listed = ", ".join(b.name for b in func.buffers)
        raise ArgumentError(f"{func.name} has no buffer {name!r}", hint=f"it has {listed}")
    made = idx_map if isinstance(idx_map, IndexMap) else IndexMap.from_func(idx_map)
    if len(made.results) != 1:
        raise ArgumentError(f"idx_map gives {len(made.results)} values, expected 1")
    body = _Computed(buffer, made).rewrite(func.body)
    return func.replace(
        body=body,
        buffers=tuple(b for b in func.buffers if b is not buffer),
        domains=tuple(d for d in func.domains if d.buffer is not buffer),
    )


class _Computed(Rewriter):
    """Puts a value computed from the indices where a buffer is read."""

    def __init__(self, buffer: AnyBuffer, idx_map: IndexMap) -> None:
        self.buffer, self.idx_map = buffer, idx_map

    def visit_Load(self, load: Load) -> Node:
        new = self.visit_Node(load)
        assert isinstance(new, Load)
        if load.buffer is not self.buffer:
            return new
        places = [cast(index, int64) for index in new.indices if index is not None]
        if len(places) < len(new.indices) or len(places) != len(self.idx_map.params):
            raise self._refused(load, f"is read at {len(places)} indices")
        (value,) = self.idx_map.apply(tuple[Expr, ...](places))
        return cast(value, load.buffer.dtype)

    def visit_Store(self, store: Store) -> Node:
        if store.buffer is self.buffer:
            raise self._refused(store, "is written")
        return self.visit_Node(store)

    def visit_Search(self, search: Search) -> Node:
        if search.buffer is self.buffer:
            raise self._refused(search, "is searched")
        return self.visit_Node(search)

    def visit_Cursor(self, cursor: Cursor) -> Node:
        if cursor.indices is self.buffer:
            raise self._refused(cursor, "is merged")
        return self.visit_Node(cursor)

    def visit_Prefetch(self, prefetch: Prefetch) -> Node:
        return Seq(()) if prefetch.buffer is self.buffer else self.visit_Node(prefetch)

    def visit_Block(self, block: Block) -> Node:
        others = tuple(region for region in block.reads if region.buffer is not self.buffer)
        same = len(others) == len(block.reads)
        return self.visit_Node(block if same else block.replace(reads=others))

    def _refused(self, node: Node, how: str) -> ArgumentError:
        message = f"cannot specialize {self.buffer.name}, it {how}"
        hint = f"idx_map takes {len(self.idx_map.params)} indices, and all reads must have them"
        return ArgumentError(message, node.span, hint=hint)
