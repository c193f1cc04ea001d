"""At the call, formats: buffers along a converted matrix, taken apart as it is and put together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from spcomp.compiler import validate
from spcomp.compiler.bind import Frame
from spcomp.compiler.convert import Storage
from spcomp.compiler.evaluator import Timed
from spcomp.compiler.formats_fill import Program
from spcomp.compiler.kernel import with_outputs
from spcomp.compiler.outputs import allocate, collect, new_array, refuse_overlap
from spcomp.compiler.tensor import Level
from spcomp.errors import ArgumentError
from spcomp.locks import cached_property

if TYPE_CHECKING:
    from spcomp.compiler.formats import Decomposed
    from spcomp.compiler.formats_parts import Parts
    from spcomp.compiler.kernel import BoundKernel
    from spcomp.compiler.signature import BufferPlan, Interface
    from spcomp.ir.axis import SparseBuffer

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
_MOVE = """from spcomp import script as T


@T.prim_func
def move(numbers: T.handle, values: T.handle, part: T.handle, total: T.int64, count: T.int64,
         outer: T.int64, inner: T.int64) -> None:
    Numbers = T.match_buffer(numbers, (count,), "NUMBER")
    Values = T.match_buffer(values, (outer * total * inner,), "BITS")
    Part = T.match_buffer(part, (outer * count * inner,), "BITS")
    for h in T.serial(outer):
        for p in T.parallel(count):
            e = T.cast(Numbers[p], "int64") - 1
            if e >= 0:
                for s in T.serial(INNER):
                    TO = FROM
"""
_THERE, _HERE = "Values[(h * total + e) * INNER + s]", "Part[(h * count + p) * INNER + s]"


@dataclass(frozen=True, slots=True, eq=False)
class Order:
    """Where the elements of a matrix went: *numbers* says for each value of a part, by its rule.

    The number of the element from 1 on; 0 is padding. *origin*: the matrix without its values.
    """

    numbers: Mapping[str, Array]
    origin: Storage

    @classmethod
    def of(cls, numbers: Mapping[str, Array], storage: Storage) -> Order:
        """Return the order of what was taken apart as *storage*; it shares no memory with that."""
        assert storage.levels is not None
        assert storage.values is not None
        own = tuple(None if level is None else _private(level) for level in storage.levels)
        none = np.broadcast_to(storage.values.dtype.type(0), storage.values.size)
        return cls(numbers, Storage(None, none, storage.shape, own, storage.style, checked=True))


def _private(level: Level) -> Level:
    parts = (level.indptr, level.indices)
    own = (None if part is None else validate.private(part) for part in parts)
    return Level(level.kind, *own)


def counted(count: int) -> Array:
    """Return the numbers of *count* elements."""
    return np.arange(1, count + 1, dtype=np.int32 if count < 1 << 31 else np.int64)


def gathered(numbers: Array, values: Array) -> Array:
    """Return the elements of *values* that *numbers* says, zero for padding."""
    made = np.zeros(numbers.size, values.dtype)
    _move(numbers, values.reshape(1, -1, 1), made, back=False)
    return made.reshape(numbers.shape)


def _move(numbers: Array, values: Array, part: Array, *, back: bool) -> None:
    """Copy elements of *values* (outer, elements, inner) to their places in *part*, or *back*."""
    outer, total, inner = values.shape
    bits = np.dtype(f"uint{8 * values.itemsize}")
    program = _program(str(numbers.dtype), str(bits), back, inner == 1)
    flat = {"values": values.reshape(-1).view(bits), "part": part.reshape(-1).view(bits)}
    sizes = {"total": total, "count": numbers.size, "outer": outer, "inner": inner}
    program.run({"numbers": numbers.reshape(-1), **flat}, sizes)


@lru_cache(maxsize=32)
def _program(number: str, bits: str, back: bool, single: bool) -> Program:  # noqa: FBT001
    to, source = (_THERE, _HERE) if back else (_HERE, _THERE)
    width = "1" if single else "inner"  # known to run once, the loop takes a quarter of the time
    words = (("NUMBER", number), ("BITS", bits), ("TO", to), ("FROM", source), ("INNER", width))
    text = _MOVE
    for word, meaning in words:
        text = text.replace(word, meaning)
    return Program.of(text)


@dataclass(frozen=True, slots=True, eq=False)
class Companion:
    """A buffer along the matrix *owner*: its *parts* by rule; *outer* and *inner* dense axes."""

    plan: BufferPlan
    owner: str
    parts: Mapping[str, SparseBuffer]
    outer: int  # how many of its axes come before those of the matrix
    inner: int  # and how many behind

    def shaped(self, values: Array, frame: Frame) -> Array:
        """Return *values* by outer axes, elements and inner axes."""
        extents = [frame.size_of(extent) for extent in self.plan.shape]
        outer = prod(extents[: self.outer])
        inner = prod(extents[len(extents) - self.inner :])
        return values.reshape(outer, values.size // max(outer * inner, 1), inner)


@dataclass(frozen=True, eq=False)
class Beside:
    """The buffers of *program*, called as *face* says, that lie along matrices in formats."""

    program: Decomposed
    face: Interface

    @cached_property
    def companions(self) -> tuple[Companion, ...]:
        """Those that a call takes or returns."""
        found = []
        for name, parts in self.program.parts.items():
            width = len(self.face.by_name[name].axes)
            for buffer in parts[0].beside if parts else ():
                if buffer.data is None:
                    continue
                plan = self.face.by_handle[buffer.data.name]
                own = {part.rule.name: part.beside[buffer] for part in parts}
                axes = parts[0].rule.axes_before_rewrite
                outer = next(k for k, axis in enumerate(plan.axes) if axis.name in axes)
                inner = len(plan.axes) - outer - width
                found.append(Companion(plan, name, own, outer, inner))
        return tuple(found)


class BoundBeside(Timed):
    """A FormatKernel with its matrices converted, whose program has other buffers along them."""

    def __init__(
        self,
        beside: Beside,
        bound: BoundKernel,
        converted: Mapping[str, Parts],
        named: Mapping[str, Any],
    ) -> None:
        self.beside, self.bound = beside, bound
        self._converted, self._named = converted, named

    def __call__(self, *, out: Any = None, **named: Any) -> Any:
        """Run the program on the bound arguments and *named*; returns as the Kernel does."""
        for name in named:
            if name in self._named or name in self._converted:
                raise ArgumentError(f"argument {name}: is bound already")
        face, kernel = self.beside.face, self.bound.kernel
        given = {**self._named, **named}
        frame = self._frame(given if out is None else with_outputs(face, kernel.name, out, given))
        parts = self._parts(frame)
        self.bound(**parts, **dict(self._others(frame)))
        self._put_together(frame, parts)
        return collect(frame, {})

    def _frame(self, named: Mapping[str, Any]) -> Frame:
        """Return the arguments of the program before the decomposition, checked."""
        face, options = self.beside.face, self.bound.kernel._options  # noqa: SLF001
        frame = Frame(face, options.constants)
        for name, converted in self._converted.items():
            if converted.order is None:
                frame.take(name, converted.kept, verify=False)
            else:
                frame._storage(face.by_name[name], converted.order.origin)  # noqa: SLF001
        for name, arg in named.items():
            frame.take(name, arg, verify=options.check == "full")
        frame.settle()
        frame.require()
        if options.check == "full":
            frame.check_arrays()
        refuse_overlap(frame)
        allocate(frame)
        frame.settle()
        return frame

    def _parts(self, frame: Frame) -> dict[str, Array]:
        """Return an array for each part of each companion, by its name."""
        made: dict[str, Array] = {}
        for one, numbers, part in self._places():
            if not self.bound.kernel.takes(part.name):
                continue
            values = one.shaped(frame.values[one.plan.handle], frame)
            shape = (values.shape[0] * numbers.size * values.shape[2],)
            plan = self.bound.kernel._face.by_name[part.name]  # noqa: SLF001
            fresh = one.plan.role == "out" and one.plan.handle not in frame.given
            made[part.name] = new_array(shape, plan) if fresh else np.zeros(shape, values.dtype)
            if not fresh:
                _move(numbers, values, made[part.name], back=False)
        return made

    def _others(self, frame: Frame) -> Iterator[tuple[str, Any]]:
        """Yield what the Kernel over the parts takes besides, by name."""
        face = self.bound.kernel._face  # noqa: SLF001
        for plan in self.beside.face.buffers:
            if plan.handle in face.by_handle and plan.name not in self.bound.bound:
                yield plan.name, frame.given.get(plan.handle, frame.values[plan.handle])
        for name in (*face.scalars, *face.index_names):
            if name in frame.values and name not in self.bound.bound:
                yield name, frame.values[name]

    def _put_together(self, frame: Frame, parts: Mapping[str, Array]) -> None:
        """Copy what was written to the parts to where it belongs."""
        for one, numbers, part in self._places():
            if one.plan.role != "in":
                values = one.shaped(frame.values[one.plan.handle], frame)
                _move(numbers, values, parts[part.name], back=True)

    def _places(self) -> Iterator[tuple[Companion, Array, SparseBuffer]]:
        for one in self.beside.companions:
            order = self._converted[one.owner].order
            assert order is not None
            for rule, part in one.parts.items():
                yield one, order.numbers[rule], part

    def __repr__(self) -> str:
        return f"<{self.bound.kernel.name} with matrices in formats bound>"
