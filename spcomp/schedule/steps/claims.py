"""What a program written below coordinate space says of its loops, checked by the one oracle."""

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
from spcomp.schedule.legality.dependence import ascending_axes, conflicts, is_atomic, loops_of
from spcomp.schedule.legality.reductions import innermost, is_dot
from spcomp.schedule.nests.nests import replaced
from spcomp.schedule.steps.loops.bind import bound_twice


def _runs_serially(body: Stmt, var: Var) -> bool:
    """Whether the claim that *body* runs in vectors over *var* has no effect."""
    blocks = any(isinstance(node, Block) for node in walk(body))  # what they become is not known
    return not blocks and not can_vectorize(body, var)


def without_false_claims(func: Func) -> Func:
    """Return *func* with no loop that claims to be parallel, bound or vectorized and is not.

    In position space such a claim raises ScheduleError at the loop's line. In flat buffers, where
    much of what would prove it is gone, the loop runs serially, with a warning; so does one over
    chunks (``grain``), which the step that made it has proved, of a program that it no longer is.
    That rows may be made in blocks is for the compiler to say: such a claim is left out.
    """
    func = unclaimed(func)
    while True:
        for loop in loops_of(func.body):
            if loop.kind not in ("parallel", "vectorized", "bound"):
                continue
            if loop.kind == "bound" and (why := bound_twice(func, loop)) is not None:
                raise ScheduleError(why, loop.span)
            body, var = innermost(loop)
            if loop.kind == "vectorized" and (is_dot(body, var) or _runs_serially(body, var)):
                continue
            atomic, known = loop.kind != "vectorized", ascending_axes(func)
            if not (found := conflicts(loop, atomic=atomic, ascending=known)):
                continue
            kind = f"bound to {loop.thread}" if loop.thread else loop.kind
            if not isinstance(func, FlatFunc) and "grain" not in dict(loop.attrs):
                message = f"loop {loop.var.name} cannot be {kind}: {found[0]}"
                raise ScheduleError(message, loop.span)
            where = f"{loop.span}: " if loop.span else ""
            warn(
                f"{where}loop {loop.var.name} is not proved to be {kind}, so it runs"
                f" serially: {found[0]}"
            )
            func = replaced(func, loop, loop.replace(kind="serial", thread=""))
            break
        else:
            return func


def without_permissions(func: Func) -> Func:
    """Return *func* with loops serial that only an ``atomic`` permission keeps from being so.

    What is left of them is independent, so that no permission is needed, or given, any more: the
    same bits at any number of threads.
    """
    permits = any(map(_permits, statements(func.body)))
    return func.replace(body=_InOrder().rewrite(func.body)) if permits else func


def _permits(node: Node) -> bool:
    """Whether *node* is a permission to share updates, or a loop that is known to need one."""
    return getattr(node, "atomic", False) or bool(dict(getattr(node, "attrs", ())).get("atomic"))


class _InOrder(Rewriter):
    """Makes loops serial whose iterations share updates, and takes the permission back."""

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
        kept = tuple(pair for pair in block.attrs if pair[0] != "atomic")
        return new.replace(attrs=kept) if is_atomic(block) else new

    def visit_Store(self, store: Store) -> Node:
        return store.replace(atomic=False) if store.atomic else store
