"""Beside the kernels: a small language for the emulator's own machine code, written as Python.

The functions of ``scheduler``, ``memory``, ``collectives`` and ``matrices`` are never run by
Python: ``llvm_ir`` translates their source. They have integers (64 bits that wrap, ``//``, ``%``
and ``>>`` as in C on unsigned numbers), floats (of 64 bits) and pointers; ``p.i32[k]`` is the k-th
element of the array of 32-bit integers at *p*. Constants in capitals are those of the module.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterable
from types import ModuleType
from typing import Generic, TypeVar

T = TypeVar("T")


class View(Generic[T]):
    """Memory as an array of one type of element."""

    def __getitem__(self, index: int) -> T:
        raise NotImplementedError("only machine code has pointers")

    def __setitem__(self, index: int, value: T) -> None:
        raise NotImplementedError("only machine code has pointers")


class Pointer:
    """An address; each attribute is a view of the memory there."""

    u8: View[int]
    u16: View[int]
    i32: View[int]
    u32: View[int]
    i64: View[int]
    f32: View[float]
    f64: View[float]
    ptr: View[Pointer]

    def __add__(self, offset: int) -> Pointer:
        raise NotImplementedError("only machine code has pointers")

    def __sub__(self, other: Pointer) -> int:
        raise NotImplementedError("only machine code has pointers")


def array(size: int) -> Pointer:
    """Return *size* bytes on the stack."""
    raise NotImplementedError("only machine code has pointers")


def fill(to: Pointer, byte: int, size: int) -> None:
    """Set *size* bytes to *byte*."""


def copy(to: Pointer, source: Pointer, size: int) -> None:
    """Copy *size* bytes."""


def call(function: Pointer, first: Pointer, second: Pointer) -> None:
    """Call the machine code at *function* with two pointers."""


def address(p: Pointer) -> int:
    """Return *p* as a number."""
    raise NotImplementedError("only machine code has pointers")


def pointer(x: int) -> Pointer:
    """Return the pointer to address *x*."""
    raise NotImplementedError("only machine code has pointers")


_VIEWS = {
    "u8": ("i8", 1, "zext"),
    "u16": ("i16", 2, "zext"),
    "i32": ("i32", 4, "sext"),
    "u32": ("i32", 4, "zext"),
    "i64": ("i64", 8, ""),
    "ptr": ("i64", 8, ""),
    "f32": ("float", 4, "fpext"),
    "f64": ("double", 8, ""),
}
_INTEGER = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.FloorDiv: "udiv",
    ast.Mod: "urem",
    ast.BitAnd: "and",
    ast.BitOr: "or",
    ast.BitXor: "xor",
    ast.LShift: "shl",
    ast.RShift: "lshr",
}
_FLOAT = {ast.Add: "fadd", ast.Sub: "fsub", ast.Mult: "fmul"}
_COMPARE = {
    ast.Eq: ("eq", "oeq"),
    ast.NotEq: ("ne", "une"),
    ast.Lt: ("slt", "olt"),
    ast.LtE: ("sle", "ole"),
    ast.Gt: ("sgt", "ogt"),
    ast.GtE: ("sge", "oge"),
}
_BUILTINS = {
    "fill": (
        "  %t{n} = inttoptr i64 {0} to ptr\n  %b{n} = trunc i64 {1} to i8\n"
        "  call void @llvm.memset.p0.i64(ptr %t{n}, i8 %b{n}, i64 {2}, i1 false)"
    ),
    "copy": (
        "  %t{n} = inttoptr i64 {0} to ptr\n  %s{n} = inttoptr i64 {1} to ptr\n"
        "  call void @llvm.memmove.p0.p0.i64(ptr %t{n}, ptr %s{n}, i64 {2}, i1 false)"
    ),
    "call": (
        "  %f{n} = inttoptr i64 {0} to ptr\n  %t{n} = inttoptr i64 {1} to ptr\n"
        "  %s{n} = inttoptr i64 {2} to ptr\n  call void %f{n}(ptr %t{n}, ptr %s{n})"
    ),
    "address": "  %v{n} = add i64 {0}, 0",
    "pointer": "  %v{n} = add i64 {0}, 0",
}
_DECLARED = """declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
declare void @llvm.memmove.p0.p0.i64(ptr, ptr, i64, i1)
"""


def llvm_ir(modules: Iterable[ModuleType], exported: Iterable[str], attributes: str) -> str:
    """Return the functions of *modules* as LLVM IR whose functions have *attributes*.

    Only *exported* can be called from elsewhere.
    """
    found = [
        (node, module)
        for module in modules
        for node in ast.parse(inspect.getsource(module)).body
        if isinstance(node, ast.FunctionDef)
    ]
    returns = {node.name: _kind(node.returns) for node, _ in found}
    public = frozenset(exported)
    texts = [_Function(node, module, returns, public).text() for node, module in found]
    return "\n".join([_DECLARED, *texts, f"attributes #0 = {{ nounwind {attributes} }}\n"])


def _kind(annotation: ast.expr | None) -> str:
    return "double" if isinstance(annotation, ast.Name) and annotation.id == "float" else "i64"


class _Function:
    """One function as LLVM IR: every variable is in memory, which LLVM turns into registers."""

    def __init__(
        self,
        node: ast.FunctionDef,
        module: ModuleType,
        returns: dict[str, str],
        public: frozenset[str],
    ) -> None:
        self.node, self.module, self.returns, self.public = node, module, returns, public
        self.lines: list[str] = []
        self.allocas: list[str] = []
        self.kinds: dict[str, str] = {}
        self.loops: list[tuple[str, str]] = []  # the labels to continue at and to break to
        self.numbers = 0

    def text(self) -> str:
        """Return the definition."""
        params = []
        for arg in self.node.args.args:
            kind = _kind(arg.annotation)
            params.append(f"{kind} %a.{arg.arg}")
            self.store(arg.arg, f"%a.{arg.arg}", kind)
        self.body(self.node.body)
        kind = self.returns[self.node.name]
        self.do(f"ret {kind} zeroinitializer")
        linkage = "" if self.node.name in self.public else "internal "
        head = f"define {linkage}{kind} @emu.{self.node.name}({', '.join(params)}) #0 {{\nentry:"
        return "\n".join([head, *self.allocas, *self.lines, "}"])

    def fresh(self) -> int:
        """Return a number that no other value or label has."""
        self.numbers += 1
        return self.numbers

    def do(self, line: str) -> None:
        """Write the instruction *line*."""
        self.lines.append(f"  {line}")

    def value(self, line: str) -> str:
        """Write the instruction *line* and return its result."""
        name = f"%v{self.fresh()}"
        self.do(f"{name} = {line}")
        return name

    def label(self, name: str) -> None:
        """Begin the block *name*."""
        self.do(f"br label %{name}")
        self.lines.append(f"{name}:")

    def store(self, name: str, value: str, kind: str) -> None:
        """Assign *value* to the variable *name*."""
        if name not in self.kinds:
            self.kinds[name] = kind
            self.allocas.append(f"  %x.{name} = alloca {kind}")
        self.do(
            f"store {self.kinds[name]} {self.cast(value, kind, self.kinds[name])}, ptr %x.{name}"
        )

    def cast(self, value: str, kind: str, target: str) -> str:
        """Return *value* of *kind* as *target*."""
        if kind == target:
            return value
        if target == "double":
            return self.value(f"sitofp i64 {value} to double")
        raise TypeError(f"{self.node.name}: a float where an integer is expected")

    # -- statements

    def body(self, nodes: Iterable[ast.stmt]) -> None:
        """Write the statements *nodes*."""
        for node in nodes:
            getattr(self, f"do_{type(node).__name__}")(node)

    def do_Expr(self, node: ast.Expr) -> None:  # noqa: N802
        if not isinstance(node.value, ast.Constant):  # a docstring
            self.expr(node.value)

    def do_Assign(self, node: ast.Assign) -> None:  # noqa: N802
        target = node.targets[0]
        if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            values = [self.expr(value) for value in node.value.elts]
            for each, (value, kind) in zip(target.elts, values, strict=True):
                self.assign(each, value, kind)
        else:
            self.assign(target, *self.expr(node.value))

    def do_AugAssign(self, node: ast.AugAssign) -> None:  # noqa: N802
        self.assign(node.target, *self.expr(ast.BinOp(node.target, node.op, node.value)))

    def assign(self, target: ast.expr, value: str, kind: str) -> None:
        """Store *value* to a variable or to memory."""
        if isinstance(target, ast.Name):
            self.store(target.id, value, kind)
            return
        place, element, _ = self.place(target)
        if element in ("float", "double"):
            value = self.cast(value, kind, "double")
            if element == "float":
                value = self.value(f"fptrunc double {value} to float")
        elif element != "i64":
            value = self.value(f"trunc i64 {value} to {element}")
        self.do(f"store {element} {value}, ptr {place}, align 1")

    def do_Return(self, node: ast.Return) -> None:  # noqa: N802
        kind = self.returns[self.node.name]
        value = "zeroinitializer" if node.value is None else self.cast(*self.expr(node.value), kind)
        self.do(f"ret {kind} {value}")
        self.lines.append(f"dead{self.fresh()}:")

    def do_If(self, node: ast.If) -> None:  # noqa: N802
        n = self.fresh()
        self.branch(node.test, f"then{n}", f"else{n}")
        self.lines.append(f"then{n}:")
        self.body(node.body)
        self.do(f"br label %end{n}")
        self.lines.append(f"else{n}:")
        self.body(node.orelse)
        self.label(f"end{n}")

    def do_While(self, node: ast.While) -> None:  # noqa: N802
        n = self.fresh()
        self.label(f"loop{n}")
        self.branch(node.test, f"then{n}", f"end{n}")
        self.lines.append(f"then{n}:")
        self.loops.append((f"loop{n}", f"end{n}"))
        self.body(node.body)
        self.loops.pop()
        self.do(f"br label %loop{n}")
        self.lines.append(f"end{n}:")

    def do_For(self, node: ast.For) -> None:  # noqa: N802
        assert isinstance(node.target, ast.Name)
        assert isinstance(node.iter, ast.Call)
        bounds = [self.expr(bound)[0] for bound in node.iter.args]
        begin, end = bounds if len(bounds) == 2 else ("0", bounds[0])
        n, name = self.fresh(), node.target.id
        self.store(name, begin, "i64")
        self.label(f"loop{n}")
        current = self.value(f"load i64, ptr %x.{name}")
        test = self.value(f"icmp slt i64 {current}, {end}")
        self.do(f"br i1 {test}, label %then{n}, label %end{n}")
        self.lines.append(f"then{n}:")
        self.loops.append((f"next{n}", f"end{n}"))
        self.body(node.body)
        self.loops.pop()
        self.label(f"next{n}")
        again = self.value(f"load i64, ptr %x.{name}")
        self.store(name, self.value(f"add i64 {again}, 1"), "i64")
        self.do(f"br label %loop{n}")
        self.lines.append(f"end{n}:")

    def do_Break(self, _: ast.Break) -> None:  # noqa: N802
        self.do(f"br label %{self.loops[-1][1]}")
        self.lines.append(f"dead{self.fresh()}:")

    def do_Continue(self, _: ast.Continue) -> None:  # noqa: N802
        self.do(f"br label %{self.loops[-1][0]}")
        self.lines.append(f"dead{self.fresh()}:")

    def branch(self, test: ast.expr, then: str, otherwise: str) -> None:
        """Branch by *test*; ``and``, ``or`` and ``not`` do not compute what they need not."""
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            self.branch(test.operand, otherwise, then)
        elif isinstance(test, ast.BoolOp):
            both = isinstance(test.op, ast.And)
            for each in test.values[:-1]:
                n = self.fresh()
                self.branch(each, f"more{n}" if both else then, otherwise if both else f"more{n}")
                self.lines.append(f"more{n}:")
            self.branch(test.values[-1], then, otherwise)
        else:
            value = self.value(f"icmp ne i64 {self.expr(test)[0]}, 0")
            self.do(f"br i1 {value}, label %{then}, label %{otherwise}")

    # -- expressions: each returns a value and its kind

    def expr(self, node: ast.expr) -> tuple[str, str]:
        """Return the value of *node* and its kind, ``i64`` or ``double``."""
        result: tuple[str, str] = getattr(self, f"of_{type(node).__name__}")(node)
        return result

    def of_Constant(self, node: ast.Constant) -> tuple[str, str]:  # noqa: N802
        if isinstance(node.value, float):
            return repr(node.value), "double"
        assert isinstance(node.value, int)
        return str(int(node.value)), "i64"

    def of_Name(self, node: ast.Name) -> tuple[str, str]:  # noqa: N802
        if (kind := self.kinds.get(node.id)) is not None:
            return self.value(f"load {kind}, ptr %x.{node.id}"), kind
        return str(int(getattr(self.module, node.id))), "i64"

    def of_BinOp(self, node: ast.BinOp) -> tuple[str, str]:  # noqa: N802
        (lhs, left), (rhs, right) = self.expr(node.left), self.expr(node.right)
        if "double" in (left, right):
            lhs, rhs = self.cast(lhs, left, "double"), self.cast(rhs, right, "double")
            return self.value(f"{_FLOAT[type(node.op)]} double {lhs}, {rhs}"), "double"
        return self.value(f"{_INTEGER[type(node.op)]} i64 {lhs}, {rhs}"), "i64"

    def of_UnaryOp(self, node: ast.UnaryOp) -> tuple[str, str]:  # noqa: N802
        if isinstance(node.op, ast.Not):
            return self.of_BoolOp(node)
        value, kind = self.expr(node.operand)
        if isinstance(node.op, ast.Invert):
            return self.value(f"xor i64 {value}, -1"), kind
        return self.value(
            f"fneg double {value}" if kind == "double" else f"sub i64 0, {value}"
        ), kind

    def of_Compare(self, node: ast.Compare) -> tuple[str, str]:  # noqa: N802
        if isinstance(others := node.comparators[0], ast.Tuple):  # in (a, b)
            same = [ast.Compare(node.left, [ast.Eq()], [each]) for each in others.elts]
            return self.of_BoolOp(ast.BoolOp(ast.Or(), list(same)))
        (lhs, left), (rhs, right) = self.expr(node.left), self.expr(others)
        integer, real = _COMPARE[type(node.ops[0])]
        if "double" in (left, right):
            lhs, rhs = self.cast(lhs, left, "double"), self.cast(rhs, right, "double")
            test = self.value(f"fcmp {real} double {lhs}, {rhs}")
        else:
            test = self.value(f"icmp {integer} i64 {lhs}, {rhs}")
        return self.value(f"zext i1 {test} to i64"), "i64"

    def of_BoolOp(self, node: ast.expr) -> tuple[str, str]:  # noqa: N802
        return self.of_IfExp(ast.IfExp(node, ast.Constant(1), ast.Constant(0)))

    def of_IfExp(self, node: ast.IfExp) -> tuple[str, str]:  # noqa: N802
        n = self.fresh()
        self.branch(node.test, f"then{n}", f"else{n}")
        self.lines.append(f"then{n}:")
        self.store(f"if{n}", *self.expr(node.body))
        self.do(f"br label %end{n}")
        self.lines.append(f"else{n}:")
        self.store(f"if{n}", *self.expr(node.orelse))
        self.label(f"end{n}")
        return self.of_Name(ast.Name(f"if{n}"))

    def place(self, node: ast.expr) -> tuple[str, str, str]:
        """Return the pointer to ``p.view[k]``, the type of the element and how it is widened."""
        assert isinstance(node, ast.Subscript)
        assert isinstance(node.value, ast.Attribute)
        element, size, widen = _VIEWS[node.value.attr]
        base, index = self.expr(node.value.value)[0], self.expr(node.slice)[0]
        offset = self.value(f"mul i64 {index}, {size}")
        where = self.value(f"add i64 {base}, {offset}")
        return self.value(f"inttoptr i64 {where} to ptr"), element, widen

    def of_Subscript(self, node: ast.Subscript) -> tuple[str, str]:  # noqa: N802
        place, element, widen = self.place(node)
        value = self.value(f"load {element}, ptr {place}, align 1")
        kind = "double" if element in ("float", "double") else "i64"
        return (self.value(f"{widen} {element} {value} to {kind}") if widen else value), kind

    def of_Call(self, node: ast.Call) -> tuple[str, str]:  # noqa: N802
        assert isinstance(node.func, ast.Name)
        name = node.func.id
        if name == "array":
            n = self.fresh()
            self.allocas.append(f"  %x{n} = alloca [{self.expr(node.args[0])[0]} x i8], align 16")
            return self.value(f"ptrtoint ptr %x{n} to i64"), "i64"
        args = [self.expr(arg) for arg in node.args]
        if name in _BUILTINS:
            n = self.fresh()
            self.lines.append(_BUILTINS[name].format(*(value for value, _ in args), n=n))
            return f"%v{n}", "i64"
        operands = ", ".join(f"{kind} {value}" for value, kind in args)
        kind = self.returns[name]
        return self.value(f"call {kind} @emu.{name}({operands})"), kind
