"""For every level: expressions; each knows its dtype."""

from __future__ import annotations

from typing import Literal, TypeAlias

from spcomp.dtypes import DType, bool_, int64, promote, round_to, wrap
from spcomp.errors import Span
from spcomp.ir.node import Node, attr, node

# fmt: off
BinOpKind: TypeAlias = Literal[
    "+", "-", "*", "/", "//", "%", "min", "max", "and", "or", "&", "|", "^", "<<", ">>",
    "<", "<=", ">", ">=", "==", "!=",
]
# fmt: on
UnOpKind: TypeAlias = Literal["-", "not", "~"]
SearchKind: TypeAlias = Literal["lower", "upper", "gallop", "linear", "run", "probe"]
NEGATED: dict[str, BinOpKind] = {"<": ">=", "<=": ">", ">": "<=", ">=": "<", "==": "!=", "!=": "=="}
COMPARISONS = frozenset(NEGATED)
CALLS = frozenset(  # functions of a Call; the result has the arguments' dtype but for isnan, isinf
    (
        *("exp", "log", "log2", "sqrt", "rsqrt", "abs", "sigmoid", "tanh", "erf", "pow"),
        *("exp2", "expm1", "log10", "log1p", "cbrt", "sin", "cos", "tan", "asin", "acos", "atan"),
        *("sinh", "cosh", "asinh", "acosh", "atanh", "atan2", "hypot"),
        *("floor", "ceil", "round", "trunc", "fma", "isnan", "isinf", "popcount"),
    )
)
NUMPY_NAMES = {  # of the functions that have another name in numpy
    **{f"a{name}": f"arc{name}" for name in ("sin", "cos", "tan", "tan2", "sinh", "cosh", "tanh")},
    "round": "rint",
}
ARITY = dict.fromkeys(CALLS, 1) | {"pow": 2, "atan2": 2, "hypot": 2, "fma": 3}


@node
class Expr(Node):
    """Has a value and no effect."""

    @property
    def dtype(self) -> DType:
        """The type of the value."""
        raise NotImplementedError

    def __add__(self, other: Expr | int) -> Expr:
        return binary("+", self, other)

    def __sub__(self, other: Expr | int) -> Expr:
        return binary("-", self, other)

    def __mul__(self, other: Expr | int) -> Expr:
        return binary("*", self, other)

    def __floordiv__(self, other: Expr | int) -> Expr:
        return binary("//", self, other)

    def __mod__(self, other: Expr | int) -> Expr:
        return binary("%", self, other)

    def __lt__(self, other: Expr | int) -> Expr:
        return binary("<", self, other)


@node
class Var(Expr):
    """A scalar variable; two are the same only if they are the same object."""

    name: str = attr()
    type: DType = attr()

    @property
    def dtype(self) -> DType:
        """The declared type."""
        return self.type


@node
class Const(Expr):
    """A literal; *value* is a Python int, float or bool that fits the type."""

    value: int | float | bool = attr()
    type: DType = attr()

    @property
    def dtype(self) -> DType:
        """The declared type."""
        return self.type


@node
class BinOp(Expr):
    """``lhs op rhs``, both of one dtype; ``//`` and ``%`` round towards minus infinity.

    Comparisons, ``and`` and ``or`` give bool; ``and`` and ``or`` do not run the right side
    when the left decides. Integer division by zero fails the kernel, it does not trap.

    Integers wrap, those of ``//``, too. ``min`` and ``max`` are NaN if a side is, and either one of
    two zeros. A shift by the width or more, or by a negative number, leaves no bit but the sign of
    ``>>``. Zeros that ``//`` and ``%`` give have numpy's signs.
    """

    op: BinOpKind = attr()
    lhs: Expr
    rhs: Expr

    @property
    def dtype(self) -> DType:
        """The operands' type, or bool of as many lanes for a comparison."""
        inner = self.lhs.dtype
        return bool_.with_lanes(inner.lanes) if self.op in COMPARISONS else inner


@node
class UnOp(Expr):
    """``-value``, ``not value`` or ``~value``."""

    op: UnOpKind = attr()
    value: Expr

    @property
    def dtype(self) -> DType:
        """The operand's type."""
        return self.value.dtype


@node
class Cast(Expr):
    """*value* converted to *type* as numpy's ``astype`` does; NaN and overflow give any integer."""

    value: Expr
    type: DType = attr()

    @property
    def dtype(self) -> DType:
        """The target type."""
        return self.type


@node
class Select(Expr):
    """``then`` if *cond* else ``otherwise``; only the chosen side is evaluated."""

    cond: Expr
    then: Expr
    otherwise: Expr

    @property
    def dtype(self) -> DType:
        """The type of both sides."""
        return self.then.dtype


@node
class Call(Expr):
    """A mathematical function of CALLS applied to *args* of one dtype."""

    func: str = attr()
    args: tuple[Expr, ...]

    @property
    def dtype(self) -> DType:
        """The arguments' type; bool for isnan and isinf."""
        inner = self.args[0].dtype
        return bool_.with_lanes(inner.lanes) if self.func in ("isnan", "isinf") else inner


@node
class Ramp(Expr):
    """The vector ``base, base + stride, ...`` of *lanes* integers (flat level)."""

    base: Expr
    stride: int = attr()
    lanes: int = attr()

    @property
    def dtype(self) -> DType:
        """The base's type with *lanes*."""
        return self.base.dtype.with_lanes(self.lanes)


@node
class Broadcast(Expr):
    """The vector of *lanes* copies of *value* (flat level)."""

    value: Expr
    lanes: int = attr()

    @property
    def dtype(self) -> DType:
        """The value's type with *lanes*."""
        return self.value.dtype.with_lanes(self.lanes)


@node
class Reduce(Expr):
    """The lanes of *value* combined by *op*: ``+``, ``*``, ``min`` or ``max`` (flat level)."""

    op: BinOpKind = attr()
    value: Expr

    @property
    def dtype(self) -> DType:
        """The type of one lane."""
        return self.value.dtype.element


def const(value: float, dtype: DType = int64) -> Const:
    """Return *value* as a literal of *dtype*."""
    if dtype.is_float:
        return Const(float(value), dtype)
    return Const(bool(value) if dtype.kind == "bool" else int(value), dtype)


def plain(index: Expr) -> Expr:
    """Return *index* without integer casts to int64, which keep its value."""
    while isinstance(index, Cast) and index.dtype == int64 and index.value.dtype.is_integer:
        index = index.value
    return index


def cast(value: Expr, dtype: DType) -> Expr:
    """Return *value* as *dtype*: itself if it is one already, a new literal for a literal.

    The literal is what a cast at run time gives, of what its own type holds.
    """
    if value.dtype == dtype:
        return value
    if (
        isinstance(value, Const)
        and dtype.lanes == 1
        and not (value.dtype.is_float and not dtype.is_float)
    ):
        number = value.value
        if value.dtype.is_float:
            number = round_to(value.dtype, number)
        if dtype.is_integer:
            number = wrap(int(number), dtype)
        return const(number, dtype).replace(span=value.span)
    if dtype.lanes > 1 and value.dtype.lanes == 1:
        return Broadcast(cast(value, dtype.element), dtype.lanes, span=place_of(value))
    return Cast(value, dtype, span=place_of(value))


def binary(op: BinOpKind, lhs: Expr, rhs: Expr | int) -> Expr:
    """Return ``lhs op rhs`` with both sides promoted to one dtype; nothing is folded."""
    if isinstance(rhs, int):
        rhs = const(rhs, lhs.dtype.element)
    dtype = bool_ if op in ("and", "or") else promote(lhs.dtype, rhs.dtype)
    return BinOp(op, cast(lhs, dtype), cast(rhs, dtype), span=place_of(lhs))


def place_of(value: Expr) -> Span | None:
    """Return where *value* is used, if it says so; a variable knows where it is declared."""
    return None if isinstance(value, Var) else value.span
