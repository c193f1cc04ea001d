"""Before a script runs on blocks of rows: which of its arguments are cut, and why that is right."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from spcomp.errors import ArgumentError
from spcomp.ir.access import Load, Search
from spcomp.ir.analysis.exprs import variables
from spcomp.ir.axis import (
    Attach,
    Axis,
    Domain,
    Flatten,
    Fuse,
    Intersect,
    SparseBuffer,
    Union,
    domain_axes,
    domain_width,
)
from spcomp.ir.coordinate import SpIter
from spcomp.ir.expr import Var
from spcomp.ir.program import CoordFunc
from spcomp.ir.stmt import Store
from spcomp.ir.visitor import walk


def cut_buffers(func: CoordFunc, name: str) -> frozenset[str]:
    """Return the names of the buffers that are cut where the rows of the buffer *name* are.

    They are those whose first axis is that of the rows. Each row is computed from itself and from
    whole buffers: iterations use its coordinate for nothing but the first index of these buffers,
    and nothing else is written.

    Raises ArgumentError if the program does anything else, which blocks of rows would change.
    """
    buffer = next((b for b in func.buffers if b.name == name), None)
    rows = next(iter(_axes(buffer)), None)
    if rows is None or rows.kind != "dense_fixed" or not isinstance(rows.length, Var):
        raise _refused(name, "its first axis is no dense_fixed(m) with m as a parameter")
    for problem in (*_sizes(func, rows), *_accesses(func, rows)):
        raise _refused(name, problem)
    return frozenset(b.name for b in func.buffers if rows in _axes(b))


def _refused(name: str, why: str) -> ArgumentError:
    return ArgumentError(
        f"argument {name}: the program does not run on blocks of its rows: {why}",
        hint="compute() brings it here; docs/dask.md says what runs on blocks",
    )


def _axes(buffer: Any) -> tuple[Axis, ...]:
    return buffer.axes if isinstance(buffer, SparseBuffer) else ()


def _below(axis: Axis, root: Axis) -> bool:
    """Whether *axis* is *root*, or descends from it."""
    return axis is root or (axis.parent is not None and _below(axis.parent, root))


def _sizes(func: CoordFunc, rows: Axis) -> Iterator[str]:
    """Yield what else depends on the number of rows, or of elements in them."""
    mine = [axis for axis in func.axes if _below(axis, rows)]
    counts = set(variables(rows.length))
    for axis in mine:
        counts |= variables(axis.nnz) if axis.nnz is not None else set()
    for axis in func.axes:
        sizes = [axis.nnz_cols, *([] if axis in mine else [axis.nnz])]
        sizes += [axis.length] if axis is not rows else []
        for size in sizes:
            if size is not None and variables(size) & counts:
                yield f"the axis {axis.name} has the same size; give it a parameter of its own"
    used = [size for b in func.buffers for size in getattr(b, "shape", ())]
    used += [bound for domain in func.domains for bound in (domain.low, domain.high)]
    for node in (func.body, *used):
        for var in sorted(v.name for v in walk(node) if isinstance(v, Var) and v in counts):
            yield f"it uses the number {var}, which blocks have in part"


def _accesses(func: CoordFunc, rows: Axis) -> Iterator[str]:
    """Yield what reads or writes across rows."""
    nodes = list(walk(func.body))
    iterators: set[Var] = set()
    for it in (node for node in nodes if isinstance(node, SpIter)):
        iterators |= set(_iterators(it, rows))
        if any(_leaves(domain, rows) for domain in it.domains):
            yield f"{it.name} runs over elements of other rows"
    firsts = 0
    for node in nodes:
        if isinstance(node, Search):
            yield "it searches index arrays"
        if not isinstance(node, (Load, Store)):
            continue
        axes = _axes(node.buffer)
        if rows in axes:
            if axes[0] is not rows or axes.count(rows) > 1 or node.indices[0] not in iterators:
                yield f"{node.buffer.name} is not read or written at its own rows only"
            firsts += 1
        elif isinstance(node, Store):
            yield f"{node.buffer.name} is written, and its first axis is not {rows.name}"
    if sum(isinstance(node, Var) and node in iterators for node in nodes) != firsts:
        yield f"it uses coordinates of {rows.name} as numbers"


def _leaves(domain: Domain, rows: Axis) -> bool:
    """Whether *domain* reaches elements other than those of the row that is run over."""
    if isinstance(domain, (Union, Intersect)):
        return rows in domain.parts or any(_leaves(part, rows) for part in domain.parts)
    is_far = isinstance(domain, (Attach, Flatten))
    return is_far and any(_below(axis, rows) for axis in domain_axes(domain))


def _iterators(it: SpIter, rows: Axis) -> Iterator[Var]:
    """Yield the variables that run over *rows*."""
    at = 0
    for domain in it.domains:
        found: tuple[Domain, ...] = domain.axes if isinstance(domain, Fuse) else (domain,)
        width = domain_width(domain)
        yield from (v for v, d in zip(it.vars[at : at + width], found, strict=True) if d is rows)
        at += width
