"""Under adjoints: a program in coordinate space as a list of the updates that it performs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from spcomp.errors import ScriptError
from spcomp.ir.access import Load
from spcomp.ir.analysis.reduction import Combiner, Reduction, as_reduction
from spcomp.ir.axis import AnyBuffer, Domain
from spcomp.ir.coordinate import SpIter
from spcomp.ir.expr import Expr, UnOp, Var
from spcomp.ir.node import Node
from spcomp.ir.program import CoordFunc
from spcomp.ir.rewrite import substitute
from spcomp.ir.stmt import Alloc, Evaluate, If, Let, Prefetch, Seq, Stmt, Store
from spcomp.ir.visitor import walk


@dataclass(frozen=True, slots=True)
class Nest:
    """The iterations around a statement as one, and the conditions between them."""

    domains: tuple[Domain, ...] = ()
    vars: tuple[Var, ...] = ()
    kinds: str = ""
    name: str = ""
    conds: tuple[Expr, ...] = ()


@dataclass(frozen=True, slots=True)
class Update:
    """``buffer[indices] = value``, or *op* combines it with *value*, for each tuple of *nest*.

    *top*: the statement of the program that it is in.
    """

    nest: Nest
    buffer: AnyBuffer
    indices: tuple[Expr | None, ...]
    value: Expr
    op: Combiner | None
    at: Stmt
    top: Stmt

    @property
    def element(self) -> Load:
        """The element that is updated."""
        return Load(self.buffer, self.indices, span=self.at.span)


@dataclass(frozen=True, slots=True)
class Updates:
    """A program: its statements in order, the buffers allocated around them, and its updates.

    *inits*: the stores of what reductions start with, with their statements.
    """

    tops: tuple[Stmt, ...]
    locals: tuple[AnyBuffer, ...]
    list: tuple[Update, ...]
    inits: tuple[tuple[Stmt, Store], ...]


def refuse(message: str, node: Node, hint: str = "") -> ScriptError:
    """Return the error that says at *node* why no adjoint is derived."""
    return ScriptError(f"no adjoint is derived: {message}", node.span, hint=hint)


def updates(func: CoordFunc) -> Updates:
    """Return the updates of *func*; raises ScriptError for statements without a derivative."""
    local: list[AnyBuffer] = []
    body: Stmt = func.body
    tops: list[Stmt] = []
    while True:  # buffers are allocated around what follows them
        parts = body.body if isinstance(body, Seq) else (body,)
        *before, last = parts or (Seq(()),)
        tops += before
        if not isinstance(last, Alloc):
            tops += [last] if parts else []
            break
        local.append(last.buffer)
        body = last.body
    found: list[Update] = []
    inits: list[tuple[Stmt, Store]] = []
    for top in tops:
        own = list(_updates(top, Nest(), {}, top))
        _refuse_mixed(top, own)
        found += own
        inits += [(top, store) for store in _inits(top, ())]
    return Updates(tuple(tops), tuple(local), tuple(found), tuple(inits))


def _updates(stmt: Stmt, nest: Nest, lets: Mapping[Var, Expr], top: Stmt) -> Iterator[Update]:
    match stmt:
        case Seq(body=body):
            reduction = as_reduction(stmt)
            if reduction is not None and len(body) > 1:
                yield _update(reduction, stmt, nest, lets, top)
                return
            for part in body:
                yield from _updates(part, nest, lets, top)
        case SpIter():
            inner = Nest(
                (*nest.domains, *stmt.domains),
                (*nest.vars, *stmt.vars),
                nest.kinds + stmt.kinds,
                stmt.name,
                nest.conds,
            )
            yield from _updates(stmt.body, inner, lets, top)
        case Let(var=var, value=value, body=body):
            yield from _updates(body, nest, {**lets, var: substitute(value, lets)}, top)
        case If() | Store():
            reduction = as_reduction(stmt)
            if reduction is not None:
                yield _update(reduction, stmt, nest, lets, top)
            elif isinstance(stmt, Store):
                yield _assignment(stmt, nest, lets, top)
            else:
                yield from _branches(stmt, nest, lets, top)
        case Evaluate() | Prefetch():
            return
        case _:
            kind = type(stmt).__name__
            raise refuse(f"of a {kind} statement", stmt, "write sparse iterations of assignments")


def _branches(stmt: If, nest: Nest, lets: Mapping[Var, Expr], top: Stmt) -> Iterator[Update]:
    cond = substitute(stmt.cond, lets)
    yield from _updates(stmt.then, replace(nest, conds=(*nest.conds, cond)), lets, top)
    if stmt.otherwise is not None:
        otherwise = UnOp("not", cond, span=stmt.span)
        kept = replace(nest, conds=(*nest.conds, otherwise))
        yield from _updates(stmt.otherwise, kept, lets, top)


def _update(
    reduction: Reduction, stmt: Stmt, nest: Nest, lets: Mapping[Var, Expr], top: Stmt
) -> Update:
    if any(buffer.dtype.is_float for buffer in reduction.buffers[1:]):
        what = "of a float that comes with the extreme of others"
        raise refuse(what, stmt, "keep the index of the extreme, and read the float there")
    indices = tuple(None if i is None else substitute(i, lets) for i in reduction.indices)
    value = substitute(reduction.value, lets)
    return Update(nest, reduction.buffer, indices, value, reduction.combiner, stmt, top)


def _assignment(stmt: Store, nest: Nest, lets: Mapping[Var, Expr], top: Stmt) -> Update:
    indices = tuple(None if i is None else substitute(i, lets) for i in stmt.indices)
    value = substitute(stmt.value, lets)
    reads = any(isinstance(n, Load) and n.buffer is stmt.buffer for n in walk(stmt.value))
    missing = [v for v in nest.vars if not any(index is v for index in indices)]
    if (reads or missing) and stmt.buffer.dtype.is_float:
        what = "reads what it assigns" if reads else "assigns an element several times"
        hint = "write C[i] = C[i] + x, with *, min or max in the place of + if need be"
        raise refuse(f"this {what}", stmt, hint)
    return Update(nest, stmt.buffer, indices, value, None, stmt, top)


def _inits(stmt: Stmt, outer: tuple[Var, ...]) -> Iterator[Store]:
    """Yield the stores of what reductions in *stmt* start with, below iterations over *outer*."""
    inside = (*outer, *stmt.vars) if isinstance(stmt, SpIter) else outer
    if isinstance(stmt, SpIter) and stmt.init is not None:
        for store in (node for node in walk(stmt.init) if isinstance(node, Store)):
            if any(var not in store.indices for var in outer):
                raise refuse(f"{store.buffer.name} starts several times", store)
            yield store
    for name in stmt.CHILDREN:
        child = getattr(stmt, name)
        for part in child if isinstance(child, tuple) else (child,):
            if isinstance(part, Stmt) and name != "init":
                yield from _inits(part, inside)


def _refuse_mixed(top: Stmt, found: list[Update]) -> None:
    """Raise ScriptError if an iteration reads what other iterations of it write."""
    written = {update.buffer for update in found}
    for update in found:
        exprs = (update.value, *update.nest.conds, *filter(None, update.indices))
        for node in (n for expr in exprs for n in walk(expr)):
            if isinstance(node, Load) and node.buffer in written:
                raise refuse(
                    f"this iteration reads {node.buffer.name}, which it writes",
                    node if node.span else top,
                    "write the two as iterations one after the other",
                )
