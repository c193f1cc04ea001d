"""Under the planner: the types of terms, and the sums that are not to be made in a wider one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from spcomp.dtypes import DType, bool_, int64
from spcomp.errors import SpcompError
from spcomp.ir.access import Load
from spcomp.ir.axis import Buffer
from spcomp.ir.expr import Var, const
from spcomp.ir.promotion import Value, settle
from spcomp.notation.algebra import rebuilt
from spcomp.notation.nodes import ARGUMENTS, Access, Assignment, Expr, Number, Op, Reduce, walk
from spcomp.notation.semiring import Semiring
from spcomp.notation.terms import Terms, number

ZERO, ONE = const(0), const(1)


@dataclass(frozen=True, slots=True)
class Types:
    """The types of terms over operands of *dtypes*; *weak* ones are Python numbers."""

    dtypes: Mapping[str, DType]
    semiring: Semiring
    weak: frozenset[str] = frozenset()

    def result(self, stmt: Assignment) -> DType | None:
        """Return the type of what *stmt* assigns; None if its terms do not go together."""
        given = stmt.target.name if stmt.accumulates else stmt.of_type
        return self.dtypes[given] if given in self.dtypes else self._type(stmt.value)

    def narrow(self, stmt: Assignment) -> tuple[Expr, ...]:
        """Return the sums, written or not, among the addends of *stmt* that may wrap around.

        They are of integers, which have a narrower type than the result: made in that, they would
        be others. What the least and the greatest are, a wider type does not change.
        """
        wide = self.result(stmt)
        if wide is None or self.semiring.add != "+":
            return ()
        found = []
        value = stmt.value
        if stmt.subtracts and isinstance(value, Op):  # what is taken away is not a sum itself
            (value,) = value.args
        for term in self._sums(value):
            own = self._type(term)
            if own is not None and own.is_integer and (wide.is_float or wide.bits > own.bits):
                found.append(term)
        return tuple(found)

    def _sums(self, term: Expr) -> Iterator[Expr]:
        match term:
            case Reduce(op=self.semiring.add, body=body):
                if self._type(body) != bool_:  # what is counted is not so much
                    yield term
            case Op(op="+" | "-" | "neg", args=args):
                if not all(isinstance(part, (Op, Number)) for part in walk(term)):
                    yield term
                for arg in args:
                    yield from self._sums(arg)

    def _type(self, term: Expr) -> DType | None:
        try:
            return settle(self._value(term)).dtype
        except (SpcompError, ValueError):  # said where it is computed
            return None

    def _value(self, term: Expr) -> Value:
        known: dict[str, DType] = dict(self.dtypes)

        def without(part: Expr) -> Expr:
            if not isinstance(part, Reduce):
                return rebuilt(part, without)
            name = f"sum {len(known)}"
            known[name] = self._reduced(part)
            return Access(name, ())

        def load(access: Access) -> Load:
            return Load(Buffer(access.name, None, (ONE,), known[access.name]), (ZERO,))

        return Terms(
            load,
            lambda _: None,
            lambda name: Value(Var(name, known[name]), name in self.weak),
            lambda name: Var(name, int64),
            frozenset(),
            frozenset(),
            self.semiring,
        ).term(without(term))[0]

    def _reduced(self, term: Reduce) -> DType:
        if term.op in ("and", "or"):
            return bool_
        return int64 if term.op in ARGUMENTS else settle(number(self._value(term.body))).dtype
