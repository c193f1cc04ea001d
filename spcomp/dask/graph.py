"""From the plan of a statement to tasks of Dask: this emits, and decides nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from typing import TYPE_CHECKING, Any, TypeAlias

import dask.array as da
import numpy as np
from dask.highlevelgraph import HighLevelGraph
from dask.task_spec import List, Task, TaskRef
from dask.tokenize import tokenize

from spcomp.dask import blocks
from spcomp.dask.chunks import Chunks, offsets
from spcomp.dask.collection import DistributedTensor
from spcomp.dask.decide import Operands, Stage, Use
from spcomp.dask.work import Work, combine, run, union
from spcomp.errors import ArgumentError
from spcomp.notation.algebra import rebuilt, with_reductions
from spcomp.notation.nodes import Access, Assignment, Expr, IndexValue, Op, Reduce, Scalar, walk
from spcomp.notation.prepare import free_name
from spcomp.tensors.libraries.scipy import is_scipy

if TYPE_CHECKING:
    from spcomp.compiler.options import Options
    from spcomp.notation.semiring import Semiring

Place = Mapping[str, int]  # the piece of each index
Touched: TypeAlias = Callable[
    [str, DistributedTensor, Chunks], Mapping[tuple[int, ...], tuple[int, ...]] | None
]


@dataclass(slots=True)
class Tasks:
    """The tasks of a statement: *layer* gets them, *inputs* are the collections that they read.

    *touched*: returns for the operand of a name, in the blocks that tasks read, which of some
    pieces each block needs, if that is known. There are no tasks for others.
    """

    stage: Stage
    operands: Operands
    numbers: Mapping[str, Any]
    semiring: Semiring
    formats: Mapping[str, Any]
    options: Options
    touched: Touched = lambda *_: None
    layer: dict[Any, Any] = field(default_factory=dict)
    inputs: dict[str, Any] = field(default_factory=dict)
    firsts: dict[str, str] = field(default_factory=dict)
    name: str = ""
    result_graph: HighLevelGraph | None = None
    dense: np.dtype[Any] | None = None

    @property
    def results(self) -> tuple[str, ...]:
        """The names of tasks whose results are blocks of the result, or parts of a sum of them."""
        return self.name, f"partial-{self.name}", f"tree-{self.name}"

    def extent(self, key: Any, dim: int) -> int:
        """Return the extent of the dimension *dim* of a block of an operand."""
        chunks = next(x.chunks for x in self.inputs.values() if x.name == key[0])
        return int(chunks[dim][key[1 + dim]])

    def result(self) -> Any:
        """Return the collection of the result: an array of Dask, or a DistributedTensor.

        Compiles the statement for empty blocks. Raises SpcompError as a NotationKernel does.
        """
        stage, target = self.stage, self.stage.statement.target
        stmt = self._on_blocks(stage.statement)
        scalars = [name for name in self.scalars() if name not in self.firsts.values()]
        self.inputs |= {use.access.name: self._aligned(use) for use in stage.uses}
        names = (*self.inputs, *scalars, *self.firsts.values())
        work = Work.of(stmt, names, self.formats, self.semiring, self.options)
        meta = work(*self._metas(scalars))
        self.inputs |= {n: self.operands[n] for n in scalars if n not in self.numbers}
        read = [
            (n, getattr(x, "name", x)) for n, x in (*self.inputs.items(), *self.numbers.items())
        ]
        self.name = f"{target.name}-{tokenize(work.token, read, stage.grid, str(stage))}"
        self._emit(work, names, meta)
        self.result_graph = HighLevelGraph.from_collections(
            self.name, self.layer, list(self.inputs.values())
        )
        if isinstance(meta, np.ndarray):
            self.dense = meta.dtype
            return da.Array(self.result_graph, self.name, stage.grid, meta=meta)
        if is_scipy(meta) and meta.format not in ("csr", "csc"):
            raise ArgumentError(
                f"argument formats: results in blocks are not stored as {meta.format}",
                hint="csr, csc and formats of levels, such as dcsr, are",
            )
        return DistributedTensor(self.result_graph, self.name, stage.grid, meta)

    # -- arguments ------------------------------------------------------------------------------

    def _on_blocks(self, stmt: Assignment) -> Assignment:
        """Return *stmt* as tasks compute it.

        A result without indices is a number that they are given, and an index that is a number
        counts from the start of its piece.
        """
        cut = {index.name for index in self.stage.indices if len(index.chunks) > 1}
        numbers = {t.name for t in walk(stmt.value) if isinstance(t, IndexValue)} & cut
        taken = {t.name for t in walk(stmt.value) if isinstance(t, (Access, Scalar, IndexValue))}
        self.firsts.update({name: free_name(f"{name}_first", taken) for name in sorted(numbers)})
        value = with_reductions(stmt, self.semiring).value if numbers else stmt.value

        def rewrite(term: Expr) -> Expr:
            if isinstance(term, IndexValue) and term.name in self.firsts:
                return Op("+", (term, Scalar(self.firsts[term.name])))
            if isinstance(term, Access) and not term.indices:
                return Scalar(term.name, at=term.at)
            below = rebuilt(term, rewrite)
            return (
                replace(below, is_written=True) if numbers and isinstance(below, Reduce) else below
            )

        return replace(stmt, value=rewrite(value))

    def scalars(self) -> list[str]:
        """Return the names of numbers, each once: arguments, and results without indices."""
        terms = [t for t in walk(self.stage.statement.value) if isinstance(t, (Access, Scalar))]
        return list(dict.fromkeys(t.name for t in terms if not getattr(t, "indices", ())))

    def _aligned(self, use: Use) -> Any:
        """Return the operand in the blocks that tasks read."""
        operand = self.operands[use.access.name].rechunk(use.grid)
        if operand.chunks != use.grid:  # Dask does not cut an array without elements
            operand = da.zeros(operand.shape, operand.dtype, chunks=use.grid)
        return operand

    def _metas(self, scalars: list[str]) -> Iterator[Any]:
        """Yield an argument without elements for each operand, and the numbers."""
        for x in self.inputs.values():
            yield x.meta if isinstance(x, DistributedTensor) else np.zeros((0,) * x.ndim, x.dtype)
        for name in scalars:
            known = name in self.numbers
            yield self.numbers[name] if known else np.zeros((), self.operands[name].dtype)
        yield from (0 for _ in self.firsts)

    def _argument(self, name: str, at: Place) -> Any:
        """Return what the task *at* reads of the operand *name*."""
        use = next((use for use in self.stage.uses if use.access.name == name), None)
        if use is None:
            return self._number(name, at)
        by = [u for u in self.stage.uses if u.by == name]
        if use.way == "needed":
            return self._needed(use, at)
        key = (self.inputs[name].name, *(at[index] for index in use.access.indices))
        if not by:
            return TaskRef(key)
        small = f"compact-{key[0]}", *key[1:]
        self.layer[small] = Task(small, blocks.compact, TaskRef(key), self._coords(use, at))
        return TaskRef(small)

    def _number(self, name: str, at: Place) -> Any:
        for index, first in self.firsts.items():
            if first == name:
                return offsets(self.stage.index(index).chunks)[at[index]]
        if name in self.numbers:
            return self.numbers[name]
        return TaskRef((self.operands[name].name,))

    def _coords(self, use: Use, at: Place) -> TaskRef:
        """Return the key of the coordinates that the block of *use* has."""
        block = (self.inputs[use.access.name].name, *(at[index] for index in use.access.indices))
        key = f"needed-{block[0]}", *block[1:]
        self.layer[key] = Task(key, blocks.needed, TaskRef(block))
        return TaskRef(key)

    def _needed(self, use: Use, at: Place) -> Task:
        """Return the operand of *use* at the coordinates that another's block has.

        Each of its blocks sends what it has of them; they are joined in the task that reads them.
        """
        source = self.inputs[use.access.name]
        by = next(u for u in self.stage.uses if u.access.name == use.by)
        coords = self._coords(by, at)
        starts = offsets(use.grid[use.dim])
        parts = []
        pieces = tokenize(coords.key, use.grid[use.dim])
        token = tokenize(source.name, pieces, use.dim)
        block = coords.key[1:]
        known = self.touched(use.by, self.inputs[use.by], use.grid[use.dim])
        needed = range(len(use.grid[use.dim])) if known is None else known[block] or (0,)
        for piece in needed:
            place = [at[index] for index in use.access.indices]
            place[use.dim] = piece
            section, key = (f"section-{pieces}", *block, piece), (f"take-{token}", *block, *place)
            bounds = starts[piece], starts[piece + 1]
            self.layer[section] = Task(section, blocks.section, coords, *bounds)
            whole = TaskRef((source.name, *place))
            self.layer[key] = Task(key, blocks.take, whole, use.dim, TaskRef(section))
            parts.append(TaskRef(key))
        counts = tuple(len(parts) if dim == use.dim else 1 for dim in range(len(use.grid)))
        return Task(None, blocks.join, List(*parts), counts)

    # -- tasks ----------------------------------------------------------------------------------

    def _emit(self, work: Work, names: tuple[str, ...], meta: Any) -> None:
        """Emit a task for each combination of pieces, and the trees of partial results."""
        stage, name = self.stage, self.name
        extents = {index.name: range(len(index.chunks)) for index in stage.indices}
        outer = stage.statement.target.indices
        inner = [n for n in extents if n not in outer and stage.combine]
        for block in product(*(extents[n] for n in outer)):
            partial = []
            for rest in product(*(extents[n] for n in inner)):
                at = dict.fromkeys(extents, 0) | dict(
                    zip((*outer, *inner), (*block, *rest), strict=True)
                )
                key = (f"partial-{name}", *block, *rest) if stage.combine else (name, *block)
                args = [self._argument(n, at) for n in names]
                self.layer[key] = Task(key, run, work, *args)
                partial.append(TaskRef(key))
            if stage.combine:
                self._tree(block, partial, meta)

    def _tree(self, block: tuple[int, ...], partial: list[TaskRef], meta: Any) -> None:
        """Emit the tasks that combine the *partial* results of a block, two at a time, in order."""
        stage, target, name = self.stage, self.stage.statement.target, self.name
        first: tuple[Any, Any]
        if isinstance(meta, np.ndarray):
            first = combine, stage.combine
        else:
            first = run, union(target, stage.combine, self.formats, self.options, self.semiring)
        depth = 0
        while len(partial) > 1:
            depth += 1
            last = len(partial) <= 2
            made = []
            for at in range(0, len(partial) - 1, 2):
                step = (name, *block) if last else (f"tree-{name}", *block, depth, at)
                self.layer[step] = Task(step, *first, partial[at], partial[at + 1])
                made.append(TaskRef(step))
            partial = [*made, *partial[len(made) * 2 :]]
