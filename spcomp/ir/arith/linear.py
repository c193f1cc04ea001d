"""Canonical form of integer expressions: sums of products of atoms, ``//`` and ``%`` folded in."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from functools import lru_cache
from math import gcd
from typing import Any, TypeAlias

from spcomp.dtypes import DType, int64
from spcomp.ir.access import Load, Search
from spcomp.ir.arith.bounds import Env, Interval, bounds_of, dtype_range
from spcomp.ir.axis import AnyBuffer
from spcomp.ir.expr import BinOp, Cast, Const, Expr, UnOp, Var, cast, const
from spcomp.ir.node import Node, record
from spcomp.ir.visitor import walk

Key: TypeAlias = Hashable
Monomial: TypeAlias = frozenset[tuple[Key, int]]  # the keys of the atoms with their powers
ONE: Monomial = frozenset()
MAX_TERMS = 48  # a product that would have more is left alone
MAX_DEGREE = 8


def wrap(value: int, dtype: DType) -> int:
    """Return the integer of *dtype* that equals *value* modulo two to its bits."""
    value &= (1 << dtype.bits) - 1
    return value - (1 << dtype.bits) if dtype.kind == "int" and value >> dtype.bits - 1 else value


def expr_equal(a: Node | None, b: Node | None) -> bool:
    """Say whether *a* and *b* are one expression: same nodes, same variables, same buffers."""
    if a is b:
        return True
    if type(a) is not type(b) or a is None or b is None or isinstance(a, Var):
        return False
    return all(_same(getattr(a, name), getattr(b, name)) for name in a.FIELDS if name != "span")


def _same(x: Any, y: Any) -> bool:
    if isinstance(x, Expr):
        return expr_equal(x, y)
    if isinstance(x, tuple) and isinstance(y, tuple):
        return len(x) == len(y) and all(map(_same, x, y))
    return x is y or (type(x) is type(y) and not isinstance(x, Node) and repr(x) == repr(y))


@record
class Term:
    """*factor* times the product of *atoms*, which may repeat."""

    factor: int
    atoms: tuple[Expr, ...]


@record
class Linear:
    """A sum of terms: no two have the same atoms, no factor is zero, in order of first use.

    Factors are signed, for unsigned integers too: equal modulo two to the bits of the dtype.
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
            own = terms.get(key)
            terms[key] = term if own is None else Term(own.factor + term.factor, term.atoms)
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
        """Return the sum less one of its terms."""
        return Linear({k: term for k, term in self.terms.items() if k != key}, self.dtype)

    def split(self, keep: Callable[[Monomial, Term], bool]) -> tuple[Linear, Linear]:
        """Return the terms that *keep* accepts, and the others."""
        kept = {key: term for key, term in self.terms.items() if keep(key, term)}
        rest = {key: term for key, term in self.terms.items() if key not in kept}
        return Linear(kept, self.dtype), Linear(rest, self.dtype)

    @property
    def single(self) -> Expr | None:
        """The atom that the whole sum is, if it is one."""
        if len(self.terms) == 1:
            (term,) = self.terms.values()
            if term.factor == 1 == len(term.atoms):
                return term.atoms[0]
        return None

    @property
    def key(self) -> Key:
        """What it has in common with every form that is the same sum."""
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
    """Return *expr* as an indivisible quantity."""
    return Linear({frozenset(((key_of(expr), 1),)): Term(1, (expr,))}, expr.dtype)


def _tidy(terms: Mapping[Monomial, Term], dtype: DType) -> Linear:
    """Wrap the factors, which changes no value of the dtype, and drop terms that are zero."""
    end = 1 << dtype.bits - 1
    made = {}
    for key, term in terms.items():
        if not -end <= term.factor < end:
            term = Term((term.factor + end) % (2 * end) - end, term.atoms)
        if term.factor:
            made[key] = term
    return Linear(made, dtype)


def _product(atoms: tuple[Expr, ...]) -> Expr:
    result = atoms[0]
    for other in atoms[1:]:
        result = BinOp("*", result, other)
    return result


@lru_cache(maxsize=1 << 14)  # nodes are immutable; the key of a part is asked for by all around it
def key_of(expr: Expr) -> Key:
    """Return what *expr* has in common with every expression of the same canonical form."""
    if isinstance(expr, Var):
        return expr
    if is_ring(expr):
        return Algebra(Env()).of(expr).key
    return (type(expr), *(_key(getattr(expr, name)) for name in expr.FIELDS if name != "span"))


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
    return variables_in(expr).union(n.buffer for n in walk(expr) if isinstance(n, (Load, Search)))


class Algebra:
    """Canonical forms, given what *env* says of variables and buffers.

    *trusted*: arithmetic on 64-bit integers is taken not to overflow, as befits sizes and offsets
    of what fits in memory, not data. Else every rule shows that it does not.
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
                return self._joined(self.of(a) + self.of(b))
            case BinOp(op="-", lhs=a, rhs=b):
                return self._joined(self.of(a) - self.of(b))
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

    def interval(self, form: Linear) -> Interval:
        """Return where the sum lies, as an integer that no dtype limits."""
        total = Interval(0, 0)
        for term in form.terms.values():
            part = Interval(term.factor, term.factor)
            for factor in term.atoms:
                part *= bounds_of(factor, self.env)
            total += part
        return total

    def exact(self, form: Linear) -> bool:
        """Say whether the sum is its machine value: it does not leave the dtype."""
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
        """Move a cast to the atoms, where the sum below it is what it says."""
        form, dtype = self.of(inner), expr.dtype
        where = self.interval(form)
        if where not in dtype_range(inner.dtype) or where not in dtype_range(dtype):
            return atom(expr)
        terms = {}
        for term in form.terms.values():
            atoms = tuple(cast(one, dtype) for one in term.atoms)
            terms[monomial(atoms)] = Term(term.factor, atoms)
        return _tidy(terms, dtype)

    def _joined(self, form: Linear) -> Linear:
        """Replace ``c * (k * (x // k) + x % k)`` by ``c * x``."""
        for key, term in form.terms.items():
            if len(term.atoms) != 1:
                continue
            match term.atoms[0]:
                case BinOp(op="%", lhs=x, rhs=Const(value=int(k))) if k > 0:
                    whole = self.of(x)
                    quotient = self.div(whole, k)
                    if quotient.single is None:
                        continue
                    (other,) = quotient.terms
                    if other in form.terms and form.terms[other].factor == term.factor * k:
                        rest = form.without(key).without(other)
                        return self._joined(rest + whole.scale(term.factor))
        return form

    def div(self, form: Linear, k: int) -> Linear:
        """Return the form of ``form // k`` for k > 0."""
        if k == 1:
            return form
        if k > _far(form.dtype) or not self.exact(form):
            return atom(BinOp("//", form.expr(), const(k, form.dtype)))
        for g in _divisors(form, k):
            multiple, rest = _parted(form, g)
            if (low := self._block(rest, g)) is not None:
                return self.div(_divided(multiple, g).shift(low), k // g)
        multiple, rest = _parted(form, k)
        if multiple.terms and self.exact(rest):
            return _divided(multiple, k) + self.div(rest, k)
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
        _, rest = _parted(form, k)
        safe = wraps or (self.exact(form) and self.exact(rest))
        if k > _far(form.dtype) or not safe:
            return atom(BinOp("%", form.expr(), const(k, form.dtype)))
        if (low := self._block(rest, k)) is not None:
            return rest.shift(-low * k)
        for g in _divisors(rest, k)[1:]:
            multiple, small = _parted(rest, g)
            if (low := self._block(small, g)) is not None:
                high = self.mod(_divided(multiple, g).shift(low), k // g)
                return high.scale(g) + small.shift(-low * g)
        match rest.single:
            case BinOp(op="%", lhs=x, rhs=Const(value=int(j))) if j > 0 and j % k == 0:
                return self.mod(self.of(x), k)
        return atom(BinOp("%", rest.expr(), const(k, form.dtype)))

    def _block(self, form: Linear, k: int) -> int | None:
        """Return ``form // k`` if it is one number."""
        where = self.interval(form)
        if where.low is None or where.high is None or where.low // k != where.high // k:
            return None
        return where.low // k


def _far(dtype: DType) -> int:
    """What constants and divisors stay below, so that one added to another does not wrap."""
    return 1 << dtype.bits - 2


def _divisors(form: Linear, k: int) -> list[int]:
    """Return the divisors of *k* to try: itself, and what the factors share with it."""
    shared = {gcd(k, term.factor) for key, term in form.terms.items() if key != ONE}
    return sorted({k, *shared} - {1}, reverse=True)


def _parted(form: Linear, k: int) -> tuple[Linear, Linear]:
    """Return the multiples of *k* in *form*, and the rest with a constant in ``0..k-1``."""
    multiple, rest = form.split(lambda key, term: key != ONE and term.factor % k == 0)
    left = form.constant % k
    return multiple.shift(form.constant - left), rest.shift(left - form.constant)


def _divided(form: Linear, k: int) -> Linear:
    terms = {key: Term(term.factor // k, term.atoms) for key, term in form.terms.items()}
    return Linear(terms, form.dtype)


def monomial(atoms: Iterable[Expr]) -> Monomial:
    """Return what identifies the product of *atoms*."""
    powers: dict[Key, int] = {}
    for one in atoms:
        key = key_of(one)
        powers[key] = powers.get(key, 0) + 1
    return frozenset(powers.items())
