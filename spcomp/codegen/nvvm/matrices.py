"""Flat IR to LLVM IR for a GPU, tensor cores: nests that a warp runs as one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from spcomp.codegen.llvm.convert import encode
from spcomp.codegen.llvm.ops import memory
from spcomp.codegen.nvvm.expr import lane_of
from spcomp.dtypes import DType, int64
from spcomp.errors import LoweringError
from spcomp.ir.access import Load
from spcomp.ir.analysis.fragments import (
    ACCUMULATOR,
    A,
    B,
    Layout,
    Place,
    is_fragment,
    layout_of,
    role_of,
    role_of_store,
)
from spcomp.ir.arith.simplify import coefficient, simplify
from spcomp.ir.axis import AnyBuffer, Buffer
from spcomp.ir.expr import Const, Expr, Var, binary, const
from spcomp.ir.rewrite import substitute
from spcomp.ir.stmt import For, Store
from spcomp.ir.visitor import walk

if TYPE_CHECKING:
    from spcomp.codegen.llvm.code import Code, Scope
    from spcomp.codegen.nvvm.expr import KernelExprs
    from spcomp.ir.node import Node


class Writer(Protocol):
    """What writes the statements of a kernel; *bound*: loops whose variables have a value."""

    code: Code
    scope: Scope
    exprs: KernelExprs
    bound: set[Var]

    def visit(self, node: Node) -> None:
        """Write *node*."""


MULTIPLY = {  # by bits and kind of the elements: intrinsic, type of a register, elements in one
    (16, "float"): ("llvm.nvvm.mma.m16n8k16.row.col.f32.f32", "<2 x half>", 2),
    (16, "bfloat"): ("llvm.nvvm.mma.m16n8k16.row.col.bf16", "i32", 2),
    (32, "float"): ("llvm.nvvm.mma.m16n8k8.row.col.tf32", "i32", 1),
}


ROW = 8  # elements of 16 bits in a row of ldmatrix, which is 16 bytes, and rows of a block


class Matrix:
    """The matrix of a fragment that a nest touches, and where its registers are."""

    def __init__(self, nest: For, access: Load | Store) -> None:
        buffer, index = access.buffer, access.indices[0]
        assert isinstance(buffer, Buffer)
        assert index is not None
        self.buffer, self.index = buffer, index
        loops = [n for n in walk(nest) if isinstance(n, For)]
        self.loops = [x for x in loops if coefficient(index, x.var) != 0]
        strides = [coefficient(index, x.var) for x in self.loops]
        if None in strides or any(not isinstance(x.end, Const) for x in self.loops):
            raise self.error(nest)
        order = sorted(zip(strides, self.loops, strict=True), key=lambda pair: -(pair[0] or 0))
        self.rows, self.columns = [x for _, x in order[:-1]], order[-1][1]
        stride = order[-2][0] if len(order) > 1 else None
        height, width = 1, _trips(self.columns)
        for row in self.rows:
            height *= _trips(row)
        layout = layout_of(
            buffer.scope, height, width, buffer.dtype.bits if buffer.scope != ACCUMULATOR else 16
        )
        if layout is None or order[-1][0] != 1 or not isinstance(stride, int) or stride % width:
            raise self.error(nest)
        self.layout: Layout = layout
        self.height, self.width, self.stride = height, width, stride

    def error(self, nest: For) -> LoweringError:
        """Return the error for a matrix that no warp holds."""
        return LoweringError(
            f"a warp does not hold {self.buffer.name} as this nest uses it",
            nest.span,
            hint="tensor cores take 16 x 16 x 16 and 8 x 32 x 16 of 16 bits, 16 x 8 x 8 of 32",
        )


def _trips(loop: For) -> int:
    assert isinstance(loop.end, Const)
    return int(loop.end.value)


def register_type(buffer: AnyBuffer) -> str:
    """Return the type of an element that a lane holds: sums are float32."""
    return "float" if buffer.scope == ACCUMULATOR else memory(buffer.dtype)


class Matrices:
    """Writes the nests of one kernel that a warp runs as one."""

    def __init__(self, stmts: Writer) -> None:
        self.stmts, self.code, self.exprs = stmts, stmts.code, stmts.exprs

    def nest(self, nest: For) -> None:
        """Write *nest*."""
        stores = [n for n in walk(nest) if isinstance(n, Store)]
        role = role_of_store(stores[0]) if len(stores) == 1 else None
        if role is None or role != role_of(nest):
            raise LoweringError("this nest is no work for tensor cores", nest.span)
        (store,) = stores
        if role == "multiply":
            self._multiply(nest, store)
            return
        fragment: Load | Store = store
        if role == "store":
            fragment = next(
                n for n in walk(store.value) if isinstance(n, Load) and is_fragment(n.buffer)
            )
        matrix = Matrix(nest, fragment)
        base = self._registers(nest, matrix)
        if role == "load" and self._load_at_once(nest, store, matrix, base):
            return
        for k, (row, column) in enumerate(matrix.layout.places):
            self._bind(nest, matrix, self._place(row), self._place(column))
            kind = register_type(matrix.buffer)
            self.exprs.element = self.code.value(f"getelementptr {kind}, ptr {base}, i64 {k}")
            self._inside(nest)
        self.exprs.element = ""

    def _load_at_once(self, nest: For, store: Store, matrix: Matrix, base: str) -> bool:
        """Write ``ldmatrix`` for a copy of rows of 16 bytes in shared memory; False: it is none."""
        load = store.value
        index = load.indices[0] if isinstance(load, Load) else None
        if not isinstance(load, Load) or index is None or load.buffer.dtype != matrix.buffer.dtype:
            return False
        others = [n.var for n in walk(nest) if isinstance(n, For) and n is not matrix.columns]
        zeros: dict[Var, Expr] = {var: const(0) for var in (*others, matrix.columns.var)}
        steps = [coefficient(index, var) for var in others]
        if (
            not load.buffer.scope.startswith("shared")
            or load.buffer.dtype.bits != 16
            or coefficient(index, matrix.columns.var) != 1
            or any(step is None or step % ROW for step in steps)
            or self.exprs.divisor(simplify(substitute(index, zeros))) % ROW
        ):
            return False
        kind, pairs = memory(matrix.buffer.dtype), matrix.layout.places[::2]
        suffix = ".trans" if pairs[0][0][1] else ""  # a lane has neighbours of a column
        for first in range(0, len(pairs), 4):
            blocks = [(row[2], column[2]) for row, column in pairs[first : first + 4]]
            self._bind(nest, matrix, *self._block_row(blocks))
            place = self.exprs.access(load.buffer, index, None).address(self.code)
            pointer = self.code.value(f"addrspacecast ptr {place} to ptr addrspace(3)")
            count, result = len(blocks), f"{{ {', '.join(['i32'] * len(blocks))} }}"
            name = f"llvm.nvvm.ldmatrix.sync.aligned.m8n8.x{count}{suffix}.b16.p3"
            name = self.code.unit.declare(name, result, "ptr addrspace(3)")
            value = self.code.value(f"call {result} {name}(ptr addrspace(3) {pointer})")
            for k in range(count):
                at = self.code.value(f"getelementptr {kind}, ptr {base}, i64 {2 * (first + k)}")
                word = self.code.value(f"extractvalue {result} {value}, {k}")
                self.code.do(f"store i32 {word}, ptr {at}, align 4")
        return True

    def _block_row(self, blocks: list[tuple[int, int]]) -> tuple[str, str]:
        """Return row and column of where the row begins whose address this lane gives.

        Lanes 8 k to 8 k + 7 give the rows of the block of 8 x 8 that begins at *blocks* [k].
        """
        lane, code = lane_of(self.code), self.code
        part = code.value(f"and i64 {code.value(f'lshr i64 {lane}, 3')}, {len(blocks) - 1}")
        bits = code.value(f"and i64 {part}, 1"), code.value(f"lshr i64 {part}, 1")
        result: list[str] = []
        for k, value in enumerate((code.value(f"and i64 {lane}, 7"), "0")):
            begin = blocks[0][k]
            value = code.value(f"add i64 {value}, {begin}")
            for bit, block in zip(bits, blocks[1:3], strict=False):
                step = code.value(f"mul i64 {bit}, {block[k] - begin}")
                value = code.value(f"add i64 {value}, {step}")
            result.append(value)
        return result[0], result[1]

    def _inside(self, nest: For) -> None:
        """Write what one iteration of *nest*, whose variables are bound, does."""
        self.stmts.bound = {n.var for n in walk(nest) if isinstance(n, For)}
        self.stmts.visit(nest)
        self.stmts.bound = set()

    def _place(self, place: Place) -> str:
        """Return the row or column of this lane's element at *place*."""
        groups, members, offset = place
        lane = lane_of(self.code)
        value = f"{offset}"
        for factor, part in ((groups, f"lshr i64 {lane}, 2"), (members, f"and i64 {lane}, 3")):
            if factor:
                step = self.code.value(f"mul i64 {self.code.value(part)}, {factor}")
                value = self.code.value(f"add i64 {step}, {value}")
        return value

    def _bind(self, nest: For, matrix: Matrix, row: str, column: str) -> None:
        """Let the variables of *nest* have the values for an element."""
        for loop in (n for n in walk(nest) if isinstance(n, For)):
            self.stmts.scope[loop.var] = "0"
        self.stmts.scope[matrix.columns.var] = column
        for loop in reversed(matrix.rows):
            size = _trips(loop)
            self.stmts.scope[loop.var] = self.code.value(f"urem i64 {row}, {size}")
            row = self.code.value(f"udiv i64 {row}, {size}")

    def _registers(self, nest: For, matrix: Matrix) -> str:
        """Return the address of the registers of *matrix*, one part of its buffer."""
        zeros: dict[Var, object] = {n.var: const(0) for n in walk(nest) if isinstance(n, For)}
        begin = substitute(matrix.index, zeros)  # type: ignore[arg-type]
        band = matrix.height * matrix.stride
        down = binary("*", binary("//", begin, band), matrix.stride // matrix.width)
        across = binary("//", binary("%", begin, matrix.stride), matrix.width)
        part = binary("+", down, across)
        number = self.exprs.convert(part, int64)
        elements = len(matrix.layout.places)
        kind = register_type(matrix.buffer)
        offset = self.code.value(f"mul i64 {number}, {elements}")
        base = self.stmts.scope[matrix.buffer]
        return self.code.value(f"getelementptr {kind}, ptr {base}, i64 {offset}")

    def _multiply(self, nest: For, store: Store) -> None:
        loads = {n.buffer.scope: n for n in walk(store.value) if isinstance(n, Load)}
        left, right, total = (Matrix(nest, loads[scope]) for scope in (A, B, ACCUMULATOR))
        dtype = left.buffer.dtype
        found = MULTIPLY.get((dtype.bits, dtype.kind))
        fits = left.width == right.height and (left.height, right.width) == (
            total.height,
            total.width,
        )
        ways = {x.layout.transposed for x in (left, right, total)}
        if found is None or right.buffer.dtype != dtype or not fits or len(ways) > 1:
            raise left.error(nest)
        name, kind, pairs = found
        a, b, c = (self._registers(nest, x) for x in (left, right, total))
        if ways == {True}:
            a, b = b, a
        for part in range(len(total.layout.places) // 4):
            at_a, at_b = (part, 0) if ways == {True} else (0, part)
            operands = self._operands(a, 4 * pairs * at_a, 4, dtype, kind)
            operands += self._operands(b, 2 * pairs * at_b, 2, dtype, kind)
            sums = [
                self.code.value(f"getelementptr float, ptr {c}, i64 {4 * part + k}")
                for k in range(4)
            ]
            operands += [f"float {self.code.value(f'load float, ptr {s}')}" for s in sums]
            types = ", ".join(operand.rsplit(" ", 1)[0] for operand in operands)
            result = "{ float, float, float, float }"
            multiply = self.code.unit.declare(name, result, types)
            value = self.code.value(f"call {result} {multiply}({', '.join(operands)})")
            for k, place in enumerate(sums):
                one = self.code.value(f"extractvalue {result} {value}, {k}")
                self.code.do(f"store float {one}, ptr {place}")

    def _operands(self, base: str, begin: int, count: int, dtype: DType, kind: str) -> list[str]:
        """Return *count* registers of elements from number *begin* at *base*."""
        pairs = 32 // dtype.bits
        result = []
        for k in range(count):
            at = self.code.value(
                f"getelementptr {memory(dtype)}, ptr {base}, i64 {begin + pairs * k}"
            )
            if dtype.bits == 32:
                narrow = self.code.unit.declare("llvm.nvvm.f2tf32.rna", "i32", "float")
                value = self.code.value(f"load float, ptr {at}")
                result.append(f"i32 {self.code.value(f'call i32 {narrow}(float {value})')}")
            else:
                result.append(f"{kind} {self.code.value(f'load {kind}, ptr {at}, align 4')}")
        return result

    def write(self, store: Store) -> None:
        """Set the element that the current iteration is about."""
        buffer, code = store.buffer, self.code
        assert isinstance(buffer, Buffer)
        if not self.exprs.element:
            why = f"elements of {buffer.name} are stored outside nests of a whole warp"
            raise LoweringError(why, store.span, hint="tensorize the nest")
        value = self.exprs.convert(store.value, buffer.dtype)
        if buffer.scope != ACCUMULATOR:
            value = encode(code, value, buffer.dtype)
        code.do(f"store {register_type(buffer)} {value}, ptr {self.exprs.element}")
