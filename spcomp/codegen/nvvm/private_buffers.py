"""Flat IR to LLVM IR for a GPU, local memory: a thread has its own elements only."""

from __future__ import annotations

from spcomp.codegen.llvm.expr import affine
from spcomp.errors import LoweringError
from spcomp.ir.access import Load
from spcomp.ir.analysis.fragments import is_fragment
from spcomp.ir.analysis.grid import THREADS
from spcomp.ir.arith.simplify import coefficient, simplify
from spcomp.ir.axis import AnyBuffer, Buffer
from spcomp.ir.expr import Const, Expr, Var, const
from spcomp.ir.node import Node
from spcomp.ir.program import FlatFunc
from spcomp.ir.rewrite import Relink, Rewriter, substitute
from spcomp.ir.stmt import Alloc, For, Stmt, Store
from spcomp.ir.visitor import below


def with_private_buffers(func: FlatFunc) -> FlatFunc:
    """Return *func* with a buffer of each thread's own for a local one with elements of all.

    ``r = alloc((32, 4), local); for t in threads: r[t, k]  ->  r = alloc(4); r[k]``. The result
    only means the same where every thread has its own memory. Raises LoweringError if a thread
    touches what another one has.
    """
    return func.replace(body=_Shrink().rewrite(func.body))


class _Shrink(Rewriter):
    def visit_Alloc(self, alloc: Alloc) -> Node:
        new = self.visit_Node(alloc)
        assert isinstance(new, Alloc)
        buffer = new.buffer
        if not isinstance(buffer, Buffer) or not (buffer.scope == "local" or is_fragment(buffer)):
            return new
        for thread in THREADS:
            stride, width = _stride(new.body, buffer, thread)
            if stride:
                new = _without(new, buffer, thread, stride, width)
                assert isinstance(new.buffer, Buffer)
                buffer = new.buffer
        return new


def _stride(body: Stmt, buffer: AnyBuffer, thread: str) -> tuple[int, int]:
    """Return how far elements of neighbouring threads are from each other, and how many there are.

    The distance is 0 if all threads touch the same elements.
    """
    strides: set[int] = set()
    width = 0
    for access, loop in _accesses(body, buffer, thread, None):
        index = _first(access)
        step = 0 if loop is None else coefficient(index, loop.var)
        if step is None:
            raise _foreign(access, buffer)
        strides.add(step)
        if loop is not None and isinstance(loop.end, Const):
            width = max(width, int(loop.end.value))
    if len(strides) > 1:
        raise _foreign(next(a for a, _ in _accesses(body, buffer, thread, None)), buffer)
    return (strides.pop() if strides else 0), width


def _first(access: Load | Store) -> Expr:
    """Return where *access* begins."""
    index = access.indices[0]
    assert index is not None
    plain = affine(index) if index.dtype.lanes > 1 else None
    return index if plain is None else plain[0]


def _foreign(access: Node, buffer: AnyBuffer) -> LoweringError:
    return LoweringError(
        f"a thread touches elements of {buffer.name} that belong to others",
        access.span,
        hint="local memory is a thread's own: set_scope to shared",
    )


def _accesses(
    node: Node, buffer: AnyBuffer, thread: str, loop: For | None
) -> list[tuple[Load | Store, For | None]]:
    """Return the accesses to *buffer* in *node*, each with the loop over *thread* around it."""
    if isinstance(node, For) and node.thread == thread:
        loop = node
    result = [(node, loop)] if isinstance(node, Load | Store) and node.buffer is buffer else []
    for item in below(node):
        result += _accesses(item, buffer, thread, loop)
    return result


def _without(alloc: Alloc, buffer: Buffer, thread: str, stride: int, width: int) -> Alloc:
    """Return *alloc* with the elements of one thread of *thread* only."""
    size = buffer.shape[0]
    outermost = isinstance(size, Const) and size.value == stride * width
    small = Buffer(
        buffer.name,
        None,
        (const(stride),) if outermost else buffer.shape,
        buffer.dtype,
        buffer.scope,
    )
    body = _Rebase(buffer, thread).rewrite(alloc.body)
    body = Relink({}, {}, {buffer: small}).rewrite(body)
    return alloc.replace(buffer=small, body=body)


class _Rebase(Rewriter):
    """Takes the index of the thread out of the places in *buffer*."""

    def __init__(self, buffer: AnyBuffer, thread: str) -> None:
        self.buffer, self.thread = buffer, thread
        self.values: dict[Var, Expr] = {}

    def visit_For(self, loop: For) -> Node:
        if loop.thread == self.thread:
            self.values[loop.var] = const(0)
        return self.visit_Node(loop)

    def visit_Load(self, node: Load) -> Node:
        new = self.visit_Node(node)
        assert isinstance(new, Load | Store)
        if new.buffer is not self.buffer:
            return new
        index = new.indices[0]
        assert index is not None
        return new.replace(indices=(simplify(substitute(index, self.values)),))

    visit_Store = visit_Load
