"""For every level: the statements that all levels share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from spcomp.dtypes import HOLE
from spcomp.ir.node import Node, attr, binder, declaration, node, record

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from spcomp.ir.axis import AnyBuffer
    from spcomp.ir.expr import Expr, Var

LoopKind: TypeAlias = Literal["serial", "parallel", "vectorized", "unroll", "bound"]
THREADS = tuple(f"{grid}.{k}" for grid in ("blockIdx", "threadIdx", "vthread") for k in "xyz")
THREADS = (*THREADS, "vthread")  # the indices of the grid
WARPS = (2, 4, 8, 16, 32)  # neighbouring threads that may work in step
MOST_TRIPS = "pragma_auto_unroll_max_step"  # attribute of a loop: trips written out, at most
Attrs: TypeAlias = tuple[tuple[str, Any], ...]  # an ordered, immutable mapping


@node
class Stmt(Node):
    """Has an effect and no value."""

    @property
    def block(self) -> Root:
        """The root block that TVM has around the body of a function: ``func.body.block.body``."""
        return Root(self)


@record
class Root:
    """The root block, which TVM has between a function and its *body*."""

    body: Stmt


@node
class Seq(Stmt):
    """Statements in order; an empty one does nothing."""

    body: tuple[Stmt, ...]

    def rebuilt(self, **children: Any) -> Node:
        """Return the new statements as a flat list."""
        return seq(*children["body"])


@node
class Let(Stmt):
    """``var = value`` for the statements of *body*."""

    var: Var = binder()
    value: Expr
    body: Stmt


@node
class Store(Stmt):
    """``buffer[indices] = value``; indices as in Load.

    *atomic* is a permission: other iterations may update the same element at the same time.
    """

    buffer: AnyBuffer = attr()
    indices: tuple[Expr | None, ...]
    value: Expr
    mask: Expr | None = None
    atomic: bool = attr(default=False)


@node
class If(Stmt):
    """*then* if *cond*, else *otherwise*.

    *uniform* is a permission: where *cond* holds, *otherwise* does what *then* does, so that lanes
    of a warp may all do *otherwise* unless *cond* holds for all of them.
    """

    cond: Expr
    then: Stmt
    otherwise: Stmt | None = None
    uniform: bool = attr(default=False)


@node
class For(Stmt):
    """``for var in range(begin, end)``, run as *kind* says; all three are int64.

    ``bound`` runs on the hardware index *thread* (``blockIdx.x``). Iterations of ``parallel``,
    ``vectorized`` and ``bound`` loops may run in any order.
    """

    var: Var = binder()
    begin: Expr
    end: Expr
    body: Stmt
    kind: LoopKind = attr(default="serial")
    thread: str = attr(default="")
    attrs: Attrs = attr(default=())


@node
class While(Stmt):
    """*body* as long as *cond*."""

    cond: Expr
    body: Stmt


@node
class Alloc(Stmt):
    """*buffer* exists, with any content, while *body* runs."""

    buffer: AnyBuffer = declaration()
    body: Stmt


@node
class Evaluate(Stmt):
    """The value is computed and dropped."""

    value: Expr


@node
class Fail(Stmt):
    """The call runs to its end, then raises an error with *message*.

    If there are *values*, they are shown in the holes of *message*, ``{}``.
    """

    message: str = attr()
    values: tuple[Expr, ...] = ()


@node
class Print(Stmt):
    """The line *message* is printed, with *values* in its holes as those of Fail."""

    message: str = attr()
    values: tuple[Expr, ...] = ()


@node
class Prefetch(Stmt):
    """A hint that ``buffer[indices]`` will be read soon; indices as in Load, but maybe outside."""

    buffer: AnyBuffer = attr()
    indices: tuple[Expr | None, ...]


@node
class Barrier(Stmt):
    """Threads see what others of their block did before; *lanes* neighbours each, 0: all of it.

    It stands between loops over threads, not in one: in order, there is nothing to wait for.
    """

    lanes: int = attr(default=0)


@node
class Prefix(Stmt):
    """In *body*, *var* is the sum of *amount* over the earlier iterations; both are int64.

    The iterations are those of the enclosing loop. Each reaches the Prefix once: only Seq, Let,
    Alloc and Prefix are between. In a parallel loop an iteration waits here for the earlier ones,
    which have all been started.
    """

    var: Var = binder()
    amount: Expr
    body: Stmt


def template(parts: Sequence[str | Expr]) -> tuple[str, tuple[Expr, ...]]:
    """Return the message and the values of a Fail or Print that shows *parts* in a row."""
    values = tuple(part for part in parts if not isinstance(part, str))
    return " ".join(part if isinstance(part, str) else HOLE for part in parts), values


def parts(stmt: Fail | Print) -> Iterator[str | Expr]:
    """Yield what *stmt* shows in a row, of which ``template`` makes its message."""
    if not stmt.values:
        yield stmt.message
        return
    texts = f" {stmt.message} ".split(HOLE)  # of each, one blank at either end is not its own
    for k, text in enumerate(texts):
        if text != " ":
            yield text[1:-1]
        if k < len(stmt.values):
            yield stmt.values[k]


def prefixes(stmt: Stmt) -> Iterator[Prefix]:
    """Yield the Prefix nodes that count the iterations of a loop whose body is *stmt*."""
    if isinstance(stmt, Seq):
        for part in stmt.body:
            yield from prefixes(part)
    elif isinstance(stmt, Let | Alloc | Prefix):
        if isinstance(stmt, Prefix):
            yield stmt
        yield from prefixes(stmt.body)


def is_empty(stmt: Stmt) -> bool:
    """Whether *stmt* is a list of no statements."""
    return isinstance(stmt, Seq) and not stmt.body


def seq(*stmts: Stmt | None) -> Stmt:
    """Return *stmts* in order: flattened, None dropped, a single one as itself."""
    flat: list[Stmt] = []
    for stmt in stmts:
        if isinstance(stmt, Seq):
            flat.extend(stmt.body)
        elif stmt is not None:
            flat.append(stmt)
    return flat[0] if len(flat) == 1 else Seq(tuple(flat))
