"""Around a call: arrays for outputs that were not given, and results for the caller."""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import numpy as np

from spcomp.arrays import Array
from spcomp.dtypes import bfloat16_bits
from spcomp.errors import ArgumentError, OutOfMemoryError, warn
from spcomp.kernels.protocol import as_it_is
from spcomp.tensors.libraries.scipy import scipy_holds, scipy_of_attributes
from spcomp.tensors.tensor import Level, Tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Self

    from spcomp.compiler.interface import AxisPlan, BufferPlan, Interface
    from spcomp.kernels.frame import Frame


class Results(tuple[Any, ...]):
    """The results of a program with several outputs: a tuple whose items have names, too.

    It has what ``collections.namedtuple`` has, so that Dask looks for collections among the items.
    Names may be any, such as ``count``.
    """

    _fields: ClassVar[tuple[str, ...]] = ()
    _field_defaults: ClassVar[dict[str, Any]] = {}

    def __new__(cls, *values: Any) -> Self:
        """Return results without names."""
        return super().__new__(cls, values)

    @staticmethod
    def of(fields: tuple[str, ...], values: tuple[Any, ...]) -> Results:
        """Return *values* with the names *fields*."""
        return _results_with(fields)(*values)

    def __getattr__(self, name: str) -> Any:
        if name in self._fields:
            return self[self._fields.index(name)]
        raise AttributeError(f"no result called {name}")

    def _asdict(self) -> dict[str, Any]:
        return dict(zip(self._fields, self, strict=True))

    @classmethod
    def _make(cls, values: Iterable[Any]) -> Self:
        return cls(*values)

    def _replace(self, **named: Any) -> Self:
        return self._make({**self._asdict(), **named}.values())

    def __reduce__(self) -> tuple[Any, ...]:
        return Results.of, (self._fields, tuple(self))

    def __repr__(self) -> str:
        items = self._asdict().items()
        return f"Results({', '.join(f'{name}={value!r}' for name, value in items)})"


@lru_cache(maxsize=512)
def _results_with(fields: tuple[str, ...]) -> type[Results]:
    """Return the type of results with these names."""
    return type("Results", (Results,), {"_fields": fields, "__doc__": Results.__doc__})


def allocate(
    frame: Frame, make: Callable[[tuple[int, ...], BufferPlan], Any]
) -> tuple[BufferPlan, ...]:
    """Allocate the outputs that were not given, with their fill value; return their plans.

    *make*: returns an array of this shape.
    """
    outputs = frame.interface.outputs
    plans = tuple(p for p in outputs if p.handle not in frame.values and p.size is not None)
    for plan in plans:
        if plan.doubt:
            warn(plan.doubt)
        if plan.layout == "dense" and not frame.interface.any_shape:
            shape: tuple[int, ...] = tuple(frame.size_of(extent) for extent in plan.shape)
        elif plan.layout == "bsr":
            block = tuple(frame.size_of(extent) for extent in plan.shape[2:])
            leaf = plan.axes[1].positions
            shape = (frame.size_of(leaf) if leaf is not None else 0, *block)
        elif plan.size is not None:
            shape = (frame.size_of(plan.size),)
        if min(shape, default=0) < 0:
            raise ArgumentError(f"argument {plan.name}: its shape {shape} is negative")
        try:
            frame.values[plan.handle] = make(shape, plan)
        except (MemoryError, ValueError):  # numpy's own for arrays that no address reaches
            size = prod(shape) * plan.np_dtype.itemsize
            raise OutOfMemoryError(
                f"argument {plan.name}: its shape {shape} takes {size:,} bytes, for which there is"
                " no memory",
                hint="make the program's result sparse, or its dimensions shorter",
            ) from None
    return plans


def new_array(shape: tuple[int, ...], plan: BufferPlan) -> Array:
    """Return an array for *plan*: of its fill value, or of anything if all is overwritten.

    Arrays from 4 MiB on lie in huge pages where the system has them, as numpy asks for those.
    Smaller ones reuse memory that was freed, which is faster still.
    """
    if plan.full:
        return np.empty(shape, plan.np_dtype)
    if not plan.fill:
        return np.zeros(shape, plan.np_dtype)
    fill = bfloat16_bits(float(plan.fill)) if plan.dtype.kind == "bfloat" else plan.fill
    return np.full(shape, fill, plan.np_dtype)


class Wrap(NamedTuple):
    """How a result is made of its values: its class, its *shape* and its *pattern*.

    *look*: ``scipy``, an array of the class *make* with the index arrays of *pattern*; ``tensor``,
    a Tensor with the levels *pattern*; ``same``, the Tensor *pattern* with other values. *owner*:
    the argument that *pattern* was read from. *canonical*: its coordinates are known to be in order
    and distinct.
    """

    look: Literal["scipy", "tensor", "same"]
    shape: tuple[int, ...]
    pattern: Any
    owner: Any = None
    make: Any = None
    canonical: bool = False

    def of(self, values: Array, pattern: Any) -> Any:
        """Return the result of *values* and this *pattern*."""
        look, shape, _, _, make, canonical = self
        if look == "scipy":
            indices, indptr = pattern.indices, pattern.indptr
            matrix = scipy_of_attributes(make, shape, data=values, indices=indices, indptr=indptr)
            if canonical:
                matrix.has_canonical_format = True  # spares scipy the pass over the indices
            return matrix
        return pattern.with_values(values) if look == "same" else Tensor(shape, pattern, values)

    def found(self) -> Callable[[Any], Any] | None:
        """Return what finds the pattern in arguments like *owner*; None: not all of it is there."""
        if self.look != "tensor":
            return as_it_is
        if not isinstance(self.owner, Tensor):
            return None
        known = [None if level is None else _arrays(level) for level in self.owner.levels]
        wanted = [None if level is None else _arrays(level) for level in self.pattern]
        if not all(arrays is None or arrays in known for arrays in wanted):
            return None
        places = [arrays and known.index(arrays) for arrays in wanted]
        return lambda owner: tuple([None if at is None else owner.levels[at] for at in places])


def _arrays(level: Level) -> tuple[Any, ...]:
    """Return where the arrays of *level* lie, and what they are."""
    arrays = level.indptr, level.indices
    places = (None if a is None else (a.ctypes.data, a.dtype, a.shape) for a in arrays)
    return level.kind, *places


def result_wraps(frame: Frame, arrays: Mapping[str, Array]) -> tuple[Wrap | None, ...]:
    """Return how each result is made; None: it is the array, or what was given for it.

    *arrays*: those of assembled outputs, by name.
    """
    return tuple(result_wrap(frame, plan, arrays) for plan in frame.interface.outputs)


def result_wrap(frame: Frame, plan: BufferPlan, arrays: Mapping[str, Array]) -> Wrap | None:
    """Return how the result of *plan* is made; None: it is the array, or what was given for it."""
    if plan.handle in frame.given or plan.layout in ("dense", "values"):
        return None
    if plan.is_assembled:
        return _assembled_wrap(frame, plan, arrays)
    leaf = plan.leaf
    if leaf is None:
        return None
    style, level, owner = frame.patterns.get(leaf.name, ("raw", None, None))
    if style == "raw" or frame.interface.any_shape:
        return None
    if level is not None and style != "tensor" and _has_scipy_class(frame, plan):
        canonical = plan.axes[1].name in frame.checked
        shape, make = _extents(frame, plan), _scipy_class(plan.layout, style)
        return Wrap("scipy", shape, level, owner, make, canonical)
    shape = _shape(frame, plan)
    dense = [axis.kind == "dense_fixed" for axis in plan.axes]  # it may lie along other levels
    alike = isinstance(owner, Tensor) and dense == [level is None for level in owner.levels]
    if alike and owner.shape == shape:
        return Wrap("same", shape, owner, owner)
    return Wrap("tensor", shape, tuple(_level(frame, axis) for axis in plan.axes), owner)


def _has_scipy_class(frame: Frame, plan: BufferPlan) -> bool:
    """Whether scipy has arrays laid out like the buffer of *plan*: no float16, no empty blocks."""
    blocks = (frame.size_of(extent) for extent in plan.shape[2:])
    return plan.layout in ("csr", "bsr") and scipy_holds(plan.np_dtype) and all(blocks)


def _shape(frame: Frame, plan: BufferPlan) -> tuple[int, ...]:
    return tuple(frame.size_of(extent) for extent in plan.shape)


def _extents(frame: Frame, plan: BufferPlan) -> tuple[int, ...]:
    """Return the extents of the matrix of *plan*: in a blocked one, blocks times their size."""
    sizes = _shape(frame, plan)
    return sizes if plan.layout != "bsr" else (sizes[0] * sizes[2], sizes[1] * sizes[3])


def _level(frame: Frame, axis: AxisPlan) -> Level | None:
    arrays = [frame.values[name] for name in axis.arrays]
    if axis.kind == "sparse_fixed" and axis.nnz_cols is not None:
        fibers = 1 if axis.fibers is None else frame.size_of(axis.fibers)
        return Level("fixed", None, arrays[0].reshape(fibers, frame.size_of(axis.nnz_cols)))
    if axis.kind == "dense_variable":
        return Level("ragged", arrays[0])
    return Level("compressed", arrays[0], arrays[1]) if arrays else None


def _scipy_class(layout: str, style: str) -> Any:
    """Return the class of scipy for *layout*; *style*: ``array`` or ``matrix``."""
    import scipy.sparse as sps

    return getattr(sps, f"{layout}_{style}")


def _assembled_wrap(frame: Frame, plan: BufferPlan, arrays: Mapping[str, Array]) -> Wrap:
    """Return how a result is made whose pattern the program found: a csr array, or a Tensor."""
    shape, make = _shape(frame, plan), None
    levels: tuple[Level | None, ...] = tuple(
        _assembled_level(axis, arrays) if axis.is_assembled else _level(frame, axis)
        for axis in plan.axes
    )
    if plan.layout == "csr" and scipy_holds(arrays[plan.handle].dtype):
        matrix = any(style == "matrix" for style, _, _ in frame.patterns.values())
        make = _scipy_class("csr", "matrix" if matrix else "array")
        return Wrap("scipy", shape, levels[1], make=make)
    return Wrap("tensor", shape, levels)


def assembled_pattern(plan: BufferPlan, wrap: Wrap, arrays: Mapping[str, Array]) -> Any:
    """Return the pattern for *wrap* of a result of *plan* that *arrays* make.

    Its other levels are dense.
    """
    if wrap.look == "scipy":
        return _assembled_level(plan.axes[1], arrays)
    return tuple(_assembled_level(a, arrays) if a.is_assembled else None for a in plan.axes)


def _assembled_level(axis: AxisPlan, arrays: Mapping[str, Array]) -> Level:
    return Level("compressed", arrays[f"{axis.name}_indptr"], arrays[f"{axis.name}_indices"])


def collect(
    frame: Frame,
    wraps: tuple[Wrap | None, ...],
    arrays: Mapping[str, Array],
    *,
    verify: bool = False,
) -> Any:
    """Return the outputs: one as it is, several as ``Results``, in the order of the parameters.

    An output that was given comes back as it is; *arrays* has the arrays of assembled outputs.
    *verify*: check that these make a tensor. Raises ArgumentError if they do not.
    """
    results = []
    for plan, wrap in zip(frame.interface.outputs, wraps, strict=True):
        values = arrays[plan.handle] if plan.is_assembled else frame.values[plan.handle]
        result = frame.given.get(plan.handle, values)
        results.append(result if wrap is None else wrap.of(values, wrap.pattern))
    if verify:
        verify_assembled(frame.interface, results)
    return as_results(frame.interface, results)


def as_results(face: Interface, results: Sequence[Any]) -> Any:
    """Return *results* as a call returns them: one as it is, several with their names."""
    if len(results) < 2:
        return results[0] if results else None
    return Results.of(tuple(plan.name for plan in face.outputs), tuple(results))


def verify_assembled(face: Interface, results: Sequence[Any]) -> None:
    """Raise ArgumentError unless the assembled *results* are sound arrays of scipy."""
    for plan, result in zip(face.outputs, results, strict=True):
        if plan.is_assembled and not isinstance(result, Tensor):  # which checks itself
            try:
                result.check_format(full_check=True)
            except ValueError as error:
                raise ArgumentError(
                    f"result {plan.name}: the program made no such tensor: {error}"
                ) from None


def by_name(names: Sequence[str], out: Any) -> dict[str, Any]:
    """Return the arrays in *out* for the outputs called *names*: one, a tuple in order, or a dict.

    Raises ArgumentError.
    """
    if out is None:
        return {}
    if isinstance(out, dict):
        return dict(out)
    if isinstance(out, (tuple, list)):
        if len(out) != len(names):
            raise ArgumentError(
                f"argument out: got {len(out)} outputs, expected {len(names)} ({', '.join(names)})"
            )
        return {n: o for n, o in zip(names, out, strict=True) if o is not None}
    if len(names) == 1:
        return {names[0]: out}
    raise ArgumentError(
        f"argument out: got one {type(out).__name__}, expected {len(names)} outputs"
        f" ({', '.join(names)})",
        hint="give a dict by name, or a tuple",
    )


def with_outputs(face: Interface, name: str, out: Any, named: Mapping[str, Any]) -> dict[str, Any]:
    """Return *named* with the outputs in *out*: one, a tuple in order, or a dict.

    *face* is that of the program *name*. Raises ArgumentError.
    """
    names = [plan.name for plan in face.outputs]
    outputs = by_name(names, out)
    for output in outputs:
        if output not in names:
            raise ArgumentError(
                f"argument out: {output} is no output of {name}",
                hint=f"its outputs are {', '.join(names) or 'none'}",
            )
        if output in named:
            raise ArgumentError(f"argument {output}: given twice, by name and in out")
    return {**named, **outputs}
