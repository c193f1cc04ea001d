"""Flat IR to LLVM IR for a GPU: kernels, whose loops over blocks and threads become indices."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, Any

from spcomp.codegen.abi import Emitted, FunctionABI, Param, symbols
from spcomp.codegen.functions.define import per_element
from spcomp.codegen.llvm.code import STATUS, Code, Dialect, Scope, Unit
from spcomp.codegen.llvm.convert import decode
from spcomp.codegen.llvm.memory import read, write
from spcomp.codegen.llvm.ops import EXACT, FAST, is_literal, memory, register, row
from spcomp.codegen.llvm.stmt import NO_VECTORIZE, Messages, Stmts
from spcomp.codegen.llvm.uses import Use, uses
from spcomp.codegen.nvvm import launch_bounds
from spcomp.codegen.nvvm.expr import KernelExprs, barrier_of_lanes, vote
from spcomp.codegen.nvvm.lanes import Lanes
from spcomp.codegen.nvvm.machine import ALIGN, resolve
from spcomp.codegen.nvvm.matrices import Matrices, register_type
from spcomp.codegen.nvvm.private_buffers import with_private_buffers
from spcomp.codegen.nvvm.tails import keeps_to_itself
from spcomp.codegen.nvvm.turns import most_trips, turn_of
from spcomp.codegen.nvvm.zeros import added, unsigned_sums
from spcomp.dtypes import handle, int64
from spcomp.errors import InternalError, LoweringError
from spcomp.ir import stmt as st
from spcomp.ir.analysis.exprs import trip_count
from spcomp.ir.analysis.fragments import LANES, is_fragment, role_of
from spcomp.ir.analysis.grid import THREADS, grid_of, trips
from spcomp.ir.analysis.reduction import as_reduction
from spcomp.ir.axis import WARP, AnyBuffer
from spcomp.ir.expr import Const
from spcomp.knobs import knobs_of

if TYPE_CHECKING:
    from spcomp.ir.analysis.grid import Grid
    from spcomp.ir.expr import Expr, Var
    from spcomp.ir.module import Module
    from spcomp.ir.node import Node
    from spcomp.ir.program import FlatFunc
    from spcomp.target import Target

TABLES = "DebugDirectivesOnly"  # of the other kind, ptxas makes code that is not optimised
DIALECT = Dialect(per_element, has_half=True, blends=False, has_masks=False, tables=TABLES)
ATOMICS = {  # that the hardware has, for floats, signed and unsigned; others compare and swap
    "+": ("fadd", "add", "add"),
    "min": ("", "min", "umin"),
    "max": ("", "max", "umax"),
    "and": ("", "and", "and"),
    "or": ("", "or", "or"),
}
BARRIER = "llvm.nvvm.barrier.cta.sync.aligned.all"
NO_UNROLL = '!"llvm.loop.unroll.disable"'
_INDICES = {"blockIdx": "ctaid", "threadIdx": "tid"}


def emit(
    module: Module[FlatFunc], target: Target, *, fast_math: bool = False, debug: bool = False
) -> Emitted:
    """Return the LLVM IR of the kernels of *module* for the GPU *target*.

    *fast_math*: float arithmetic may be reordered as if floats were real numbers. *debug*:
    instructions say from which line of the source they come.
    Raises LoweringError for a grid that no GPU has and BackendError for an unknown target.
    """
    target = resolve(target)
    unit = Unit.of(knobs_of(target), DIALECT, FAST if fast_math else EXACT, debug=debug)
    names = [symbol for symbol, _ in symbols(func.name for func in module.funcs)]
    functions = tuple(
        _Kernel(unit, func, symbol, number).write()
        for number, (func, symbol) in enumerate(zip(module.funcs, names, strict=True))
    )
    for func, abi in zip(module.funcs, functions, strict=True):
        launch_bounds.check_shared(func, abi, target)
    attributes = (
        launch_bounds.attributes(number, abi.grid, func)
        for number, (func, abi) in enumerate(zip(module.funcs, functions, strict=True))
        if abi.grid is not None
    )
    return Emitted(unit.text(*attributes), functions)


class _Kernel:
    """One kernel of the module."""

    def __init__(self, unit: Unit, func: FlatFunc, symbol: str, number: int) -> None:
        self.unit, self.symbol, self.number = unit, symbol, number
        self.func = with_private_buffers(func)
        self.uses = uses(func)
        self.alias = func.attr("tir.noalias", default=True) is False

    def write(self) -> FunctionABI:
        """Write the kernel into the unit and return how it is launched."""
        code, scope, messages = Code(self.unit), Scope(), Messages()
        parameters = [self._parameter(k, param) for k, param in enumerate(self.func.params)]
        for number, param in enumerate(self.func.params):
            if param.dtype == handle:
                generic = f"addrspacecast ptr addrspace(1) %a{number} to ptr"
                scope[param] = code.value(generic)
            else:
                scope[param] = decode(code, f"%a{number}", param.dtype)
        scope[STATUS] = "%status"
        grid = grid_of(self.func)
        stmts = KernelStmts(code, scope, messages, grid, Lanes(self.func, grid))
        stmts.is_rolled, stmts.apart = launch_bounds.has_many_loops(self.func), not self.alias
        stmts.unsigned = unsigned_sums(self.func)
        stmts.visit(self.func.body)
        grid = replace(grid if grid.fits else grid.along_x(), shared=stmts.shared)
        if any("%status" in line for line in code.lines):
            grid = replace(grid, may_fail=True)
            parameters.append("ptr addrspace(1) align 4 %word")
            code.lines.insert(0, "  %status = addrspacecast ptr addrspace(1) %word to ptr")
        header = f"define ptx_kernel void @{self.symbol}({', '.join(parameters)}) #{self.number} {{"
        body = [*code.allocas, *code.lines, "  ret void", "}"]
        self.unit.functions.append("\n".join([header, "entry:", *body]))
        params = tuple(self._param(param) for param in self.func.params)
        texts = tuple(messages.texts)
        return FunctionABI(self.func.name, self.symbol, self.symbol, params, texts, grid=grid)

    def _param(self, param: Var) -> Param:
        use = self.uses.get(param, Use())
        element = None if use.buffer is None else use.buffer.dtype
        return Param(param.name, param.dtype, element, use.written)

    def _parameter(self, number: int, param: Var) -> str:
        if param.dtype != handle:
            return f"{memory(param.dtype)} %a{number}"
        written = self.uses.get(param, Use()).written
        facts = ["ptr addrspace(1)", "" if self.alias else "noalias", "captures(none)"]
        facts += ["" if written else "readonly", f"align {ALIGN} %a{number}"]
        return " ".join(filter(None, facts))


class KernelStmts(Stmts):
    """Statements for a thread of a GPU."""

    def __init__(
        self, code: Code, scope: Scope, messages: Messages, grid: Grid, lanes: Lanes
    ) -> None:
        super().__init__(code, scope, messages, concurrent=grid.most * prod(grid.threads) > 1)
        self.bound: set[Var] = set()  # loops that have a value: those of a nest of a warp
        self.exprs: KernelExprs = KernelExprs(code, scope, lanes)
        self.grid, self.lanes = grid, lanes
        self.arena = 0  # bytes of shared memory that the statements around have
        self.places: dict[AnyBuffer, int] = {}  # where buffers begin in it
        self.grouped = 0  # loops over threads that are around
        self.shared = 0  # the most that any statement had
        self.inside = ""  # the i1: the trip that is written takes place; it does if this is empty
        self.is_rolled = False  # whether LLVM leaves loops as they are
        self.apart = True  # whether different buffers share no memory
        self.unsigned = frozenset[AnyBuffer]()  # sums in which no zero has a sign

    def loop(self, node: st.For, begin: str, end: str, facts: list[str], group: int = 1) -> None:
        """Write the loop of *node*, which LLVM unrolls only where registers are left."""
        rolled = self.is_rolled or st.MOST_TRIPS in dict(node.attrs)
        facts = [*facts, NO_UNROLL] if rolled else facts
        parts = node.body.body if isinstance(node.body, st.Seq) else (node.body,)
        branch = parts[0] if parts else None
        if isinstance(branch, st.If) and branch.uniform and self.lanes.together:
            self._parted(node, branch, parts[1:], begin, end, facts)
        else:
            super().loop(node, begin, end, facts, group)

    def _parted(
        self,
        node: st.For,
        branch: st.If,
        after: tuple[st.Stmt, ...],
        begin: str,
        end: str,
        facts: list[str],
    ) -> None:
        """Write the loop of *node*, over *branch* and what comes *after*, as two.

        The second goes on from the first trip that lanes do not do alike. So the first, in which
        most warps stay, has all registers.
        """
        code = self.code
        alike, rest, join = map(code.label, ("alike", "rest", "join"))

        def trip(index: str) -> None:
            self.scope[node.var] = index
            code.branch(self.decide(branch), alike, rest)
            code.start(alike)
            self.write_body(st.seq(branch.then, *after))

        self.trips(begin, end, 1, facts, trip)
        code.jump(join)
        code.start(rest)
        others = filter(None, (branch.otherwise, *after))
        super().loop(node.replace(body=st.seq(*others)), self.scope[node.var], end, facts)
        code.jump(join)
        code.start(join)

    def write_groups(self, node: st.For, begin: str, end: str, size: int) -> None:
        """Write the loop of *node*, and its last trips, *size* at most, as a group if it can be."""
        most = int(dict(node.attrs).get(st.MOST_TRIPS, size))
        size = 1 << max(0, most.bit_length() - 1)
        alone = self.depth == 0 and not self.is_rolled  # else few registers are left
        if alone and keeps_to_itself(node.body):
            runs = self.code.value(f"icmp slt i64 {begin}, {end}")
            self.code.when(runs, lambda: self._groups(node, begin, end, size))
        else:
            super().write_groups(node, begin, end, size)

    def _groups(self, node: st.For, begin: str, end: str, size: int) -> None:
        """Write the loop of *node*, which has trips; at least one is left for the last group."""
        code = self.code
        others = code.value(f"sub i64 {code.value(f'sub i64 {end}, {begin}')}, 1")
        middle = code.value(f"add i64 {begin}, {code.value(f'and i64 {others}, {-size}')}")
        self.loop(node, begin, middle, [NO_VECTORIZE], size)
        around, self.copies = self.copies, self.copies * size
        left = code.value(f"sub i64 {end}, {middle}")
        for turn in range(size):
            self.scope[node.var] = middle
            if turn:
                self.inside = code.value(f"icmp slt i64 {turn}, {left}")
                place = code.value(f"select i1 {self.inside}, i64 {turn}, i64 0")
                self.scope[node.var] = code.value(f"add nsw i64 {middle}, {place}")
            self.write_body(node.body)
        self.copies, self.inside = around, ""

    def write_few(self, node: st.For, end: str, most: int) -> bool:
        """Write them one by one, so that what they index by the trip can stay in registers.

        Before them, all together, which do not wait for each other, but where one is the most.
        """
        bound = most_trips(node)
        if bound is None or not 1 <= bound <= most:
            return False
        code, join = self.code, self.code.label("done")
        around, self.copies = self.copies, self.copies * bound
        if dict(node.attrs).get(st.MOST_TRIPS) != 1:
            whole, some = code.label("all"), code.label("some")
            code.branch(code.value(f"icmp sle i64 {bound}, {end}"), whole, some)
            code.start(whole)
            self.write_turns(node, "0", bound)
            code.jump(join)
            code.start(some)
            bound -= 1
        for trip in range(bound):
            go = code.label("trip")
            code.branch(code.value(f"icmp slt i64 {trip}, {end}"), go, join)
            code.start(go)
            self.scope[node.var] = str(trip)
            self.visit(node.body)
        self.copies = around
        code.jump(join)
        code.start(join)
        return True

    def write_turns(self, node: st.For, index: str, group: int) -> int:
        """Write several trips of a loop; what comes before lanes exchange values, of all first."""
        found = turn_of(node.body) if group > 1 and self.apart else None
        if found is None:
            return super().write_turns(node, index, group)
        scopes, inner = list[dict[Any, str]](), 0
        for turn in range(group):
            self.turn(node, index, turn)
            for alloc in found.allocs:
                self.visit(alloc)
            inner = self.write_body(found.first)
            scopes.append(dict(self.scope.names))
        for names in scopes:
            self.scope.names |= names
            inner = max(inner, self.write_body(found.rest))
        return inner

    def visit(self, node: Node) -> None:
        """Write *node*; what it does to memory is known to come from its line."""
        before = self.code.place
        if node.span is not None:
            name = node.span.file.encode("unicode_escape").decode().replace('"', "'")
            line = self.code.unit.fact(f'!"{name}:{node.span.line}"')
            self.code.place = f", !at {line}"
        super().visit(node)
        self.code.place = before

    def _update(self, node: st.Store) -> None:
        """An atomic instruction where there is one, else compare and swap."""
        reduction, index = as_reduction(node), node.indices[0]
        if reduction is None or reduction.is_tuple or index is None or index.dtype.lanes > 1:
            super()._update(node)
            return
        dtype = node.buffer.dtype
        name = ATOMICS.get(reduction.combiner, ("", "", ""))[row(dtype)]
        if not name or dtype.bits < 32 or reduction.identity[0].dtype != dtype:
            super()._update(node)
            return
        at = self.exprs.access(node.buffer, index, node.mask)
        value = self.exprs.convert(reduction.value, dtype)
        address = replace(at, mask=None).address(self.code, known_inside=False)
        update = f'atomicrmw {name} ptr {address}, {register(dtype)} {value} syncscope("device")'
        if at.mask is None:
            self.code.do(f"{update} monotonic, align {at.align}")
        else:
            self.code.when(at.mask, lambda: self.code.do(f"{update} monotonic, align {at.align}"))

    def visit_For(self, node: st.For) -> None:
        """A loop over blocks or threads is the index of this one, if it is in the range."""
        if node.var in self.bound:
            self.visit(node.body)
            return
        if role_of(node) is not None:
            Matrices(self).nest(node)
            return
        self.lanes.bind(node)
        if node.kind != "bound":
            with self.lanes.inside(node.begin, node.end):
                super().visit_For(node)
            return
        code = self.code
        begin, end = (self.exprs.convert(bound, int64) for bound in (node.begin, node.end))
        index = self._index(node.thread)
        self.scope[node.var] = self.exprs.binary("+", int64, begin, index)
        first = self.exprs.is_first
        alone = node.thread == THREADS[0] and trip_count(node) == 1
        self.exprs.is_first = first or alone
        self.grouped += node.thread in THREADS
        if self._is_full(node):
            self.visit(node.body)
        else:
            inside = code.value(f"icmp slt i64 {self.scope[node.var]}, {end}")
            with self.lanes.inside(node.var, node.end):
                code.when(inside, lambda: self.visit(node.body))
        self.grouped -= node.thread in THREADS
        self.exprs.is_first = first

    def _is_full(self, loop: st.For) -> bool:
        """Whether every block or thread there is has an iteration of *loop*."""
        extent, (name, _, axis) = trips(loop), loop.thread.partition(".")
        sizes = self.grid.blocks if name == "blockIdx" else self.grid.threads
        size = sizes["xyz".index(axis)]
        if isinstance(extent, Const):
            return int(extent.value) == (size.value if isinstance(size, Const) else size)
        return str(extent) == str(size)

    def _index(self, thread: str) -> str:
        name, _, axis = thread.partition(".")
        if name == "blockIdx" and not self.grid.fits:
            return self._block("xyz".index(axis))
        return self.code.value(f"zext i32 {self._register(name, axis)} to i64")

    def _register(self, name: str, axis: str) -> str:
        register = f"llvm.nvvm.read.ptx.sreg.{_INDICES[name]}.{axis}"
        return self.code.value(f"call i32 {self.code.unit.declare(register, 'i32', '')}()")

    def _block(self, at: int) -> str:
        """Return the index of the block along axis number *at*, where all blocks are along x."""
        number, code = self._register("blockIdx", "x"), self.code
        for extent in self.grid.blocks[:at]:
            number = code.value(f"udiv i32 {number}, {self._count(extent)}")
        if not all(isinstance(n, Const) and n.value == 1 for n in self.grid.blocks[at + 1 :]):
            number = code.value(f"urem i32 {number}, {self._count(self.grid.blocks[at])}")
        return code.value(f"zext i32 {number} to i64")

    def _count(self, extent: Expr) -> str:
        """Return *extent*, of which a kernel that runs has at least 1, as an i32."""
        return self.code.value(f"trunc i64 {self.exprs.convert(extent, int64)} to i32")

    def visit_If(self, node: st.If) -> None:
        """A branch, of the whole warp where that is the same."""
        if node.uniform and self.lanes.together:
            super().visit_If(node)
        else:
            with self.lanes.inside(node.cond):
                super().visit_If(node)

    def decide(self, node: st.If) -> str:
        """Return the i1 of the branch, which lanes vote for where it is uniform."""
        cond = super().decide(node)
        return vote(self.code, cond) if node.uniform and self.lanes.together else cond

    def visit_While(self, node: st.While) -> None:
        """A loop that tests before each trip."""
        with self.lanes.inside(node.cond):
            super().visit_While(node)

    def visit_Let(self, node: st.Let) -> None:
        """The value is the variable."""
        if self.lanes.agree(node.value):
            self.lanes.same.add(node.var)
        self.exprs.divisors[node.var] = self.exprs.divisor(node.value)
        super().visit_Let(node)

    def visit_Prefetch(self, node: st.Prefetch) -> None:
        """Nothing: other threads run while one waits."""

    def visit_Prefix(self, node: st.Prefix) -> None:
        """Blocks do not wait for earlier ones: what the compiler makes itself counts first."""
        raise LoweringError(
            f"{node.var.name} sums up earlier iterations, which other threads run",
            node.span,
            hint="add up the elements of a buffer in a serial loop, in a nest of its own",
        )

    def visit_Barrier(self, node: st.Barrier) -> None:
        """A barrier of the block, or of neighbouring lanes."""
        if node.lanes:
            barrier_of_lanes(self.code, node.lanes, self.lanes)
        else:
            barrier = self.code.unit.declare(BARRIER, "void", "i32")
            self.code.do(f"call void {barrier}(i32 0)")

    def visit_Store(self, node: st.Store) -> None:
        """A store, to a register where lanes of a warp hold the buffer."""
        if is_fragment(node.buffer):
            Matrices(self).write(node)
            return
        if self.inside:
            self._keep(node)
            return
        if node.buffer in self.unsigned and (term := added(node)) is not None:
            self._add(node, term)
            return
        if node.buffer.scope != WARP:
            super().visit_Store(node)
            return
        kind = register(node.buffer.dtype)
        value = self.exprs.convert(node.value, node.buffer.dtype)
        self.code.do(f"store {kind} {value}, ptr {self.scope[node.buffer]}")

    def _keep(self, node: st.Store) -> None:
        """Write a store to a register, which stays as it is if the trip does not take place."""
        code, index = self.code, node.indices[0]
        dtype = node.buffer.dtype.with_lanes(1 if index is None else index.dtype.lanes)
        at, kind = self.exprs.access(node.buffer, index, None), register(dtype)
        old, value = read(code, at), self.exprs.convert(node.value, dtype)
        write(code, at, code.value(f"select i1 {self.inside}, {kind} {value}, {kind} {old}"))

    def _add(self, node: st.Store, term: Expr) -> None:
        """Write the update that adds *term* to an element, where no zero has a sign."""
        index = node.indices[0]
        dtype = node.buffer.dtype.with_lanes(1 if index is None else index.dtype.lanes)
        at = self.exprs.access(node.buffer, index, None)
        old, value = read(self.code, at), self.exprs.convert(term, dtype)
        write(self.code, at, self.code.arithmetic("+", dtype, old, value, "nsz"))

    def visit_Alloc(self, node: st.Alloc) -> None:
        """Memory of the thread, or of its block, where an inner buffer follows an outer one."""
        buffer, code = node.buffer, self.code
        if buffer.scope == WARP:
            self.scope[buffer] = code.alloca(register(buffer.dtype), ALIGN)
            self.visit(node.body)
            return
        size = self._elements(buffer)
        if not is_literal(size):
            raise InternalError("bind_parallel", f"{buffer.name} has no constant size")
        count = max(int(size), 1)
        if is_fragment(buffer):
            kind = register_type(buffer)
            self.scope[buffer] = code.alloca(f"[{-(-count // LANES)} x {kind}]", ALIGN)
            self.visit(node.body)
            return
        if buffer.scope != "shared":
            self.scope[buffer] = code.alloca(f"[{count} x {memory(buffer.dtype)}]", ALIGN)
            self.visit(node.body)
            return
        begin = self.arena
        self._share(buffer, -(-count * buffer.dtype.itemsize // ALIGN) * ALIGN)
        self.visit(node.body)
        if not self.grouped:  # else its threads do not wait for all that had these bytes
            self.arena = begin

    def _share(self, buffer: AnyBuffer, size: int) -> None:
        """Give *buffer* *size* bytes of shared memory."""
        code = self.code
        code.unit.declarations.setdefault(
            "shared", f"@shared = external addrspace(3) global [0 x i8], align {ALIGN}"
        )
        base = code.value("addrspacecast ptr addrspace(3) @shared to ptr")
        begin = self.places.get(buffer)  # of a trip before, which is written out
        if begin is None or not self.grouped:
            begin = self.places[buffer] = self.arena
            self.arena += size
            self.shared = max(self.shared, self.arena)
        self.scope[buffer] = code.value(f"getelementptr inbounds i8, ptr {base}, i64 {begin}")
