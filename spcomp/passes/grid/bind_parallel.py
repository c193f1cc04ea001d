"""III to III: parallel loops run on the blocks and threads of a grid."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from spcomp.dtypes import handle
from spcomp.errors import LoweringError
from spcomp.ir.access import Search
from spcomp.ir.analysis.exprs import plus, variables
from spcomp.ir.analysis.fragments import is_fragment
from spcomp.ir.analysis.grid import BLOCKS, THREADS
from spcomp.ir.analysis.names import Names
from spcomp.ir.arith.memory import read_by
from spcomp.ir.arith.simplify import simplify
from spcomp.ir.axis import WARP, WORKSPACE, AnyBuffer, Buffer
from spcomp.ir.expr import Broadcast, Const, Expr, Var, binary, const
from spcomp.ir.module import HostAlloc, HostOp, Launch, Module
from spcomp.ir.node import Node
from spcomp.ir.program import FlatFunc
from spcomp.ir.rewrite import Redirect, Relink, Rewriter, substitute
from spcomp.ir.stmt import Alloc, For, If, Stmt, Store, seq
from spcomp.ir.visitor import statements
from spcomp.knobs import GridKnobs
from spcomp.passes.base import Pass, Stage


@dataclass(frozen=True, slots=True)
class BindParallel(Pass):
    """``for i in parallel(n): s  ->  for b in blocks: for t in threads: i = b * size + t: s``.

    Loops over vthreads are unrolled. Each thread runs one iteration. Where the host cannot tell
    how many there are, or each needs memory that no register holds, a fixed number of threads
    share them, each with its own memory, which the host allocates.
    """

    name: ClassVar[str] = "bind_parallel"
    takes: ClassVar[Stage] = Stage.FLAT
    gives: ClassVar[Stage] = Stage.FLAT
    knobs: GridKnobs = field(repr=False)

    def run(self, module: Module[Any]) -> Module[Any]:
        """Return *module* without parallel loops; the host allocates the workspaces."""
        host: dict[str, list[HostAlloc]] = {}
        taken = {p.name for func in (module.source, *module.funcs) for p in func.params}
        kernels = []
        for func in module.funcs:
            kernel = _Binder(func, self.knobs, taken)
            kernels.append(kernel.func)
            host[func.name] = kernel.allocs
        ops: list[HostOp] = []
        for op in module.host:
            ops += [*host[op.func], op] if isinstance(op, Launch) else [op]
        return Module(module.source, tuple(kernels), tuple(ops))


class _Binder(Rewriter):
    """Rewrites one kernel; *allocs* is what the host allocates for it."""

    def __init__(self, func: FlatFunc, knobs: GridKnobs, taken: set[str]) -> None:
        self.names, self.knobs, self.taken = Names(func), knobs, taken
        loops = (n for n in statements(func.body) if isinstance(n, For))
        self.threads = {loop.thread for loop in loops if loop.thread.startswith("threadIdx")}
        self.open: frozenset[str] = frozenset()  # those whose loops are around
        self.params = frozenset(func.params)
        self.worker: Expr = const(0)  # the number of this thread among those that share memory
        self.workers: Expr = const(1)
        self.mates: list[tuple[Expr, Expr]] = []  # for each index of threads, its loop's and size
        self.allocs: list[HostAlloc] = []
        self.buffers: list[Buffer] = []
        self.inside = False
        body = self.rewrite(func.body)
        handles = tuple(b.data for b in self.buffers if b.data is not None)
        params, buffers = (*func.params, *handles), (*func.buffers, *self.buffers)
        self.func = func.replace(params=params, buffers=buffers, body=body)

    def visit_For(self, loop: For) -> Node:
        if loop.kind == "bound":
            return self._bound(loop)
        if loop.kind != "parallel":
            return self.visit_Node(loop)
        if self.inside:
            return self.visit_Node(loop.replace(kind="serial"))
        return self._grid(loop)

    def _bound(self, loop: For) -> Node:
        """Return *loop*; each of its iterations is another thread, or another block of threads."""
        if loop.thread.startswith("vthread"):
            return self.rewrite(loop.replace(kind="unroll", thread=""))
        before = self.inside, self.worker, self.workers, self.open
        self.open |= {loop.thread}
        trips = simplify(binary("max", binary("-", loop.end, loop.begin), 0))
        self.inside, self.workers = True, simplify(binary("*", self.workers, trips))
        self.worker = plus(binary("*", self.worker, trips), binary("-", loop.var, loop.begin))
        if loop.thread.startswith("threadIdx"):
            self.mates.append((binary("-", loop.var, loop.begin), trips))
        body = self.rewrite(loop.body)
        if loop.thread.startswith("threadIdx"):
            self.mates.pop()
        self.inside, self.worker, self.workers, self.open = before
        return loop if body is loop.body else loop.replace(body=body)

    def _grid(self, loop: For) -> Stmt:
        """Return *loop* on a grid: on blocks only, where loops inside are bound already."""
        inner = {n.thread for n in statements(loop.body) if isinstance(n, For) and n.thread}
        inner = {thread for thread in inner if not thread.startswith("vthread")}
        axis = next((axis for axis in BLOCKS if axis not in inner), None)
        if axis is None:
            return self.rewrite(loop.replace(kind="serial"))
        size = 1 if inner else self.knobs.block_threads
        trips = simplify(binary("max", binary("-", loop.end, loop.begin), 0))
        needed = simplify(binary("//", binary("+", trips, size - 1), size))
        known = not variables(trips) - self.params and not any(read_by(trips))
        large = any(self._is_large(n) for n in statements(loop.body))
        shared = large or not known or axis != BLOCKS[0]  # along others there are few blocks
        blocks: Expr = needed
        if shared:
            most = self.knobs.sharing_blocks
            blocks = simplify(binary("min", needed, most)) if known else const(most)
        block = self.names.var(f"{loop.var.name}_b")
        thread = self.names.var(f"{loop.var.name}_t")
        number = block if inner else plus(binary("*", block, size), thread)
        before = self.worker, self.workers
        workers = simplify(binary("*", blocks, size))
        self.worker, self.workers, self.inside = number, workers, True
        self.mates = [] if inner else [(thread, const(size))]
        body = self.rewrite(loop.body)
        self.mates, self.inside, (self.worker, self.workers) = [], False, before
        if shared:
            turn = self.names.var(f"{loop.var.name}_n")
            index = plus(plus(loop.begin, number), binary("*", turn, workers))
            last = binary("-", plus(trips, workers), plus(number, 1))
            turns = binary("//", binary("max", last, 0), binary("max", workers, 1))
            body = For(turn, const(0), turns, substitute(body, {loop.var: index}), span=loop.span)
        else:
            index = plus(loop.begin, number)
            inside = binary("<", number, trips)
            body = If(inside, substitute(body, {loop.var: index}), span=loop.span)
        if not inner:
            body = For(thread, const(0), const(size), body, "bound", THREADS[0], span=loop.span)
        return For(block, const(0), blocks, body, "bound", axis, span=loop.span)

    def _is_large(self, node: Node) -> bool:
        """Whether *node* allocates memory that a thread cannot have by itself."""
        if not isinstance(node, Alloc) or not isinstance(node.buffer, Buffer):
            return False
        size = simplify(node.buffer.shape[0])
        most = self.knobs.thread_bytes // node.buffer.dtype.itemsize
        return not isinstance(size, Const) or size.value > most

    def visit_Alloc(self, alloc: Alloc) -> Node:
        """Take memory from what the host allocates, where a thread cannot have it by itself."""
        buffer = alloc.buffer
        assert isinstance(buffer, Buffer)
        if is_fragment(buffer) or buffer.scope == WARP:
            return self.visit_Node(alloc)
        if buffer.scope == "shared":
            if not isinstance(simplify(buffer.shape[0]), Const):
                raise LoweringError(
                    f"{buffer.name}, which threads share, has no constant size",
                    alloc.span,
                    hint="copy a part of constant size, or set_scope to global",
                )
            return self._apart(alloc.replace(body=self.rewrite(alloc.body)))
        if not self._is_large(alloc):
            between = self.threads - self.open and buffer.scope != "local"
            return self._zeroed(alloc, "shared" if between else "local")
        size = buffer.shape[0]
        if variables(size) - self.params:
            raise LoweringError(
                f"{buffer.name} has another size in each iteration",
                alloc.span,
                hint="give it the largest size, which the host can allocate for each thread",
            )
        name = self.names.unique(buffer.name)
        while name in self.taken:
            name = self.names.unique(f"{name}_all")
        self.taken.add(name)
        fill = 0 if buffer.scope == WORKSPACE else None
        shape = (simplify(binary("*", self.workers, size)),)
        new = Buffer(name, Var(name, handle), shape, buffer.dtype)
        self.allocs.append(HostAlloc(new, fill))
        self.buffers.append(new)
        body = self.rewrite(alloc.body)
        return _Move(buffer, new, binary("*", self.worker, size)).rewrite(body)

    def _zeroed(self, alloc: Alloc, scope: str) -> Stmt:
        """Return *alloc* in the memory *scope*; if it is a workspace, with zeros stored first."""
        buffer, body = alloc.buffer, self.rewrite(alloc.body)
        if buffer.scope == WORKSPACE and isinstance(buffer, Buffer):
            index = self.names.var("zero")
            zero = Store(buffer, (index,), const(0, buffer.dtype), span=alloc.span)
            body = seq(For(index, const(0), buffer.shape[0], zero, span=alloc.span), body)
        placed = buffer.replace(scope=scope)
        body = Relink({}, {}, {buffer: placed}).rewrite(body)
        result = alloc.replace(buffer=placed, body=body)
        return self._apart(result) if scope == "shared" else result

    def _apart(self, alloc: Alloc) -> Alloc:
        """Return *alloc*, in shared memory, with a part for each of the threads around it."""
        buffer = alloc.buffer
        assert isinstance(buffer, Buffer)
        thread: Expr = const(0)
        parts: Expr = const(1)
        for index, size in self.mates:
            thread, parts = plus(binary("*", thread, size), index), binary("*", parts, size)
        parts = simplify(parts)
        if isinstance(parts, Const) and parts.value == 1:
            return alloc
        size = simplify(buffer.shape[0])
        new = buffer.replace(shape=(simplify(binary("*", parts, size)),))
        moved = _Move(buffer, new, simplify(binary("*", thread, size))).rewrite(alloc.body)
        return alloc.replace(buffer=new, body=moved)


class _Move(Redirect):
    """Moves the accesses to *old* into the part of *new* that begins at *offset*."""

    def __init__(self, old: AnyBuffer, new: Buffer, offset: Expr) -> None:
        super().__init__(old, new, lambda at: tuple(i and _shift(i, offset) for i in at))
        self.offset = offset

    def visit_Search(self, node: Search) -> Node:
        changed = self.visit_Node(node)
        assert isinstance(changed, Search)
        if changed.buffer is not self.buffer:
            return changed
        begin, end = (_shift(bound, self.offset) for bound in (changed.begin, changed.end))
        inside = changed.replace(buffer=self.target, begin=begin, end=end)
        return binary("-", inside, self.offset)


def _shift(index: Expr, offset: Expr) -> Expr:
    """Return ``index + offset``, of which *offset* is a scalar and *index* may be a vector."""
    lanes = index.dtype.lanes
    return plus(index, Broadcast(offset, lanes) if lanes > 1 else offset)
