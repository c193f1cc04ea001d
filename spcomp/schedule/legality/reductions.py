"""Under the steps: loop bodies that are reductions, such as dot products."""

from __future__ import annotations

from spcomp.ir.access import Load
from spcomp.ir.analysis.exprs import variables
from spcomp.ir.analysis.reduction import as_reduction
from spcomp.ir.analysis.vectors import conditions_of, is_invariant
from spcomp.ir.arith.memory import writes_of
from spcomp.ir.axis import memory_of
from spcomp.ir.expr import Var
from spcomp.ir.position import Block
from spcomp.ir.rewrite import substitute
from spcomp.ir.stmt import For, If, Stmt, Store
from spcomp.ir.visitor import walk


def only_reduces(body: Stmt) -> bool:
    """Whether *body* only makes associative updates of one buffer, which it reads nowhere else."""
    stores = [node for node in walk(body) if isinstance(node, Store)]
    inits = {n for b in walk(body) if isinstance(b, Block) and b.init for n in walk(b.init)}
    updates = [store for store in stores if store not in inits]
    reductions = [as_reduction(store, choices=True) for store in updates]
    kinds = {
        (r.combiner, u.buffer) for r, u in zip(reductions, updates, strict=True) if r is not None
    }
    memories = writes_of(body)
    loads = [n for n in walk(body) if isinstance(n, Load) and memory_of(n.buffer) in memories]
    return None not in reductions and len(kinds) == 1 and len(loads) == len(updates)


def innermost(loop: For) -> tuple[Stmt, Var]:
    """Return the body of *loop*, the iters of its block replaced, and the loop's variable."""
    body = loop.body
    if isinstance(body, Block):
        values = body.values
        where, body = body.where, substitute(body.body, values)
        if where is not None:
            body = If(substitute(where, values), body)
    return body, loop.var


def is_dot(body: Stmt, var: Var) -> bool:
    """Whether *body* accumulates into the same element for all values of *var*.

    It may do so under conditions that do not depend on *var*.
    """
    terms, inner = conditions_of(body)
    if terms and all(is_invariant(term, var, inner) for term in terms):
        body = inner
    if not isinstance(body, Store) or any(
        var in variables(i) for i in body.indices if i is not None
    ):
        return False
    reduction = as_reduction(body)
    return reduction is not None and not reduction.is_tuple


def reduces_over_threads(loop: For) -> bool:
    """Whether *loop* runs on the threads of a block, and only reduces into one element."""
    return loop.thread.startswith("threadIdx") and is_dot(*innermost(loop))
