"""Under the steps: what the variables of a nest stand for, in terms of its loops."""

from __future__ import annotations

from collections.abc import Iterable

from spcomp.ir.analysis.exprs import variables
from spcomp.ir.expr import Expr, Var, binary
from spcomp.ir.func import Func
from spcomp.ir.node import Node
from spcomp.ir.position import Block
from spcomp.ir.rewrite import substitute
from spcomp.ir.stmt import For, Let, Stmt
from spcomp.ir.visitor import statements, walk


def path_values(path: Iterable[Node]) -> dict[Var, Expr]:
    """Return the values of the iters and lets along *path*, in its loop variables."""
    values: dict[Var, Expr] = {}
    for node in path:
        if isinstance(node, Let):
            values[node.var] = substitute(node.value, values)
        elif isinstance(node, Block):
            values |= {it.var: substitute(it.value, values) for it in node.iters}
    return values


def binding_values(body: Stmt) -> dict[Var, Expr]:
    """Return the values of the lets and of the iters of blocks in *body*."""
    return path_values(statements(body))


def starts_inside(func: Func, loop: For) -> bool:
    """Whether a block in *loop* starts a reduction that *loop*, or a loop around it, drives."""
    inner = {n.var for n in walk(loop.body) if isinstance(n, (For, Let))} | {*func.params}
    values = binding_values(loop.body)
    for node in walk(loop.body):
        if isinstance(node, Block) and node.init is not None:
            for it in node.iters:
                if it.kind == "R" and variables(substitute(it.value, values)) - inner:
                    return True
    return False


def ceil_div(a: Expr, b: Expr) -> Expr:
    """Return ``a / b`` rounded up, of positive int64."""
    return binary("//", a + b - 1, b)
