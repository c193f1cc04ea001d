"""Index notation to index notation: reverse accumulation over the statements of a normal program.

From the last statement to the first: the gradient of what a statement assigns is complete, and is
passed down its value to the tensors there, by the rules of ``ir.analysis.derivatives``. What
arrives at a tensor is a contribution; their sum is a statement of the adjoint.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from spcomp.errors import ScriptError
from spcomp.ir.analysis.derivatives import RULES, exponential, of_extreme, of_product, power
from spcomp.notation.adjoint.terms import (
    TRUE,
    ZERO,
    Functions,
    everywhere,
    is_active,
    joined,
    masked,
    names_of,
    present,
    renamed,
    stored,
    unmasked,
)
from spcomp.notation.nodes import (
    SYMBOLS,
    TYPES,
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
    accesses,
    free,
    walk,
)
from spcomp.notation.objects import Value
from spcomp.notation.prepare import free_name
from spcomp.notation.semiring import ORDINARY
from spcomp.notation.vectors import at_every_coordinate, with_written_reduction


@dataclass(frozen=True, slots=True)
class Contribution:
    """*term*, summed over the indices *over*, is a part of the gradient of *access*."""

    access: Access
    term: Expr
    over: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Scope:
    """Where a term stands: below *indices*, which *witnesses* have; *value*: the result."""

    indices: tuple[str, ...]
    witnesses: tuple[Access, ...] = ()
    value: Access | None = None


@dataclass(slots=True, eq=False)
class Backward:
    """Makes the gradients of a normal *program* with respect to *wrt*.

    *incoming*: the results whose gradients are given. *dense*: the tensors that store every
    element. *exact*: the gradient of a product can itself be derived where factors are zero.
    *widens*: gradients are computed in float32, as operands have 16 bits.
    """

    program: Program
    wrt: Sequence[str]
    incoming: Collection[str]
    dense: Collection[str] = ()
    exact: bool = False
    widens: bool = False
    statements: list[Assignment] = field(default_factory=list)
    found: dict[str, list[Contribution]] = field(default_factory=dict)
    taken: set[str] = field(default_factory=set)
    names: Mapping[str, str] = field(default_factory=dict)

    def run(self) -> Program:
        """Return the statements that compute the gradients, those of *wrt* last, in order."""
        self.names = gradient_names(self.program, self.wrt)
        self.taken = names_of(self.program) | {*self.names.values()}
        seen: set[str] = set()
        for stmt in reversed(self.program.statements):
            name = stmt.target.name
            if name not in self.names:
                continue
            if name not in seen and name not in self.incoming and name in self.found:
                self._gradient(at_every_coordinate(stmt.target))
            seen.add(name)
            if name in self.incoming or name in self.found:
                self._statement(stmt)
        for name in self.wrt:
            self._gradient(self._canonical(name), is_result=True)
        return Program(tuple(self.statements))

    def _statement(self, stmt: Assignment) -> None:
        if stmt.target.windows:
            raise ScriptError(
                f"the gradient through a part of {stmt.target.name} is not derived",
                stmt.target.at or stmt.at,
                hint="assign the whole array",
            )
        target = stmt.target
        incoming: Expr = replace(target, name=self.names[target.name], at=None)
        if self.widens and stmt.target.name in self.incoming:
            incoming = Call("float32", (incoming,))
        plain = tuple(s for s in target.subscripts if isinstance(s, str))
        scope = Scope(plain, value=replace(target, at=None))
        self._back(stmt.value, Value(incoming), scope)

    # -- gradients ----------------------------------------------------------------------------

    def _canonical(self, name: str) -> Access:
        """Return an access to *name* at distinct indices; raises ScriptError if there is none."""
        terms = [t for stmt in self.program.statements for t in walk(stmt.value)]
        found = [t for t in terms if isinstance(t, (Access, Scalar)) and t.name == name]
        assert found, name
        if isinstance(found[0], Scalar):
            return Access(name, ())
        whole = [t for t in found if isinstance(t, Access) and not t.windows]
        if not whole:
            raise self._windowed(found[0])
        whole = [at_every_coordinate(access) for access in whole]
        best = max(whole, key=lambda t: len({*t.indices}))
        indices: list[str] = []
        for index in best.indices:
            indices.append(free_name(index, self.taken) if index in indices else index)
        return Access(name, tuple(indices))

    @staticmethod
    def _windowed(access: Access | Scalar) -> ScriptError:
        hint = "cut the part out before the call, and derive by that"
        return ScriptError(
            f"the gradient of a part, {access}, is not derived", access.at, hint=hint
        )

    def _gradient(self, access: Access, *, is_result: bool = False) -> None:
        """Add the statement for the gradient of *access*: the sum of its contributions."""
        found = self.found.get(access.name, [])
        scattered = [part for part in found if part.access.vectors]
        terms = [self._addend(part, access) for part in found if not part.access.vectors]
        if terms or not scattered:
            self._sum(access, terms, is_result=is_result)
        for at, part in enumerate(scattered):
            self._scatter(part, adds=bool(terms or at))

    def _scatter(self, part: Contribution, *, adds: bool) -> None:
        """Add the statement that scatters *part* to a gradient, or *adds* it."""
        indices = tuple(s for s in part.access.subscripts if isinstance(s, str))
        over = dict.fromkeys((*part.access.indices, *part.over))
        term = unmasked(part.term, set(), self.dense)
        value = Reduce("+", tuple(i for i in over if i not in indices), term)
        target = replace(part.access, name=self.names[part.access.name])
        stmt = Assignment(target, value, accumulates=adds, is_dense=True)
        with_written_reduction(stmt, ORDINARY)  # raises where that is not supported
        self.statements.append(stmt)

    def _sum(self, access: Access, terms: Sequence[Expr], *, is_result: bool) -> None:
        """Add the statement that sums *terms* to the gradient of *access*."""
        value = joined("+", terms) if terms else Number(0.0)
        value = unmasked(value, {stored(access)}, self.dense)
        sparse = bool(access.indices) and access.name not in self.dense
        if sparse or {*access.indices} - {*free(value)}:
            value = self._on_pattern(value, access)
        kept = not self.widens and any(a.name == access.name for a in accesses(value))
        self.statements.append(
            Assignment(
                Access(self.names[access.name], access.indices),
                value,
                of_type=access.name if is_result and kept else "",
            )
        )

    def _on_pattern(self, value: Expr, access: Access) -> Expr:
        """Return *value* exactly where *access* is stored."""
        if isinstance(value, Reduce):
            if everywhere(value.body, access, self.dense) is value.body:
                return replace(value, body=Masked(value.body, stored(access)))
            return Masked(value, stored(access))
        return Masked(everywhere(value, access, self.dense), stored(access))

    def _addend(self, part: Contribution, to: Access) -> Expr:
        """Return *part* at the indices of *to*."""
        names: dict[str, str] = {}
        conds: list[Expr] = []
        for old, new in zip(part.access.indices, to.indices, strict=True):
            if old in names:  # on a diagonal
                conds.append(Op("==", (IndexValue(names[old]), IndexValue(new))))
            names.setdefault(old, new)
        inside = {i for t in walk(part.term) for i in _indices(t)} | {*part.over}
        for index in sorted(inside - names.keys()):
            if index in to.indices:
                names[index] = free_name(index, self.taken)
        term = renamed(part.term, names)
        if conds:
            cond = joined("and", conds)
            is_shown = {*to.indices} <= {*free(term)} | {*free(cond)} & {*_sized(term)}
            term = Masked(term, cond if is_shown else Op("and", (stored(to), cond)))
        over = tuple(names.get(i, i) for i in part.over)
        return Reduce("+", over, term) if over else term

    def _contribute(self, access: Access, g: Expr, scope: Scope) -> None:
        if access.windows:
            raise self._windowed(access)
        if access.vectors and not {*access.indices} <= {*_sized(g)}:  # it says how long they are
            g = Masked(g, Op("or", (stored(access), TRUE)))
        over = tuple(i for i in scope.indices if i not in access.indices)
        for index in over:
            if index not in _sized(g):  # each of its coordinates contributes
                witness = next(a for a in scope.witnesses if index in a.indices)
                g = Masked(g, Op("or", (stored(witness), TRUE)))
        self.found.setdefault(access.name, []).append(Contribution(access, g, over))

    # -- down a value -------------------------------------------------------------------------

    def _back(self, term: Expr, g: Value, scope: Scope) -> None:
        """Pass the gradient *g* of *term* down to the tensors that *term* depends on."""
        if not is_active(term, self.names):
            return
        match term:
            case Access():
                self._contribute(term, g.term, scope)
            case Scalar(name=name):
                self._contribute(Access(name, ()), g.term, scope)
            case Reduce():
                self._reduce(term, g, scope)
            case Declared(body=body):
                given = Value(masked(g.term, present(term)))
                self._back(body, given, replace(scope, value=None))
            case Masked(value=value, cond=cond, other=other):
                self._back(value, g.masked(Value(cond)), scope)
                if other is not None:
                    rest = Value(Masked(ZERO, cond, g.term))
                    self._back(other, rest, replace(scope, value=None))
            case Op(args=args) | Call(args=args):
                self._function(term, args, g, replace(scope, value=None))

    def _function(self, term: Op | Call, args: tuple[Expr, ...], g: Value, scope: Scope) -> None:
        name = term.op if isinstance(term, Op) else term.func
        adds = name in ("+", "-", "neg")
        for at, arg in enumerate(args):
            if not is_active(arg, self.names):
                continue
            exponent = args[-1]
            if name in TYPES:
                part = g
            elif name == "pow" and isinstance(exponent, Number):
                part = power(Functions(), g, Value(args[0]), exponent.value)
            elif name == "pow" and isinstance(args[0], Number):
                part = exponential(Functions(), g, args[0].value, Value(exponent))
            else:
                part = RULES[name](Functions(), g, *map(Value, args))[at]
            if part is not None:
                rest = [other for other in args if other is not arg]
                self._back(arg, part if adds else _where_present(part, rest), scope)

    def _reduce(self, term: Reduce, g: Value, scope: Scope) -> None:
        seen = (*scope.witnesses, *accesses(term.body))
        inside = Scope((*scope.indices, *term.indices), seen)
        if term.op == "+":
            self._back(term.body, g, inside)
        elif scope.value is None:
            raise ScriptError(
                f"the gradient of {SYMBOLS[term.op]} is not derived inside this value",
                term.at,
                hint="write the reduction as a statement of its own",
            )
        elif term.op == "*":
            self._product(term, g, scope.value, inside)
        else:
            self._extreme(term, g, scope.value, inside)

    def _extreme(self, term: Reduce, g: Value, result: Access, scope: Scope) -> None:
        """The gradient of a minimum or maximum is shared evenly by the elements that are it."""
        wins = Op("==", (term.body, result))
        ties = self._noted(f"{result.name}_ties", result, Reduce("+", term.indices, wins))
        share = of_extreme(Functions(), g, Value(wins), Value(ties))
        self._back(term.body, share, scope)

    def _product(self, term: Reduce, g: Value, result: Access, scope: Scope) -> None:
        """The gradient of a factor is the product of the others."""
        body, f = Value(term.body), Functions()
        if self.exact:
            names = {i: free_name(i, self.taken) for i in term.indices}
            other = joined("or", (Op("!=", tuple(map(IndexValue, pair))) for pair in names.items()))
            here = [stored(next(a for a in accesses(term.body) if i in a.indices)) for i in names]
            vectors = (part for part in result.subscripts if isinstance(part, Access))
            same = (Op("==", (vector, renamed(vector, names))) for vector in vectors)
            cond = joined("and", dict.fromkeys((*here, other, *same)))
            rest = Reduce("*", tuple(names.values()), Masked(renamed(term.body, names), cond))
            self._back(term.body, RULES["*"](f, g, body, Value(rest))[0], scope)
            return
        is_zero = Op("==", (term.body, ZERO))
        others = f.where(Value(is_zero), 1, body).term
        zeros = self._noted(f"{result.name}_zeros", result, Reduce("+", term.indices, is_zero))
        rest_of = self._noted(f"{result.name}_rest", result, Reduce("*", term.indices, others))
        share = of_product(f, g, body, Value(zeros), Value(rest_of))
        self._back(term.body, share, scope)

    def _noted(self, wish: str, like: Access, value: Expr) -> Access:
        """Return the access at the indices of *like* to *value*, which a new statement computes."""
        name = wish if wish not in self.taken else free_name(wish, self.taken)
        self.taken.add(name)
        target = replace(like, name=name)
        self.statements.append(Assignment(target, value, is_dense=True))
        return target


def gradient_names(program: Program, wrt: Sequence[str]) -> dict[str, str]:
    """Return what the gradients are called, of *wrt* and what depends on it by a derivative.

    That of A is ``grad_A``, or if the program has that name ``grad_A_2``.
    """
    active = dict.fromkeys(wrt)
    for stmt in program.statements:
        if is_active(stmt.value, active):
            active[stmt.target.name] = None
    taken, names = names_of(program), {}
    for name in active:
        wish = f"grad_{name}"
        names[name] = free_name(wish, taken) if wish in taken else wish
        taken.add(names[name])
    return names


def _where_present(g: Value, others: Sequence[Expr]) -> Value:
    """Return *g* where *others*, arguments of a function beside its own, are present."""
    known = {*walk(g.term)}
    conds = [cond for arg in others if arg not in known and (cond := present(arg))]
    return Value(masked(g.term, joined("and", dict.fromkeys(conds)))) if conds else g


def _indices(term: Expr) -> tuple[str, ...]:
    match term:
        case Access(indices=indices) | Reduce(indices=indices):
            return indices
        case IndexValue(name=name):
            return (name,)
    return ()


def _sized(term: Expr) -> set[str]:
    """Return the indices of the accesses in *term*, which give them lengths."""
    return {i for t in walk(term) if isinstance(t, Access) for i in t.indices}
