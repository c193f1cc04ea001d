"""Flat IR to LLVM IR for a CPU: the module, the entry points, and parallel loops."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from spcomp.codegen.abi import (
    BUDGET,
    INTERRUPTED,
    PARALLEL_FOR,
    PAUSE,
    Emitted,
    FunctionABI,
    Param,
    Report,
    symbols,
)
from spcomp.codegen.cpu.library import library_of
from spcomp.codegen.cpu.machine import attributes, has_half, resolve
from spcomp.codegen.cpu.messages import fail_with, print_line
from spcomp.codegen.llvm.code import STATUS, Code, Dialect, Key, Scope, Unit
from spcomp.codegen.llvm.convert import decode
from spcomp.codegen.llvm.debug import MARK
from spcomp.codegen.llvm.ops import EXACT, FAST, memory, register
from spcomp.codegen.llvm.stmt import NO_VECTORIZE, Messages, Stmts
from spcomp.codegen.llvm.uses import Use, uses
from spcomp.dtypes import handle, int64
from spcomp.ir import stmt as st
from spcomp.ir.access import Load
from spcomp.ir.expr import Const, Var
from spcomp.ir.module import Module
from spcomp.ir.node import Node
from spcomp.ir.program import FlatFunc
from spcomp.ir.stmt import prefixes
from spcomp.ir.visitor import children, walk
from spcomp.knobs import knobs_of
from spcomp.target import Target

ALIKE = 4  # a list of at least so many loops is searched for loops of the same code
PAUSE_FACTS = "cold nounwind willreturn memory(inaccessiblemem: readwrite)"
SHORT = 3  # a parallel nest of at most so many loops has short trips
FEW = 16  # a loop of at most so many trips does not count as one
WIDTH = 64  # trips that an innermost loop in a chunk is assumed to have
ROWS = 1 << 10  # trips between two pauses of a loop around innermost loops
STRIP = 1 << 16  # trips between two pauses of a loop outside any other; whole groups
_BEGIN = Var("begin", int64)  # where a parallel loop begins, for the iterations of its chunks


def emit(
    module: Module[FlatFunc], target: Target, *, fast_math: bool = False, debug: bool = False
) -> Emitted:
    """Return the LLVM IR of the functions of *module* for the CPU *target*.

    *fast_math*: float arithmetic may be reordered as if floats were real numbers. *debug*:
    instructions say from which line of the source they come.
    Raises LoweringError for what a CPU cannot do and BackendError for an unknown target.
    """
    target = resolve(target)
    dialect = Dialect(library_of(target), has_half(target), blends=True, has_masks=True)
    unit = Unit.of(knobs_of(target), dialect, FAST if fast_math else EXACT, debug=debug)
    names = symbols(func.name for func in module.funcs)
    functions = tuple(
        _Function(unit, func, symbol, packed).write()
        for func, (symbol, packed) in zip(module.funcs, names, strict=True)
    )
    return Emitted(unit.text(f"attributes #0 = {{ nounwind {attributes(target)} }}"), functions)


class _Function:
    """One function of the module: its body, its parallel loops, its two entry points."""

    def __init__(self, unit: Unit, func: FlatFunc, symbol: str, packed: str) -> None:
        self.unit, self.func, self.symbol, self.packed = unit, func, symbol, packed
        self.uses = uses(func)
        self.alias = func.attr("tir.noalias", default=True) is False
        self.messages = Messages()
        self.loops = 0
        self.pauses = False
        self.reports: dict[int, Report] = {}  # by the numbers of their messages
        self.loop_names: dict[tuple[str, ...], str] = {}  # of functions, by their code

    def write(self) -> FunctionABI:
        """Write the function into the unit and return how it is called."""
        code, scope = Code(self.unit), Scope()
        scope[STATUS] = "%status"
        types = []
        for number, param in enumerate(self.func.params):
            types.append(self.parameter_type(param, f"%p{number}"))
            scope[param] = decode(code, f"%p{number}", param.dtype)
        stmts = _CpuStmts(self, code, scope)
        stmts.context = "null"
        stmts.visit(self.func.body)
        header = [f"define i32 @{self.symbol}({', '.join(types)}) #0 {{", "entry:"]
        self.unit.functions.append("\n".join([*header, *code.allocas, *_finish(code), "}"]))
        self._write_packed()
        return FunctionABI(
            self.func.name,
            self.symbol,
            self.packed,
            tuple(self._param(param) for param in self.func.params),
            tuple(self.messages.texts),
            self.loops > 0,
            self.pauses,
            reports=tuple(self.reports.values()),
            prints=any(isinstance(node, st.Print) for node in walk(self.func.body)),
        )

    def _param(self, param: Var) -> Param:
        use = self.uses.get(param, Use())
        element = None if use.buffer is None else use.buffer.dtype
        return Param(param.name, param.dtype, element, use.written)

    def parameter_type(self, key: Key, name: str) -> str:
        """Return the declaration of the parameter *name* that holds what *key* stands for."""
        if not isinstance(key, Var):  # a buffer that the function allocated itself
            return f"ptr noalias captures(none) {name}"
        if key is STATUS:
            return f"ptr captures(none) {name}"
        if key.dtype != handle:
            return f"{memory(key.dtype)} {name}"
        use = self.uses.get(key, Use())
        facts = ["ptr"] if self.alias else ["ptr", "noalias"]
        facts.append("captures(none)")
        if not use.written:
            facts.append("readonly")
        if use.buffer is not None:
            facts.append(f"align {use.buffer.dtype.itemsize}")
        return " ".join([*facts, name])

    def _write_packed(self) -> None:
        code, operands = Code(self.unit), []
        for number, param in enumerate(self.func.params):
            slot = code.value(f"getelementptr inbounds i64, ptr %slots, i64 {number}")
            kind = memory(param.dtype)
            operands.append(f"{kind} {code.value(f'load {kind}, ptr {slot}, align 8')}")
        result = code.value(f"call i32 @{self.symbol}({', '.join(operands)})")
        code.do(f"ret i32 {result}")
        header = [f"define i32 @{self.packed}(ptr %slots) #0 {{", "entry:"]
        self.unit.functions.append("\n".join([*header, *code.lines, "}"]))


def _finish(code: Code) -> list[str]:
    """Return the lines of a function's body, ended by its status."""
    if not any("%status" in line for line in code.lines):
        return [*code.lines, "  ret i32 0"]
    start = ["  %status = alloca i32, align 4", "  store i32 -1, ptr %status, align 4"]
    word = code.value("load i32, ptr %status, align 4")
    code.do(f"ret i32 {code.value(f'add i32 {word}, 1')}")
    return [*start, *code.lines]


@dataclass(frozen=True, slots=True)
class _LoopFunction:
    """A loop as a function: the keys that it captures, its parameters, and its lines."""

    captures: tuple[Key, ...]
    parameters: tuple[str, ...]
    lines: tuple[str, ...]

    @property
    def key(self) -> tuple[str, ...]:
        """The code without the identities of its loops: equal if two loops have the same code."""
        lines = (line.partition(MARK)[0].partition(", !llvm.loop")[0] for line in self.lines)
        return (*self.parameters, *lines)


class _CpuStmts(Stmts):
    """Statements for a CPU: a parallel loop becomes a function that the pool runs on chunks."""

    def __init__(
        self, function: _Function, code: Code, scope: Scope, *, concurrent: bool = False
    ) -> None:
        super().__init__(code, scope, function.messages, concurrent=concurrent)
        self.function = function
        self.parts: st.Stmt | None = None  # the body of the parallel loop, which may be a list
        self.context = ""  # of the job, if it may end early; null outside parallel loops
        self.budget = ""  # address of the work left until the next pause

    def visit_Seq(self, node: st.Seq) -> None:
        """One after the other; loops of the same code call one function."""
        loops = [stmt for stmt in node.body if isinstance(stmt, st.For)]
        if node is not self.parts or len(loops) < ALIKE or self.turns:
            super().visit_Seq(node)
            return
        functions = {loop: self._loop_function(loop) for loop in loops}
        count = Counter(function.key for function in functions.values())
        for stmt in node.body:
            function = functions.get(stmt)  # type: ignore[call-overload]
            if function is None or count[function.key] == 1:
                self.visit(stmt)
            else:
                self._call(function)

    def visit_Fail(self, node: st.Fail) -> None:
        """The status word takes a number of the message, and values are kept for it."""
        if not node.values:
            super().visit_Fail(node)
            return
        number = self.messages.code(self.located(node))
        dtypes = tuple(value.dtype for value in node.values)
        report = Report(number, f"{self.function.symbol}__failed{number}", dtypes)
        self.function.reports[number] = report
        fail_with(self.code, self.exprs, self.scope[STATUS], report, node.values)

    def visit_Print(self, node: st.Print) -> None:
        """A call of C's ``printf``."""
        print_line(self.code, self.exprs, node.message, node.values)

    def loop(self, node: st.For, begin: str, end: str, facts: list[str], group: int = 1) -> None:
        """Write the loop of *node*; one that may be long runs in strips with pauses between."""
        strip = self.strip(node)
        constant = "%" not in begin + end
        if not strip or (constant and int(end) - int(begin) <= strip):
            super().loop(node, begin, end, facts, group)
            return
        code = self.code
        head, tail, exit_ = (code.label(hint) for hint in ("strip", "strip.end", "strips.done"))
        start, following, before = code.name(), code.name(), code.block
        code.jump(head)
        code.start(head)
        code.do(f"{start} = phi i64 [ {begin}, %{before} ], [ {following}, %{tail} ]")
        trips = code.intrinsic("smin", "i64", code.value(f"sub i64 {end}, {start}"), str(strip))
        stop = code.value(f"add i64 {start}, {trips}")
        super().loop(node, start, stop, facts, group)
        self.pause()
        code.jump(tail)
        code.start(tail)
        code.do(f"{following} = add i64 {stop}, 0")
        code.branch(code.value(f"icmp slt i64 {stop}, {end}"), head, exit_)
        code.start(exit_)

    def strip(self, node: st.For) -> int:
        """Return how many trips of *node* run between two pauses; 0 if it is not cut.

        A single loop outside any other is cut. In a chunk it is the loop around innermost loops,
        unless it runs over a fiber: fibers are short and many.
        """
        if self.concurrent:
            fiber = any(isinstance(part, Load) for part in walk(node.end))
            cut = self.context and self.depth and not fiber and _height(node) == 2
            return ROWS if cut else 0
        return 0 if self.depth or _loops(node.body) else STRIP

    def after_trip(self, index: str, inner: int) -> None:  # noqa: ARG002
        """Pause after a trip of a loop around others; in a chunk, of a loop around two levels.

        In a chunk, a check after each trip of an inner loop would take a measurable time.
        """
        if inner > self.concurrent:
            self.pause()

    def after_loop(self, begin: str, end: str, inner: int) -> None:
        """Count the trips of innermost loops as work; in a chunk, of the loops around them."""
        if inner == self.concurrent:
            self.spend(begin, end, WIDTH if inner else 1)

    def spend(self, begin: str, end: str, weight: int = 1) -> None:
        """Subtract the trips, of *weight* each, from the work left until the next pause."""
        if not self.context:
            return
        code = self.code
        if not self.budget:
            self.budget = code.alloca("i64", 8)
            code.lines.insert(0, f"  store i64 {BUDGET}, ptr {self.budget}")
        trips = code.value(f"sub i64 {end}, {begin}")
        trips = code.value(f"mul i64 {trips}, {weight}") if weight > 1 else trips
        remaining = code.value(f"sub i64 {code.value(f'load i64, ptr {self.budget}')}, {trips}")
        code.do(f"store i64 {remaining}, ptr {self.budget}")

    def pause(self) -> None:
        """Ask the pool whether to go on, once the work until this pause is done."""
        outermost = self.concurrent and not self.depth  # of a chunk, which has few trips
        if not self.budget or outermost:
            return
        code = self.code
        self.function.pauses = True
        ask, on = code.label("ask"), code.label("work")
        remaining = code.value(f"load i64, ptr {self.budget}")
        code.branch(code.value(f"icmp slt i64 {remaining}, 0"), ask, on)
        code.start(ask)
        pool = code.unit.declare(PAUSE, "i64", "ptr captures(none)", PAUSE_FACTS)
        fresh = code.value(f"call i64 {pool}(ptr {self.context})")
        code.do(f"store i64 {fresh}, ptr {self.budget}")
        self._end_if(code.value(f"icmp slt i64 {fresh}, 0"))
        code.jump(on)
        code.start(on)

    def _loop_function(self, loop: st.For) -> _LoopFunction:
        """Return *loop* as a function of the values that it captures."""
        body = Code(self.code.unit)
        inner = _CpuStmts(self.function, body, Scope(self.scope), concurrent=True)
        inner.visit(loop)
        captures = inner.scope.captures
        parameters = tuple(self._capture(key, operand) for key, operand in captures.items())
        return _LoopFunction(tuple(captures), parameters, (*body.allocas, *body.lines))

    def _capture(self, key: Key, name: str) -> str:
        """Return the declaration of the parameter *name* for *key*, of its register type."""
        if isinstance(key, Var) and register(key.dtype) != memory(key.dtype):
            return f"{register(key.dtype)} {name}"
        return self.function.parameter_type(key, name)

    def _call(self, loop: _LoopFunction) -> None:
        """Call the function *loop*; its first call writes it."""
        function = self.function
        name = function.loop_names.get(loop.key)
        if name is None:
            name = f"{function.symbol}.loop{len(function.loop_names)}"
            function.loop_names[loop.key] = name
            header = f"define internal void @{name}({', '.join(loop.parameters)}) noinline #0 {{"
            lines = [header, "entry:", *loop.lines, "  ret void", "}"]
            self.code.unit.functions.append("\n".join(lines))
        operands = ", ".join(f"{_type_of(key)} {self.scope[key]}" for key in loop.captures)
        self.code.do(f"call void @{name}({operands})")
        self.spend("0", str(STRIP))

    def parallel_for(self, node: st.For) -> None:
        """Outline the body and hand it to the pool."""
        function, code = self.function, self.code
        begin, end = (self.exprs.convert(bound, int64) for bound in (node.begin, node.end))
        self.scope[_BEGIN] = begin
        name = f"{function.symbol}.par{function.loops}"
        function.loops += 1
        captures = self._outline(node, name)
        kinds = ", ".join(_type_of(key) for key in captures)
        context = code.alloca(f"{{ {kinds} }}", 8)
        for number, key in enumerate(captures):
            place = _field(code, kinds, context, number)
            code.do(f"store {_type_of(key)} {self.scope[key]}, ptr {place}")
        count = self.exprs.binary("-", int64, end, begin)
        pool = code.unit.declare(PARALLEL_FOR, "i32", "ptr, ptr, i64, i64")
        grain = int(dict(node.attrs).get("grain", 0))
        call = f"call i32 {pool}(ptr @{name}, ptr {context}, i64 {count}, i64 {grain})"
        self._end_if(code.value(f"icmp ne i32 {code.value(call)}, 0"))

    def _end_if(self, interrupted: str) -> None:
        """Leave the function if the loop was interrupted: later code may rely on the loop."""
        code = self.code
        over, on = code.label("interrupted"), code.label("on")
        code.branch(interrupted, over, on)
        code.start(over)
        for pointer in reversed(self.heap):
            code.do(f"call void @free(ptr {pointer})")
        code.do("ret void" if self.concurrent else f"ret i32 {INTERRUPTED}")
        code.start(on)

    def _outline(self, node: st.For, name: str) -> list[Key]:
        """Write the functions *name* and ``name.body``; return what their context holds."""
        unit = self.code.unit
        body = Code(unit)
        inner = _CpuStmts(self.function, body, Scope(self.scope), concurrent=True)
        inner.turns = self.turns
        if _is_long(node):
            inner.context = "%context"
        inner.parts = node.body
        while isinstance(inner.parts, st.Let | st.Alloc):
            inner.parts = inner.parts.body
        first, last = (
            inner.exprs.binary("+", int64, inner.scope[_BEGIN], bound)
            for bound in ("%begin", "%end")
        )
        inner.loop(node, first, last, [NO_VECTORIZE])
        captures = inner.scope.captures
        parameters = [self._capture(key, operand) for key, operand in captures.items()]
        job = [f"ptr {inner.context}"] if inner.context else []
        header = f"({', '.join([*parameters, *job, 'i64 %begin', 'i64 %end'])})"
        # the ends of fibers are short: a call to memcpy would take longer than the copy
        calls = '"no-builtin-memcpy" ' if any(isinstance(n, st.While) for n in walk(node)) else ""
        lines = [f"define internal void @{name}.body{header} noinline {calls}#0 {{", "entry:"]
        unit.functions.append("\n".join([*lines, *body.allocas, *body.lines, "  ret void", "}"]))
        self._write_chunk(name, list(captures), job)
        return list(captures)

    def _write_chunk(self, name: str, captures: list[Key], job: list[str]) -> None:
        """Write the function that the pool calls: it unpacks the context."""
        code = Code(self.code.unit)
        kinds = ", ".join(_type_of(key) for key in captures)
        operands = []
        for number, key in enumerate(captures):
            kind = _type_of(key)
            place = _field(code, kinds, "%context", number)
            operands.append(f"{kind} {code.value(f'load {kind}, ptr {place}')}")
        operands += [*job, "i64 %begin", "i64 %end"]
        code.do(f"call void @{name}.body({', '.join(operands)})")
        code.do("ret void")
        header = f"define internal void @{name}(ptr %context, i64 %begin, i64 %end) #0 {{"
        self.code.unit.functions.append("\n".join([header, "entry:", *code.lines, "}"]))


def _is_long(loop: st.For) -> bool:
    """Whether a trip of the parallel *loop* may take so long that it has to pause.

    False where other threads wait for its sum, and where its inner loops are merges of fibers:
    these are short, and counting their work would take a measurable part of the time.
    """
    merges = any(isinstance(node, st.While) for node in walk(loop))
    return _height(loop) > SHORT and not merges and not any(True for _ in prefixes(loop.body))


def _height(node: Node) -> int:
    """Return the depth of the loop nest in *node*, itself included."""
    inner = max((_height(child) for child in children(node)), default=0)
    if isinstance(node, st.For):
        few = isinstance(node.end, Const) and int(node.end.value) <= FEW
        return inner if few else inner + 1
    return inner + isinstance(node, st.While)


def _loops(body: st.Stmt) -> bool:
    return any(isinstance(node, st.For | st.While) for node in walk(body))


def _field(code: Code, kinds: str, context: str, number: int) -> str:
    return code.value(f"getelementptr inbounds {{ {kinds} }}, ptr {context}, i32 0, i32 {number}")


def _type_of(key: Key) -> str:
    return register(key.dtype) if isinstance(key, Var) else "ptr"
