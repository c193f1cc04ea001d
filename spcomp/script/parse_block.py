"""Python syntax to sparse iterations, blocks and merges, the bodies of ``with`` statements."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

from spcomp.dtypes import int64
from spcomp.ir.axis import Axis, SparseBuffer, domain_width
from spcomp.ir.coordinate import SpIter
from spcomp.ir.expr import BinOp, Const, Expr, Var, const
from spcomp.ir.expr import cast as cast_to
from spcomp.ir.position import Block, BlockIter, Case, Cursor, IterKind, Merge, MergeKind, Region
from spcomp.ir.stmt import Prefix
from spcomp.ir.visitor import walk
from spcomp.script.declare import items
from spcomp.script.parse_expr import index_parts

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from spcomp.ir.stmt import Attrs, Stmt
    from spcomp.script.parse_stmt import Statements

_ITERS: dict[str | None, IterKind] = {
    "axis.spatial": "S",
    "axis.S": "S",
    "axis.reduce": "R",
    "axis.R": "R",
}
Place: TypeAlias = Literal["T.sp_iter", "T.block"]


@dataclass(slots=True)
class Header:
    """The declarations at the top of an sp_iter or a block, in order."""

    place: Place
    iters: list[BlockIter] = field(default_factory=list)
    reads: list[Region] = field(default_factory=list)
    writes: list[Region] = field(default_factory=list)
    where: Expr | None = None
    attrs: Attrs = ()
    init: Stmt | None = None


def sp_iter(st: Statements, node: ast.With, call: ast.Call, target: ast.expr | None) -> Stmt:
    """Return the sparse iteration that *node* spells."""
    ctx, args = st.ctx, st.ctx.arguments(call)
    ctx.features.setdefault("T.sp_iter", call)
    domains = tuple(st.declare.domain(item) for item in items(args["axes"]))
    kinds = ctx.text(args["kinds"], "the kinds")
    name = ctx.text(args["name"], "the name") if "name" in args else ctx.name
    width = sum(map(domain_width, domains))
    if target is None:
        raise ctx.error(node, "an sp_iter binds variables", hint="add: as [i, j]")
    targets = items(target)
    if len(targets) != width:
        raise ctx.error(target, f"the domains bind {width} variables, not {len(targets)}")
    if len(kinds) != width:
        raise ctx.error(args["kinds"], f"{width} variables need {width} kinds, not {len(kinds)}")
    if wrong := set(kinds) - {"S", "R"}:
        letter = min(wrong)
        hint = "S is spatial, R is a reduction"
        raise ctx.error(args["kinds"], f"there is no kind {letter!r}", hint=hint)
    with ctx.scope():
        iter_vars = tuple(ctx.bind_var(item, int64) for item in targets)
        header, body = _parts(st, "T.sp_iter", node.body)
    reduced = {var.name for var, kind in zip(iter_vars, kinds, strict=True) if kind == "R"}
    _check_init(st, node, reduced & {var.name for var in _used_vars(iter_vars, header.init)})
    span = ctx.span(node)
    return SpIter(iter_vars, domains, kinds, name, header.init, body, header.attrs, span=span)


def _used_vars(iter_vars: tuple[Var, ...], init: Stmt | None) -> set[Var]:
    return (
        set() if init is None else {n for n in walk(init) if isinstance(n, Var) and n in iter_vars}
    )


def _check_init(st: Statements, node: ast.With, reduced: set[str]) -> None:
    """Raise if the T.init in *node* uses one of *reduced*, which have no value yet when it runs."""
    for inside in (n for stmt in node.body if _is_init(st, stmt) for n in ast.walk(stmt)):
        if isinstance(inside, ast.Name) and inside.id in reduced:
            raise st.ctx.error(
                inside,
                f"{inside.id} is reduced, and what is reduced has no value in T.init",
                hint="use spatial variables in T.init, or declare it S",
            )


def _is_init(st: Statements, stmt: ast.stmt) -> bool:
    match stmt:
        case ast.With(items=[ast.withitem(context_expr=ast.Call() as call)]):
            return st.ctx.called(call) == "init"
    return False


def block(st: Statements, node: ast.With, call: ast.Call, target: ast.expr | None) -> Stmt:
    """Return the block that *node* spells."""
    ctx, args = st.ctx, st.ctx.arguments(call)
    ctx.features.setdefault("T.block", call)
    if target is not None:
        raise ctx.error(target, "a block binds no name here", hint="drop it")
    name = ctx.text(args["name"], "the name") if "name" in args else ""
    with ctx.scope():
        header, body = _parts(st, "T.block", node.body)
    return Block(
        name,
        tuple(header.iters),
        tuple(header.reads),
        tuple(header.writes),
        header.init,
        body,
        header.where,
        header.attrs,
        span=ctx.span(node),
    )


def merge(st: Statements, node: ast.With, call: ast.Call, target: ast.expr | None) -> Stmt:
    """Return the co-iteration that *node* spells."""
    ctx, args = st.ctx, st.ctx.arguments(call)
    ctx.features.setdefault("T.merge", call)
    kind = ctx.text(args["kind"], "the kind")
    if kind not in ("union", "intersect"):
        raise ctx.error(args["kind"], f"there is no merge {kind!r}", hint="union or intersect")
    sources = args.get("cursors", ())
    if not sources:
        raise ctx.error(call, "a merge takes cursors", hint="T.cursor(indices, begin, end)")
    targets = items(target) if target is not None else []
    if len(targets) != 1 + len(sources):
        raise ctx.error(
            target or node,
            f"{len(sources)} cursors bind {1 + len(sources)} variables",
            hint="as [coordinate, position of the first, ...]",
        )
    ends = [_cursor(st, source) for source in sources]
    with ctx.scope():
        coordinate, *places = (ctx.bind_var(item, int64) for item in targets)
        cursors = tuple(
            Cursor(pos, *end, span=pos.span) for pos, end in zip(places, ends, strict=True)
        )
        cases = tuple(_case(st, stmt, len(cursors)) for stmt in node.body)
    return Merge(cast("MergeKind", kind), coordinate, cursors, cases, span=ctx.span(node))


def prefix(st: Statements, node: ast.With, call: ast.Call, target: ast.expr | None) -> Stmt:
    """Return the running sum that *node* spells."""
    ctx = st.ctx
    ctx.features.setdefault("T.prefix", call)
    amount = st.ex.count(ctx.arguments(call)["amount"])
    if target is None:
        raise ctx.error(node, "with T.prefix(...) needs a name", hint="add: as x")
    with ctx.scope():
        var = ctx.bind_var(target, int64)
        return Prefix(var, amount, st.block(node.body), span=ctx.span(node))


def _cursor(st: Statements, node: ast.expr) -> tuple[Any, Expr, Expr]:
    if not isinstance(node, ast.Call) or st.ctx.called(node) != "cursor":
        raise st.ctx.error(node, "a merge takes T.cursor(indices, begin, end)")
    args = st.ctx.arguments(node)
    indices = st.ctx.buffer(args["indices"]) if "indices" in args else None
    return indices, st.ex.count(args["begin"]), st.ex.count(args["end"])


def _case(st: Statements, stmt: ast.stmt, width: int) -> Case:
    call = stmt.items[0].context_expr if isinstance(stmt, ast.With) else None
    if (
        not isinstance(stmt, ast.With)
        or not isinstance(call, ast.Call)
        or (st.ctx.called(call) != "case")
    ):
        raise st.ctx.error(stmt, "a merge holds cases only", hint="with T.case(1, 0): ...")
    present = tuple(bool(st.ex.number(arg)) for arg in st.ctx.arguments(call).get("present", ()))
    if len(present) != width:
        raise st.ctx.error(call, f"a case of {width} cursors has {width} marks, not {len(present)}")
    return Case(present, st.block(stmt.body), span=st.ctx.span(stmt))


# -- what stands at the top of an iteration or a block -------------------------------------------


def _parts(st: Statements, place: Place, stmts: Sequence[ast.stmt]) -> tuple[Header, Stmt]:
    """Return the header lines among *stmts*, in whatever order, and the rest as the body."""
    header = Header(place)
    rest = [stmt for stmt in stmts if not _take(st, header, stmt)]
    return header, st.block(rest)


def _take(st: Statements, header: Header, stmt: ast.stmt) -> bool:
    """Add *stmt* to *header* if it belongs there, and say whether it does."""
    match stmt:
        case ast.With(items=[ast.withitem(context_expr=ast.Call() as call)]):
            if not _is_init(st, stmt):
                return False
            if header.init is not None:
                raise st.ctx.error(stmt, f"one {header.place} has one T.init")
            header.init = st.block(stmt.body)
            return True
        case ast.Expr(value=ast.Call() as call):
            name = st.ctx.called(call)
            if (taker := _LINES.get((header.place, name))) is None:
                return False
            taker(st, header, st.ctx.arguments(call))
            return True
        case ast.Assign(targets=[target], value=ast.Call() as call) if header.place == "T.block":
            return _take_iters(st, header, target, call)
    return False


def _take_iters(st: Statements, header: Header, target: ast.expr, call: ast.Call) -> bool:
    name, span = st.ctx.called(call), st.ctx.span(call)
    if name == "axis.remap":
        header.iters += _remap(st, target, call)
        return True
    if name not in _ITERS:
        return False
    args = st.ctx.arguments(call)
    extent, value = _extent(st, args["extent"]), st.ex.count(args["value"])
    var = st.ctx.bind_var(target, int64)
    header.iters.append(BlockIter(var, extent, value, _ITERS[name], span=span))
    return True


def _extent(st: Statements, node: ast.expr) -> Expr:
    if not isinstance(node, ast.Tuple):
        return st.ex.count(node)
    if len(node.elts) != 2 or st.ex.number(node.elts[0]) != 0:
        raise st.ctx.error(node, "the domain of a block variable is (0, extent)")
    return st.ex.count(node.elts[1])


def _remap(st: Statements, target: ast.expr, call: ast.Call) -> list[BlockIter]:
    args = st.ctx.arguments(call)
    kinds, loops = st.ctx.text(args["kinds"], "the kinds"), items(args["loops"])
    targets = items(target)
    if not len(kinds) == len(loops) == len(targets):
        raise st.ctx.error(
            call, f"{len(targets)} variables, {len(kinds)} kinds and {len(loops)} loops"
        )
    iters = []
    for letter, loop, name in zip(kinds, loops, targets, strict=True):
        if letter not in ("S", "R"):
            hint = "S is spatial, R is a reduction"
            raise st.ctx.error(args["kinds"], f"there is no kind {letter!r}", hint=hint)
        value = st.ex.expr(loop)
        if not isinstance(value, Var) or value not in st.ctx.loops:
            raise st.ctx.error(
                loop, "T.axis.remap takes loop variables", hint="T.axis.spatial(extent, value)"
            )
        begin, end = st.ctx.loops[value]
        extent = end if _is_zero(begin) else BinOp("-", end, begin, span=st.ctx.span(loop))
        var = st.ctx.bind_var(name, int64)
        iters.append(BlockIter(var, extent, value, cast("IterKind", letter), span=var.span))
    return iters


def _where(st: Statements, header: Header, args: dict[str, Any]) -> None:
    header.where = st.ex.condition(args["condition"])


def _attrs(st: Statements, header: Header, args: dict[str, Any]) -> None:
    header.attrs = tuple((dict(header.attrs) | dict(st.attrs(args["attrs"]))).items())


def _reads(st: Statements, header: Header, args: dict[str, Any]) -> None:
    header.reads += _regions(st, args)


def _writes(st: Statements, header: Header, args: dict[str, Any]) -> None:
    header.writes += _regions(st, args)


_LINES: dict[tuple[Place, str | None], Callable[[Statements, Header, dict[str, Any]], None]] = {
    ("T.sp_iter", "sp_iter_attr"): _attrs,
    ("T.block", "block_attr"): _attrs,
    ("T.block", "where"): _where,
    ("T.block", "reads"): _reads,
    ("T.block", "writes"): _writes,
}


def _regions(st: Statements, args: dict[str, Any]) -> list[Region]:
    nodes = [part for node in args.get("regions", ()) for part in items(node)]
    return [_region(st, node) for node in nodes]


def _region(st: Statements, node: ast.expr) -> Region:
    if not isinstance(node, ast.Subscript):
        raise st.ctx.error(node, "a region is A[index or slice, ...]")
    buffer, parts = st.ctx.buffer(node.value), index_parts(node.slice)
    st.ex.check_rank(buffer, len(parts), node)
    dims: Sequence[Axis | Expr] = buffer.axes if isinstance(buffer, SparseBuffer) else buffer.shape
    pairs = [_range(st, part, dim) for part, dim in zip(parts, dims, strict=True)]
    begins, extents = tuple(b for b, _ in pairs), tuple(e for _, e in pairs)
    return Region(buffer, begins, extents, span=st.ctx.span(node))


def _range(st: Statements, node: ast.expr, dim: Axis | Expr) -> tuple[Expr | None, Expr | None]:
    """Return begin and extent of one dimension; the extent of ``b : b + e`` is e as written."""
    if not isinstance(node, ast.Slice):
        index = st.ex.index(node)
        return index, None if index is None else const(1).replace(span=st.ctx.span(node))
    if node.step is not None:
        raise st.ctx.error(node.step, "a region has no step")
    zero = const(0).replace(span=st.ctx.span(node))
    begin = zero if node.lower is None else st.ex.integer(node.lower)
    if node.upper is None:
        return begin, _slice_extent(st, node, dim, begin)
    if _is_zero(begin):
        return begin, st.ex.count(node.upper)
    match node.upper, node.lower:
        case ast.BinOp(left=left, op=ast.Add(), right=right), ast.expr() as low:
            if ast.dump(left) == ast.dump(low):
                return begin, st.ex.count(right)
    return begin, cast_to(st.ex.integer(node.upper) - begin, int64)


def _slice_extent(st: Statements, node: ast.expr, dim: Axis | Expr, begin: Expr) -> Expr:
    if isinstance(dim, Axis):
        if dim.parent is not None:
            raise st.ctx.error(
                node, f"a slice along {dim.name} needs its end", hint="fibers differ in size"
            )
        dim = dim.length
    return cast_to(dim if _is_zero(begin) else dim - begin, int64)


def _is_zero(expr: Expr) -> bool:
    return isinstance(expr, Const) and expr.value == 0 and expr.type == int64


HANDLERS = {"sp_iter": sp_iter, "iter": sp_iter, "block": block, "merge": merge, "prefix": prefix}
