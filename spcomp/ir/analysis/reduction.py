"""Beside the route: reductions in statements: the combiner, its identity, and what it combines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from spcomp.dtypes import float32
from spcomp.ir.access import Load
from spcomp.ir.arith.bounds import dtype_range
from spcomp.ir.arith.memory import reads_of
from spcomp.ir.axis import memory_of
from spcomp.ir.expr import BinOp, BinOpKind, Cast, Const, Expr, Select, UnOp, const
from spcomp.ir.stmt import If, Seq, Stmt, Store
from spcomp.ir.structural import expr_equal
from spcomp.ir.visitor import walk

if TYPE_CHECKING:
    from collections.abc import Iterator

    from spcomp.dtypes import DType
    from spcomp.ir.axis import AnyBuffer

Combiner: TypeAlias = Literal["+", "*", "min", "max", "and", "or"]

# The operators that evaluate both sides: lanes do together what they do, and exchange.
EAGER: dict[Combiner, BinOpKind] = {"and": "&", "or": "|"}
_COMBINERS: frozenset[str] = frozenset(get_args(Combiner))


@dataclass(frozen=True, slots=True)
class Reduction:
    """``buffer[indices] = combiner(buffer[indices], value)``, for one buffer or several.

    With several, the first decides by ``min`` or ``max``, and the others keep the value that came
    with it (argmin, argmax; the earliest of equals). *values* have the dtype in which they are
    combined; for floats it may be wider than the buffer's. *identity* changes no buffer.
    """

    buffers: tuple[AnyBuffer, ...]
    indices: tuple[Expr | None, ...]
    combiner: Combiner
    identity: tuple[Const, ...]
    values: tuple[Expr, ...]

    @property
    def buffer(self) -> AnyBuffer:
        """The buffer, or the one that decides."""
        return self.buffers[0]

    @property
    def value(self) -> Expr:
        """What is combined into *buffer*."""
        return self.values[0]

    @property
    def is_tuple(self) -> bool:
        """Whether other buffers follow the first (argmin, argmax)."""
        return len(self.buffers) > 1


def identity(op: Combiner, dtype: DType) -> Const:
    """Return the neutral element of *op*: combined with any value, it gives that value."""
    match op:
        case "+" | "or":
            return const(0, dtype)
        case "*" | "and":
            return const(1, dtype)
    if dtype.is_float:
        return const(float("inf" if op == "min" else "-inf"), dtype)
    limits = dtype_range(dtype)
    return const((limits.high if op == "min" else limits.low) or 0, dtype)


def accumulator(dtype: DType) -> DType:
    """The type in which values of *dtype* are accumulated: 16-bit floats in 32."""
    return float32 if dtype.is_float and dtype.bits < float32.bits else dtype


def combine(op: Combiner, a: Expr, b: Expr) -> Expr:
    """Return *a* combined with *b*, both of one dtype."""
    return BinOp(op, a, b)


def as_reduction(stmt: Stmt, *, choices: bool = False) -> Reduction | None:
    """Return the reduction that *stmt* performs one step of; None if it is no such step.

    Recognised: ``B[i] = B[i] op x`` with ``+ - * min max and or``, in either order and nested
    (``B + x + y``, ``B - x`` adds ``-x``); choices between integers ``B[i]`` and x by comparing
    them, as an expression or an ``if``; and ``if x > M[i]: M[i] = x; A[i] = j`` (also ``<``). The
    values do not read the buffers. *choices*: also between floats, for those who keep the statement
    as it is. The combiner does something else: it returns a NaN, which a comparison passes over.
    """
    match stmt:
        case Seq(body=(inner,)):
            return as_reduction(inner, choices=choices)
        case Store(mask=None):
            return _from_store(stmt, choices=choices)
        case If(otherwise=None):
            return _from_if(stmt, choices=choices)
    return None


def guarded_step(cond: Expr, stmt: Stmt) -> Stmt:
    """Return *stmt* under *cond*; a step ``B[i] = B[i] op x`` combines the identity elsewhere.

    A step of a reduction then stays one statement, whose element a register can hold. It becomes
    an If where the index of the element reads the same buffers as *cond*.
    """
    if not isinstance(stmt, Store):
        return If(cond, stmt, span=stmt.span)
    cond_buffers = {n.buffer for n in walk(cond) if isinstance(n, Load)}
    places = (n for i in stmt.indices if i is not None for n in walk(i) if isinstance(n, Load))
    value, reduction = stmt.value, as_reduction(stmt)
    sure = reduction is not None and not any(load.buffer in cond_buffers for load in places)
    if sure and isinstance(value, BinOp) and _is_target(stmt, value.lhs):
        op: Any = "+" if value.op == "-" else value.op
        operand = Select(cond, value.rhs, identity(op, value.rhs.dtype), span=stmt.span)
        return stmt.replace(value=value.replace(rhs=operand))
    return If(cond, stmt, span=stmt.span)


def _from_store(store: Store, *, choices: bool) -> Reduction | None:
    target = store.value
    if isinstance(target, Cast) and _rounds(target):
        target = target.value
    if isinstance(target, Select):
        return _from_select(store, target, choices=choices)
    if not isinstance(target, BinOp) or target.op not in {*_COMBINERS, "-"}:
        return None
    op: BinOpKind = "+" if target.op == "-" else target.op
    addends = list(_operands(op, target, negative=False))
    accumulators = [x for x, negative in addends if not negative and _is_target(store, x)]
    if len(accumulators) != 1:
        return None
    terms = [
        UnOp("-", x, span=x.span) if minus else x
        for x, minus in addends
        if x is not accumulators[0]
    ]
    value = terms[0]
    for term in terms[1:]:
        value = BinOp(op, value, term, span=store.span)
    return _reduction(op, (store,), (value,))


def _operands(op: BinOpKind, expr: Expr, *, negative: bool) -> Iterator[tuple[Expr, bool]]:
    """Yield the operands that *op* combines in *expr*, and whether each is subtracted."""
    if isinstance(expr, BinOp) and expr.op == op:
        yield from _operands(op, expr.lhs, negative=negative)
        yield from _operands(op, expr.rhs, negative=negative)
    elif isinstance(expr, BinOp) and expr.op == "-" and op == "+":
        yield from _operands(op, expr.lhs, negative=negative)
        yield from _operands(op, expr.rhs, negative=not negative)
    else:
        yield expr, negative


def _from_select(store: Store, expr: Select, *, choices: bool) -> Reduction | None:
    """``B[i] = x if x > B[i] else B[i]``, and its mirror images.

    ``B[i] if B[i] > x else x`` takes a NaN, and forgets it at the next one: of floats, no
    reduction.
    """
    if expr.dtype.is_float and (not choices or _is_target(store, expr.then)):
        return None
    if _is_target(store, expr.otherwise):
        op = _winner(store, expr.cond, expr.then)
        return _reduction(op, (store,), (expr.then,))
    if _is_target(store, expr.then):
        op = _winner(store, expr.cond, expr.otherwise)
        opposite: dict[Combiner | None, Combiner] = {"min": "max", "max": "min"}
        return _reduction(opposite.get(op), (store,), (expr.otherwise,))
    return None


def _from_if(stmt: If, *, choices: bool) -> Reduction | None:
    body = stmt.then.body if isinstance(stmt.then, Seq) else (stmt.then,)
    stores = tuple(s for s in body if isinstance(s, Store) and s.mask is None)
    if not stores or len(stores) < len(body):
        return None
    for first in stores:  # the one that decides may be written anywhere
        strict = isinstance(stmt.cond, BinOp) and stmt.cond.op in ("<", ">")
        op = _winner(first, stmt.cond, first.value)
        is_sure = strict if len(stores) > 1 else choices or not first.value.dtype.is_float
        if op is not None and is_sure:
            ordered = (first, *(s for s in stores if s is not first))
            return _reduction(op, ordered, tuple(s.value for s in ordered))
    return None


def _winner(store: Store, cond: Expr, value: Expr) -> Combiner | None:
    """Return ``max`` if *cond* says that *value* exceeds the stored one, ``min`` if it is less."""
    if not isinstance(cond, BinOp) or cond.op not in ("<", "<=", ">", ">="):
        return None
    greater = cond.op[0] == ">"
    if expr_equal(cond.lhs, value) and _is_target(store, cond.rhs):
        return "max" if greater else "min"
    if expr_equal(cond.rhs, value) and _is_target(store, cond.lhs):
        return "min" if greater else "max"
    return None


def _is_target(store: Store, expr: Expr) -> bool:
    """Say whether *expr* reads the element that *store* writes, perhaps as a wider float."""
    if isinstance(expr, Cast) and expr.dtype.is_float and expr.value.dtype.is_float:
        expr = expr.value
    if not isinstance(expr, Load) or expr.buffer is not store.buffer or expr.mask is not None:
        return False
    pairs = zip(expr.indices, store.indices, strict=True)
    return all(expr_equal(a, b) for a, b in pairs)


def _rounds(cast: Cast) -> bool:
    """Whether *cast* rounds a result in a wider float back to the buffer's dtype."""
    return cast.dtype.is_float and cast.value.dtype.is_float


def _reduction(
    op: str | None, stores: tuple[Store, ...], values: tuple[Expr, ...]
) -> Reduction | None:
    if op not in _COMBINERS:
        return None
    buffers = tuple(store.buffer for store in stores)
    indices = stores[0].indices
    read = reads_of(*values, *(i for i in indices if i is not None))
    memories = set(map(memory_of, buffers))
    same = all(
        len(s.indices) == len(indices) and all(map(expr_equal, s.indices, indices))
        for s in stores[1:]
    )
    if not same or read & memories or len(memories) < len(buffers):
        return None
    combiner: Combiner = op  # type: ignore[assignment]
    payload = tuple(identity("min", value.dtype) for value in values[1:])
    start = identity(combiner, values[0].dtype)
    return Reduction(buffers, indices, combiner, (start, *payload), values)
