"""III to III: a function with several nests becomes several kernels, which the host launches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from spcomp.dtypes import handle
from spcomp.ir.access import Load, Search
from spcomp.ir.analysis.exprs import from_zero, plus, variables
from spcomp.ir.analysis.grid import trips
from spcomp.ir.arith.memory import reads_of, writes_of
from spcomp.ir.axis import WORKSPACE, AnyBuffer, Buffer
from spcomp.ir.expr import Expr, UnOp, Var, const
from spcomp.ir.module import HostAlloc, HostOp, Launch, Module
from spcomp.ir.node import Node
from spcomp.ir.program import FlatFunc
from spcomp.ir.rewrite import Rewriter, relink, substitute
from spcomp.ir.stmt import Alloc, For, If, Let, Prefetch, Seq, Stmt, Store, is_empty, seq
from spcomp.ir.visitor import statements, walk
from spcomp.passes.base import Pass, Stage

Wrap = Callable[[Stmt], Stmt]


@dataclass(frozen=True, slots=True)
class SplitKernels(Pass):
    """``f: nest; nest  ->  f_0: nest; f_1: nest; launch f_0; launch f_1``.

    Blocks of threads only wait for each other where a kernel ends, so each nest whose loops run on
    blocks or in parallel is a kernel; nests on the threads of one block that share a local buffer
    are one. What is between them is done by kernels of one thread. Buffers that several kernels use
    are allocated by the host.
    """

    name: ClassVar[str] = "split_kernels"
    takes: ClassVar[Stage] = Stage.FLAT
    gives: ClassVar[Stage] = Stage.FLAT

    def run(self, module: Module[Any]) -> Module[Any]:
        """Return *module* with kernels for functions."""
        taken = {func.name for func in module.funcs} | {p.name for p in module.source.params}
        taken |= {op.buffer.name for op in module.host if isinstance(op, HostAlloc)}
        parts = {func.name: _Parts(func, taken) for func in module.funcs}
        host: list[HostOp] = []
        for op in module.host:
            host += parts[op.func].ops if isinstance(op, Launch) else [op]
        kernels = [kernel for part in parts.values() for kernel in part.kernels]
        return Module(module.source, tuple(kernels), tuple(host))


class _Parts:
    """The kernels of one function, and the operations of the host that run them in order."""

    def __init__(self, func: FlatFunc, taken: set[str]) -> None:
        self.func, self.taken = func, taken
        self.written = writes_of(func.body)
        self.hoisted: dict[Buffer, Buffer] = {}  # allocated by the host instead
        self.bodies: list[Stmt] = []
        self.allocs: list[HostAlloc] = []
        self.cut(func.body, ())
        self.kernels = [self._kernel(body, k) for k, body in enumerate(self.bodies)]
        launches = [Launch(kernel.name) for kernel in self.kernels]
        self.ops: list[HostOp] = [*self.allocs, *launches]

    def cut(self, stmt: Stmt, around: tuple[Wrap, ...]) -> None:
        """Add kernels for *stmt*, each inside what the wraps *around* put around it."""
        if not _has_grid(stmt) or isinstance(stmt, For) or _is_one_block(stmt):
            self._add(stmt, around)
        elif isinstance(stmt, Seq):
            for part in _grouped(stmt):
                self.cut(part, around)
        elif isinstance(stmt, Let) and self._is_stable(stmt.value):
            self.cut(stmt.body, (*around, _let(stmt)))
        elif isinstance(stmt, If) and self._is_stable(stmt.cond):
            self.cut(stmt.then, (*around, _if(stmt.cond)))
            if stmt.otherwise is not None:
                self.cut(stmt.otherwise, (*around, _if(UnOp("not", stmt.cond))))
        elif isinstance(stmt, Alloc) and self._hoist(stmt):
            self.cut(stmt.body, around)
        else:
            self._add(stmt, around)

    def _add(self, stmt: Stmt, around: tuple[Wrap, ...]) -> None:
        if is_empty(stmt):
            return
        for wrap in reversed(around):
            stmt = wrap(stmt)
        self.bodies.append(stmt)

    def _is_stable(self, value: Expr) -> bool:
        """Whether *value* is the same in all kernels."""
        return self.written.isdisjoint(reads_of(value))

    def _hoist(self, alloc: Alloc) -> bool:
        """Let the host allocate the buffer of *alloc* if it can tell its size."""
        buffer = alloc.buffer
        assert isinstance(buffer, Buffer)
        if variables(buffer.shape[0]) - {*self.func.params}:
            return False
        name, count = buffer.name, 0
        while name in self.taken:
            name, count = f"{buffer.name}_{count}", count + 1
        self.taken.add(name)
        fill = 0 if buffer.scope == WORKSPACE else None
        new = Buffer(name, Var(name, handle), buffer.shape, buffer.dtype)
        self.allocs.append(HostAlloc(new, fill))
        self.hoisted[buffer] = new
        return True

    def _kernel(self, body: Stmt, number: int) -> FlatFunc:
        """Return the kernel with the *body*, which takes what that uses."""
        func = self.func
        name = func.name if len(self.bodies) == 1 else f"{func.name}_{number}"
        while len(self.bodies) > 1 and name in self.taken:
            name = f"{name}_"
        self.taken.add(name)
        available = (*func.buffers, *self.hoisted.values())
        handles = tuple(b.data for b in self.hoisted.values() if b.data is not None)
        kernel = func.replace(
            name=name, params=(*func.params, *handles), buffers=available, body=body
        )
        kernel = relink(kernel, buffers=dict(self.hoisted.items()))
        kernel = kernel.replace(body=_FromZero().rewrite(kernel.body))
        buffers = tuple(_used(kernel))
        data = {buffer.data for buffer in buffers}
        params = tuple(p for p in kernel.params if p.dtype != handle or p in data)
        domains = tuple(d for d in kernel.domains if d.buffer in buffers)
        return kernel.replace(params=params, buffers=buffers, domains=domains)


class _FromZero(Rewriter):
    """Lets loops over blocks and threads begin at 0."""

    def visit_For(self, loop: For) -> Node:
        if loop.kind == "bound" and not from_zero(loop):
            place = plus(loop.begin, loop.var)
            body = substitute(loop.body, {loop.var: place})
            loop = loop.replace(begin=const(0), end=trips(loop), body=body)
        return self.visit_Node(loop)


def _used(func: FlatFunc) -> Iterator[AnyBuffer]:
    """Yield the buffers of *func* that its body uses, also in their sizes."""
    accesses = (Load, Search, Store, Prefetch)
    used = {n.buffer for n in walk(func.body) if isinstance(n, accesses)}
    pending = list(used)
    while pending:
        sizes = getattr(pending.pop(), "shape", ())
        more = {n.buffer for size in sizes for n in walk(size) if isinstance(n, Load)} - used
        used |= more
        pending += more
    return (buffer for buffer in func.buffers if buffer in used)


def _grouped(stmts: Seq) -> Iterator[Stmt]:
    """Yield the statements of *stmts*; those without a grid that follow each other as one."""
    alone: list[Stmt] = []
    for stmt in stmts.body:
        if _has_grid(stmt):
            if alone:
                yield seq(*alone)
            alone = []
            yield stmt
        else:
            alone.append(stmt)
    if alone:
        yield seq(*alone)


def _has_grid(stmt: Stmt) -> bool:
    """Whether a loop in *stmt* runs on blocks or threads, or in parallel."""
    loops = (node for node in statements(stmt) if isinstance(node, For))
    return any(loop.kind in ("bound", "parallel") for loop in loops)


def _is_one_block(stmt: Stmt) -> bool:
    """Whether *stmt* runs on the threads of one block, which can wait for each other."""
    match stmt:
        case Seq(body=body):
            return all(map(_is_one_block, body))
        case Let(body=inner):
            return _is_one_block(inner)
        case Alloc(buffer=Buffer(scope="local" | "shared"), body=inner):
            return _is_one_block(inner)
        case For():
            loops = [node for node in statements(stmt) if isinstance(node, For)]
            on_threads = stmt.thread.startswith("threadIdx")
            return on_threads and not any(map(_needs_blocks, loops))
    return False


def _needs_blocks(loop: For) -> bool:
    return loop.kind == "parallel" or loop.thread.startswith("blockIdx")


def _let(stmt: Let) -> Wrap:
    return lambda body: Let(stmt.var, stmt.value, body, span=stmt.span)


def _if(cond: Expr) -> Wrap:
    return lambda body: If(cond, body, span=cond.span)
