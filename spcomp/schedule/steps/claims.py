"""In position space and below: check the loop kinds that a user's program claims."""

from __future__ import annotations

from spcomp.errors import ScheduleError, warn
from spcomp.ir.analysis.vectors import can_vectorize
from spcomp.ir.expr import Var
from spcomp.ir.func import Func
from spcomp.ir.node import Node
from spcomp.ir.position import Block
from spcomp.ir.program import FlatFunc
from spcomp.ir.rewrite import Rewriter
from spcomp.ir.stmt import For, Stmt, Store
from spcomp.ir.visitor import statements, walk
from spcomp.passes.pack.pack_rows import unclaimed
from spcomp.schedule.legality.dependence import conflicts, is_atomic, loops_of
from spcomp.schedule.legality.order import ascending_axes
from spcomp.schedule.legality.reductions import innermost, is_dot, reduces_over_threads
from spcomp.schedule.nests.nests import replace_stmt, runs_once
from spcomp.schedule.steps.loops.annotate import permission_hint
from spcomp.schedule.steps.loops.bind import binding_clash


def _runs_serially(body: Stmt, var: Var) -> bool:
    """Whether *body* runs serially over *var* even if its loop is marked vectorized."""
    blocks = any(isinstance(node, Block) for node in walk(body))  # not known until they are lowered
    return not blocks and not can_vectorize(body, var)


def without_false_claims(func: Func) -> Func:
    """Return *func* without false claims that a loop is parallel, bound or vectorized.

    In position space a false claim raises ScheduleError at the loop's line. In flat IR, which has
    lost much of what a proof needs, the loop becomes serial, with a warning. So does a loop over
    chunks (``grain``): the step that made it proved it for the program of that time. A claim that
    rows may be made in blocks is removed, as only the compiler may make it.
    """
    func = unclaimed(func)
    while True:
        for loop in loops_of(func.body):
            if loop.kind not in ("parallel", "vectorized", "bound"):
                continue
            if loop.kind == "bound" and (why := binding_clash(func, loop)) is not None:
                raise ScheduleError(why, loop.span)
            body, var = innermost(loop)
            if reduces_over_threads(loop) or runs_once(loop):
                continue
            if loop.kind == "vectorized" and (is_dot(body, var) or _runs_serially(body, var)):
                continue
            atomic, ascending = loop.kind != "vectorized", ascending_axes(func)
            if not (clashes := conflicts(loop, atomic=atomic, ascending=ascending)):
                continue
            kind = f"bound to {loop.thread}" if loop.thread else loop.kind
            if not isinstance(func, FlatFunc) and "grain" not in dict(loop.attrs):
                message = f"loop {loop.var.name} cannot be {kind}: {clashes[0]}"
                hint = permission_hint(func, loop) if loop.kind == "bound" else ""
                raise ScheduleError(message, loop.span, hint=hint)
            where = f"{loop.span}: " if loop.span else ""
            warn(
                f"{where}loop {loop.var.name} is not proved to be {kind}, so it runs"
                f" serially: {clashes[0]}"
            )
            func = replace_stmt(func, loop, loop.replace(kind="serial", thread=""))
            break
        else:
            return func


def without_permissions(func: Func) -> Func:
    """Return *func* with the loops serial that need an ``atomic`` permission to be parallel.

    The loops that stay parallel are independent without it, so the permissions are removed, and
    results have the same bits at any number of threads.
    """
    permits = any(map(_permits, statements(func.body)))
    return func.replace(body=_InOrder().rewrite(func.body)) if permits else func


def _permits(node: Node) -> bool:
    """Whether *node* permits shared updates, or is a loop that needs such a permission."""
    return getattr(node, "atomic", False) or bool(dict(getattr(node, "attrs", ())).get("atomic"))


class _InOrder(Rewriter):
    """Makes loops serial whose iterations share updates, and removes the permissions."""

    def visit_For(self, loop: For) -> Node:
        new = self.visit_Node(loop)
        assert isinstance(new, For)
        shares = loop.kind in ("parallel", "bound") and any(map(_permits, statements(loop)))
        attrs = tuple(pair for pair in loop.attrs if pair[0] != "atomic")
        if shares and conflicts(loop):
            return new.replace(kind="serial", thread="", attrs=attrs)
        return new.replace(attrs=attrs) if attrs != loop.attrs else new

    def visit_Block(self, block: Block) -> Node:
        new = self.visit_Node(block)
        assert isinstance(new, Block)
        attrs = tuple(pair for pair in block.attrs if pair[0] != "atomic")
        return new.replace(attrs=attrs) if is_atomic(block) else new

    def visit_Store(self, store: Store) -> Node:
        return store.replace(atomic=False) if store.atomic else store
