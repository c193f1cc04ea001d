"""Around a call: arrays for outputs that were not given, and results as the caller knows them."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from spcomp.codegen.abi import bfloat16_bits
from spcomp.compiler.convert import put_together, scipy_holds
from spcomp.compiler.tensor import Level, Tensor
from spcomp.errors import ArgumentError, OutOfMemoryError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from spcomp.compiler.bind import Frame
    from spcomp.compiler.signature import AxisPlan, BufferPlan

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]


class Results(tuple[Any, ...]):
    """What a program with several outputs returns: a tuple whose items have names, too."""

    _fields: tuple[str, ...]

    @classmethod
    def of(cls, fields: tuple[str, ...], values: tuple[Any, ...]) -> Results:
        """Return *values* called *fields*."""
        made = cls(values)
        made._fields = fields
        return made

    def __getattr__(self, name: str) -> Any:
        if name in self.__dict__.get("_fields", ()):
            return self[self._fields.index(name)]
        raise AttributeError(f"no result called {name}")

    def __reduce__(self) -> tuple[Any, ...]:
        return Results.of, (self._fields, tuple(self))

    def __repr__(self) -> str:
        items = zip(self._fields, self, strict=True)
        return f"Results({', '.join(f'{name}={value!r}' for name, value in items)})"


def allocate(frame: Frame) -> tuple[BufferPlan, ...]:
    """Make the arrays of the outputs that were not given, set to the buffer's fill value.

    Returns the plans of these outputs.
    """
    outputs = frame.interface.outputs
    fresh = tuple(p for p in outputs if p.handle not in frame.values and p.size is not None)
    for plan in fresh:
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
            frame.values[plan.handle] = new_array(shape, plan)
        except (MemoryError, ValueError):  # numpy's own for arrays that no address reaches
            size = prod(shape) * plan.np_dtype.itemsize
            raise OutOfMemoryError(
                f"argument {plan.name}: its shape {shape} takes {size:,} bytes, for which there is"
                " no memory",
                hint="make the program's result sparse, or its dimensions shorter",
            ) from None
    return fresh


def new_array(shape: tuple[int, ...], plan: BufferPlan) -> Array:
    """Return an array for *plan* that holds its fill value, or anything if all is overwritten.

    Large ones lie in huge pages where the system has them: numpy asks for that itself, from 4 MiB
    on, and smaller ones reuse memory that was freed, which is faster still.
    """
    if plan.full:
        return np.empty(shape, plan.np_dtype)
    if not plan.fill:
        return np.zeros(shape, plan.np_dtype)
    fill = bfloat16_bits(float(plan.fill)) if plan.dtype.kind == "bfloat" else plan.fill
    return np.full(shape, fill, plan.np_dtype)


def refuse_overlap(frame: Frame) -> None:
    """Raise ArgumentError if a given output shares memory with any other argument."""
    face = frame.interface
    for plan in face.outputs:
        if plan.handle not in frame.given:
            continue
        mine = frame.values[plan.handle]
        for name, value in frame.values.items():
            if name == plan.handle or not isinstance(value, np.ndarray):
                continue
            if np.may_share_memory(mine, value):  # exact: the arrays are contiguous
                other = face.by_handle[name].name if name in face.by_handle else frame.shown(name)
                raise ArgumentError(
                    f"argument {plan.name}: shares memory with {other}, and the program writes it",
                    hint="give an array of its own, or leave it out",
                )


def collect(frame: Frame, assembled: dict[str, Array], *, verify: bool = False) -> Any:
    """Return the outputs: one as it is, several as ``Results``, in the order of the parameters.

    What was given comes back as it was given; *assembled* has the arrays of assembled outputs.
    *verify*: whether they make a tensor is not known. Raises ArgumentError if they make none.
    """
    plans = frame.interface.outputs
    found = tuple(_result(frame, plan, assembled) for plan in plans)
    for plan, made in zip(plans, found, strict=True):
        if verify and plan.is_assembled and not isinstance(made, Tensor):  # which looks itself
            _verify(plan.name, made)
    if len(found) == 1:
        return found[0]
    return Results.of(tuple(plan.name for plan in plans), found) if found else None


def _verify(name: str, made: Any) -> None:
    """Raise ArgumentError unless the arrays of *made*, an array or matrix of scipy, fit."""
    try:
        made.check_format(full_check=True)
    except ValueError as error:
        raise ArgumentError(f"result {name}: the program made no such tensor: {error}") from None


def pattern_of(frame: Frame, plan: BufferPlan) -> tuple[str, Level | None, Any]:
    """Return how the result of *plan* should look, the level along its leaf, and whose it is."""
    leaf = plan.leaf
    if leaf is None or plan.layout == "values" or frame.interface.any_shape:
        return "raw", None, None
    style, level, given = frame.patterns.get(leaf.name, ("raw", None, None))
    if style in ("array", "matrix") and not _is_scipys(frame, plan):
        style = "tensor"
    return style, level, given


def _is_scipys(frame: Frame, plan: BufferPlan) -> bool:
    """Whether scipy has arrays laid out as the buffer of *plan*: of no float16, no empty blocks."""
    blocks = (frame.size_of(extent) for extent in plan.shape[2:])
    return plan.layout in ("csr", "bsr") and scipy_holds(plan.np_dtype) and all(blocks)


def _result(frame: Frame, plan: BufferPlan, assembled: dict[str, Array]) -> Any:
    if plan.is_assembled:
        return _assembled(frame, plan, assembled)
    if plan.handle in frame.given:
        return frame.given[plan.handle]
    values = frame.values[plan.handle]
    style, level, given = pattern_of(frame, plan)
    if level is not None and style in ("array", "matrix"):
        return _scipy(frame, plan, style, values, (level.indptr, level.indices))
    if style == "raw":
        return values
    if has_levels_of(given, frame, plan):
        return given.with_values(values)
    return Tensor(_shape(frame, plan), tuple(_level(frame, axis) for axis in plan.axes), values)


def has_levels_of(given: Any, frame: Frame, plan: BufferPlan) -> bool:
    """Whether the result of *plan* is the Tensor *given* with other values.

    A buffer along a leaf of the Tensor need not lie along all its levels, nor along no others.
    """
    if not isinstance(given, Tensor) or given.shape != _shape(frame, plan):
        return False
    dense = [axis.kind == "dense_fixed" for axis in plan.axes]
    return dense == [level is None for level in given.levels]


def _shape(frame: Frame, plan: BufferPlan) -> tuple[int, ...]:
    return tuple(frame.size_of(extent) for extent in plan.shape)


def _level(frame: Frame, axis: AxisPlan) -> Level | None:
    arrays = [frame.values[name] for name in axis.arrays]
    if axis.kind == "sparse_fixed" and axis.nnz_cols is not None:
        fibers = 1 if axis.fibers is None else frame.size_of(axis.fibers)
        return Level("fixed", None, arrays[0].reshape(fibers, frame.size_of(axis.nnz_cols)))
    if axis.kind == "dense_variable":
        return Level("ragged", arrays[0])
    return Level("compressed", arrays[0], arrays[1]) if arrays else None


def scipy_class(plan: BufferPlan, style: str) -> Any:
    """Return the class of a scipy result of *plan*: an ``array`` or a ``matrix``."""
    import scipy.sparse as sps

    return getattr(sps, f"{plan.layout}_{style}")


def _scipy(frame: Frame, plan: BufferPlan, style: str, values: Array, pattern: Any) -> Any:
    shape = tuple(extents(frame, plan))
    made = put_together(scipy_class(plan, style), shape, values, pattern[1], pattern[0])
    if plan.axes[1].name in frame.checked:
        made.has_canonical_format = True  # just verified: spares scipy the pass over the indices
    return made


def extents(frame: Frame, plan: BufferPlan) -> Iterator[int]:
    """The extents of the matrix of *plan*: in a blocked one, blocks times their size."""
    sizes = [frame.size_of(extent) for extent in plan.shape]
    if plan.layout != "bsr":
        yield from sizes
    else:
        yield from (sizes[at] * sizes[at + 2] for at in range(2))


def _assembled(frame: Frame, plan: BufferPlan, arrays: dict[str, Array]) -> Any:
    """Build a result whose pattern the program found: a csr array, or a Tensor of higher rank."""
    shape, values = _shape(frame, plan), arrays[plan.handle]
    if plan.layout == "csr" and scipy_holds(values.dtype):
        import scipy.sparse as sps

        matrix = any(style == "matrix" for style, _, _ in frame.patterns.values())
        make: Any = sps.csr_matrix if matrix else sps.csr_array
        name = plan.axes[1].name
        return put_together(
            make, shape, values, arrays[f"{name}_indices"], arrays[f"{name}_indptr"]
        )
    levels = [
        Level("compressed", arrays[f"{axis.name}_indptr"], arrays[f"{axis.name}_indices"])
        if axis.positions is None and axis.indptr is None
        else _level(frame, axis)
        for axis in plan.axes
    ]
    return Tensor(shape, levels, values)
