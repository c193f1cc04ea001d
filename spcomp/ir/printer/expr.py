"""IR to script text, expressions: parentheses, casts and types only where the parser needs them.

Every operand has one or two spellings. The printer tries them, barest first, with the rules of the
parser, and takes the first that gives the expression back.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from itertools import product
from keyword import iskeyword
from typing import TYPE_CHECKING, Any

from spcomp.dtypes import int64
from spcomp.ir.access import Load, Search, Stored
from spcomp.ir.expr import (
    BinOp,
    Broadcast,
    Call,
    Cast,
    Const,
    Expr,
    Ramp,
    Reduce,
    Select,
    UnOp,
    Var,
)
from spcomp.ir.promotion import (
    Value,
    arguments,
    folds,
    implicit,
    literal,
    operands,
    resolve,
    truth,
    unify,
)
from spcomp.ir.structural import expr_equal
from spcomp.ir.visitor import Visitor

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from spcomp.dtypes import DType
    from spcomp.ir.node import Node

_GROUPS = ("or", "and", "not", "< <= > >= == !=", "|", "^", "&", "<< >>", "+ -", "* / // %")
_PRECEDENCE = {op: level for level, group in enumerate(_GROUPS) for op in group.split()}
_UNARY, _ATOM = len(_GROUPS), len(_GROUPS) + 1
_SEARCHES = {
    "lower": "lower_bound",
    "upper": "upper_bound",
    "gallop": "gallop",
    "linear": "linear_search",
    "probe": "hash_probe",
    "run": "run_end",
}


@dataclass(frozen=True, slots=True)
class Form:
    """A spelling: the value that the parser reads, the text, and how tightly it binds."""

    value: Value
    text: str
    tightness: int = _ATOM

    def inside(self, tightness: int) -> str:
        """Return the text as part of an operator that binds as *tightness*."""
        return self.text if self.tightness >= tightness else f"({self.text})"


class ExprPrinter(Visitor[Form]):
    """Prints expressions; *name_of* gives the names of variables and buffers."""

    COVERS = (
        *(Var, Const, BinOp, UnOp, Cast, Select, Call, Load, Stored, Search),
        *(Ramp, Broadcast, Reduce),
    )

    def __init__(self, name_of: Callable[[Node], str]) -> None:
        self.name_of = name_of

    # -- expressions by where they stand ------------------------------------------------------

    def alone(self, expr: Expr) -> str:
        """Return *expr* on its own, where no other operand gives it a type."""
        return self._pick(expr, resolve).text

    def stored(self, expr: Expr, dtype: DType) -> str:
        """Return *expr* where it is stored into *dtype*."""
        return self._pick(expr, lambda value: implicit(value, dtype)).text

    def condition(self, expr: Expr) -> str:
        """Return *expr* where a bool is expected."""
        return self._pick(expr, truth).text

    def count(self, expr: Expr) -> str:
        """Return *expr* where an int64 is expected."""
        return self.stored(expr, int64)

    def term(self, expr: Expr) -> str:
        """Return *expr*, an int64, as the right side of a sum."""
        form = self._pick(expr, lambda value: implicit(value, int64))
        return form.inside(_PRECEDENCE["+"] + 1)

    def summand(self, expr: Expr) -> str:
        """Return *expr* as the left side of a sum."""
        return self._pick(expr, resolve).inside(_PRECEDENCE["+"])

    def indices(self, indices: Sequence[Expr | None]) -> str:
        """Return the inside of the brackets of an access."""
        return ", ".join("_" if i is None else self.alone(i) for i in indices) or "()"

    def index_argument(self, indices: Sequence[Expr | None]) -> str:
        """Return *indices* as one argument of a call."""
        text = self.indices(indices)
        return f"({text})" if len(indices) > 1 else text

    # -- spellings ----------------------------------------------------------------------------

    def forms(self, expr: Expr) -> list[Form]:
        """Return the spellings of *expr*, the barest first; the last always states its type."""
        strong = self.visit(expr)
        if isinstance(expr, Const) and expr.type.lanes == 1 and math.isfinite(expr.value):
            return [_bare(expr), strong]
        if isinstance(expr, Select):
            sides = [f for f in map(self.forms, (expr.then, expr.otherwise)) if f[0].value.weak]
            if len(sides) == 2:
                then, otherwise = sides[0][0], sides[1][0]
                weak = Select(expr.cond, then.value.expr, otherwise.value.expr)
                text = self._select_text(expr, then, otherwise)
                return [Form(Value(weak, weak=True), text), strong]
        if isinstance(expr, Cast):
            return [self.visit(expr.value), strong]
        return [strong]

    def _pick(self, expr: Expr, rule: Callable[[Value], Expr], *, bare: bool = True) -> Form:
        forms = self._combine((expr,), lambda values: (rule(values[0]),), bare=bare)
        return forms[0]

    def _combine(
        self,
        parts: Sequence[Expr],
        rule: Callable[[Sequence[Value]], Sequence[Expr]],
        *,
        bare: bool = False,
    ) -> Sequence[Form]:
        """Return the barest spellings of *parts* that *rule* turns back into them.

        Literals alone are allowed only if *bare*: where several meet, the parser computes them.
        """
        choices: Sequence[Form] = ()
        for choices in product(*map(self.forms, parts)):
            values = [form.value for form in choices]
            if folds(values) and not bare:
                continue
            try:
                exprs = rule(values)
            except ValueError:
                continue
            if all(map(expr_equal, exprs, parts)):
                return choices
        return choices

    def visit_Var(self, var: Var) -> Form:
        """Return its name."""
        return Form(Value(var), self.name_of(var))

    def visit_Const(self, expr: Const) -> Form:
        """Return it with its type."""
        name, value = str(expr.type), expr.value
        if isinstance(value, float) and math.isinf(value):
            return Form(Value(expr), f'T.{"max" if value > 0 else "min"}_value("{name}")')
        text = '"nan"' if isinstance(value, float) and math.isnan(value) else _bare(expr).text
        return Form(Value(expr), f"T.{name}({text})")

    def visit_BinOp(self, expr: BinOp) -> Form:
        """Return it as an operator, or as a call of T.min or T.max."""
        op = expr.op
        lhs, rhs = self._combine((expr.lhs, expr.rhs), lambda v: operands(op, v[0], v[1]))
        if op in ("min", "max"):
            return Form(Value(expr), f"T.{op}({lhs.text}, {rhs.text})")
        level = _PRECEDENCE[op]
        left = level + 1 if level == _PRECEDENCE["<"] else level  # comparisons do not chain
        return Form(Value(expr), f"{lhs.inside(left)} {op} {rhs.inside(level + 1)}", level)

    def visit_UnOp(self, expr: UnOp) -> Form:
        """Return it as an operator; a literal inside states its type, or it would be folded."""
        if expr.op == "not":
            level = _PRECEDENCE["not"]
            value = self._pick(expr.value, truth, bare=False)
            return Form(Value(expr), f"not {value.inside(level)}", level)
        value = self._pick(expr.value, resolve, bare=False)
        return Form(Value(expr), f"{expr.op}{value.inside(_UNARY)}", _UNARY)

    def visit_Cast(self, expr: Cast) -> Form:
        """Return it as T.cast of a value that states its type."""
        return Form(Value(expr), f'T.cast({self.visit(expr.value).text}, "{expr.type}")')

    def visit_Select(self, expr: Select) -> Form:
        """Return it as T.if_then_else, of which at least one side states its type."""

        def rule(values: Sequence[Value]) -> Sequence[Expr]:
            if values[0].weak and values[1].weak:
                raise ValueError("it would take the dtype of what it meets")
            return unify(values)

        then, otherwise = self._combine((expr.then, expr.otherwise), rule)
        return Form(Value(expr), self._select_text(expr, then, otherwise))

    def _select_text(self, expr: Select, then: Form, otherwise: Form) -> str:
        return f"T.if_then_else({self.condition(expr.cond)}, {then.text}, {otherwise.text})"

    def visit_Call(self, expr: Call) -> Form:
        """Return it as a call of T's function."""
        args = self._combine(expr.args, lambda values: arguments(expr.func, values))
        return Form(Value(expr), f"T.{expr.func}({', '.join(form.text for form in args)})")

    def visit_Load(self, expr: Load) -> Form:
        """Return it as a subscript, or as T.masked_load."""
        name = self.name_of(expr.buffer)
        if expr.mask is None:
            return Form(Value(expr), f"{name}[{self.indices(expr.indices)}]")
        index, mask = self.index_argument(expr.indices), self.condition(expr.mask)
        return Form(Value(expr), f"T.masked_load({name}, {index}, {mask})")

    def visit_Stored(self, expr: Stored) -> Form:
        """Return it as T.stored."""
        return Form(Value(expr), f"T.stored({self.visit(expr.element).text})")

    def visit_Search(self, expr: Search) -> Form:
        """Return it as the search of its kind."""
        args = f"{self.count(expr.begin)}, {self.count(expr.end)}, {self.alone(expr.key)}"
        if expr.slope:
            args += f", slope={expr.slope}"
        return Form(Value(expr), f"T.{_SEARCHES[expr.kind]}({self.name_of(expr.buffer)}, {args})")

    def visit_Ramp(self, expr: Ramp) -> Form:
        """Return it as T.ramp."""
        return Form(Value(expr), f"T.ramp({self.alone(expr.base)}, {expr.stride}, {expr.lanes})")

    def visit_Broadcast(self, expr: Broadcast) -> Form:
        """Return it as T.broadcast."""
        return Form(Value(expr), f"T.broadcast({self.alone(expr.value)}, {expr.lanes})")

    def visit_Reduce(self, expr: Reduce) -> Form:
        """Return it as T.vector_reduce."""
        return Form(Value(expr), f'T.vector_reduce("{expr.op}", {self.alone(expr.value)})')


def print_expr(expr: Expr) -> str:
    """Return *expr* as in a script, with variables and buffers under their own names."""
    return ExprPrinter(_own_name).alone(expr)


def literal_text(value: Any) -> str:
    """Return a Python value (None, number, string, or tuple or dict of them) as script text."""
    match value:
        case str():
            return json.dumps(value, ensure_ascii=False)
        case float() if math.isinf(value):
            return f'T.{"max" if value > 0 else "min"}_value("float64")'
        case float() if math.isnan(value):
            return 'T.float64("nan")'
        case tuple() | list():
            return f"({', '.join(map(literal_text, value))}{',' if len(value) == 1 else ''})"
        case dict():
            return (
                "{" + ", ".join(f"{literal_text(k)}: {literal_text(value[k])}" for k in value) + "}"
            )
    return repr(value)


def identifier(name: str) -> str:
    """Return *name*, changed as little as it takes to be a Python name."""
    name = re.sub(r"\W", "_", name) or "v"
    return (
        f"{name}_"
        if iskeyword(name) or name in ("_", "T")
        else f"_{name}" * name[0].isdigit() or name
    )


def _own_name(node: Node) -> str:
    name: str = node.name  # type: ignore[attr-defined]
    return name


def _bare(expr: Const) -> Form:
    number = expr.value
    if expr.type.is_float:
        number = float(number)
    elif expr.type.kind == "bool":
        number = bool(number)
    text = repr(number)
    return Form(literal(number), text, _UNARY if text[0] == "-" else _ATOM)
