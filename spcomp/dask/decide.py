"""From a statement to a plan of its blocks: which indices are cut, and how each operand is read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from spcomp.dask.chunks import Chunks, Grid
from spcomp.dask.collection import DistributedTensor
from spcomp.errors import ArgumentError, ScriptError
from spcomp.knobs import DASK
from spcomp.notation.algebra import presence, rebuilt, required, with_reductions
from spcomp.notation.nodes import (
    ARG_REDUCTIONS,
    Access,
    Assignment,
    Expr,
    IndexValue,
    Masked,
    Op,
    Reduce,
    accesses,
    free,
    walk,
)
from spcomp.notation.prepare import free_name
from spcomp.notation.semiring import Semiring
from spcomp.notation.types import Types
from spcomp.tensors.libraries.scipy import is_scipy

Operands = Mapping[str, Any]  # distributed tensors and arrays of Dask, by name


@dataclass(frozen=True, slots=True)
class Index:
    """An index of a statement and the *chunks* of it that tasks work on; *by*: whose they are."""

    name: str
    chunks: Chunks
    by: str
    is_reduced: bool

    def __str__(self) -> str:
        if len(self.chunks) == 1:
            return f"{self.name}: whole, {self.chunks[0]}"
        how = f"{self.name}: {len(self.chunks)} pieces of {sum(self.chunks)}, as {self.by}"
        return f"{how}, partial results combined in a tree" if self.is_reduced else how


@dataclass(frozen=True, slots=True)
class Use:
    """How the operand of *access* is read.

    *way*: ``aligned`` (each task reads a block as it is), ``cut again`` (blocks of other extents),
    ``broadcast`` (tasks of several pieces read the same block), or ``needed``: only at those
    coordinates of the dimension *dim* that the block of the operand *by* has. *grid*: the blocks.
    """

    access: Access
    grid: Grid
    way: str
    dim: int = -1
    by: str = ""

    def __str__(self) -> str:
        if self.way == "needed":
            index = self.access.indices[self.dim]
            return f"{self.access}: sent at those {index} only that a block of {self.by} has"
        return f"{self.access}: {self.way}"


@dataclass(frozen=True, slots=True)
class Stage:
    """A statement in blocks: a task for each combination of the pieces of its *indices*.

    *combine*: what makes one result of the partial ones along reduced indices.
    """

    statement: Assignment
    indices: tuple[Index, ...]
    uses: tuple[Use, ...]
    combine: str

    def __str__(self) -> str:
        lines = [str(self.statement), *map(str, self.indices), *map(str, self.uses)]
        return "\n  ".join(lines)

    def index(self, name: str) -> Index:
        """Return the index *name*."""
        return next(index for index in self.indices if index.name == name)

    @property
    def grid(self) -> Grid:
        """The blocks of the result."""
        return tuple(self.index(name).chunks for name in self.statement.target.indices)

    @property
    def tasks(self) -> int:
        """How many blocks are computed."""
        return prod(len(index.chunks) for index in self.indices)


def is_sparse(operand: Any) -> bool:
    """Whether *operand* is one of sparse blocks."""
    return isinstance(operand, DistributedTensor)


def decide(stmt: Assignment, operands: Operands, semiring: Semiring) -> Stage:
    """Return the plan of *stmt*. Raises ArgumentError for lengths that disagree."""
    value = with_reductions(stmt, semiring).value
    read = [access for access in accesses(value) if access.indices]
    lengths = _lengths(stmt, read, operands)
    reduce = _direct(value)
    direct = reduce.indices if reduce is not None and reduce.op not in ARG_REDUCTIONS else ()
    indices = []
    for name, length in lengths.items():
        is_free = name in stmt.target.indices
        pieces = None
        if is_free or (name in direct and not _as_number(name, value)):
            pieces = _chunks(name, read, operands, is_reduced=not is_free)
        indices.append(Index(name, *(pieces or ((length,), "")), is_reduced=not is_free))
    found = {index.name: index for index in indices}
    needs = _needs(value, read, operands, found)
    uses = tuple(_use(access, operands, found, needs) for access in read)
    cut = any(index.is_reduced and len(index.chunks) > 1 for index in indices)
    return Stage(stmt, tuple(indices), uses, reduce.op if cut and reduce is not None else "")


def _lengths(stmt: Assignment, read: list[Access], operands: Operands) -> dict[str, int]:
    lengths: dict[str, int] = {}
    of: dict[str, Access] = {}
    for access in read:
        shape = operands[access.name].shape
        if len(shape) != len(access.indices):
            raise ArgumentError(
                f"argument {access.name}: got {len(shape)} dimensions, but {access} has"
                f" {len(access.indices)}"
            )
        for name, length in zip(access.indices, shape, strict=True):
            if lengths.setdefault(name, length) != length:
                raise ArgumentError(
                    f"argument {access.name}: {name} has the length {length} in {access},"
                    f" and {lengths[name]} in {of[name]}"
                )
            of.setdefault(name, access)
    for name in stmt.target.indices:
        if name not in lengths:
            raise ScriptError(
                f"{name} has no length",
                stmt.target.at,
                hint="an index of a distributed result is one of an operand, too",
            )
    return lengths


def _direct(value: Expr) -> Reduce | None:
    """Return the reduction that *value* is, maybe under a mask; partial ones can be combined."""
    match value:
        case Reduce():
            return value
        case Masked(value=Reduce() as inner, cond=cond, other=None):
            return inner if not set(inner.indices) & set(free(cond)) else None
    return None


def _as_number(name: str, value: Expr) -> bool:
    return any(isinstance(term, IndexValue) and term.name == name for term in walk(value))


def _chunks(
    name: str, read: list[Access], operands: Operands, *, is_reduced: bool
) -> tuple[Chunks, str] | None:
    """Return the pieces of the index *name*, and the operand that decides; None: it is whole.

    A sparse operand in several blocks decides before dense ones. If it is whole in one that it is
    reduced with, it stays whole: then rows of the others are sent, no partial results.
    """
    found: list[tuple[Chunks, str]] = []
    for access in sorted(read, key=lambda a: not is_sparse(operands[a.name])):
        operand = operands[access.name]
        if name not in access.indices or operand.npartitions == 1:
            continue
        chunks = operand.chunks[access.indices.index(name)]
        if is_reduced and is_sparse(operand) and len(chunks) == 1:
            return None
        found.append((tuple(map(int, chunks)), access.name))
    return next((pair for pair in found if len(pair[0]) > 1), None)


def _needs(
    value: Expr, read: list[Access], operands: Operands, indices: Mapping[str, Index]
) -> dict[str, str]:
    """Return the whole indices that tasks read in part: those that the operand by its name has.

    Such an index is reduced only where a sparse operand has elements, so all others are read only
    there. It is worth that if one of them is large and lies in several pieces along it.
    """
    sparse = frozenset(access.name for access in read if is_sparse(operands[access.name]))
    reduces = [term for term in walk(value) if isinstance(term, Reduce)]
    found: dict[str, str] = {}
    taken: set[str] = set()
    for reduce in (term for term in reduces if term.op not in ARG_REDUCTIONS):
        for by in required(presence(reduce.body, sparse)):
            name = _minor(by, operands[by.name])
            others = [a for a in read if name in a.indices and a.name != by.name]
            touched = {by.name, *(a.name for a in others)}
            fits = (
                name in reduce.indices
                and len(indices[name].chunks) == 1
                and sum(name in term.indices for term in reduces) == 1
                and all(a.indices.count(name) == 1 for a in (by, *others))
                and not _as_number(name, value)
                and not touched & taken
            )
            if fits and any(_is_worth(name, a, operands[a.name]) for a in others):
                found[name] = by.name
                taken |= touched
    return found


def _minor(access: Access, operand: Any) -> str:
    """Return the index of the coordinates that the blocks list; empty if they are no matrices."""
    if not is_scipy(operand.meta):
        return ""
    return access.indices[-1 if operand.meta.format == "csr" else 0]


def _is_worth(name: str, access: Access, operand: Any) -> bool:
    """Whether the operand of *access* is large and lies in several pieces along the index *name*.

    Without computing, nothing is known of the size of sparse ones: they count as large.
    """
    if len(operand.chunks[access.indices.index(name)]) == 1:
        return False
    return is_sparse(operand) or bool(operand.nbytes > DASK.broadcast_bytes)


def _use(
    access: Access, operands: Operands, indices: Mapping[str, Index], needs: Mapping[str, str]
) -> Use:
    operand = operands[access.name]
    grid = tuple(indices[name].chunks for name in access.indices)
    old = tuple(tuple(map(int, chunks)) for chunks in operand.chunks)
    for dim, name in enumerate(access.indices):
        if needs.get(name, access.name) != access.name:
            kept = (*grid[:dim], old[dim], *grid[dim + 1 :])
            return Use(access, kept, "needed", dim, needs[name])
    if grid != old:
        return Use(access, grid, "cut again")
    cut = {index.name for index in indices.values() if len(index.chunks) > 1}
    return Use(access, grid, "broadcast" if cut - {*access.indices} else "aligned")


# -- statements that become several --------------------------------------------------------------


def split(stmt: Assignment, operands: Operands, types: Types, taken: set[str]) -> list[Assignment]:
    """Return *stmt*, after statements for the reductions in it whose indices are cut.

    Those that are addends become results of their own, dense or sparse; those of at most one
    index, anywhere, become dense. Other indices stay whole.
    """
    value = types.widened(with_reductions(stmt, types.semiring)).value
    if _direct(value) is not None:
        return [stmt]
    read = [access for access in accesses(value) if access.indices]
    before: list[Assignment] = []

    def order(index: str) -> int:
        outer = stmt.target.indices
        return outer.index(index) if index in outer else len(outer)

    def is_cut(term: Expr) -> bool:
        return (
            isinstance(term, Reduce)
            and term.op not in ARG_REDUCTIONS
            and any(_chunks(name, read, operands, is_reduced=True) for name in term.indices)
        )

    def pull(term: Expr, *, is_dense: bool) -> Access:
        name = free_name("part", taken)
        indices = sorted(free(term), key=order)  # as the result has them, which decides its format
        before.append(Assignment(Access(name, tuple(indices)), term, is_dense=is_dense))
        return before[-1].target

    def inner(term: Expr) -> Expr:
        below = rebuilt(term, inner)
        return pull(below, is_dense=True) if is_cut(term) and len(free(term)) <= 1 else below

    value = _addends(value, lambda t: pull(t, is_dense=False) if is_cut(t) else inner(t))
    return [*before, replace(stmt, value=value)] if before else [stmt]


def _addends(term: Expr, rewrite: Callable[[Expr], Expr]) -> Expr:
    """Return *term* with *rewrite* applied to its addends."""
    match term:
        case Op(op="+" | "-" | "neg", args=args):
            return replace(term, args=tuple(_addends(arg, rewrite) for arg in args))
    return rewrite(term)
