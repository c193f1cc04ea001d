"""Under the steps: nests that go through the elements of a row, in the variables of their loops."""

from __future__ import annotations

from dataclasses import dataclass

from spcomp.ir.analysis.exprs import from_zero, variables
from spcomp.ir.analysis.reduction import Reduction, as_reduction
from spcomp.ir.expr import Expr, Var
from spcomp.ir.position import Block
from spcomp.ir.rewrite import substitute
from spcomp.ir.stmt import For, Stmt, Store
from spcomp.ir.structural import expr_equal


@dataclass(frozen=True, slots=True)
class FiberNest:
    """Loops around one store: *loops*, of which the first runs over the elements.

    *reduces*: the variables of those that accumulate into one element. *store*, *init* and the ends
    of loops are in terms of the variables of loops, not of blocks.
    """

    name: str
    loops: tuple[For, ...]
    reduces: frozenset[Var]
    store: Store
    init: Store | None
    own: Var  # of the first loop, also where another stands for it

    @classmethod
    def of(cls, stmt: Stmt) -> FiberNest | None:
        """Return *stmt* as such a nest; None if it is none, or runs under a condition."""
        values: dict[Var, Expr] = {}
        loops: list[For] = []
        while isinstance(stmt, For) or (isinstance(stmt, Block) and isinstance(stmt.body, For)):
            if isinstance(stmt, For):
                if stmt.kind != "serial" or not from_zero(stmt):
                    return None
                loops.append(stmt.replace(end=substitute(stmt.end, values)))
            elif stmt.init is not None or stmt.where is not None:
                return None
            else:
                values |= {var: substitute(value, values) for var, value in stmt.values.items()}
            stmt = stmt.body
        if not isinstance(stmt, Block) or stmt.where is not None or not loops:
            return None
        store, init = stmt.body, stmt.init
        if not isinstance(store, Store) or not (init is None or isinstance(init, Store)):
            return None
        if store.mask is not None or store.atomic:
            return None
        own = {var: substitute(value, values) for var, value in stmt.values.items()}
        reduces = frozenset(own[it.var] for it in stmt.iters if it.kind == "R")
        if not reduces <= {loop.var for loop in loops}:
            return None
        return cls(
            stmt.name,
            tuple(loops),
            frozenset(var for var in reduces if isinstance(var, Var)),
            substitute(store, values | own),
            None if init is None else substitute(init, values | own),
            loops[0].var,
        )

    @property
    def element(self) -> Var:
        """The variable of the loop over the elements."""
        return self.loops[0].var

    @property
    def inner(self) -> tuple[For, ...]:
        """The other loops."""
        return self.loops[1:]

    @property
    def sums(self) -> bool:
        """Whether all elements are combined."""
        return self.element in self.reduces

    @property
    def reduction(self) -> Reduction | None:
        """The reduction that the store performs one step of."""
        found = as_reduction(self.store)
        return None if found is None or found.is_tuple else found

    def along(self, other: FiberNest) -> FiberNest | None:
        """Return the nest with the variable of *other* for elements; None if these differ."""
        if not expr_equal(self.loops[0].end, other.loops[0].end):
            return None
        if any(self.element in variables(loop.end) for loop in self.inner):
            return None
        same: dict[Var, Expr] = {self.element: other.element}
        first = other.loops[0]
        reduces = {other.element} if self.sums else set()
        return FiberNest(
            self.name,
            (first, *self.inner),
            frozenset(reduces | self.reduces - {self.element}),
            substitute(self.store, same),
            None if self.init is None else substitute(self.init, same),
            self.own,
        )
