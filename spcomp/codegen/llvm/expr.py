"""Flat IR to LLVM IR, expressions: each gives the operand that holds its value."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from spcomp.codegen.abi import DIVISION
from spcomp.codegen.llvm.code import STATUS, Code, Scope
from spcomp.codegen.llvm.convert import convert
from spcomp.codegen.llvm.math import call, divide, reduce, shift
from spcomp.codegen.llvm.memory import Access, read, search, search_key
from spcomp.codegen.llvm.ops import (
    ARITHMETIC,
    BOOLEAN,
    EXTREME,
    INTRINSICS,
    is_literal,
    literal,
    register,
    row,
    splat,
    vector,
    zero,
)
from spcomp.codegen.llvm.unguarded import need_no_guard, place_of, places_read
from spcomp.dtypes import DType, bool_, int64
from spcomp.errors import InternalError, LoweringError
from spcomp.ir import expr as ex
from spcomp.ir.access import Load, Search
from spcomp.ir.analysis.exprs import plus
from spcomp.ir.axis import AnyBuffer
from spcomp.ir.expr import Expr
from spcomp.ir.visitor import Visitor, walk

BLEND_BITS = 128  # of the vectors that scalars are selected in


class Exprs(Visitor[str]):
    """Writes expressions into *code*. Lanes where *mask* is false do not touch memory."""

    COVERS = (
        *(ex.Var, ex.Const, ex.BinOp, ex.UnOp, ex.Cast, ex.Select, ex.Call, Load, Search),
        *(ex.Ramp, ex.Broadcast, ex.Reduce),
    )

    def __init__(self, code: Code, scope: Scope) -> None:
        self.code, self.scope = code, scope
        self.mask: str | None = None
        self.mask_lanes = 1
        # the places that are read where the current one is, with the mask that they are read under
        self.known: dict[object, tuple[str | None, int]] = {}
        if code.unit.debug is not None:
            code.unit.debug.follow(self)

    def visit_Var(self, var: ex.Var) -> str:
        """What the variable was bound to."""
        return self.scope[var]

    def visit_Const(self, node: ex.Const) -> str:
        """A literal."""
        return literal(node.value, node.type)

    def visit_BinOp(self, node: ex.BinOp) -> str:
        """An instruction or intrinsic; ``and`` and ``or`` run the right side only if they must."""
        if node.op in ("and", "or"):
            return self._logical(node)
        lhs = self.visit(node.lhs)
        return self.binary(node.op, node.lhs.dtype, lhs, self.visit(node.rhs))

    def binary(self, op: str, dtype: DType, lhs: str, rhs: str) -> str:
        """Return ``lhs op rhs`` of two operands of *dtype*."""
        code, kind = self.code, register(dtype)
        if dtype.kind == "bool" and op in BOOLEAN:
            return code.value(f"{BOOLEAN[op]} {kind} {lhs}, {rhs}")
        if op in INTRINSICS:
            flags = EXTREME if dtype.is_float else ""
            return code.intrinsic(INTRINSICS[op][row(dtype)], kind, lhs, rhs, flags=flags)
        if op in ("//", "%"):
            return divide(code, op, dtype, lhs, rhs, partial(self._zero_divisor, dtype.lanes))
        if op in ("<<", ">>"):
            return shift(code, op, dtype, lhs, rhs)
        if dtype == int64 and (folded := _fold(op, lhs, rhs)) is not None:
            return folded
        if not ARITHMETIC[op][row(dtype)]:
            raise LoweringError(f"{op} of {dtype} values", hint="cast the operands first")
        return code.arithmetic(op, dtype, lhs, rhs)

    def _zero_divisor(self, lanes: int, is_zero: str) -> None:
        active = self._active(lanes)
        if active is not None:
            is_zero = self.code.value(f"and {vector('i1', lanes)} {is_zero}, {active}")
        if lanes > 1:
            is_zero = self._any(is_zero, lanes)
        self.code.when(is_zero, lambda: self.code.fail(self.scope[STATUS], DIVISION))

    def _any(self, mask: str, lanes: int) -> str:
        return reduce(self.code, "|", bool_.with_lanes(lanes), mask)

    def _active(self, lanes: int) -> str | None:
        """Return the mask for an access of *lanes*, or None: a scalar runs if any lane does."""
        if self.mask is None or lanes == self.mask_lanes:
            return self.mask
        if lanes == 1:
            return self._any(self.mask, self.mask_lanes)
        raise InternalError("vectorize", f"{lanes} lanes under a mask of {self.mask_lanes}")

    def visit_UnOp(self, node: ex.UnOp) -> str:
        """``-``, ``not`` or ``~``."""
        value, kind, dtype = self.visit(node.value), register(node.dtype), node.dtype
        if node.op == "-" and dtype.is_float:
            return self.code.value(f"fneg {kind} {value}")
        if node.op == "-":
            return self.binary("-", dtype, zero(dtype), value)
        ones = splat(kind, "true" if dtype.kind == "bool" else "-1")
        return self.code.value(f"xor {kind} {value}, {ones}")

    def visit_Cast(self, node: ex.Cast) -> str:
        """A conversion, after a broadcast where lanes are missing."""
        return self.convert(node.value, node.type)

    def convert(self, node: Expr, dtype: DType) -> str:
        """Return the value of *node* as *dtype*."""
        value, source = self.visit(node), node.dtype
        if source.lanes < dtype.lanes:
            value = self.code.splat(value, source, dtype.lanes)
            source = source.with_lanes(dtype.lanes)
        return convert(self.code, value, source, dtype)

    def visit_Select(self, node: ex.Select) -> str:
        """A select where both sides are harmless, else a branch, or masks for the sides."""
        cond = self.visit(node.cond)
        sides = (node.then, node.otherwise)
        blends = self.code.unit.dialect.blends
        if blends and all(map(_is_computed, sides)) and _compares_integers(node.cond):
            return self._blend(cond, node.dtype, *map(self.visit, sides))
        lazy = any(map(_needs_guard, sides))
        if not lazy or node.cond.dtype.lanes == 1 or any(map(_may_fail, sides)):
            return self._choose(cond, node.cond.dtype, *sides, lazy=lazy)
        known, here = self.known, (self.mask, self.mask_lanes)
        self.known = {**dict.fromkeys(places_read(node), here), **known}
        try:
            lazy = not need_no_guard(node, self.known)
            return self._choose(cond, node.cond.dtype, *sides, lazy=lazy)
        finally:
            self.known = known

    def _blend(self, cond: str, dtype: DType, first: str, second: str) -> str:
        """Select between scalar floats without a branch: CPUs cannot move them on a condition."""
        code, scalar, lanes = self.code, register(dtype), BLEND_BITS // dtype.bits
        kind, mask = vector(scalar, lanes), vector(f"i{dtype.bits}", lanes)
        wide = code.value(f"sext i1 {cond} to i{dtype.bits}")
        wide = code.value(f"insertelement {mask} poison, i{dtype.bits} {wide}, i64 0")
        bits = code.value(f"icmp slt {mask} {wide}, zeroinitializer")
        sides = [
            code.value(f"insertelement {kind} poison, {scalar} {side}, i64 0")
            for side in (first, second)
        ]
        chosen = code.value(
            f"select {vector('i1', lanes)} {bits}, {kind} {sides[0]}, {kind} {sides[1]}"
        )
        return code.value(f"extractelement {kind} {chosen}, i64 0")

    def _logical(self, node: ex.BinOp) -> str:
        cond, dtype = self.visit(node.lhs), node.lhs.dtype
        if not _needs_guard(node.rhs):
            return self.binary(node.op, dtype, cond, self.visit(node.rhs))
        constant: Expr = ex.const(node.op == "or", bool_)
        if dtype.lanes > 1:
            constant = ex.Broadcast(constant, dtype.lanes)
        sides = (node.rhs, constant) if node.op == "and" else (constant, node.rhs)
        return self._choose(cond, dtype, *sides, lazy=True)

    def _choose(self, cond: str, truth: DType, then: Expr, otherwise: Expr, *, lazy: bool) -> str:
        """Return one side; *lazy*: what the other would do must not happen."""
        code, kind, lanes = self.code, register(then.dtype), truth.lanes
        if lazy and lanes == 1:
            return code.choose(
                cond, then.dtype, lambda: self.visit(then), lambda: self.visit(otherwise)
            )
        if lazy:
            with self._only(cond, lanes):
                first = self.visit(then)
            negated = code.value(f"xor {register(truth)} {cond}, splat (i1 true)")
            with self._only(negated, lanes):
                second = self.visit(otherwise)
        else:
            first, second = self.visit(then), self.visit(otherwise)
        return code.value(f"select {register(truth)} {cond}, {kind} {first}, {kind} {second}")

    @contextmanager
    def _only(self, mask: str, lanes: int) -> Iterator[None]:
        """Restrict what is written inside to the lanes of *mask*."""
        active = self._active(lanes)
        if active is not None:
            mask = self.code.value(f"and {vector('i1', lanes)} {mask}, {active}")
        with self._under(mask, lanes):
            yield

    @contextmanager
    def _under(self, mask: str | None, lanes: int) -> Iterator[None]:
        """Put *mask* in the place of the one that restricts what is written inside."""
        before, self.mask, self.mask_lanes = (self.mask, self.mask_lanes), mask, lanes
        try:
            yield
        finally:
            self.mask, self.mask_lanes = before

    def visit_Call(self, node: ex.Call) -> str:
        """A function of the language."""
        args = [self.visit(arg) for arg in node.args]
        return call(self.code, node.func, node.args[0].dtype, args)

    def access(self, buffer: AnyBuffer, index: Expr | None, mask: Expr | None) -> Access:
        """Return which memory ``buffer[index]`` touches, and under which mask, all evaluated."""
        if index is None:
            raise InternalError("flatten_buffers", f"{buffer.name} is read without an offset")
        lanes = index.dtype.lanes
        active = self._active(lanes)
        if mask is not None:
            condition = self.convert(mask, bool_.with_lanes(lanes))
            truth = vector("i1", lanes)
            active = (
                condition
                if active is None
                else self.code.value(f"and {truth} {active}, {condition}")
            )
        dtype = buffer.dtype.with_lanes(lanes)
        first = ramp_base(index) if lanes > 1 else index
        if first is not None:
            return Access(*self.place(buffer, first), dtype, active)
        wide = index.dtype  # an address computation extends the sign of int32 itself
        few = lanes <= self.code.unit.knobs.single_lanes  # they are loaded one after the other
        if wide.kind != "int" or wide.bits < 32 or few:
            wide = int64.with_lanes(lanes)
        offsets, kind = self.convert(index, wide), register(wide)
        return Access(self.scope.pointer(buffer), offsets, dtype, active, kind)

    def place(self, buffer: AnyBuffer, index: Expr) -> tuple[str, str]:
        """Return a pointer into *buffer*, and how far behind it, an i64, is the element *index*."""
        return self.scope.pointer(buffer), self.convert(index, int64)

    def visit_Load(self, node: Load) -> str:
        """A load; of a vector: contiguous for a ramp of stride 1, else a gather.

        Where its place is read in any case, it waits for no mask.
        """
        if self.mask is not None and self.known:
            with self._under(*self.known.get(place_of(node), (self.mask, self.mask_lanes))):
                return self._load(node)
        return self._load(node)

    def _load(self, node: Load) -> str:
        if node.mask is None and self.mask is None and (singles := self._singles(node)):
            return self._vector_of([self.visit(single) for single in singles], node.dtype)
        return read(self.code, self.access(node.buffer, node.indices[0], node.mask))

    def _singles(self, node: Load) -> list[Load]:
        """Return a load for each lane of a short gather at indices in memory; none for others.

        Its indices are then loaded one by one, too, and need not be taken out of a vector.
        """
        (index,) = node.indices
        where = index.value if isinstance(index, ex.Cast) else index
        few = 1 < node.dtype.lanes <= self.code.unit.knobs.single_lanes
        if not few or not isinstance(where, Load) or where.mask is not None:
            return []
        first = ramp_base(where.indices[0]) if where.indices[0] is not None else None
        if first is None:
            return []
        at = (Load(where.buffer, (plus(first, lane),)) for lane in range(node.dtype.lanes))
        return [Load(node.buffer, (ex.cast(i, int64),)) for i in at]

    def _vector_of(self, values: list[str], dtype: DType) -> str:
        """Return the vector of *dtype* with *values* in its lanes."""
        kind, scalar, result = register(dtype), register(dtype.element), "poison"
        for lane, value in enumerate(values):
            result = self.code.value(f"insertelement {kind} {result}, {scalar} {value}, i64 {lane}")
        return result

    def visit_Search(self, node: Search) -> str:
        """A loop."""
        active = self._active(1)
        if active is None:
            return self._search(node)
        return self.code.choose(active, int64, lambda: self._search(node), lambda: "0")

    def _search(self, node: Search) -> str:
        begin, end = self.convert(node.begin, int64), self.convert(node.end, int64)
        pointer, value = self.scope.pointer(node.buffer), self.visit(node.key)
        key = search_key(self.code, pointer, node.buffer.dtype, (value, node.key.dtype), node.slope)
        return search(self.code, node.kind, key, begin, end, narrow=self.is_narrow(node))

    def is_narrow(self, node: Search) -> bool:
        """Whether the positions of *node* should, and do, fit in 31 bits."""
        del node
        return False  # wide ones are as fast

    def visit_Ramp(self, node: ex.Ramp) -> str:
        """The base in every lane plus the lane's step."""
        kind, scalar = register(node.dtype), register(node.base.dtype)
        steps = ", ".join(f"{scalar} {lane * node.stride}" for lane in range(node.lanes))
        base = self.code.splat(self.visit(node.base), node.base.dtype, node.lanes)
        return self.code.value(f"add {kind} {base}, <{steps}>")

    def visit_Broadcast(self, node: ex.Broadcast) -> str:
        """The value in every lane."""
        return self.code.splat(self.visit(node.value), node.value.dtype, node.lanes)

    def visit_Reduce(self, node: ex.Reduce) -> str:
        """A reduction over the lanes, in any order."""
        return reduce(self.code, node.op, node.value.dtype, self.visit(node.value))


def _is_computed(node: Expr) -> bool:
    """Whether *node* selects, or is, a scalar float that has been computed before."""
    if isinstance(node, ex.Select):
        return all(map(_is_computed, (node.then, node.otherwise))) and not _needs_guard(node.cond)
    dtype = node.dtype
    return isinstance(node, ex.Var) and dtype.is_float and dtype.bits >= 32 and dtype.lanes == 1


def _compares_integers(cond: Expr) -> bool:
    """Whether *cond* only compares integers: a branch on that is hard to predict."""
    if isinstance(cond, ex.BinOp) and cond.op in ("and", "or"):
        return _compares_integers(cond.lhs) and _compares_integers(cond.rhs)
    return isinstance(cond, ex.BinOp) and cond.lhs.dtype.is_integer and cond.rhs.dtype.is_integer


def _needs_guard(node: Expr) -> bool:
    """Whether evaluating *node* where its guard forbids could fault, fail or be slow."""
    return _may_fail(node) or any(isinstance(n, Load | ex.Call) for n in walk(node))


def _may_fail(node: Expr) -> bool:
    """Whether *node* divides by what may be zero, or searches."""
    return any(
        isinstance(n, Search)
        or (isinstance(n, ex.BinOp) and n.op in ("//", "%") and not _harmless_divisor(n.rhs))
        for n in walk(node)
    )


def _harmless_divisor(node: Expr) -> bool:
    return node.dtype.is_float or (isinstance(node, ex.Const) and int(node.value) not in (0, -1))


def ramp_base(index: Expr) -> Expr | None:
    """Return the scalar *b* if the vector *index* is plainly ``b, b + 1, ...``, else None."""
    plain = affine(index)
    return plain[0] if plain is not None and plain[1] == 1 else None


def affine(node: Expr) -> tuple[Expr, int] | None:
    """Return *b* and *s* if the vector *node* is plainly ``b, b + s, b + 2 s, ...``, else None."""
    match node:
        case ex.Ramp(base=base, stride=stride):
            return base, stride
        case ex.Broadcast(value=value):
            return value, 0
        case ex.BinOp(op=("+" | "-") as op, lhs=lhs, rhs=rhs):
            left, right = affine(lhs), affine(rhs)
            if left is not None and right is not None:
                stride = left[1] + right[1] if op == "+" else left[1] - right[1]
                return ex.binary(op, left[0], right[0]), stride
    return None


def _fold(op: str, lhs: str, rhs: str) -> str | None:
    """Return ``lhs op rhs`` on i64 where that needs no instruction."""
    if rhs == "0" and op in "+-":
        return lhs
    if lhs == "0" and op == "+":
        return rhs
    if op == "*" and "1" in (lhs, rhs):
        return rhs if lhs == "1" else lhs
    if op not in "+-*" or not (is_literal(lhs) and is_literal(rhs)):
        return None
    a, b = int(lhs), int(rhs)
    value = a + b if op == "+" else a - b if op == "-" else a * b
    return str(value) if -(1 << 63) <= value < 1 << 63 else None
