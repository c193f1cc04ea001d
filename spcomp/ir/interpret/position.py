"""Beside the route, stage II: runs loops, blocks and merges over positions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from spcomp.arrays import Array
from spcomp.errors import InternalError
from spcomp.ir.access import Load
from spcomp.ir.analysis.exprs import variables
from spcomp.ir.analysis.init_plan import Loop, Nest, init_plan
from spcomp.ir.axis import Buffer
from spcomp.ir.expr import Expr
from spcomp.ir.func import Func
from spcomp.ir.interpret.stmt import Interpreter
from spcomp.ir.node import Node
from spcomp.ir.position import Block, BlockIter, Case, Cursor, Merge
from spcomp.ir.stmt import For, If, Let, Store


class PositionInterpreter(Interpreter):
    """Turns positions into offsets; runs the init of a block where its docstring says."""

    plan: dict[Loop, list[Nest]]
    hoisted: frozenset[Block]

    def run(self, func: Func) -> dict[str, Array]:
        """Run the body of *func*; nothing is assembled at this level."""
        self.plan = init_plan(func.body)
        self.hoisted = frozenset(nest.block for nests in self.plan.values() for nest in nests)
        return super().run(func)

    # Access

    def visit_Load(self, node: Load) -> Any:
        """Read the element at the positions."""
        return self.storage.read(node.buffer, self._offset(node))

    def visit_Store(self, node: Store) -> None:
        """Write the element at the positions."""
        value = self.visit(node.value)
        self.storage.write(node.buffer, self._offset(node), value)

    def _offset(self, node: Load | Store) -> int:
        buffer = node.buffer
        positions = [None if index is None else self.number(index) for index in node.indices]
        if not isinstance(buffer, Buffer):
            return self.storage.offset(buffer.axes, self.storage.absolute(buffer, positions))
        offset = self.storage.dense_offset(buffer, [p for p in positions if p is not None])
        if offset is None:
            message = f"element {positions} of {buffer.name} is outside its shape"
            raise InternalError("interpretation", message)
        return offset

    # Loops and blocks

    def visit_For(self, node: For) -> None:
        """Run the inits that come before the loop, then the loop."""
        self._initialise(node)
        super().visit_For(node)

    def visit_Merge(self, node: Merge) -> None:
        """Run the inits that come before the merge, then the case of each coordinate, if any."""
        self._initialise(node)
        for case in self._cases(node):
            self.visit(case.body)

    def visit_Block(self, node: Block) -> None:
        """Bind the iters and run the body if the guard holds, init first if it belongs here.

        What an iter reads from memory may only exist where the guard holds.
        """
        early = node.iters if node.where is None else _needed(node.iters, node.where)
        for it in early:
            self.env[it.var] = self.visit(it.value)
        if node.where is not None and not self.visit(node.where):
            return
        for it in node.iters if node.where is not None else ():
            self.env[it.var] = self.visit(it.value)
        self._check_extents(node, node.iters)
        if node.init is not None and node not in self.hoisted:
            self.visit(node.init)
        self.visit(node.body)

    def _check_extents(self, node: Block, iters: Iterable[BlockIter]) -> None:
        for it in iters:
            value = self.env[it.var]
            if not 0 <= value < self.number(it.extent):
                message = f"{it.var.name} is {value} in block {node.name}, out of its extent"
                raise InternalError("interpretation", message)

    def _cases(self, node: Merge) -> Iterator[Case]:
        """Bind coordinate and cursors to each point of the merge; yield its case, if it has one."""
        fibers = [self._fiber(cursor) for cursor in node.cursors]
        sets = [set(fiber) for fiber in fibers]
        coordinates = set.union(*sets) if node.kind == "union" else set.intersection(*sets)
        cases = {case.present: case for case in node.cases}
        for coordinate in sorted(coordinates):
            case = cases.get(tuple(coordinate in fiber for fiber in fibers))
            if case is None:
                continue
            self.env[node.coordinate] = np.int64(coordinate)
            for cursor, fiber in zip(node.cursors, fibers, strict=True):
                self.env.pop(cursor.pos, None)
                if coordinate in fiber:
                    self.env[cursor.pos] = np.int64(fiber[coordinate])
            yield case

    def _fiber(self, cursor: Cursor) -> dict[int, int]:
        """Return the position of each coordinate of an operand."""
        begin, end = self.number(cursor.begin), self.number(cursor.end)
        if cursor.indices is None:
            return {at - begin: at for at in range(begin, end)}
        return {int(self.storage.read(cursor.indices, at)): at for at in range(begin, end)}

    # Init before a reduction: the nest below the loop, without the loops that only reduce.

    def _initialise(self, loop: Loop) -> None:
        for nest in self.plan.get(loop, ()):
            visited: set[tuple[int, ...]] = set()
            for var in nest.lost:
                self.env.pop(var, None)
            for _ in self._points(nest, nest.path):
                self._initialise_block(nest, visited)

    def _initialise_block(self, nest: Nest, visited: set[tuple[int, ...]]) -> None:
        """Run init for the values of the spatial iters, unless they occurred before."""
        spatial = [it for it in nest.block.iters if it.kind == "S"]
        for it in spatial:
            self.env[it.var] = self.visit(it.value)
        values = tuple(int(self.env[it.var]) for it in spatial)
        if values in visited or not all(map(self.visit, nest.computable(nest.block.where)[0])):
            return
        self._check_extents(nest.block, spatial)
        visited.add(values)
        if nest.block.init is not None:
            self.visit(nest.block.init)

    def _points(self, nest: Nest, path: Sequence[Node]) -> Iterator[None]:
        """Run the kept loops along *path*, which binds their variables; yield at its end."""
        if not path:
            yield
            return
        node, tail = path[0], path[1:]
        match node:
            case For() if node in nest.kept:
                for value in range(self.number(node.begin), self.number(node.end)):
                    self.env[node.var] = np.int64(value)
                    yield from self._points(nest, tail)
                return
            case Merge() if node in nest.kept:
                for case in self._cases(node):
                    if case is tail[0]:
                        yield from self._points(nest, tail)
                return
            case Let() if node.var not in nest.lost:
                self.env[node.var] = self.visit(node.value)
            case If() if not self._reaches(nest, node, tail):
                return
        yield from self._points(nest, tail)

    def _reaches(self, nest: Nest, branch: If, tail: Sequence[Node]) -> bool:
        """Return whether the path goes on below *branch*, as far as computable terms tell."""
        terms, complete = nest.computable(branch.cond)
        holds = all(map(self.visit, terms))
        follows = tail[0] if tail else nest.block
        return holds if follows is branch.then else not (complete and holds)


def _needed(iters: tuple[BlockIter, ...], guard: Expr) -> tuple[BlockIter, ...]:
    """Return the iters that *guard* names, with those that their values name."""
    names, needed = variables(guard), []
    for it in reversed(iters):
        if it.var in names:
            needed.append(it)
            names |= variables(it.value)
    return tuple(reversed(needed))
