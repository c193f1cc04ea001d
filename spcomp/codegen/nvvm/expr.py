"""Flat IR to LLVM IR for a GPU, expressions: wide loads, and values of other lanes of a warp."""

from __future__ import annotations

from dataclasses import replace
from math import gcd

from spcomp.codegen.llvm.code import Code, Scope
from spcomp.codegen.llvm.convert import decode
from spcomp.codegen.llvm.expr import Exprs, ramp_base
from spcomp.codegen.llvm.memory import Access
from spcomp.codegen.llvm.ops import memory, register
from spcomp.codegen.nvvm.lanes import Lanes, fixed_part
from spcomp.dtypes import DType, int32, int64
from spcomp.errors import InternalError, LoweringError
from spcomp.ir.access import Load, Search
from spcomp.ir.analysis.exprs import uncast
from spcomp.ir.analysis.fragments import ACCUMULATOR, LANES, is_fragment
from spcomp.ir.axis import WARP, AnyBuffer, Buffer
from spcomp.ir.expr import BinOp, Cast, Const, Expr, Var

_SREG = "llvm.nvvm.read.ptx.sreg.laneid"


class KernelExprs(Exprs):
    """Expressions of a thread.

    Vectors are loaded at once where their address is proved to be a multiple of their size; a
    buffer of the scope warp has an element in a register of each lane. *element*: the address of
    the register of a matrix that the current statement is about.
    """

    element = ""

    def __init__(self, code: Code, scope: Scope, lanes: Lanes) -> None:
        super().__init__(code, scope)
        self.lanes = lanes
        self.divisors: dict[Var, int] = {}  # of variables
        self.is_first = False  # whether only the first lane of its group runs this

    def access(self, buffer: AnyBuffer, index: Expr | None, mask: Expr | None) -> Access:
        """Return which memory is touched, and how many elements divide its place."""
        at = super().access(buffer, index, mask)
        first = None if index is None else ramp_base(index)
        lanes = at.dtype.lanes
        if lanes & (lanes - 1) or lanes == 1 or first is None:
            return at
        return replace(at, multiple=gcd(self.divisor(first), lanes))

    def place(self, buffer: AnyBuffer, index: Expr) -> tuple[str, str]:
        """Return them such that few instructions give the address in each trip of a loop.

        What the thread decides is added to the pointer, once, and not to each row that the loop
        reads. Places computed by products have 32 bits where these hold all of the buffer:
        addresses of 64 bits that a loop moves on take twice the instructions.
        """
        own, rest = fixed_part(index, self.lanes.fixed)
        if own is not None and rest is not None and _has_product(rest) and buffer.scope == "global":
            at = Access(self.scope.pointer(buffer), self.convert(own, int64), buffer.dtype, None)
            return at.address(self.code, known_inside=False), self.convert(rest, int64)
        pointer, offset = super().place(buffer, index)
        if _is_small(buffer) and _has_product(index):
            short = self.code.value(f"trunc i64 {offset} to i32")
            offset = self.code.value(f"sext i32 {short} to i64")
        return pointer, offset

    def divisor(self, value: Expr) -> int:
        """Return a number that is known to divide *value*, 0 if that is 0."""
        match value:
            case Const(value=number):
                return abs(int(number))
            case Var():
                return self.divisors.get(value, 1)
            case Cast(value=inner):
                return self.divisor(inner) if inner.dtype.is_integer else 1
            case BinOp(op="+" | "-", lhs=lhs, rhs=rhs):
                return gcd(self.divisor(lhs), self.divisor(rhs))
            case BinOp(op="*", lhs=lhs, rhs=rhs):
                return self.divisor(lhs) * self.divisor(rhs)
        return 1

    def is_narrow(self, node: Search) -> bool:
        """Whether they are from 0 to an int32: wider ones take twice the instructions."""
        begin, end = node.begin, node.end
        low = begin.value if isinstance(begin, Const) else -1
        short = isinstance(end, Cast) and end.value.dtype == int32
        return low == 0 and not node.slope and short

    def visit_Load(self, node: Load) -> str:
        """The lane's own element, or that of another lane of the same group."""
        if is_fragment(node.buffer):
            return read_element(self.code, node.buffer, self.element)
        if node.buffer.scope != WARP or not isinstance(node.buffer, Buffer):
            return super().visit_Load(node)
        index, size = node.indices[0], node.buffer.shape[0]
        if not isinstance(size, Const) or index is None:
            raise InternalError("reduce_threads", f"{node.buffer.name} has no constant size")
        dtype, code = node.buffer.dtype, self.code
        own = code.value(f"load {register(dtype)}, ptr {self.scope[node.buffer]}")
        match index:
            case Var():
                return own
            case Const(value=0) if self.is_first:
                return own
            case BinOp(op="^", lhs=Var(), rhs=Const(value=distance)):
                mask = _mask(code, int(size.value), self.lanes)
                return shuffle(code, "bfly", own, dtype, str(int(distance)), mask)
        return self._of_lane(own, dtype, index, int(size.value))

    def _of_lane(self, own: str, dtype: DType, index: Expr, size: int) -> str:
        """Return what the lane number *index* of the group has."""
        code, lane = self.code, self.convert(index, int32)
        if size < LANES:
            lane = code.value(f"add i32 {_group(code, size)}, {lane}")
        return shuffle(code, "idx", own, dtype, lane, _mask(code, size))


def _is_small(buffer: AnyBuffer) -> bool:
    """Whether an int32 holds the place of each element of *buffer*."""
    size = buffer.shape[0] if isinstance(buffer, Buffer) and buffer.shape else None
    return isinstance(size, Cast) and size.value.dtype == int32


def _has_product(index: Expr) -> bool:
    """Whether *index* has a product in it that is no multiple of a variable, as in a loop."""
    match index:
        case BinOp(op="+" | "-", lhs=lhs, rhs=rhs):
            return _has_product(lhs) or _has_product(rhs)
        case Cast(value=value):
            return _has_product(value)
        case BinOp(op="*", lhs=lhs, rhs=rhs):
            return not (isinstance(uncast(lhs), Var) and isinstance(uncast(rhs), Const))
    return False


def read_element(code: Code, buffer: AnyBuffer, place: str) -> str:
    """Return the element of a matrix of the warp in the register *place*; sums are float32."""
    if not place:
        raise LoweringError(f"elements of {buffer.name} are read outside nests of a whole warp")
    if buffer.scope == ACCUMULATOR:
        return code.value(f"load float, ptr {place}")
    return decode(code, code.value(f"load {memory(buffer.dtype)}, ptr {place}"), buffer.dtype)


def vote(code: Code, cond: str) -> str:
    """Return whether the i1 *cond* is true for all lanes of the warp, which are together."""
    name = code.unit.declare("llvm.nvvm.vote.all.sync", "i1", "i32, i1")
    return code.value(f"call i1 {name}(i32 -1, i1 {cond})")


def shuffle(code: Code, kind: str, value: str, dtype: DType, lane: str, mask: str) -> str:
    """Return the *value* of another lane: at distance *lane* (bfly), or number *lane* (idx).

    The lanes in *mask* run this together.
    """
    scalar = register(dtype)
    name = code.unit.declare(f"llvm.nvvm.shfl.sync.{kind}.i32", "i32", "i32, i32, i32, i32")

    def one(word: str) -> str:
        return code.value(f"call i32 {name}(i32 {mask}, i32 {word}, i32 {lane}, i32 {LANES - 1})")

    if dtype.bits == 64:
        pair = code.value(f"bitcast {scalar} {value} to <2 x i32>")
        result = "poison"
        for half in range(2):
            word = one(code.value(f"extractelement <2 x i32> {pair}, i64 {half}"))
            result = code.value(f"insertelement <2 x i32> {result}, i32 {word}, i64 {half}")
        return code.value(f"bitcast <2 x i32> {result} to {scalar}")
    if dtype.is_float:
        word = one(code.value(f"bitcast float {value} to i32"))
        return code.value(f"bitcast i32 {word} to float")
    if scalar == "i32":
        return one(value)
    return code.value(f"trunc i32 {one(code.value(f'zext {scalar} {value} to i32'))} to {scalar}")


def barrier_of_lanes(code: Code, size: int, lanes: Lanes) -> None:
    """Let the groups of *size* lanes wait, each for its own, and see each other's stores."""
    name = code.unit.declare("llvm.nvvm.bar.warp.sync", "void", "i32")
    code.do(f"call void {name}(i32 {_mask(code, size, lanes)})")


def _mask(code: Code, size: int, lanes: Lanes | None = None) -> str:
    """Return the bits of the lanes of this lane's group, or of all *lanes* if they are together."""
    if size == LANES or (lanes is not None and lanes.together):
        return "-1"
    return code.value(f"shl i32 {(1 << size) - 1}, {_group(code, size)}")


def lane_of(code: Code) -> str:
    """Return the number of this lane in its warp, as an i64."""
    lane = code.value(f"call i32 {code.unit.declare(_SREG, 'i32', '')}()")
    return code.value(f"zext i32 {lane} to i64")


def _group(code: Code, size: int) -> str:
    """Return the first lane of this lane's group."""
    lane = code.value(f"call i32 {code.unit.declare(_SREG, 'i32', '')}()")
    return code.value(f"and i32 {lane}, {-size}")
