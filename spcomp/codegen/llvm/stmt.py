"""Flat IR to LLVM IR, statements: control flow, stores, allocation, all but parallel loops."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass

from spcomp.codegen.abi import OUT_OF_MEMORY
from spcomp.codegen.llvm.code import STATUS, Code, Scope
from spcomp.codegen.llvm.convert import decode, encode
from spcomp.codegen.llvm.expr import Exprs
from spcomp.codegen.llvm.memory import Access, prefetch, write
from spcomp.codegen.llvm.ops import float_literal, is_literal, memory
from spcomp.dtypes import HOLE, bool_, float64, int64
from spcomp.errors import InternalError, LoweringError
from spcomp.ir import expr as ex
from spcomp.ir import stmt as st
from spcomp.ir.access import Load, Search
from spcomp.ir.analysis.exprs import trip_count
from spcomp.ir.axis import WORKSPACE, AnyBuffer, Buffer
from spcomp.ir.expr import const
from spcomp.ir.rewrite import Rewriter
from spcomp.ir.stmt import For, Prefix, prefixes
from spcomp.ir.structural import expr_equal
from spcomp.ir.visitor import Visitor, walk

SHORT = 4  # trips of an unrolled loop inside another one of which groups are written out
LARGEST = 1 << 62  # bytes that no allocation grants
NO_VECTORIZE = '!"llvm.loop.vectorize.enable", i1 false'


class Messages:
    """The messages of a function's Fail statements, numbered from 1 in order of appearance."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def code(self, text: str) -> int:
        """Return the status that stands for *text*."""
        if text not in self.texts:
            self.texts.append(text)
        return self.texts.index(text) + 1


class Stmts(Visitor[None]):
    """Writes statements into *code*; *concurrent*: other threads run the same code."""

    COVERS = (
        *(st.Seq, st.Let, st.Store, st.If, st.For, st.While, st.Alloc, st.Evaluate, st.Fail),
        *(st.Print, st.Prefetch, st.Barrier, st.Prefix),
    )

    def __init__(
        self, code: Code, scope: Scope, messages: Messages, *, concurrent: bool = False
    ) -> None:
        self.code, self.scope, self.messages = code, scope, messages
        self.concurrent = concurrent
        self.copies = 1  # of each statement, by the unrolled loops around it
        self.depth = self.height = 0  # loops around a statement, and loops nested in it so far
        self.exprs = Exprs(code, scope)
        self.turns: dict[st.Prefix, Turn] = {}  # of the loops around
        self.heap: list[str] = []  # pointers allocated by the statements around
        if code.unit.debug is not None:
            code.unit.debug.follow(self)

    def visit_Seq(self, node: st.Seq) -> None:
        """One after the other."""
        for stmt in node.body:
            self.visit(stmt)

    def visit_Let(self, node: st.Let) -> None:
        """The value is the variable."""
        self.scope[node.var] = self.exprs.convert(node.value, node.var.dtype)
        self.visit(node.body)

    def visit_Evaluate(self, node: st.Evaluate) -> None:
        """The value is dropped."""
        self.exprs.visit(node.value)

    def visit_Fail(self, node: st.Fail) -> None:
        """The status word takes the number of the message, which shows no values."""
        message = self.located(node)
        self._fail(message.replace(HOLE, "?") if node.values else message)

    def located(self, node: st.Fail) -> str:
        """Return the message of *node*, with its place if that was asked for."""
        debug = self.code.unit.debug
        return node.message if debug is None else debug.located(node.message)

    def visit_Print(self, node: st.Print) -> None:
        """Where there is an output, this is another."""
        raise LoweringError("T.print is for programs that run on a CPU", node.span)

    def _fail(self, message: str) -> None:
        self.code.fail(self.scope[STATUS], self.messages.code(message))

    def visit_Prefetch(self, node: st.Prefetch) -> None:
        """A prefetch instruction per cache line."""
        prefetch(self.code, self.exprs.access(node.buffer, node.indices[0], None))

    def visit_Barrier(self, node: st.Barrier) -> None:
        """Nothing: the threads of a block run one after the other."""

    def visit_Prefix(self, node: st.Prefix) -> None:
        """Wait for this iteration's turn, pass the sum on to the next, and go on."""
        prefix_sum(self, node)

    def visit_If(self, node: st.If) -> None:
        """A branch."""
        code, cond = self.code, self.decide(node)
        then, otherwise, join = (code.label(hint) for hint in ("then", "else", "join"))
        code.branch(cond, then, join if node.otherwise is None else otherwise)
        for label, body in ((then, node.then), (otherwise, node.otherwise)):
            if body is not None:
                code.start(label)
                self.visit(body)
                code.jump(join)
        code.start(join)

    def decide(self, node: st.If) -> str:
        """Return the i1 that says whether *node* does what its first branch says."""
        return self.exprs.convert(node.cond, bool_)

    def visit_While(self, node: st.While) -> None:
        """A loop that tests before each trip."""
        code = self.code
        head, body, exit_ = (code.label(hint) for hint in ("while", "do", "done"))
        code.jump(head)
        code.start(head)
        code.branch(self.exprs.convert(node.cond, bool_), body, exit_)
        code.start(body)
        inner = self.write_body(node.body)
        if inner or not self.depth:
            self.spend("0", "1")
            self.pause()
        code.jump(head)
        code.start(exit_)
        if not inner and self.depth:
            self.spend("0", "64")  # to count trips would take as long as some of them

    def visit_For(self, node: st.For) -> None:
        """A loop; an unrolled one of few constant trips is written out.

        LLVM is not asked to unroll: it prints a warning for each loop that it does not unroll.
        """
        if node.kind == "bound":
            raise LoweringError(
                f"loop {node.var.name} is bound to {node.thread}, which this target lacks",
                node.span,
                hint="bind threads only for cuda targets",
            )
        open_turns(self, node)
        if node.kind == "parallel" and not self.concurrent:
            self.parallel_for(node)
            return
        begin, end = (self.exprs.convert(bound, int64) for bound in (node.begin, node.end))
        constant = node.kind == "unroll" and is_literal(begin) and is_literal(end)
        trips = int(end) - int(begin) if constant else 0
        knobs = self.code.unit.knobs
        if constant and self.copies * trips <= knobs.unrolled_copies:
            self.write_unrolled(node, range(int(begin), int(end)))
            return
        size = knobs.unrolled_group
        fits = self.copies * size <= knobs.unrolled_copies
        if node.kind == "unroll" and fits and _is_innermost(node):
            if not self.write_few(node, end, size):
                self.write_groups(node, begin, end, size)
        else:
            self.loop(node, begin, end, [NO_VECTORIZE])

    def write_few(self, node: st.For, end: str, most: int) -> bool:
        """Write all trips of *node* if there are *most* at most; whether that is so."""
        del node, end, most
        return False  # a loop is shorter

    def write_groups(self, node: st.For, begin: str, end: str, size: int) -> None:
        """Write the loop of *node*, *size* trips at a time, and then the rest one by one."""
        code = self.code
        count = code.value(f"sub i64 {end}, {begin}")  # up to 2 ** 64 - 1
        most = code.value(f"and i64 {count}, {-size}")
        runs = code.value(f"icmp slt i64 {begin}, {end}")
        trips = code.value(f"select i1 {runs}, i64 {most}, i64 0")
        middle = code.value(f"add i64 {begin}, {trips}")
        self.loop(node, begin, middle, [NO_VECTORIZE], size)
        self.loop(node, middle, end, [NO_VECTORIZE])

    def write_unrolled(self, node: st.For, trips: range) -> None:
        """Write the body of *node* once for each of *trips*."""
        around, self.copies = self.copies, self.copies * max(len(trips), 1)
        for trip in trips:
            self.scope[node.var] = str(trip)
            self.visit(node.body)
        self.copies = around

    def parallel_for(self, node: st.For) -> None:
        """Run *node* on several threads; this class has none, and runs it on one."""
        begin, end = (self.exprs.convert(bound, int64) for bound in (node.begin, node.end))
        self.loop(node, begin, end, [NO_VECTORIZE])

    def loop(self, node: st.For, begin: str, end: str, facts: list[str], group: int = 1) -> None:
        """Write the loop of *node* over ``begin..end``, *group* trips at a time."""
        inner = 0

        def trip(index: str) -> None:
            nonlocal inner
            around, self.copies = self.copies, self.copies * group
            inner = self.write_turns(node, index, group)
            self.copies = around
            self.after_trip(index, inner)

        self.trips(begin, end, group, facts, trip)
        self.after_loop(begin, end, inner)

    def trips(
        self, begin: str, end: str, step: int, facts: list[str], trip: Callable[[str], None]
    ) -> None:
        """Write a loop over ``begin..end`` by *step*; *trip* writes its body for an index."""
        code = self.code
        head, body, latch, exit_ = (code.label(hint) for hint in ("for", "body", "latch", "done"))
        index, following, before = code.name(), code.name(), code.block
        code.jump(head)
        code.start(head)
        code.do(f"{index} = phi i64 [ {begin}, %{before} ], [ {following}, %{latch} ]")
        code.branch(code.value(f"icmp slt i64 {index}, {end}"), body, exit_)
        code.start(body)
        trip(index)
        code.jump(latch)
        code.start(latch)
        code.do(f"{following} = add nsw i64 {index}, {step}")
        code.do(f"br label %{head}, !llvm.loop {code.unit.loop_metadata(facts)}")
        code.start(exit_)

    def write_turns(self, node: st.For, index: str, group: int) -> int:
        """Write *group* trips of *node* from *index* on; return the depth of the nest in it."""
        inner = 0
        for turn in range(group):
            self.turn(node, index, turn)
            inner = self.write_body(node.body)
        return inner

    def turn(self, node: st.For, index: str, turn: int) -> None:
        """Let the variable of *node* be *index* and *turn* more."""
        add = f"add nsw i64 {index}, {turn}"
        self.scope[node.var] = self.code.value(add) if turn else index

    def write_body(self, body: st.Stmt) -> int:
        """Write the *body* of a loop; return the depth of the loop nest in it."""
        around, self.height = self.height, 0
        self.depth += 1
        self.visit(body)
        self.depth -= 1
        inner = self.height
        self.height = max(around, inner + 1)
        return inner

    def after_trip(self, index: str, inner: int) -> None:
        """End the trip number *index* of a loop around a nest of depth *inner*."""

    def after_loop(self, begin: str, end: str, inner: int) -> None:
        """Follow a loop over ``begin..end`` around a nest of depth *inner*."""

    def spend(self, begin: str, end: str, weight: int = 1) -> None:
        """Count ``end - begin`` trips, of *weight* each, as work."""

    def pause(self) -> None:
        """Leave the function if it is to end early; this is only asked after much work."""

    def visit_Store(self, node: st.Store) -> None:
        """A store, masked where needed; an atomic update where threads may meet."""
        if node.atomic and self.concurrent:
            self._update(node)
            return
        index = node.indices[0]
        lanes = 1 if index is None else index.dtype.lanes
        value = self.exprs.convert(node.value, node.buffer.dtype.with_lanes(lanes))
        write(self.code, self.exprs.access(node.buffer, index, node.mask), value)

    def _update(self, node: st.Store) -> None:
        """Compare and swap until no other thread came between the load and the store."""
        buffer, index = node.buffer, node.indices[0]
        if index is None or index.dtype.lanes > 1:
            raise LoweringError(f"atomic vector store to {buffer.name}", node.span)
        at = self.exprs.access(buffer, index, node.mask)
        if at.mask is not None:
            plain = Access(at.pointer, at.offset, at.dtype, None)
            self.code.when(at.mask, lambda: self._swap(node, plain))
        else:
            self._swap(node, at)

    def _swap(self, node: st.Store, at: Access) -> None:
        code, dtype = self.code, node.buffer.dtype
        kind, bits = memory(dtype), f"i{dtype.itemsize * 8}"
        old = ex.Var("old", dtype)
        value = _Replace(node, old).visit(node.value)
        address = at.address(code)
        first = code.value(f"load atomic {bits}, ptr {address} monotonic, align {at.align}")
        retry, exit_ = code.label("again"), code.label("done")
        expected, actual, before = code.name(), code.name(), code.block
        tail = code.label("swap")
        code.jump(retry)
        code.start(retry)
        code.do(f"{expected} = phi {bits} [ {first}, %{before} ], [ {actual}, %{tail} ]")
        raw = code.value(f"bitcast {bits} {expected} to {kind}")
        self.scope[old] = decode(code, raw, dtype)
        new = encode(code, self.exprs.convert(_as_expr(value), dtype), dtype)
        new = code.value(f"bitcast {kind} {new} to {bits}")
        code.jump(tail)
        code.start(tail)
        result = code.value(
            f"cmpxchg ptr {address}, {bits} {expected}, {bits} {new} monotonic monotonic"
        )
        code.do(f"{actual} = extractvalue {{ {bits}, i1 }} {result}, 0")
        code.branch(code.value(f"extractvalue {{ {bits}, i1 }} {result}, 1"), exit_, retry)
        code.start(exit_)

    def visit_Alloc(self, node: st.Alloc) -> None:
        """Memory on the stack if the size is a small constant, else from the heap."""
        buffer = node.buffer
        size, element = self._elements(buffer), buffer.dtype
        small = is_literal(size) and buffer.scope != WORKSPACE
        count = max(int(size), 1) if small else 0
        if small and self.code.fits_stack(count * element.itemsize):
            self.scope[buffer] = self.code.alloca(f"[{count} x {memory(element)}]", 64)
            self.visit(node.body)
            return
        self._on_heap(buffer, size, node.body)

    def _elements(self, buffer: AnyBuffer) -> str:
        if not hasattr(buffer, "shape"):
            raise InternalError("flatten_buffers", f"{buffer.name} is not a flat buffer")
        sizes = [self.exprs.convert(extent, int64) for extent in buffer.shape]
        if all(map(is_literal, sizes)):
            return str(math.prod(int(size) for size in sizes))
        total = sizes[0]
        for size in sizes[1:]:
            total = self.exprs.binary("*", int64, total, size)
        return total

    def _addressable(self, buffer: AnyBuffer) -> str:
        """Return the i1: the size fits in memory. It is computed in floats, which do not wrap."""
        code, total = self.code, float_literal(float(buffer.dtype.itemsize))
        for extent in getattr(buffer, "shape", ()):
            extent = self.exprs.convert(_as_float(extent), float64)
            total = code.value(f"fmul double {total}, {extent}")
        return code.value(f"fcmp olt double {total}, {float_literal(float(LARGEST))}")

    def _on_heap(self, buffer: AnyBuffer, size: str, body: st.Stmt) -> None:
        code = self.code
        free = code.unit.declare("free", "void", "ptr")
        least = code.intrinsic("smax", "i64", size, "1")
        bytes_ = code.value(f"mul i64 {least}, {buffer.dtype.itemsize}")
        bytes_ = code.value(f"add i64 {bytes_}, {code.unit.knobs.line_bytes - 1}")
        amount = code.value(f"select i1 {self._addressable(buffer)}, i64 {bytes_}, i64 {LARGEST}")
        if buffer.scope == WORKSPACE:
            calloc = code.unit.declare("calloc", "noalias ptr", "i64, i64")
            pointer = code.value(f"call noalias ptr {calloc}(i64 {amount}, i64 1)")
        else:
            malloc = code.unit.declare("malloc", "noalias ptr", "i64")
            pointer = code.value(f"call noalias ptr {malloc}(i64 {amount})")
        ready, missing, join = (code.label(hint) for hint in ("ready", "missing", "join"))
        code.branch(code.value(f"icmp eq ptr {pointer}, null"), missing, ready)
        code.start(missing)
        self._fail(OUT_OF_MEMORY)
        code.jump(join)
        code.start(ready)
        self.scope[buffer] = self._next_line(pointer)
        self.heap.append(pointer)
        self.visit(body)
        self.heap.pop()
        code.do(f"call void {free}(ptr {pointer})")
        code.jump(join)
        code.start(join)

    def _next_line(self, pointer: str) -> str:
        """Return the first cache line from *pointer* on, so that no vector lies in two lines."""
        line = self.code.unit.knobs.line_bytes
        mask = self.code.unit.declare("llvm.ptrmask.p0.i64", "ptr", "ptr, i64")
        last = self.code.value(f"getelementptr i8, ptr {pointer}, i64 {line - 1}")
        return self.code.value(f"call ptr {mask}(ptr {last}, i64 {-line})")


def _as_float(size: ex.Expr) -> ex.Expr:
    """Return *size* computed in float64."""
    if isinstance(size, ex.BinOp) and size.op in ("+", "-", "*"):
        return ex.BinOp(size.op, _as_float(size.lhs), _as_float(size.rhs))
    if isinstance(size, ex.Cast) and size.type == int64:
        return _as_float(size.value)
    return ex.cast(size, float64)


class _Replace(Rewriter):
    """Puts a variable where the stored element is loaded."""

    def __init__(self, store: st.Store, var: ex.Var) -> None:
        self.store, self.var = store, var

    def visit_Load(self, node: Load) -> ex.Expr:
        """The variable, if the load is of the element that is stored."""
        same = node.buffer is self.store.buffer and node.mask is None
        index, other = node.indices[0], self.store.indices[0]
        if same and expr_equal(index, other):
            return self.var
        return _as_expr(self.visit_Node(node))


def _as_expr(node: object) -> ex.Expr:
    if not isinstance(node, ex.Expr):
        raise InternalError("atomic update", "an expression became something else")
    return node


def _is_innermost(loop: st.For) -> bool:
    """Whether the body of *loop* has no loop but those over threads, or that are written out."""
    return not any(
        isinstance(node, st.While | Search) or (isinstance(node, st.For) and not _is_short(node))
        for node in walk(loop.body)
    )


def _is_short(loop: st.For) -> bool:
    if loop.kind == "bound":
        return True
    trips = trip_count(loop)
    return trips is not None and trips <= (SHORT if loop.kind == "unroll" else 1)


@dataclass(frozen=True, slots=True)
class Turn:
    """Where the iterations of *loop* hand on a sum: whose turn it is, and the sum so far."""

    cell: Buffer
    loop: For


def open_turns(stmts: Stmts, loop: For) -> None:
    """Start the running sums of *loop*."""
    code = stmts.code
    for prefix in prefixes(loop.body):
        turn = Turn(Buffer(f"{prefix.var.name}_turn", None, (const(2),), int64, "local"), loop)
        cell = code.alloca("[2 x i64]", 64)
        first = stmts.exprs.convert(loop.begin, int64)
        code.do(f"store i64 {first}, ptr {cell}, align 8")
        code.do(f"store i64 0, ptr {_sum(stmts, cell)}, align 8")
        stmts.scope[turn.cell] = cell
        stmts.turns[prefix] = turn


def prefix_sum(stmts: Stmts, node: Prefix) -> None:
    """Wait for this iteration's turn, pass on the sum, run the body; do nothing after a failure.

    Threads take chunks in order, so the iteration waited for is already running.
    """
    code, turn = stmts.code, stmts.turns[node]
    cell, status = stmts.scope[turn.cell], stmts.scope[STATUS]
    index = stmts.scope[turn.loop.var]
    amount = stmts.exprs.convert(node.amount, int64)
    wait, blocked, yield_, go, exit_ = (
        code.label(x) for x in ("wait", "late", "again", "go", "done")
    )
    code.jump(wait)
    code.start(wait)
    current = code.value(f"load atomic i64, ptr {cell} acquire, align 8")
    code.branch(code.value(f"icmp eq i64 {current}, {index}"), go, blocked)
    code.start(blocked)
    word = code.value(f"load atomic i32, ptr {status} monotonic, align 4")
    code.branch(code.value(f"icmp ne i32 {word}, -1"), exit_, yield_)
    code.start(yield_)
    if sys.platform != "win32":  # where the pool has one thread, which never waits
        code.do(f"call i32 {code.unit.declare('sched_yield', 'i32', '')}()")
    code.jump(wait)
    code.start(go)
    sum_ = _sum(stmts, cell)
    base = code.value(f"load i64, ptr {sum_}, align 8")
    code.do(f"store i64 {code.value(f'add i64 {base}, {amount}')}, ptr {sum_}, align 8")
    after = code.value(f"add i64 {index}, 1")
    code.do(f"store atomic i64 {after}, ptr {cell} release, align 8")
    stmts.scope[node.var] = base
    stmts.visit(node.body)
    code.jump(exit_)
    code.start(exit_)


def _sum(stmts: Stmts, cell: str) -> str:
    return stmts.code.value(f"getelementptr inbounds i64, ptr {cell}, i64 1")
