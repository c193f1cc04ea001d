"""Under the planner: the types of terms, and the sums that need a narrow type."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from spcomp.dtypes import DType, bool_, int64
from spcomp.errors import ScriptError, SpcompError
from spcomp.ir.access import Load
from spcomp.ir.axis import Buffer
from spcomp.ir.expr import Var, const
from spcomp.ir.promotion import Value, resolve
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

    def mixes_extremes(self, stmt: Assignment) -> bool:
        """Whether a minimum or maximum among the addends has another type than the result.

        What is neutral in its type is not in that of the result.
        """
        if self.semiring.add not in ("min", "max"):
            return False
        wide, sums = self.result(stmt), self._sums(stmt.addend[0])
        return any(self._type(term) != wide for term in sums if isinstance(term, Reduce))

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
        return int64 if term.op in ARGUMENTS else resolve(number(self._value(term.body))).dtype
