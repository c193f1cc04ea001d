"""Under the planner: the types of terms, and the sums that need a narrow type."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from spcomp.dtypes import DType, bool_, int64
from spcomp.errors import ScriptError, SpcompError
from spcomp.ir.access import Load
from spcomp.ir.axis import Buffer
from spcomp.ir.expr import Var, const
from spcomp.ir.promotion import Value, implicit, resolve
from spcomp.notation.algebra import addends, rebuilt
from spcomp.notation.nodes import (
    ARG_REDUCTIONS,
    Access,
    Assignment,
    Call,
    Expr,
    Number,
    Op,
    Reduce,
    walk,
)
from spcomp.notation.semiring import Semiring
from spcomp.notation.terms import Terms, number

ZERO, ONE = const(0), const(1)


@dataclass(frozen=True, slots=True)
class Types:
    """The types of terms over operands of *dtypes*; *weak* ones are Python numbers."""

    dtypes: Mapping[str, DType]
    semiring: Semiring
    weak: frozenset[str] = frozenset()

    def result(self, stmt: Assignment) -> DType:
        """Return the type of what *stmt* assigns; raises ScriptError if terms do not go together.

        It is that of the terms as they are written, whatever the order in which they are added.
        """
        model = stmt.target.name if stmt.accumulates else stmt.of_type
        try:
            dtype = resolve(self._value(stmt.value)).dtype
        except ValueError as error:
            raise ScriptError(str(error), stmt.value.at) from None
        return self.dtypes.get(model, dtype)

    def narrow(self, stmt: Assignment) -> tuple[Expr, ...]:
        """Return the sums, written or implied, among the addends of *stmt* that may wrap around.

        They are sums of integers with a type narrower than that of the result, in which they would
        have other values. A wider type does not change a minimum or maximum.
        """
        wide = self.result(stmt)
        if self.semiring.add not in ("+", "*"):
            return ()
        sums = []
        for term in self._sums(stmt.addend[0]):
            dtype = self._type(term)
            if dtype is not None and dtype.is_integer and (wide.is_float or wide.bits > dtype.bits):
                sums.append(term)
        return tuple(sums)

    def widens(self, stmt: Assignment) -> bool:
        """Whether addends of *stmt* have to be cast to the type of its result.

        So it is with minimums and maximums: what is neutral in another type is not in that one.
        """
        if self.semiring.add not in ("min", "max"):
            return False
        wide = self.result(stmt)
        try:
            implicit(self._value(stmt.value), wide)
            parts = [self._value(part) for part, _ in addends(stmt.value, self.semiring)]
        except ValueError:  # raised where it is stored
            return False
        return any(not part.weak and part.dtype != wide for part in parts)

    def widened(self, stmt: Assignment) -> Assignment:
        """Return *stmt*, with the reductions among its addends cast if it *widens*."""
        if not self.widens(stmt):
            return stmt
        wide = self.result(stmt)

        def rewrite(term: Expr) -> Expr:
            match term:
                case Reduce(op=self.semiring.add) if self._type(term) != wide:
                    return in_type(term, wide)
                case Op(op="+" | "-" | "neg"):
                    return rebuilt(term, rewrite)
            return term

        return replace(stmt, value=rewrite(stmt.value))

    def _sums(self, term: Expr) -> Iterator[Expr]:
        match term:
            case Reduce(op=self.semiring.add, body=body):
                if self._type(body) != bool_:  # a count does not wrap around
                    yield term
            case Op(op="+" | "-" | "neg", args=args):
                if not all(isinstance(part, (Op, Number)) for part in walk(term)):
                    yield term
                for arg in args:
                    yield from self._sums(arg)

    def _type(self, term: Expr) -> DType | None:
        try:
            return resolve(self._value(term)).dtype
        except (SpcompError, ValueError):  # raised where it is computed
            return None

    def _value(self, term: Expr) -> Value:
        dtypes: dict[str, DType] = dict(self.dtypes)

        def without(part: Expr) -> Expr:
            if not isinstance(part, Reduce):
                return rebuilt(part, without)
            name = f"sum {len(dtypes)}"
            dtypes[name] = self._reduced(part)
            return Access(name, ())

        def load(access: Access) -> Load:
            return Load(Buffer(access.name, None, (ONE,), dtypes[access.name]), (ZERO,))

        return Terms(
            load,
            lambda _: None,
            lambda name: Value(Var(name, dtypes[name]), name in self.weak),
            lambda name: Var(name, int64),
            frozenset(),
            frozenset(),
            self.semiring,
        ).term(without(term))[0]

    def _reduced(self, term: Reduce) -> DType:
        if term.op in ("and", "or"):
            return bool_
        return int64 if term.op in ARG_REDUCTIONS else resolve(number(self._value(term.body))).dtype


def in_type(term: Expr, dtype: DType) -> Expr:
    """Return *term* cast to *dtype*; of a reduction, what is reduced."""
    if isinstance(term, Reduce):
        return replace(term, body=in_type(term.body, dtype))
    return Call(str(dtype), (term,), at=term.at)
