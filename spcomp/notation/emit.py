"""Index notation to coordinate IR: plans become axes, buffers and sparse iterations."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from spcomp.ir.expr import Cast, Var
from spcomp.ir.node import Node
from spcomp.ir.places import at_place
from spcomp.ir.program import CoordFunc
from spcomp.ir.rewrite import Rewriter
from spcomp.ir.stmt import Stmt
from spcomp.notation.declare import Emitter
from spcomp.notation.layout import Operand
from spcomp.notation.nodes import accesses
from spcomp.notation.plan import Plan
from spcomp.notation.semiring import Semiring
from spcomp.notation.statements import Statement
from spcomp.notation.temporaries import Temporary, in_place


def emit(
    name: str,
    plans: Sequence[Plan],
    operands: Mapping[str, Operand],
    semiring: Semiring,
    unseen: Collection[str] = (),
    *,
    exact: bool = True,
    loads_apart: bool = False,
) -> tuple[CoordFunc, dict[str, str], tuple[Temporary, ...]]:
    """Return the program of *plans* over *operands*, the Python numbers by parameter, temporaries.

    Buffers have the names of the tensors. *unseen*: the tensors that are assigned, and that no
    caller gets. *exact*: floats are computed as they are written. *loads_apart*: vectors at
    coordinates are loaded one element after the other. Raises ScriptError where dtypes do not go
    together.
    """
    emitter = Emitter(name, plans, operands, semiring, exact=exact, loads_apart=loads_apart)
    body: list[Stmt] = []
    for at, plan in enumerate(plans):
        emitter.sizes.statement = at
        for access in accesses(plan.stmt.value):
            emitter.buffer(access)
        stmt = Numbers(emitter).rewrite(Statement(emitter, plan).build())
        body.append(at_place(stmt, plan.stmt.target.at))
    func, temporaries = in_place(emitter.program(body), unseen)
    numbers = {var.name: number for (number, _), var in emitter.numbers.items()}
    return func, numbers, temporaries


class Numbers(Rewriter):
    """Replaces a Python number that is cast to a type by a parameter of that type."""

    def __init__(self, emitter: Emitter) -> None:
        self.emitter = emitter

    def visit_Cast(self, cast: Cast) -> Node:
        """Return the parameter if *cast* is of a Python number."""
        var = cast.value
        if isinstance(var, Var) and self.emitter.weak.get(var.name) is var:
            return self.emitter.number(var.name, cast.type)
        return self.visit_Node(cast)
