"""Beside the route, stage III: runs flat buffers; one-dimensional, scalar or by lanes."""

from __future__ import annotations

from typing import Any

import numpy as np

from spcomp.arrays import Array
from spcomp.errors import InternalError
from spcomp.ir.access import Load
from spcomp.ir.expr import BinOp, Expr, Select
from spcomp.ir.interpret.stmt import Interpreter
from spcomp.ir.interpret.storage import decode, encode
from spcomp.ir.stmt import Store


class FlatInterpreter(Interpreter):
    """An index is an offset, or a vector of them; lanes with a false mask touch no memory."""

    runs: Array | None = None  # the lanes of a vector that are evaluated; None: all

    def visit_Select(self, node: Select) -> Any:
        """Evaluate each side for the lanes that choose it: the others touch no memory."""
        cond = self.visit(node.cond)
        if np.ndim(cond) == 0 or np.all(cond) or not np.any(cond):
            return self.visit(node.then if np.all(cond) else node.otherwise)
        return np.where(cond, self._only(cond, node.then), self._only(~cond, node.otherwise))

    def visit_BinOp(self, node: BinOp) -> Any:
        """Combine both sides; ``and``, ``or`` evaluate the right one in the lanes that need it."""
        if node.op not in ("and", "or") or node.dtype.lanes == 1:
            return super().visit_BinOp(node)
        lhs = self.visit(node.lhs)
        rhs = self._only(lhs if node.op == "and" else ~lhs, node.rhs)
        return lhs & rhs if node.op == "and" else lhs | rhs

    def active(self, lanes: Any) -> Any:
        """Leave out the lanes that do not run."""
        fits = self.runs is not None and np.shape(self.runs) == np.shape(lanes)
        return lanes & self.runs if fits else lanes

    def _only(self, runs: Any, expr: Expr) -> Any:
        """Evaluate *expr* only in the lanes of *runs* that are evaluated anyway."""
        outer = self.runs
        self.runs = runs if outer is None else runs & outer
        value = self.visit(expr)
        self.runs = outer
        return value

    def visit_Load(self, node: Load) -> Any:
        """Read the lanes that the mask lets through; the others are zero."""
        array, (offsets, active) = self.storage.array(node.buffer), self._offsets(node)
        _check(node.buffer.name, offsets[active], len(array))
        raw = np.zeros(len(offsets), array.dtype)
        raw[active] = array[offsets[active]]
        return decode(raw if node.dtype.lanes > 1 else raw[0], node.buffer.dtype)

    def visit_Store(self, node: Store) -> None:
        """Write the lanes that the mask lets through, in order."""
        array, (offsets, active) = self.storage.array(node.buffer), self._offsets(node)
        _check(node.buffer.name, offsets[active], len(array))
        value = np.broadcast_to(encode(self.visit(node.value), node.buffer.dtype), offsets.shape)
        array[offsets[active]] = value[active]

    def _offsets(self, node: Load | Store) -> tuple[Array, Array]:
        """Return the offset of each lane and whether it is active."""
        index = _single(node.indices, node.buffer.name)
        offsets = np.atleast_1d(self.visit(index))
        mask = True if node.mask is None else self.visit(node.mask)
        if self.runs is not None and self.runs.shape == offsets.shape:
            mask = mask & self.runs
        return offsets, np.broadcast_to(mask, offsets.shape)


def _single(indices: tuple[Expr | None, ...], name: str) -> Expr:
    if len(indices) != 1 or indices[0] is None:
        raise InternalError("interpretation", f"{name} takes one index at flat level")
    return indices[0]


def _check(name: str, offsets: Array, length: int) -> None:
    outside = offsets[(offsets < 0) | (offsets >= length)]
    if outside.size:
        raise InternalError("interpretation", f"element {outside[0]} of {name}, which has {length}")
