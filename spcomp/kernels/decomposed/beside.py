"""At the call, formats: other buffers along a converted matrix, split in parts and joined."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from spcomp.arrays import Array
from spcomp.kernels.call import prepare
from spcomp.kernels.frame import Frame
from spcomp.kernels.protocol import Bound, InnerCall, Runnable
from spcomp.kernels.results import collect, new_array, result_wraps, with_outputs
from spcomp.locks import cached_property
from spcomp.tensors.parts.order import move_values

if TYPE_CHECKING:
    from spcomp.compiler.interface import BufferPlan, Interface
    from spcomp.ir.axis import SparseBuffer
    from spcomp.kernels.kernel import BoundKernel
    from spcomp.passes.decompose.decompose_parts import Part
    from spcomp.tensors.parts.parts import Parts


@dataclass(frozen=True, slots=True, eq=False)
class Companion:
    """A buffer along the matrix *owner*, with its *parts* by rule."""

    plan: BufferPlan
    owner: str
    parts: Mapping[str, SparseBuffer]
    outer: int  # how many of its axes come before those of the matrix
    inner: int  # how many come after them

    def shaped(self, values: Array, frame: Frame) -> Array:
        """Return *values* in the shape (outer axes, elements, inner axes)."""
        extents = [frame.size_of(extent) for extent in self.plan.shape]
        outer = prod(extents[: self.outer])
        inner = prod(extents[len(extents) - self.inner :])
        return values.reshape(outer, values.size // max(outer * inner, 1), inner)


@dataclass(frozen=True, eq=False)
class Beside:
    """The buffers of a program that lie along matrices in formats.

    *parts*: those of each matrix, by its name. *face*: the interface of the program.
    """

    parts: Mapping[str, tuple[Part, ...]]
    face: Interface

    @cached_property
    def companions(self) -> tuple[Companion, ...]:
        """The buffers that a call takes or returns."""
        companions = []
        for name, parts in self.parts.items():
            width = len(self.face.by_name[name].axes)
            for buffer in parts[0].beside if parts else ():
                if buffer.data is None:
                    continue
                plan = self.face.by_handle[buffer.data.name]
                buffers = {part.rule.name: part.beside[buffer] for part in parts}
                axes = parts[0].rule.axes_before_rewrite
                outer = next(k for k, axis in enumerate(plan.axes) if axis.name in axes)
                inner = len(plan.axes) - outer - width
                companions.append(Companion(plan, name, buffers, outer, inner))
        return tuple(companions)


class BoundBeside(Bound):
    """A FormatKernel with its matrices converted, whose program has other buffers along them."""

    def __init__(
        self,
        kernel: Runnable,
        beside: Beside,
        inner: BoundKernel,
        converted: Mapping[str, Parts],
        named: Mapping[str, Any],
    ) -> None:
        super().__init__(kernel, {**converted, **named})
        self.beside, self.inner = beside, inner
        self._converted, self._named = converted, named

    def __call__(self, /, *, out: Any = None, **named: Any) -> Any:
        """Run the program on the bound arguments and *named*; returns as the Kernel does."""
        self.refuse_bound(named)
        face, kernel = self.beside.face, self.inner.kernel
        arguments = {**self._named, **named}
        frame = self._frame(with_outputs(face, kernel.name, out, arguments))
        parts = self._parts(frame)
        self.inner(**parts, **dict(self._others(frame)))
        self._join_parts(frame, parts)
        return collect(frame, result_wraps(frame, {}), {})

    def specialize(self, /, **named: Any) -> Runnable:
        """Return the Kernel over the parts: calls make their other arrays, so it is the same."""
        self.refuse_bound(named)
        return self.inner.kernel

    def inner_call(self, named: Mapping[str, Any]) -> InnerCall:
        """Return the call of the Kernel over the parts; its results lie along the parts."""
        self.refuse_bound(named)
        frame = self._frame({**self._named, **named})
        return InnerCall(self.inner, {**self._parts(frame), **dict(self._others(frame))})

    def _frame(self, named: Mapping[str, Any]) -> Frame:
        """Return the arguments of the program before the decomposition, checked."""
        face, options = self.beside.face, self.inner.kernel._options  # noqa: SLF001
        frame = Frame(face, options.constants)
        for name, converted in self._converted.items():
            if converted.order is None:
                frame.take(name, converted.kept, verify=False)
            else:
                frame.unify_storage(face.by_name[name], converted.order.origin)
        for name, arg in named.items():
            frame.take(name, arg, verify=options.check == "full")
        prepare(frame, verify=options.check == "full")
        return frame

    def _parts(self, frame: Frame) -> dict[str, Array]:
        """Return an array for each part of each companion, by its name."""
        arrays: dict[str, Array] = {}
        for companion, numbers, part in self._numbered_parts():
            if not self.inner.kernel.takes(part.name):
                continue
            values = companion.shaped(frame.values[companion.plan.handle], frame)
            shape = (values.shape[0] * numbers.size * values.shape[2],)
            plan = self.inner.kernel._face.by_name[part.name]  # noqa: SLF001
            is_new = companion.plan.role == "out" and companion.plan.handle not in frame.given
            arrays[part.name] = new_array(shape, plan) if is_new else np.zeros(shape, values.dtype)
            if not is_new:
                move_values(numbers, values, arrays[part.name], back=False)
        return arrays

    def _others(self, frame: Frame) -> Iterator[tuple[str, Any]]:
        """Yield the other arguments of the Kernel over the parts, by name."""
        face = self.inner.kernel._face  # noqa: SLF001
        for plan in self.beside.face.buffers:
            if plan.handle in face.by_handle and plan.name not in self.inner.arguments:
                yield plan.name, frame.given.get(plan.handle, frame.values[plan.handle])
        for name in (*face.scalars, *face.index_names):
            if name in frame.values and name not in self.inner.arguments:
                yield name, frame.values[name]

    def _join_parts(self, frame: Frame, parts: Mapping[str, Array]) -> None:
        """Copy what was written to the parts back to the whole buffers."""
        for companion, numbers, part in self._numbered_parts():
            if companion.plan.role != "in":
                values = companion.shaped(frame.values[companion.plan.handle], frame)
                move_values(numbers, values, parts[part.name], back=True)

    def _numbered_parts(self) -> Iterator[tuple[Companion, Array, SparseBuffer]]:
        for companion in self.beside.companions:
            order = self._converted[companion.owner].order
            assert order is not None
            for rule, part in companion.parts.items():
                yield companion, order.numbers[rule], part
