"""At a call of index notation with distributed arguments: statements become tasks, in order."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import dask.array as da
import numpy as np

from spcomp.dask.decide import decide, split
from spcomp.dask.graph import Tasks, Touched
from spcomp.dask.load import collection
from spcomp.errors import ArgumentError
from spcomp.kernels.notation.arguments import type_of
from spcomp.kernels.notation.kernel import NotationKernel
from spcomp.kernels.results import Results
from spcomp.notation.nodes import Access, Assignment, Op, walk
from spcomp.notation.prepare import Prepared, apart, free_name, prepare
from spcomp.notation.types import Types


@dataclass(slots=True)
class Call:
    """A call: *operands* has the results of statements, too, and *tasks* those of each."""

    kernel: NotationKernel
    prepared: Prepared
    operands: dict[str, Any]
    numbers: dict[str, Any]
    tasks: list[Tasks]

    @classmethod
    def of(
        cls,
        kernel: NotationKernel,
        out: Any,
        named: Mapping[str, Any],
        touched: Touched = lambda *_: None,
    ) -> Call:
        """Return the call of *kernel* with the arguments *named*; raises SpcompError.

        *touched*: as Tasks take it.
        """
        if out is not None:
            raise ArgumentError(
                "argument out: results of distributed arguments are new collections"
            )
        prepared = prepare(kernel.program)
        _check(kernel, prepared, named)
        ranks = {
            prepared.parts[n].name if n in prepared.parts else n: rank
            for n, rank in prepared.operands.items()
        }
        numbers = {n: x for n, x in named.items() if ranks[n] == 0 and not isinstance(x, da.Array)}
        given = {n: collection(n, x) for n, x in named.items() if n not in numbers}
        operands = {
            name: given[prepared.parts[name].name if name in prepared.parts else name]
            for name, rank in prepared.operands.items()
            if rank or name in given
        }
        call = cls(kernel, prepared, operands, numbers, [])
        call._run(touched)
        return call

    def returned(self, rebuild: Callable[[Any], Any] = lambda x: x) -> Any:
        """Return the result, or a named tuple of them, each as *rebuild* makes it."""
        results = self.prepared.results
        values = tuple(rebuild(self.operands[name]) for name in results)
        return values[0] if len(results) == 1 else Results.of(results, values)

    def _run(self, touched: Touched) -> None:
        """Make the collections of all statements."""
        taken = {*self.operands, *self.numbers, *self.prepared.targets, *self._indices()}
        kernel, formats = self.kernel, self._formats()
        for stmt in self.prepared.program.statements:
            plain = self._assignment(stmt, taken)
            for given in split(plain, self.operands, self._types(), taken):
                piece, names = apart(given, taken)
                self.operands |= {new: self.operands[old] for new, old in names.items()}
                formats |= {new: formats[old] for new, old in names.items() if old in formats}
                stage = decide(piece, self.operands, kernel.semiring)
                tasks = Tasks(
                    stage,
                    self.operands,
                    self.numbers,
                    kernel.semiring,
                    formats,
                    kernel.options,
                    touched,
                )
                self.tasks.append(tasks)
                self.operands = {**self.operands, piece.target.name: tasks.result()}

    def _types(self) -> Types:
        """Return the types of all operands so far, and of the numbers."""
        weak = frozenset(name for name, x in self.numbers.items() if not hasattr(x, "dtype"))
        given = {**self.operands, **{name: np.asarray(x) for name, x in self.numbers.items()}}
        dtypes = {name: type_of(name, x.dtype) for name, x in given.items()}
        return Types(dtypes, self.kernel.semiring, weak)

    def _indices(self) -> set[str]:
        """Return the names of all indices."""
        terms = (t for s in self.prepared.program.statements for t in (*walk(s.value), s.target))
        return {index for t in terms if isinstance(t, Access) for index in t.indices}

    def _assignment(self, stmt: Assignment, taken: set[str]) -> Assignment:
        """Return *stmt* as one that assigns: ``C += x`` is ``C = C + x`` of the given C."""
        if not stmt.accumulates:
            return stmt
        given = replace(stmt.target, name=free_name(stmt.target.name, taken))
        self.operands[given.name] = self.operands[stmt.target.name]
        value, subtracts = stmt.addend
        total = Op("-" if subtracts else "+", (given, value))
        plain = replace(stmt, value=total, accumulates=False, subtracts=False)
        return replace(plain, of_type=given.name)

    def _formats(self) -> dict[str, Any]:
        """Return the formats that the user asked for, by operand."""
        asked = self.kernel.formats
        parts = self.prepared.parts.items()
        return {**asked, **{n: asked[p.name] for n, p in parts if p.name in asked}}


def _check(kernel: NotationKernel, prepared: Prepared, named: Mapping[str, Any]) -> None:
    for stmt in prepared.program.statements:
        for term in (*walk(stmt.value), stmt.target):
            if isinstance(term, Access) and term.vectors:
                raise ArgumentError(
                    f"{term}: distributed programs have no index vectors",
                    hint="multiply by a matrix whose row e has a single 1, in column src[e]",
                )
    for name in named:
        if name not in kernel.arguments:
            raise ArgumentError(
                f"unexpected argument {name} of {kernel.name}",
                hint=f"its arguments are {', '.join(kernel.arguments)}",
            )
    for name in kernel.arguments:
        if name not in named:
            raise ArgumentError(f"missing argument {name} of {kernel.name}")
        if getattr(named[name], "requires_grad", False) is True:
            raise ArgumentError(
                f"argument {name}: requires gradients, which distributed programs do not follow",
                hint="give what it holds with .detach()",
            )
    windowed = [p.name for p in prepared.parts.values() if p.windows]
    windowed += [s.target.name for s in prepared.program.statements if s.target.windows]
    for name in windowed:
        raise ArgumentError(
            f"argument {name}: distributed programs do not cut parts out",
            hint="cut it before, as in X[0:10] of an array of Dask",
        )
