"""Beside the route, for every level: the statements that levels share, run one after another."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np

from spcomp.arrays import Array
from spcomp.dtypes import filled
from spcomp.errors import InternalError
from spcomp.ir.func import Func
from spcomp.ir.interpret.expr import Evaluator
from spcomp.ir.stmt import (
    Alloc,
    Barrier,
    Evaluate,
    Fail,
    For,
    If,
    Let,
    Prefetch,
    Prefix,
    Print,
    Seq,
    Store,
    While,
    prefixes,
)


class Interpreter(Evaluator):
    """Runs a function; parallel, vectorized and bound loops run serially, in order."""

    def __init__(self, arrays: Mapping[str, Array], failures: list[str]) -> None:
        super().__init__(arrays, failures)
        self.sums: dict[Prefix, int] = {}  # of the amounts of its loop's iterations so far

    def run(self, func: Func) -> dict[str, Array]:
        """Run the body of *func* and return the arrays it assembled, by name."""
        self.storage.check_dtypes(func.buffers, func.axes)
        self.visit(func.body)
        return {}

    def visit_Seq(self, node: Seq) -> None:
        """Run the statements in order."""
        for stmt in node.body:
            self.visit(stmt)

    def visit_Let(self, node: Let) -> None:
        """Bind the variable and run the body."""
        self.env[node.var] = self.visit(node.value)
        self.visit(node.body)

    def visit_If(self, node: If) -> None:
        """Run the side that holds."""
        if self.visit(node.cond):
            self.visit(node.then)
        elif node.otherwise is not None:
            self.visit(node.otherwise)

    def visit_For(self, node: For) -> None:
        """Run the body for every value; the bounds are evaluated once."""
        self.sums.update((prefix, 0) for prefix in prefixes(node.body))
        for value in range(self.number(node.begin), self.number(node.end)):
            self.env[node.var] = np.int64(value)
            self.visit(node.body)

    def visit_While(self, node: While) -> None:
        """Run the body as long as the condition holds."""
        while self.visit(node.cond):
            self.visit(node.body)

    def visit_Alloc(self, node: Alloc) -> None:
        """Let the buffer live while the body runs."""
        self.storage.allocate(node.buffer)
        self.visit(node.body)
        self.storage.release(node.buffer)

    def visit_Evaluate(self, node: Evaluate) -> None:
        """Compute the value and drop it."""
        self.visit(node.value)

    def visit_Fail(self, node: Fail) -> None:
        """Record the message, which is raised at the end of the call."""
        self.failures.append(self._message(node))

    def visit_Print(self, node: Print) -> None:
        """Print the line."""
        print(self._message(node))  # noqa: T201 (what the statement means)

    def _message(self, node: Fail | Print) -> str:
        """Return the message of *node*, with its values if it has some."""
        return filled(node.message, [(value.dtype, self.visit(value)) for value in node.values])

    def visit_Prefetch(self, node: Prefetch) -> None:
        """Compute the index; neither its element nor elements it is read from need exist."""
        with suppress(InternalError):  # compiled, a load that misses is guarded
            for index in node.indices:
                if index is not None:
                    self.visit(index)

    def visit_Barrier(self, node: Barrier) -> None:
        """Nothing: what stands before has run."""

    def visit_Prefix(self, node: Prefix) -> None:
        """Bind the sum so far, then add to it."""
        self.env[node.var] = np.int64(self.sums[node])
        self.sums[node] += self.number(node.amount)
        self.visit(node.body)

    def visit_Store(self, node: Store) -> Any:
        """Write an element; each level defines which."""
        raise NotImplementedError
