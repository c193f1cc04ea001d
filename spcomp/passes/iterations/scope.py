"""I to II, scope: the positions behind each coordinate variable, and the searches for them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from spcomp.ir.analysis.exprs import conjuncts, variables
from spcomp.ir.analysis.positions import Pos
from spcomp.ir.arith.bounds import Env
from spcomp.ir.arith.linear import Algebra
from spcomp.ir.arith.proof import Prover
from spcomp.ir.axis import Axis, Domain
from spcomp.ir.expr import BinOp, Expr, Var, const
from spcomp.ir.stmt import Let, Stmt
from spcomp.ir.structural import fingerprint


@dataclass(eq=False, slots=True)
class Binding:
    """A coordinate variable: its value, and its positions on the axes it runs over.

    *absent* lists the axes on which the coordinate is known not to be stored (a merge case).
    *present*: it is a coordinate only where this holds (None: always), elsewhere padding.
    """

    coordinate: Callable[[], Expr]
    positions: dict[Axis, Pos]
    absent: dict[Axis, Pos | None] = field(default_factory=dict)
    present: Expr | None = None


@dataclass(frozen=True, slots=True)
class Lookup:
    """A variable that is computed once per iteration of loop *level* (-1: before all loops)."""

    var: Var
    value: Expr
    level: int


@dataclass(frozen=True, slots=True)
class OpenLoop:
    """A loop ``for var in range(extent)``; *block_var* is the variable of the block inside.

    It runs over *domain*, whose coordinates are *vars*.
    """

    var: Var
    block_var: Var
    extent: Expr
    reduces: bool
    domain: Domain
    vars: tuple[Var, ...]


@dataclass(eq=False, slots=True)
class Segment:
    """Nested loops that are built together: the level of each variable, and the lookups.

    *by_value*: the variable of a lookup by the fingerprint of its value. *wraps*: for a level,
    what else goes around the statements inside it.
    """

    loops: list[OpenLoop] = field(default_factory=list)
    levels: dict[Var, int] = field(default_factory=dict)
    lookups: list[Lookup] = field(default_factory=list)
    by_value: dict[object, Var] = field(default_factory=dict)
    wraps: dict[int, Callable[[Stmt], Stmt]] = field(default_factory=dict)

    def has(self, level: int) -> bool:
        """Whether lookups or wraps belong inside *level*."""
        return level in self.wraps or any(lookup.level == level for lookup in self.lookups)

    def put_around(self, level: int, wrap: Callable[[Stmt], Stmt]) -> None:
        """Put *wrap* around the statements inside *level*, outside other wraps."""
        inner = self.wraps.get(level)
        self.wraps[level] = wrap if inner is None else lambda stmt: wrap(inner(stmt))

    def wrap(self, level: int, stmt: Stmt) -> Stmt:
        """Return *stmt* inside the lookups and wraps of *level*."""
        if level in self.wraps:
            stmt = self.wraps[level](stmt)
        for lookup in reversed(self.lookups):
            if lookup.level == level:
                stmt = Let(lookup.var, lookup.value, stmt, span=stmt.span)
        return stmt


class Scope:
    """The current coordinate variables and segments; an inner scope sees the outer one."""

    def __init__(self, params: Iterable[Var] = (), outer: Scope | None = None) -> None:
        self.params: frozenset[Var] = outer.params if outer else frozenset(params)
        self.bindings: dict[Var, Binding] = dict(outer.bindings) if outer else {}
        self.proofs: dict[object, bool] = outer.proofs if outer else {}  # tried so far
        self.segment = Segment()
        self.segments: tuple[Segment, ...] = (*(outer.segments if outer else ()), self.segment)

    def bind(self, var: Var, binding: Binding) -> None:
        """Let *var* stand for *binding*; it is now the innermost one."""
        self.bindings.pop(var, None)
        self.bindings[var] = binding

    def position(self, axis: Axis) -> Pos | None:
        """Return the position of the innermost iteration over *axis*; None if there is none."""
        for binding in reversed(self.bindings.values()):
            if axis in binding.positions:
                return binding.positions[axis]
        return None

    def lacks(self, axis: Axis) -> bool:
        """Whether an axis above *axis* is known not to be stored here (a merge case)."""
        for above in axis.ancestors():
            for binding in reversed(self.bindings.values()):
                if above in binding.positions or above in binding.absent:
                    return above in binding.absent
        return False

    def owner(self, value: Expr) -> tuple[Segment, int] | None:
        """Return the outermost place where *value* can be computed: a segment and a level of it.

        None if it uses a variable that no segment owns: then it stays in the statement.
        """
        result = (self.segments[0], -1)
        depth = 0
        for var in variables(value):
            if var in self.params:
                continue
            for k, segment in enumerate(self.segments):
                if var in segment.levels:
                    place = segment.levels[var]
                    if k > depth or (k == depth and place > result[1]):
                        result, depth = (segment, place), k
                    break
            else:
                return None
        return result

    def proves_inside(self, coord: Expr, size: Expr) -> bool:
        """Whether *coord*, in coordinate variables, is proved to lie in ``0..size-1``.

        It follows from the lengths of the axes that the variables run over.
        """
        if isinstance(coord, Var):
            return False  # one axis against another: no proof will succeed
        facts: dict[Var, tuple[Expr, Expr]] = {
            var: (const(0), next(iter(binding.positions)).length)
            for var, binding in self.bindings.items()
            if binding.positions and binding.present is None
        }
        key = (
            fingerprint((coord, size)),
            tuple((v, fingerprint(end)) for v, (_, end) in facts.items()),
        )
        if key not in self.proofs:
            prover = Prover(Algebra(Env(), trusted=True), facts)
            low, high = BinOp("<=", const(0), coord), BinOp("<", coord, size)
            holds = coord.dtype == size.dtype and prover.holds(low) and prover.holds(high)
            self.proofs[key] = holds
        return self.proofs[key]

    def skips(self, guard: Expr | None) -> bool:
        """Whether the body does not run where *guard* fails, because that is padding."""
        if guard is None:
            return True
        parts = (part for b in self.bindings.values() for part in conjuncts(b.present))
        present = set(map(fingerprint, parts))
        return all(fingerprint(part) in present for part in conjuncts(guard))

    def lookup_of(self, key: object) -> Var | None:
        """Return the variable of the lookup with fingerprint *key*, if a segment has it."""
        for segment in self.segments:
            if key in segment.by_value:
                return segment.by_value[key]
        return None
