"""Under the steps: the loop kinds that programs claim, and the permissions they need."""

from __future__ import annotations

from spcomp.errors import ScheduleError, warn
from spcomp.ir.analysis.reduction import as_reduction
from spcomp.ir.analysis.vectors import can_vectorize
from spcomp.ir.expr import Var
from spcomp.ir.func import Func
from spcomp.ir.node import Node
from spcomp.ir.position import Block
from spcomp.ir.program import FlatFunc
from spcomp.ir.rewrite import Rewriter, substitute
from spcomp.ir.stmt import For, Stmt, Store
from spcomp.ir.structural import expr_equal
from spcomp.ir.visitor import statements, walk
from spcomp.passes.pack.pack_rows import unclaimed
from spcomp.schedule.legality.dependence import conflicts, is_atomic, loops_of
from spcomp.schedule.legality.order import ascending_axes
from spcomp.schedule.legality.reductions import innermost, is_dot, reduces_over_threads
from spcomp.schedule.nests.nests import replace_stmt, runs_once
from spcomp.schedule.nests.values import binding_values


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


def binding_clash(func: Func, loop: For) -> str | None:
    """Return why *loop* cannot have its grid index beside other loops of the nest, or None."""
    nest = next(x for x in loops_of(func.body) if any(n is loop for n in statements(x)))
    values = binding_values(func.body)
    for other in loops_of(nest):
        if other is loop or other.thread != loop.thread:
            continue
        for outer, inner in ((other, loop), (loop, other)):
            if any(n is inner for n in statements(outer.body)):
                return f"{outer.var.name!r}, bound to {loop.thread}, is around {inner.var.name!r}"
        if not expr_equal(substitute(other.end, values), substitute(loop.end, values)):
            return (
                f"{other.var.name!r} is bound to {loop.thread} too, and is not known to run"
                f" as often as {loop.var.name!r}"
            )
    return None


def note_permission(func: Func, loop: For) -> For:
    """Return *loop* of *func*, annotated as ``atomic`` if it needs the permission of a block.

    The annotation stays with the loop, whatever later steps do to the block.
    """
    attrs = tuple(pair for pair in loop.attrs if pair[0] != "atomic")
    if conflicts(loop, ascending=ascending_axes(func)):
        attrs = (*attrs, ("atomic", True))
    return loop.replace(attrs=attrs)


def permission_hint(func: Func, loop: For) -> str:
    """Return how *loop* of *func* may be bound nevertheless: by permissions, if they are enough."""
    blocks = [b for b in statements(loop.body) if isinstance(b, Block) and _may_permit(b)]
    permitted = _Permitting().rewrite(loop)
    if not blocks or conflicts(permitted, atomic=True, ascending=ascending_axes(func)):
        return ""
    steps = ", ".join(f"annotate({block.name!r}, 'atomic', True)" for block in blocks)
    return (
        f"if the order of updates does not matter, {steps} permits to share them: in a script of"
        ' the position stage, T.block_attr({"atomic": True}) in the block'
    )


class _Permitting(Rewriter):
    """Makes all blocks that may permit shared updates do so."""

    def visit_Block(self, block: Block) -> Node:
        new = self.visit_Node(block)
        assert isinstance(new, Block)
        return new.replace(attrs=(*new.attrs, ("atomic", True))) if _may_permit(block) else new


def _may_permit(block: Block) -> bool:
    """Whether *block*, without blocks inside, updates elements and has no permission yet."""
    inner = any(isinstance(n, Block) for n in statements(block.body))
    return updates_elements(block) and not inner and not is_atomic(block)


def updates_elements(block: Block) -> bool:
    """Whether *block* updates elements, which a permission lets iterations share."""
    return any(isinstance(n, Store) and as_reduction(n) for n in statements(block.body))


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
