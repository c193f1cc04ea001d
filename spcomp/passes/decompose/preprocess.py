"""I to I, beside format decomposition: copies into parts, and programs with or without them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any, TypeVar

from spcomp.dtypes import handle, int64
from spcomp.errors import ArgumentError, expect
from spcomp.ir.access import Load, Search
from spcomp.ir.analysis.names import Names
from spcomp.ir.analysis.regions import annotate_regions
from spcomp.ir.arith.indexmap import IndexMap
from spcomp.ir.arith.simplify import simplify
from spcomp.ir.axis import (
    AnyBuffer,
    Attach,
    Axis,
    BufferDomain,
    Domain,
    Intersect,
    SparseBuffer,
    Union,
    domain_axes,
)
from spcomp.ir.coordinate import SpIter
from spcomp.ir.expr import BinOp, Expr, Var, binary, cast, const
from spcomp.ir.func import Func
from spcomp.ir.node import Node
from spcomp.ir.position import Block, Cursor
from spcomp.ir.program import PosFunc
from spcomp.ir.rewrite import Rewriter, relink
from spcomp.ir.stmt import Alloc, Attrs, If, Let, Prefetch, Seq, Stmt, Store, is_empty, seq
from spcomp.ir.visitor import below, walk
from spcomp.passes.decompose.decompose_parts import Part, RewriteTarget

Fn = TypeVar("Fn", bound=Func)
PREPROCESS = ("preprocess", True)


def copies(part: Part, old: RewriteTarget) -> tuple[SpIter, ...]:
    """Return the iterations that fill the buffers of *part*: ``A_rule[s, p] = A[inverse(s, p)]``.

    Each runs over the axes of its buffer, is named ``rewrite_A_rule`` and has the attribute
    ``preprocess``. An element of a part that the matrix does not store gets the fill value.
    """
    pairs = [(buffer, part.buffers[name]) for buffer, name in old.buffers.items()]
    pairs += [pair for pair in part.beside.items() if pair[0].data is not None]
    iterations = []
    for buffer, new in pairs:
        place, source = _places(part, old, buffer, new)
        body = Store(new, tuple(place.values()), Load(buffer, source))
        iterations.append(_iteration(place, f"rewrite_{new.name}", body, (PREPROCESS,)))
    return tuple(iterations)


def copies_back(
    part: Part, old: RewriteTarget, outputs: Collection[AnyBuffer]
) -> tuple[SpIter, ...]:
    """Return the iterations ``restore_C_rule``: ``C[inverse(s, p)] = C_rule[s, p]``, no padding.

    One for each buffer beside those of *old* that is in *outputs* and has a handle.
    """
    iterations = []
    for buffer, new in part.beside.items():
        if buffer not in outputs or buffer.data is None:
            continue
        place, target = _places(part, old, buffer, new)
        body: Stmt = Store(buffer, target, Load(new, tuple(place.values())))
        if part.rule.padded:
            (pattern,) = part.buffers.values()
            stored = Load(pattern, tuple(place[axis] for axis in pattern.axes))
            body = If(BinOp("!=", stored, const(0, pattern.dtype)), body)
        iterations.append(_iteration(place, f"restore_{new.name}", body, ()))
    return tuple(iterations)


def _places(
    part: Part, old: RewriteTarget, buffer: SparseBuffer, new: SparseBuffer
) -> tuple[dict[Axis, Var], tuple[Expr, ...]]:
    """Return a variable for each axis of the part *new*, and the indices of *buffer* there."""
    place = {axis: Var(axis.name.lower(), int64) for axis in new.axes}
    after = [place[part.axes[name]] for name in part.rule.axes_after_rewrite]
    before = dict(zip(old.axes, part.backward.apply(after), strict=True))
    return place, tuple(before.get(axis) or place[axis] for axis in buffer.axes)


def _iteration(place: dict[Axis, Var], name: str, body: Stmt, attrs: Attrs) -> SpIter:
    return SpIter(tuple(place.values()), tuple(place), "S" * len(place), name, None, body, attrs)


def remove_preprocess(func: Fn) -> Fn:
    """Return *func* without its preprocessing; the buffers that it filled are inputs then.

    Preprocessing consists of the outermost statements in which every iteration or block has the
    attribute ``preprocess``. All parameters stay; a buffer that it fills and *func* allocates
    becomes a new last parameter, named after the buffer with the suffix ``_ptr``.
    """
    expect("func", func, Func, "a function of the script language")
    return _select(func, lambda stmt: not _is_preprocess(stmt))


def extract_preprocess(func: Fn, *, keep_args: bool = False) -> Fn:
    """Return only the preprocessing of *func*, with the parameters that it uses.

    The index arrays are inputs; the arrays of values are written. A buffer that *func* allocates
    and its other statements use becomes a parameter as in remove_preprocess, so that one function
    takes what the other writes. *keep_args*: keep all parameters of *func*. Raises ArgumentError
    if there is no preprocessing.
    """
    expect("func", func, Func, "a function of the script language")
    if not any(_is_preprocess(stmt) for stmt in _outermost(func.body)):
        raise ArgumentError(
            f"{func.name} has no preprocessing",
            hint="format_decompose(func, rules) makes iterations that are",
        )
    extracted = _select(func, _is_preprocess).replace(name=f"{func.name}_preprocess")
    return extracted if keep_args else remove_unused_args(extracted)


def _select(func: Fn, is_wanted: Callable[[Stmt], bool]) -> Fn:
    """Return *func* with only the outermost statements that *is_wanted* accepts.

    A buffer that *func* allocates, preprocessing fills and the rest reads becomes a parameter.
    """
    steps: dict[bool, list[Stmt]] = {True: [], False: []}
    for stmt in _outermost(func.body):
        steps[_is_preprocess(stmt)].append(stmt)
    exchanged = set.intersection(*(buffers_in(*part) for part in steps.values()))
    body = _filter(func.body, is_wanted, exchanged)
    names = Names(func)
    parameters: dict[AnyBuffer, AnyBuffer] = {}
    for node in walk(func.body):
        if isinstance(node, Alloc) and node.buffer in exchanged:
            data = names.var(f"{node.buffer.name}_ptr", handle)
            parameters[node.buffer] = node.buffer.replace(data=data)
    program = relink(func.replace(body=body), buffers=parameters)
    if parameters and isinstance(func, PosFunc):
        program = program.replace(body=annotate_regions(program.body))
    handles = tuple(b.data for b in parameters.values() if b.data is not None)
    rows = {
        parameters[buffer]: most
        for buffer, most in _searched_rows(seq(*steps[True])).items()
        if buffer in parameters and not any(is_wanted(stmt) for stmt in steps[True])
    }
    domains = tuple(BufferDomain(buffer, const(0), most) for buffer, most in rows.items())
    return program.replace(
        params=(*program.params, *handles),
        buffers=(*program.buffers, *parameters.values()),
        domains=(*program.domains, *domains),
    )


def _searched_rows(stmt: Stmt) -> dict[AnyBuffer, Expr]:
    """Return the last row of each buffer that *stmt* fills with the rows of positions.

    Such a row is what a search in the pointers below a root returns.
    """
    rows: dict[AnyBuffer, Expr] = {}
    for store in (n for n in walk(stmt) if isinstance(n, Store)):
        for search in walk(store.value):
            pointers = search.buffer if isinstance(search, Search) else None
            if isinstance(pointers, SparseBuffer) and len(pointers.axes) == 1:
                rows[store.buffer] = simplify(binary("-", pointers.axes[0].length, 1))
    return rows


def _outermost(stmt: Stmt) -> Iterator[Stmt]:
    """Yield the statements that run one after the other."""
    if isinstance(stmt, Seq):
        for part in stmt.body:
            yield from _outermost(part)
    elif isinstance(stmt, (Alloc, Let)):
        yield from _outermost(stmt.body)
    else:
        yield stmt


def _filter(stmt: Stmt, is_wanted: Callable[[Stmt], bool], outer: set[AnyBuffer]) -> Stmt:
    """Return the outermost statements of *stmt* that *is_wanted* accepts; *outer* are buffers."""
    if isinstance(stmt, Seq):
        return seq(*(_filter(part, is_wanted, outer) for part in stmt.body))
    if isinstance(stmt, (Alloc, Let)):
        body = _filter(stmt.body, is_wanted, outer)
        if isinstance(stmt, Alloc) and stmt.buffer not in buffers_in(body) - outer:
            return body
        return body if is_empty(body) else stmt.replace(body=body)
    return stmt if is_wanted(stmt) else Seq(())


def _is_preprocess(stmt: Stmt) -> bool:
    flags = list(_preprocess_flags(stmt))
    return bool(flags) and all(flags)


def _preprocess_flags(node: Node) -> Iterator[bool]:
    """Yield for each outermost iteration or block of *node* whether it is preprocessing."""
    if isinstance(node, (SpIter, Block)):
        yield bool(dict(node.attrs).get("preprocess"))
        return
    for item in below(node):
        yield from _preprocess_flags(item)


def remove_unused_args(func: Fn) -> Fn:
    """Return *func* without the buffers, axes and parameters that nothing in its body needs."""
    expect("func", func, Func, "a function of the script language")
    used_buffers = buffers_used(func)
    func = func.replace(
        buffers=tuple(b for b in func.buffers if b in used_buffers),
        domains=tuple(d for d in func.domains if d.buffer in used_buffers),
    )
    along = axes_used(func)
    func = func.replace(axes=tuple(a for a in func.axes if a in along))
    used_params = params_used(func)
    return func.replace(params=tuple(p for p in func.params if p in used_params))


def buffers_used(func: Func) -> set[AnyBuffer]:
    """Return the buffers that the body of *func* reads or writes."""
    return buffers_in(func.body)


def buffers_in(*stmts: Stmt) -> set[AnyBuffer]:
    """Return the buffers that *stmts* read or write."""
    buffers: set[AnyBuffer] = set()
    for node in (n for stmt in stmts for n in walk(stmt)):
        if isinstance(node, (Load, Store, Search, Prefetch)):
            buffers.add(node.buffer)
        elif isinstance(node, Cursor) and node.indices is not None:
            buffers.add(node.indices)
    return buffers


def axes_used(func: Func) -> set[Axis]:
    """Return the axes of buffers and iterations, and the axes above them."""
    axes = [a for b in func.buffers if isinstance(b, SparseBuffer) for a in b.axes]
    axes += [a for n in walk(func.body) if isinstance(n, SpIter) for a in axes_of(*n.domains)]
    return {above for axis in axes for above in axis.path()}


def axes_of(*domains: Domain) -> list[Axis]:
    """Return the axes that *domains* mention."""
    axes = [axis for domain in domains for axis in domain_axes(domain)]
    parts = [
        part for d in domains for part in (d.parts if isinstance(d, Union | Intersect) else (d,))
    ]
    return axes + [part.to for part in parts if isinstance(part, Attach)]


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
    """Return *func* with every read of the buffer *name* replaced by ``idx_map(indices)``.

    The buffer is no longer declared; its handle stays a parameter if an axis uses it.

    Args:
        func: A program at any level.
        name: A buffer that is only read, at indices: not searched, and not written.
        idx_map: An IndexMap or a function, from as many indices as the buffer has to one value.
            Cast to the buffer's dtype, it must equal the element at all indices that are read.

    Raises:
        ArgumentError: The buffer is not declared, or used in another way.
    """
    expect("func", func, Func, "a function of the script language")
    buffer = next((b for b in func.buffers if b.name == name), None)
    if buffer is None:
        names = ", ".join(b.name for b in func.buffers)
        raise ArgumentError(f"{func.name} has no buffer {name!r}", hint=f"it has {names}")
    index_map = idx_map if isinstance(idx_map, IndexMap) else IndexMap.from_func(idx_map)
    if len(index_map.results) != 1:
        raise ArgumentError(f"idx_map gives {len(index_map.results)} values, expected 1")
    body = _ReplaceLoads(buffer, index_map).rewrite(func.body)
    return func.replace(
        body=body,
        buffers=tuple(b for b in func.buffers if b is not buffer),
        domains=tuple(d for d in func.domains if d.buffer is not buffer),
    )


class _ReplaceLoads(Rewriter):
    """Replaces reads of a buffer by a value computed from the indices."""

    def __init__(self, buffer: AnyBuffer, idx_map: IndexMap) -> None:
        self.buffer, self.idx_map = buffer, idx_map

    def visit_Load(self, load: Load) -> Node:
        new = self.visit_Node(load)
        assert isinstance(new, Load)
        if load.buffer is not self.buffer:
            return new
        places = [cast(index, int64) for index in new.indices if index is not None]
        if len(places) < len(new.indices) or len(places) != len(self.idx_map.params):
            raise self._error(load, f"is read at {len(places)} indices")
        (value,) = self.idx_map.apply(tuple[Expr, ...](places))
        return cast(value, load.buffer.dtype)

    def visit_Store(self, store: Store) -> Node:
        if store.buffer is self.buffer:
            raise self._error(store, "is written")
        return self.visit_Node(store)

    def visit_Search(self, search: Search) -> Node:
        if search.buffer is self.buffer:
            raise self._error(search, "is searched")
        return self.visit_Node(search)

    def visit_Cursor(self, cursor: Cursor) -> Node:
        if cursor.indices is self.buffer:
            raise self._error(cursor, "is merged")
        return self.visit_Node(cursor)

    def visit_Prefetch(self, prefetch: Prefetch) -> Node:
        return Seq(()) if prefetch.buffer is self.buffer else self.visit_Node(prefetch)

    def visit_Block(self, block: Block) -> Node:
        others = tuple(region for region in block.reads if region.buffer is not self.buffer)
        same = len(others) == len(block.reads)
        return self.visit_Node(block if same else block.replace(reads=others))

    def _error(self, node: Node, use: str) -> ArgumentError:
        message = f"cannot specialize {self.buffer.name}, it {use}"
        hint = f"idx_map takes {len(self.idx_map.params)} indices, and all reads must have them"
        return ArgumentError(message, node.span, hint=hint)
