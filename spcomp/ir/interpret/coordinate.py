"""Beside the route, stage I: runs sparse iterations; this defines what a script means."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, TypeAlias

import numpy as np

from spcomp.arrays import Array
from spcomp.errors import InternalError, LoweringError
from spcomp.ir.access import Load, Stored
from spcomp.ir.axis import (
    AnyBuffer,
    Attach,
    Axis,
    Buffer,
    Domain,
    Flatten,
    Fuse,
    Intersect,
    Union,
    domain_axes,
    domain_width,
)
from spcomp.ir.coordinate import SpIter
from spcomp.ir.expr import Expr, Var
from spcomp.ir.func import Func
from spcomp.ir.interpret.assembly import Assembly, Coordinates
from spcomp.ir.interpret.stmt import Interpreter
from spcomp.ir.interpret.storage import decode, encode, locate
from spcomp.ir.stmt import Stmt, Store
from spcomp.ir.visitor import walk


@dataclass(frozen=True, slots=True)
class Place:
    """Where an iteration stands on an axis: the absolute position *at* under *parent*.

    *at* is None where a union runs without this axis. *var* holds the coordinate; it is None where
    the variable counts positions instead (flatten).
    """

    var: Var | None
    coordinate: int
    parent: int | None
    at: int | None


Places: TypeAlias = dict[Axis, Place]


class CoordinateInterpreter(Interpreter):
    """Enumerates domains from indptr and indices; loads and stores locate coordinates."""

    places: Places
    assembly: Assembly
    # the elements set by the init that is running; None outside of one
    initialised: set[tuple[AnyBuffer, int | Coordinates]] | None

    def run(self, func: Func) -> dict[str, Array]:
        """Run the body of *func* and return the arrays it assembled, by name."""
        self.places, self.initialised = {}, None
        self.assembly = Assembly(func, self.storage)
        super().run(func)
        return self.assembly.arrays()

    # Iteration: a domain is enumerated point by point; each has positions on the axes.

    def visit_SpIter(self, node: SpIter) -> None:
        """Run init over the elements that spatial coordinates address, then the body."""
        if node.init is not None:
            self._initialise(node, node.init)
        variables = iter(node.vars)
        domains = [(d, [next(variables) for _ in range(domain_width(d))]) for d in node.domains]
        outer = self.places
        for places in self._tuples(domains, outer):
            self.places = places
            self.visit(node.body)
        self.places = outer

    def _initialise(self, node: SpIter, init: Stmt) -> None:
        """Run *init*: the spatial variables it uses take all their coordinates, stored or not."""
        used = {x for x in walk(init) if isinstance(x, Var)}
        extents = [extent for domain in node.domains for extent in self._extents(domain)]
        table = list(zip(node.vars, node.kinds, extents, strict=True))
        free = {var: range(extent) for var, kind, extent in table if kind == "S" and var in used}
        for var in node.vars:
            self.env.pop(var, None)
        outer, self.initialised = self.initialised, set()
        for coordinates in product(*free.values()):
            self.env.update(zip(free, map(np.int64, coordinates), strict=True))
            self.visit(init)
        self.initialised = outer

    def _extents(self, domain: Domain) -> list[int]:
        """Return for each variable of *domain* how many coordinates it can take."""
        axes = domain_axes(domain)
        if isinstance(domain, Flatten):
            return [self.storage.count(axes[-1])]
        return [self.storage.size(axis.length) for axis in axes[: domain_width(domain)]]

    def _tuples(
        self, domains: Sequence[tuple[Domain, list[Var]]], places: Places
    ) -> Iterator[Places]:
        """Bind the variables to each tuple of *domains*, in order."""
        if not domains:
            yield places
            return
        for point in self._points(*domains[0], places):
            yield from self._tuples(domains[1:], places | point)

    def _points(self, domain: Domain, variables: list[Var], places: Places) -> Iterator[Places]:
        """Bind *variables* to each point of *domain*."""
        match domain:
            case Axis():
                yield from self._axis(domain, variables, _parent(domain, places))
            case Attach(axis=axis, to=to):
                yield from self._axis(
                    axis, variables, self._attached_position(axis, _place(to, places))
                )
            case Fuse(axes=axes):
                pairs = [(axis, [var]) for axis, var in zip(axes, variables, strict=True)]
                yield from self._tuples(pairs, places)
            case Flatten(axes=axes):
                for point in self._tuples([(axis, []) for axis in axes], places):
                    self.env[variables[0]] = np.int64(point[axes[-1]].at or 0)
                    yield point
            case Union() | Intersect():
                yield from self._merge(domain, variables[0], places)

    def _axis(self, axis: Axis, variables: list[Var], parent: int | None) -> Iterator[Places]:
        """Bind the variable, if there is one, to each coordinate of a fiber."""
        var = variables[0] if variables else None
        for coordinate, at in self._fiber(axis, parent):
            if var is not None:
                self.env[var] = np.int64(coordinate)
            yield {axis: Place(var, coordinate, parent, at)}

    def _merge(self, domain: Union | Intersect, var: Var, places: Places) -> Iterator[Places]:
        """Bind *var* to each coordinate stored in one part (union) or in all (intersection)."""
        axes, union = domain_axes(domain), isinstance(domain, Union)
        parents = [
            self._attached_position(part.axis, _place(part.to, places))
            if isinstance(part, Attach)
            else _parent(part, places)
            for part in domain.parts
        ]
        fibers = [dict(self._fiber(*part)) for part in zip(axes, parents, strict=True)]
        sets = [set(fiber) for fiber in fibers]
        for coordinate in sorted(set.union(*sets) if union else set.intersection(*sets)):
            self.env[var] = np.int64(coordinate)
            yield {
                axis: Place(var, coordinate, parent, fiber.get(coordinate))
                for axis, parent, fiber in zip(axes, parents, fibers, strict=True)
            }

    def _fiber(self, axis: Axis, parent: int | None) -> Iterator[tuple[int, int]]:
        """Yield coordinates and absolute positions under *parent*; nothing if it is None."""
        if axis.is_assembled:
            raise LoweringError(f"axis {axis.name} is assembled here and cannot be iterated")
        fiber = range(0) if parent is None else self.storage.fiber(axis, parent)
        for at in fiber:
            coordinate = self.storage.coordinate(axis, fiber, at)
            if not axis.padded or 0 <= coordinate < self.storage.size(axis.length):
                yield coordinate, at

    def _attached_position(self, axis: Axis, place: Place) -> int | None:
        """Return the coordinate of *place* as a position of the parent; None if out of range."""
        at, parent = place.coordinate, axis.parent
        return at if parent is not None and 0 <= at < self.storage.count(parent) else None

    # Access: coordinates are located along the axes of the buffer.

    def visit_Load(self, node: Load) -> Any:
        """Read the element at the coordinates; the fill value if it is not stored."""
        buffer, fill = node.buffer, self.fill(node.buffer)
        match self._element(node):
            case None:
                return fill
            case int(offset):
                return self.storage.read(buffer, offset)
            case at:
                return self.assembly.read(buffer, at, fill)

    def visit_Stored(self, node: Stored) -> Any:
        """Say whether the element at the coordinates is stored."""
        assert isinstance(node.element, Load)
        return np.bool_(self._element(node.element) is not None)

    def visit_Store(self, node: Store) -> None:
        """Write the element at the coordinates; a miss fails the call, but is skipped in init."""
        value, buffer, element = self.visit(node.value), node.buffer, self._element(node)
        if self.initialised is not None:
            if element is None or (buffer, element) in self.initialised:
                return
            self.initialised.add((buffer, element))
        match element:
            case None:
                message = f"write to a coordinate that is not stored in {buffer.name}"
                self.failures.append(message)
            case int(offset):
                self.storage.write(buffer, offset, value)
            case at:
                rounded = decode(encode(value, buffer.dtype), buffer.dtype)
                self.assembly.write(buffer, at, rounded, init=self.initialised is not None)

    def _element(self, node: Load | Store) -> int | Coordinates | None:
        """Return the offset of the element at the coordinates, None if it is not stored.

        For an assembled buffer: the coordinates themselves; None if they are out of range.
        """
        at, buffer = self._coordinates(node), node.buffer
        if isinstance(buffer, Buffer):
            return self.storage.dense_offset(buffer, at)
        positions = self._locate(buffer.axes, at, node.indices)
        if positions is None or buffer in self.assembly:
            return None if positions is None else at
        return self.storage.offset(buffer.axes, positions)

    def _coordinates(self, node: Load | Store) -> tuple[int, ...]:
        if None in node.indices:
            message = f"{node.buffer.name} is indexed by absolute position at coordinate level"
            raise InternalError("interpretation", message)
        return tuple(self.number(index) for index in node.indices if index is not None)

    def _locate(
        self, axes: tuple[Axis, ...], at: tuple[int, ...], indices: tuple[Expr | None, ...]
    ) -> list[int] | None:
        """Return the absolute positions at the coordinates; an assembled axis takes any in range.

        An axis indexed by the variable that runs over it is at the position of the iteration.
        """

        def find(k: int, axis: Axis, parent: int) -> Sequence[int]:
            if axis.is_assembled:
                return (0,) if 0 <= at[k] < self.storage.size(axis.length) else ()
            place = self.places.get(axis)
            if place is not None and place.var is indices[k] and place.parent == parent:
                return () if place.at is None else (place.at,)
            return self.storage.find(axis, parent, at[k])

        return locate(axes, find)


def _place(axis: Axis, places: Places) -> Place:
    if axis not in places:
        raise InternalError("interpretation", f"nothing runs over axis {axis.name} here")
    return places[axis]


def _parent(axis: Axis, places: Places) -> int | None:
    """Return the current absolute position of the parent of *axis*, 0 for a root."""
    return 0 if axis.parent is None else _place(axis.parent, places).at
