"""Beside the route: integer expressions as canonical sums of products, with ``//`` and ``%``."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from functools import lru_cache
from math import gcd
from typing import Any, TypeAlias

from spcomp.dtypes import DType, int64, wrap
from spcomp.ir.arith.bounds import Env, Interval, bounds_of, dtype_range
from spcomp.ir.arith.memory import read_by
from spcomp.ir.axis import AnyBuffer
from spcomp.ir.expr import BinOp, Cast, Const, Expr, UnOp, Var, cast, const
from spcomp.ir.node import record
from spcomp.ir.visitor import walk

Key: TypeAlias = Hashable
Monomial: TypeAlias = frozenset[tuple[Key, int]]  # the keys of the atoms with their powers
ONE: Monomial = frozenset()
MAX_TERMS = 48  # a product that would have more is not multiplied out
MAX_DEGREE = 8


@record
class Term:
    """*factor* times the product of *atoms*, which may repeat."""

    factor: int
    atoms: tuple[Expr, ...]


@record
class Linear:
    """A sum of terms: no two have the same atoms, no factor is zero, in order of first use.

    Factors are signed, even for unsigned integers: they count modulo two to the bits of the dtype.
    """

    terms: Mapping[Monomial, Term]
    dtype: DType

    @property
    def constant(self) -> int:
        """The term without atoms."""
        return self.terms[ONE].factor if ONE in self.terms else 0

    @property
    def is_constant(self) -> bool:
        """Whether there is no other term."""
        return all(key == ONE for key in self.terms)

    def __add__(self, other: Linear) -> Linear:
        terms = dict(self.terms)
        for key, term in other.terms.items():
            same = terms.get(key)
            terms[key] = term if same is None else Term(same.factor + term.factor, term.atoms)
        return _tidy(terms, self.dtype)

    def __sub__(self, other: Linear) -> Linear:
        return self + other.scale(-1)

    def shift(self, by: int) -> Linear:
        """Return ``self + by``."""
        return self + constant(by, self.dtype)

    def scale(self, by: int) -> Linear:
        """Return ``self * by``."""
        terms = {key: Term(term.factor * by, term.atoms) for key, term in self.terms.items()}
        return _tidy(terms, self.dtype)

    def __mul__(self, other: Linear) -> Linear:
        total = Linear({}, self.dtype)
        for key, term in self.terms.items():
            parts = {}
            for other_key, other_term in other.terms.items():
                powers = dict(key)
                for atom, power in other_key:
                    powers[atom] = powers.get(atom, 0) + power
                atoms = term.atoms + other_term.atoms
                parts[frozenset(powers.items())] = Term(term.factor * other_term.factor, atoms)
            total += _tidy(parts, self.dtype)
        return total

    @property
    def atoms(self) -> Iterator[Expr]:
        """The atoms of all terms."""
        return (atom for term in self.terms.values() for atom in term.atoms)

    def without(self, key: Monomial) -> Linear:
        """Return the sum without one of its terms."""
        return Linear({k: term for k, term in self.terms.items() if k != key}, self.dtype)

    def split(self, keep: Callable[[Monomial, Term], bool]) -> tuple[Linear, Linear]:
        """Return the terms that *keep* accepts, and the others."""
        accepted = {key: term for key, term in self.terms.items() if keep(key, term)}
        others = {key: term for key, term in self.terms.items() if key not in accepted}
        return Linear(accepted, self.dtype), Linear(others, self.dtype)

    @property
    def single(self) -> Expr | None:
        """The atom, if the sum is a single one with factor 1; else None."""
        if len(self.terms) == 1:
            (term,) = self.terms.values()
            if term.factor == 1 == len(term.atoms):
                return term.atoms[0]
        return None

    @property
    def key(self) -> Key:
        """A key that is equal for all forms of the same sum."""
        if self.single is not None:
            ((key, _),) = next(iter(self.terms))
            return key
        factors = frozenset((key, term.factor) for key, term in self.terms.items())
        return ("sum", self.dtype, factors)

    def expr(self) -> Expr:
        """Return it as an expression: added terms, then subtracted ones, then the constant."""
        parts = [(term.factor, _product(term.atoms)) for key, term in self.terms.items() if key]
        parts.sort(key=lambda part: part[0] < 0)
        total: Expr | None = None
        for factor, product in parts:
            total = self._plus(total, factor, product)
        if total is None or self.constant:
            return self._plus(total, self.constant, None)
        return total

    def _plus(self, total: Expr | None, factor: int, product: Expr | None) -> Expr:
        negative = factor < 0 and total is not None and -factor in dtype_range(self.dtype)
        size = const(wrap(-factor if negative else factor, self.dtype), self.dtype)
        if product is None:
            term: Expr = size
        elif factor == -1 and total is None:
            term = UnOp("-", product)
        else:
            term = product if size.value == 1 else BinOp("*", product, size)
        return term if total is None else BinOp("-" if negative else "+", total, term)


def constant(value: int, dtype: DType) -> Linear:
    """Return *value* as a sum of one term."""
    return _tidy({ONE: Term(value, ())}, dtype)


def atom(expr: Expr) -> Linear:
    """Return *expr* as a sum of one indivisible atom."""
    return Linear({frozenset(((key_of(expr), 1),)): Term(1, (expr,))}, expr.dtype)


def _tidy(terms: Mapping[Monomial, Term], dtype: DType) -> Linear:
    """Wrap the factors, which changes no value of the dtype, and drop terms that are zero."""
    end = 1 << dtype.bits - 1
    result = {}
    for key, term in terms.items():
        if not -end <= term.factor < end:
            term = Term((term.factor + end) % (2 * end) - end, term.atoms)
        if term.factor:
            result[key] = term
    return Linear(result, dtype)


def _product(atoms: tuple[Expr, ...]) -> Expr:
    result = atoms[0]
    for factor in atoms[1:]:
        result = BinOp("*", result, factor)
    return result


@lru_cache(maxsize=1 << 14)  # nodes are immutable; enclosing expressions need the keys of parts
def key_of(expr: Expr) -> Key:
    """Return a key that is equal for all expressions of the same canonical form."""
    if isinstance(expr, Var):
        return expr
    if is_ring(expr):
        return Algebra(Env()).of(expr).key
    return (type(expr), *(_key(getattr(expr, name)) for name in expr.FIELDS if name != "span"))


def same_value(a: Expr | None, b: Expr | None) -> bool:
    """Say whether *a* and *b* are proved to be one value, whatever variables and buffers hold.

    This is semantic equality: integers are compared by canonical form, other expressions as the
    same function of such integers. Equal key_of means equal value. structural.expr_equal compares
    trees; proof.prove also uses the ranges of variables.
    """
    if a is None or b is None:
        return a is b
    if is_integer(a) and a.dtype == b.dtype:
        algebra = Algebra(Env())
        return not (algebra.of(a) - algebra.of(b)).terms
    return key_of(a) == key_of(b)


def _key(value: Any) -> Key:
    if isinstance(value, Expr):
        return key_of(value)
    if isinstance(value, tuple):
        return tuple([_key(item) for item in value])
    return (type(value), repr(value)) if isinstance(value, (bool, float)) else value


def is_integer(expr: Expr) -> bool:
    """Say whether *expr* is a scalar integer."""
    return expr.dtype.is_integer and expr.dtype.lanes == 1


def is_ring(expr: Expr) -> bool:
    """Say whether *expr* is a scalar integer sum, difference, product, negation or constant."""
    match expr:
        case BinOp(op="+" | "-" | "*") | UnOp(op="-") | Const():
            return is_integer(expr)
    return False


def mentions(exprs: Iterable[Expr | None], variables: Collection[Var]) -> bool:
    """Say whether one of *variables* occurs in *exprs*."""
    return any(not variables_in(e).isdisjoint(variables) for e in exprs if e is not None)


@lru_cache(maxsize=1 << 14)
def variables_in(expr: Expr) -> frozenset[Var]:
    """Return the variables used in *expr*."""
    return frozenset([node for node in walk(expr) if isinstance(node, Var)])


@lru_cache(maxsize=1 << 14)
def names_in(expr: Expr) -> frozenset[Var | AnyBuffer]:
    """Return the variables used in *expr*, and the buffers it reads."""
    return variables_in(expr).union(read_by(expr))


class Algebra:
    """Canonical forms, given what *env* says of variables and buffers.

    *trusted*: 64-bit integer arithmetic is assumed not to overflow. That suits sizes and offsets,
    which fit in memory, but not data. Otherwise every rule proves that nothing overflows.
    """

    def __init__(self, env: Env, *, trusted: bool = False) -> None:
        self.env, self.trusted = env, trusted
        self._forms: dict[Expr, Linear] = {}  # a variable's bounds are known before it is used

    def of(self, expr: Expr) -> Linear:
        """Return the canonical form of the scalar integer *expr*; its value is the same."""
        form = self._forms.get(expr)
        if form is None:
            form = self._forms[expr] = self._form(expr)
        return form

    def _form(self, expr: Expr) -> Linear:
        match expr:
            case Const(value=value):
                return constant(int(value), expr.dtype)
            case BinOp(op="+", lhs=a, rhs=b):
                return self._join(self.of(a) + self.of(b))
            case BinOp(op="-", lhs=a, rhs=b):
                return self._join(self.of(a) - self.of(b))
            case BinOp(op="*", lhs=a, rhs=b):
                return self._times(self.of(a), self.of(b))
            case UnOp(op="-", value=a):
                return self.of(a).scale(-1)
            case BinOp(op="//", lhs=a, rhs=Const(value=int(k))) if k > 0:
                return self.div(self.of(a), k)
            case BinOp(op="%", lhs=a, rhs=Const(value=int(k))) if k > 0:
                return self.mod(self.of(a), k)
            case Cast(value=BinOp() | UnOp() | Cast() as a) if is_integer(a) and is_integer(expr):
                return self._widen(expr, a)
        return atom(expr)

    def interval(self, form: Linear, lows: Mapping[Key, int] | None = None) -> Interval:
        """Return the interval of the sum, as an integer without limits.

        *lows*: what atoms are at least, by their keys.
        """
        total = Interval(0, 0)
        for term in form.terms.values():
            part = Interval(term.factor, term.factor)
            for factor in term.atoms:
                bounds = bounds_of(factor, self.env)
                part *= bounds & Interval(lows.get(key_of(factor))) if lows else bounds
            total += part
        return total

    def exact(self, form: Linear) -> bool:
        """Say whether the sum equals its machine value: it stays within the dtype."""
        if abs(form.constant) > _far(form.dtype):
            return False  # the constant itself may have wrapped
        sure = self.trusted and form.dtype == int64
        return sure or self.interval(form) in dtype_range(form.dtype)

    def _times(self, a: Linear, b: Linear) -> Linear:
        degree = sum(max((len(t.atoms) for t in x.terms.values()), default=0) for x in (a, b))
        if len(a.terms) * len(b.terms) <= MAX_TERMS and degree <= MAX_DEGREE:
            return a * b
        key = frozenset(((("*", a.key, b.key), 1),))
        return Linear({key: Term(1, (BinOp("*", a.expr(), b.expr()),))}, a.dtype)

    def _widen(self, expr: Expr, inner: Expr) -> Linear:
        """Move a cast to the atoms, if the sum below it overflows neither dtype."""
        form, dtype = self.of(inner), expr.dtype
        interval = self.interval(form)
        if interval not in dtype_range(inner.dtype) or interval not in dtype_range(dtype):
            return atom(expr)
        terms = {}
        for term in form.terms.values():
            atoms = tuple(cast(factor, dtype) for factor in term.atoms)
            terms[monomial(atoms)] = Term(term.factor, atoms)
        return _tidy(terms, dtype)

    def _join(self, form: Linear) -> Linear:
        """Replace ``c * (k * (x // k) + x % k)`` by ``c * x``."""
        for key, term in form.terms.items():
            if len(term.atoms) != 1:
                continue
            match term.atoms[0]:
                case BinOp(op="%", lhs=x, rhs=Const(value=int(k))) if k > 0:
                    dividend = self.of(x)
                    quotient = self.div(dividend, k)
                    if quotient.single is None:
                        continue
                    (quotient_key,) = quotient.terms
                    if (
                        quotient_key in form.terms
                        and form.terms[quotient_key].factor == term.factor * k
                    ):
                        others = form.without(key).without(quotient_key)
                        return self._join(others + dividend.scale(term.factor))
        return form

    def div(self, form: Linear, k: int) -> Linear:
        """Return the form of ``form // k`` for k > 0."""
        if k == 1:
            return form
        if k > _far(form.dtype) or not self.exact(form):
            return atom(BinOp("//", form.expr(), const(k, form.dtype)))
        for g in _divisors(form, k):
            multiple, remainder = _split_multiples(form, g)
            if (low := self._block(remainder, g)) is not None:
                return self.div(_divide(multiple, g).shift(low), k // g)
        multiple, remainder = _split_multiples(form, k)
        if multiple.terms and self.exact(remainder):
            return _divide(multiple, k) + self.div(remainder, k)
        match form.single:
            case BinOp(op="//", lhs=x, rhs=Const(value=int(j))) if j > 0 and j * k in dtype_range(
                form.dtype
            ):
                return self.div(self.of(x), j * k)
            case BinOp(op="%", lhs=x, rhs=Const(value=int(j))) if j > 0 and j % k == 0:
                return self.mod(self.div(self.of(x), k), j // k)
        return atom(BinOp("//", form.expr(), const(k, form.dtype)))

    def mod(self, form: Linear, k: int) -> Linear:
        """Return the form of ``form % k`` for k > 0."""
        if k == 1:
            return Linear({}, form.dtype)
        wraps = k & (k - 1) == 0  # then wrapping around does not change the result
        _, remainder = _split_multiples(form, k)
        safe = wraps or (self.exact(form) and self.exact(remainder))
        if k > _far(form.dtype) or not safe:
            return atom(BinOp("%", form.expr(), const(k, form.dtype)))
        if (low := self._block(remainder, k)) is not None:
            return remainder.shift(-low * k)
        for g in _divisors(remainder, k)[1:]:
            multiple, small = _split_multiples(remainder, g)
            if (low := self._block(small, g)) is not None:
                high = self.mod(_divide(multiple, g).shift(low), k // g)
                return high.scale(g) + small.shift(-low * g)
        match remainder.single:
            case BinOp(op="%", lhs=x, rhs=Const(value=int(j))) if j > 0 and j % k == 0:
                return self.mod(self.of(x), k)
        return atom(BinOp("%", remainder.expr(), const(k, form.dtype)))

    def _block(self, form: Linear, k: int) -> int | None:
        """Return ``form // k`` if it is a single number."""
        interval = self.interval(form)
        if interval.low is None or interval.high is None or interval.low // k != interval.high // k:
            return None
        return interval.low // k


def _far(dtype: DType) -> int:
    """The limit of constants and divisors, such that the sum of two does not wrap."""
    return 1 << dtype.bits - 2


def _divisors(form: Linear, k: int) -> list[int]:
    """Return the divisors of *k* to try: *k*, and its common divisors with the factors."""
    common = {gcd(k, term.factor) for key, term in form.terms.items() if key != ONE}
    return sorted({k, *common} - {1}, reverse=True)


def _split_multiples(form: Linear, k: int) -> tuple[Linear, Linear]:
    """Return the multiples of *k* in *form*, and the rest with a constant in ``0..k-1``."""
    multiple, remainder = form.split(lambda key, term: key != ONE and term.factor % k == 0)
    low = form.constant % k
    return multiple.shift(form.constant - low), remainder.shift(low - form.constant)


def _divide(form: Linear, k: int) -> Linear:
    terms = {key: Term(term.factor // k, term.atoms) for key, term in form.terms.items()}
    return Linear(terms, form.dtype)


def monomial(atoms: Iterable[Expr]) -> Monomial:
    """Return the key of the product of *atoms*."""
    powers: dict[Key, int] = {}
    for factor in atoms:
        key = key_of(factor)
        powers[key] = powers.get(key, 0) + 1
    return frozenset(powers.items())
