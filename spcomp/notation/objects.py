"""Index notation as Python objects: ``i, j = indices("i j")``, then ``y[i] = A[i, j] * x[j]``."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partialmethod, reduce
from numbers import Integral, Real
from typing import Any, cast

from spcomp.errors import ArgumentError, ScriptError, Span, expect, nearest_or_all
from spcomp.ir.expr import CALLS, NUMPY_NAMES
from spcomp.notation.access import Subscript, access_of, index_set, window_of
from spcomp.notation.algebra import rebuilt
from spcomp.notation.implied import refuse_unclear
from spcomp.notation.inner import is_across, with_inner_hoisted
from spcomp.notation.nodes import (
    SYMBOLS,
    Access,
    Assignment,
    Call,
    Declared,
    Expr,
    IndexValue,
    Masked,
    Number,
    Op,
    Program,
    Reduce,
    Scalar,
    stored_fault,
    target_fault,
    walk,
)
from spcomp.notation.parse import ARITY, EXTREMES, parse
from spcomp.notation.semiring import Semiring
from spcomp.notation.windows import IndexSet, Window

# fmt: off
_NUMPY_OPERATORS = {
    "add": "+", "subtract": "-", "multiply": "*", "divide": "/", "floor_divide": "//",
    "remainder": "%", "left_shift": "<<", "right_shift": ">>", "negative": "neg",
    "bitwise_and": "&", "bitwise_or": "|", "bitwise_xor": "^", "invert": "~",
    "logical_and": "and", "logical_or": "or", "logical_not": "not",
    "less": "<", "less_equal": "<=", "greater": ">", "greater_equal": ">=",
    "equal": "==", "not_equal": "!=",
}
# fmt: on
_NUMPY_FUNCTIONS = {NUMPY_NAMES.get(name, name): name for name in (*CALLS, *EXTREMES)}
_NUMPY_FUNCTIONS |= {"absolute": "abs", "power": "pow", "bitwise_count": "popcount"}


@dataclass(frozen=True, slots=True)
class Function:
    """A user's function: Python from expressions to an expression, and where it has a value.

    Args:
        body: ``lambda x, y: ...`` over values that take operators and ``spcomp.notation``'s
            functions.
        zero: What it does where arguments are absent. ``"keep"``: it is absent where one of its
            arguments is; ``"fill"``: it is absent only where all are, and absent ones read as 0.
    """

    body: Callable[..., Any]
    zero: str = "keep"

    def __post_init__(self) -> None:
        if not callable(self.body):
            got = type(self.body).__name__
            raise ArgumentError(f"argument body: got {got}, expected a function")
        if self.zero not in ("keep", "fill"):
            raise ArgumentError(f"argument zero: got {self.zero!r}", hint='it is "keep" or "fill"')

    def apply(self, name: str, args: tuple[Expr, ...], at: Span | None = None) -> Declared:
        """Return the function called *name*, of *args*; raises ScriptError *at* the call."""
        if not _takes(self.body, len(args)):
            raise ScriptError(f"{name} does not take {len(args)} arguments", at)
        fills = self.zero == "fill"
        terms = (Declared(name, (arg,), arg, "always") for arg in args) if fills else args
        value = self.body(*map(Value, terms))
        if not isinstance(value, (Value, bool, int, float)):
            raise ScriptError(f"{name} returns {type(value).__name__}, expected an expression", at)
        body = unwrap(value)
        return Declared(name, args, body, "or" if fills else "and")


def _takes(body: Callable[..., Any], count: int) -> bool:
    """Whether *body* can be called with *count* arguments; True if it does not say."""
    try:
        inspect.signature(body).bind(*range(count))
    except TypeError:
        return False
    except ValueError:  # it does not say
        return True
    return True


class Value:
    """An expression that takes Python's operators."""

    __slots__ = ("term",)
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, term: Expr) -> None:
        self.term = term

    def __repr__(self) -> str:
        return str(self.term)

    def __bool__(self) -> bool:
        raise ScriptError(
            f"{self.term} has no truth value before it is computed",
            hint="use where(condition, a, b), & and |",
        )

    def __neg__(self) -> Value:
        return Value(Op("neg", (self.term,)))

    def __invert__(self) -> Value:
        return Value(Op("~", (self.term,)))

    def __abs__(self) -> Value:
        return Value(Call("abs", (self.term,)))

    def __iadd__(self, other: Any) -> Value:  # noqa: PYI034 (it is an Increase)
        return Increase(self.term, unwrap(other))

    def __isub__(self, other: Any) -> Value:  # noqa: PYI034
        return Increase(self.term, Op("neg", (unwrap(other),)), subtracts=True)

    def __pow__(self, other: Any) -> Value:
        return Value(Call("pow", (self.term, unwrap(other))))

    def __rpow__(self, other: Any) -> Value:
        return Value(Call("pow", (unwrap(other), self.term)))

    def __array_ufunc__(self, ufunc: Any, method: str, *args: Any, **options: Any) -> Value:
        """Return what numpy's *ufunc* means in index notation; raises ScriptError."""
        name = ufunc.__name__
        if method != "__call__" or options:
            raise ScriptError(f"numpy's {name} takes values of index notation alone")
        if (op := _NUMPY_OPERATORS.get(name)) is not None:
            return Value(Op(op, tuple(map(unwrap, args))))
        if (func := _NUMPY_FUNCTIONS.get(name)) is None:
            raise ScriptError(
                f"numpy's {name} has no meaning in index notation",
                hint="spcomp.notation has the functions that can be used",
            )
        return call(func, *args)

    def masked(self, cond: Any) -> Value:
        """Return this where *cond* holds: ``value if cond``."""
        return Value(Masked(self.term, unwrap(cond)))


def _operator(op: str) -> tuple[Callable[..., Value], Callable[..., Value]]:
    def plain(self: Value, other: Any) -> Value:
        return Value(Op(op, (self.term, unwrap(other))))

    def mirrored(self: Value, other: Any) -> Value:
        return Value(Op(op, (unwrap(other), self.term)))

    return plain, mirrored


for _name, _op in (
    *(("add", "+"), ("sub", "-"), ("mul", "*"), ("truediv", "/"), ("floordiv", "//")),
    *(("mod", "%"), ("and", "&"), ("or", "|"), ("xor", "^"), ("lshift", "<<"), ("rshift", ">>")),
):
    _plain, _mirrored = _operator(_op)
    setattr(Value, f"__{_name}__", _plain)
    setattr(Value, f"__r{_name}__", _mirrored)
for _name, _op in (
    *(("lt", "<"), ("le", "<="), ("gt", ">"), ("ge", ">="), ("eq", "=="), ("ne", "!=")),
):
    setattr(Value, f"__{_name}__", _operator(_op)[0])


for _name in CALLS:
    # numpy's function calls the method of its name: np.exp(A[i, j])
    _method = partialmethod(lambda self, name, *args: call(name, self, *args), _name)
    setattr(Value, NUMPY_NAMES.get(_name, _name), _method)


class Increase(Value):
    """The value of ``A[i] += value``: a sum, which assigns *added* to *base* with ``+=``."""

    __slots__ = ("added", "base", "subtracts")

    def __init__(self, base: Expr, added: Expr, *, subtracts: bool = False) -> None:
        super().__init__(Op("+", (base, added)))
        self.base, self.added, self.subtracts = base, added, subtracts


class Index(Value):
    """An index; calling it gives a window, ``i(0, 10, 2)``."""

    __slots__ = ()

    @property
    def name(self) -> str:
        """Its name."""
        return cast("IndexValue", self.term).name

    def __call__(self, *ends: Any) -> tuple[str, Window | IndexSet]:
        """Return the index over start, stop and step of a dimension, or over a list of it."""
        if len(ends) == 1 and hasattr(ends[0], "__len__") and not isinstance(ends[0], str):
            return self.name, index_set(ends[0], is_set=isinstance(ends[0], (set, frozenset)))
        if not 1 <= len(ends) <= 3:
            raise ScriptError("a window takes start, stop and step", hint="write i(0, 10, 2)")
        given = slice(*ends)
        return self.name, window_of((given.start, given.stop, given.step), counts=True)


class Symbol(Value):
    """A tensor, by name: ``A[i, j]`` reads it, ``A[i, j] = value`` notes an assignment.

    *statements*: the assignments noted so far. Without brackets it is a number.
    """

    __slots__ = ("name", "statements")
    __iter__ = None  # __getitem__ would never end

    def __init__(self, name: str) -> None:
        super().__init__(Scalar(name))
        self.name = name
        self.statements: list[Assignment] = []

    def __getitem__(self, key: Any) -> Value:
        return Value(self._access(key))

    def __setitem__(self, key: Any, value: Any) -> None:
        target = self._access(key)
        if fault := target_fault(target):
            raise ScriptError(fault)
        if isinstance(value, Increase) and value.base == target:
            stmt = Assignment(target, value.added, accumulates=True, subtracts=value.subtracts)
        else:
            stmt = Assignment(target, unwrap(value))
        self.statements.append(stmt)

    def _access(self, key: Any) -> Access:
        parts = key if isinstance(key, tuple) and not _is_window(key) else (key,)
        return access_of(self.name, map(self._subscript, parts))

    def _subscript(self, part: Any) -> Subscript:
        """Return what stands in brackets for one dimension, *part*."""
        if isinstance(part, Index):
            return part.name, None
        if isinstance(part, Value) and isinstance(part.term, Access):
            return part.term
        if _is_window(part):
            return cast("tuple[str, Window | IndexSet]", part)
        if isinstance(part, slice):
            return window_of((part.start, part.stop, part.step))
        if isinstance(part, Integral) and not isinstance(part, bool):
            return int(part)
        raise ScriptError(
            f"{self.name} has an index that is none: {part!r}",
            hint='make indices with i, j = spcomp.indices("i j")',
        )


def _is_window(part: Any) -> bool:
    return isinstance(part, tuple) and len(part) == 2 and isinstance(part[1], (Window, IndexSet))


def indices(names: str) -> Any:
    """Return the indices called *names*, separated by spaces or commas: one, or a tuple."""
    values = tuple(Index(IndexValue(name)) for name in _names(names))
    return values[0] if len(values) == 1 else values


def symbols(names: str) -> Any:
    """Return the tensors and numbers called *names*: one, or a tuple."""
    values = tuple(Symbol(name) for name in _names(names))
    return values[0] if len(values) == 1 else values


def _names(names: str) -> list[str]:
    expect("names", names, str, "names in a string", hint='write "i j k"')
    words = names.replace(",", " ").split()
    if not words or not all(map(str.isidentifier, words)):
        raise ArgumentError(f"argument names: got {names!r}", hint='write "i j k"')
    return words


def unwrap(value: Any) -> Expr:
    """Return the term of *value*, an operand."""
    if isinstance(value, Value):
        return value.term
    if isinstance(value, Real) and hasattr(value, "item"):
        value = value.item()  # a scalar of numpy
    if isinstance(value, (bool, int, float)):
        return Number(value)
    raise ScriptError(
        f"{type(value).__name__} has no meaning in index notation",
        hint="tensors are named by spcomp.symbols, and given when the kernel is called",
    )


def reduction(op: str) -> Callable[..., Value]:
    """Return the function that reduces by *op*, of an index, or several, and a value."""
    name = SYMBOLS[op]

    def reduces(over: Index | tuple[Index, ...], *values: Any) -> Value:
        indices = over if isinstance(over, (tuple, list)) else (over,)
        if len(values) == 1 and indices and all(isinstance(index, Index) for index in indices):
            return Value(Reduce(op, tuple(index.name for index in indices), unwrap(values[0])))
        if f"{name}imum" not in EXTREMES or not values or not isinstance(over, Value):
            raise ScriptError(f"{name} takes an index and a value", hint=f"N.{name}(k, A[i, k])")
        return call(f"{name}imum", over, *values)

    reduces.__name__ = name
    return reduces


def call(name: str, *args: Any) -> Value:
    """Return the function *name* of index notation, applied to *args*."""
    terms = tuple(map(unwrap, args))
    if name in EXTREMES and len(terms) > 1:
        return Value(reduce(lambda left, right: Call(name, (left, right)), terms))
    if ARITY.get(name) != len(terms):
        raise ScriptError(f"{name} does not take {len(terms)} arguments")
    if name == "stored" and (fault := stored_fault(terms)):
        raise ScriptError(fault[0], hint=fault[1])
    return Value(Call(name, terms))


def __getattr__(name: str) -> Any:
    """The functions of index notation: ``exp``, ``where``, ``maximum`` ..."""
    if name in ARITY or name in EXTREMES:
        return lambda *args: call(name, *args)
    raise AttributeError(name)


def as_program(program: Any, functions: Mapping[str, Any], semiring: Semiring) -> Program:
    """Return *program*, a string, symbols or a Program, as a Program with *functions* applied.

    Reductions in it that go across an operand become statements of their own. Raises ScriptError.
    """
    callables = {n: f if isinstance(f, Function) else Function(f) for n, f in functions.items()}
    if isinstance(program, str):
        result = parse(program, frozenset(callables))
    elif isinstance(program, Program):
        result = program
    else:
        assigned = program if isinstance(program, (tuple, list)) else (program,)
        if not all(isinstance(symbol, Symbol) for symbol in assigned):
            raise ArgumentError(
                "argument program: got a sequence, expected assigned symbols",
                hint="assign them first: C[i, k] = A[i, j] * B[j, k]",
            )
        result = Program(tuple(s for symbol in assigned for s in symbol.statements))
    if not result.statements:
        raise ScriptError("there is no statement", hint="assign a tensor: C[i, k] = ...")

    for stmt in result.statements:
        if stmt.subtracts and semiring.add != "+":
            raise ScriptError(f"this semiring has no -, it adds by {semiring.add}", stmt.at)
    refuse_unclear(result, semiring)

    def rewrite(term: Expr) -> Expr:
        term = rebuilt(term, rewrite)
        if isinstance(term, Call) and term.func in callables:
            return callables[term.func].apply(term.func, term.args, term.at)
        return term

    result = with_inner_hoisted(result, is_across)
    return Program(tuple(replace(s, value=rewrite(s.value)) for s in result.statements))


def with_numbers(program: Program, constants: Mapping[str, int | float]) -> Program:
    """Return *program* with the numbers named in *constants* replaced by their values.

    Raises ArgumentError for a name that the program lacks, and for a value that is no number.
    """
    terms = [term for stmt in program.statements for term in walk(stmt.value)]
    assigned = {stmt.target.name for stmt in program.statements}
    numbers = dict.fromkeys(
        t.name for t in terms if isinstance(t, Scalar) and t.name not in assigned
    )
    for name in constants:
        if name not in numbers:
            raise ArgumentError(
                f"argument constants: the program has no number {name!r}",
                hint=nearest_or_all(name, numbers),
            )

    def rewrite(term: Expr) -> Expr:
        if isinstance(term, Scalar) and term.name in constants:
            expect(f"constants[{term.name!r}]", constants[term.name], (int, float), "a number")
            return Number(constants[term.name], at=term.at)
        return rebuilt(term, rewrite)

    return Program(tuple(replace(s, value=rewrite(s.value)) for s in program.statements))
