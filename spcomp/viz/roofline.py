"""Under pictures: how fast a call is beside what the machine's memory and vectors allow."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from time import perf_counter
from typing import Any

import numpy as np

from spcomp.display.picture import PARTS, Picture, drawing, label, line
from spcomp.errors import ArgumentError, SpcompError, expect, front_door
from spcomp.ir.program import CoordFunc
from spcomp.kernels.compile import compile as compiled
from spcomp.kernels.protocol import Bound, Runnable
from spcomp.runtime.pool import get_num_threads
from spcomp.script.parse import parse
from spcomp.tune.bound import rates
from spcomp.tune.candidates import candidate_features
from spcomp.tune.machine import this_machine
from spcomp.tune.statistics import matrix_statistics

WIDTH, HEIGHT, MARGIN = 420.0, 260.0, 56.0  # pixels
DEGREE, SIZE = 48, 1 << 18  # of a polynomial, and of the array it takes, that measure the peak
NAMES = ("values", "data", "indptr", "indices", "row", "col", "offsets")  # arrays of matrices


@dataclass(frozen=True, slots=True)
class Roofline:
    """A call of *name* in the roofline model; printing and notebooks show it.

    *operations*: on floats. *moved*: the bytes of all arguments and results, each counted once.
    *seconds*: the median of a call. *memory*: the bytes in a second that were measured to be read,
    from caches if all of them fit. *peak*: the operations in a second of a polynomial whose
    operands stay in registers.

    Source: Williams, Waterman, Patterson: Roofline (CACM 2009).
    """

    name: str
    operations: float
    moved: float
    seconds: float
    memory: float
    peak: float

    @property
    def intensity(self) -> float:
        """The operations for each byte."""
        return self.operations / self.moved

    @property
    def rate(self) -> float:
        """The operations in a second that the call reaches."""
        return self.operations / self.seconds

    @property
    def limit(self) -> float:
        """The operations in a second that the model allows at this intensity."""
        return min(self.peak, self.memory * self.intensity)

    def __str__(self) -> str:
        share = 100 * self.rate / self.limit
        return (
            f"{self.name}: {_si(self.rate)}FLOP/s, {share:.0f} % of {_si(self.limit)}FLOP/s"
            f" ({_si(self.operations)}FLOP, {_si(self.moved)}B, {_si(self.memory)}B/s)"
        )

    def draw(self, ax: Any) -> Any:
        """Draw the roof and the call on matplotlib's Axes *ax*, and return them."""
        low, high = self._span()
        bend = self.peak / self.memory
        along = (low, min(max(bend, low), high), high)
        ax.loglog(along, [min(self.peak, self.memory * at) for at in along])
        ax.plot([self.intensity], [self.rate], "o", label=self.name)
        ax.set(xlabel="FLOP per byte", ylabel="FLOP/s", title=str(self))
        return ax

    def _span(self) -> tuple[float, float]:
        """The least and the greatest intensity that are drawn: powers of two."""
        ends = (self.intensity, self.peak / self.memory)
        return 2.0 ** math.floor(math.log2(min(ends)) - 1), 2.0 ** math.ceil(
            math.log2(max(ends)) + 1
        )

    def _repr_svg_(self) -> str:
        return self.svg

    @property
    def svg(self) -> str:
        """The picture as the text of an SVG document."""
        return self.picture.svg

    @property
    def picture(self) -> Picture:
        """The roof and the call as a picture."""
        (low, high), top = self._span(), 2.0 * max(self.peak, self.rate)
        bottom = min(self.rate, self.memory * low, self.peak) / 2

        def place(intensity: float, rate: float) -> tuple[float, float]:
            x = math.log(intensity / low) / math.log(high / low)
            y = math.log(rate / bottom) / math.log(top / bottom)
            return MARGIN + WIDTH * x, 16 + HEIGHT * (1 - y)

        bend = min(max(self.peak / self.memory, low), high)
        corners = [place(at, min(self.peak, self.memory * at)) for at in (low, bend, high)]
        x, y = place(self.intensity, self.rate)
        base, left = 16 + HEIGHT, MARGIN
        shapes = [
            line(left, base, left + WIDTH, base),
            line(left, 16, left, base),
            line(*corners[0], *corners[1], PARTS[0]),
            line(*corners[1], *corners[2], PARTS[0]),
            f'<circle cx="{x:g}" cy="{y:g}" r="5" fill="{PARTS[4]}"/>',
            label(x + 8, y + 14, f"{self.name}: {_si(self.rate)}FLOP/s"),
            label(left + WIDTH, corners[2][1] - 6, f"{_si(self.peak)}FLOP/s", "number"),
            label(corners[0][0] + 6, corners[0][1] - 10, f"{_si(self.memory)}B/s"),
        ]
        ticks = [2.0**at for at in range(round(math.log2(low)), round(math.log2(high)) + 1)]
        shapes += [label(place(at, bottom)[0] - 6, base + 16, f"{at:g}") for at in ticks]
        shapes.append(label(left + WIDTH, base + 34, "FLOP per byte", "number"))
        return drawing(str(self), WIDTH + MARGIN + 24, base + 44, shapes)


@front_door
def roofline(
    kernel: Runnable, *, operations: float | None = None, ax: Any = None, **args: Any
) -> Roofline | Any:
    """Return *kernel*, called with *args*, in the roofline model; it is called some ten times.

    Args:
        kernel: What ``spcomp.compile`` returns, for a CPU.
        operations: How many operations on floats a call does; by default counted in its loops.
        ax: matplotlib's Axes to draw on; they are returned.
        args: The arguments by name, outputs excepted.

    Raises:
        ArgumentError: An argument is wrong, or operations cannot be counted and are not given.
    """
    expect("kernel", kernel, Runnable, "a kernel", hint="spcomp.compile returns one")
    results = kernel(**args)
    seconds = kernel.time_evaluator(number=1, repeat=9)(**args).median
    if isinstance(kernel, Bound):  # whose loops read what is bound, too
        args = {**kernel.arguments, **args}
        kernel = kernel.kernel
    if operations is None:
        operations = _operations(kernel, args)
    if not operations > 0:
        raise ArgumentError(f"argument operations: got {operations}, expected a positive number")
    moved = sum(map(_bytes, args.values())) + _bytes(results)
    memory = rates().near if moved <= this_machine().l2 else rates().far
    result = Roofline(kernel.name, operations, moved, seconds, memory, _peak())
    return result if ax is None else result.draw(ax)


def _operations(kernel: Runnable, args: dict[str, Any]) -> float:
    """Return the operations on floats of a call, counted in the loops of its programs."""
    matrices = {
        name: matrix_statistics(arg)
        for name, arg in args.items()
        if getattr(arg, "ndim", 0) == 2 and not isinstance(arg, np.ndarray)
    }
    total = 0.0
    try:
        for part in kernel.specialize(**args).kernels():
            func = parse(part.stage("coordinate"))  # the loops of no schedule, which pad nothing
            assert isinstance(func, CoordFunc)
            known = {param.name for param in func.params}
            sizes = {name: n for name, n in _sizes(part, args).items() if name in known}
            total += candidate_features(func, matrices, sizes).operations
    except SpcompError as error:
        raise ArgumentError(
            f"operations cannot be counted: {error.message}",
            hint="say how many a call does: operations=",
        ) from error
    if not total:
        raise ArgumentError(
            f"{kernel.name} does no operations on floats with these arguments",
            hint="give what a call does of another kind: operations=",
        )
    return total


def _sizes(kernel: Runnable, args: dict[str, Any]) -> dict[str, int]:
    """Return the numbers that arguments are, or their shapes say, by the names of parameters."""
    numbers = {
        name: int(arg) if isinstance(arg, (int, np.integer)) else 0  # a float is no size
        for name, arg in args.items()
        if isinstance(arg, (int, np.integer, float, np.floating))
    }
    return numbers | {
        name: int(extent)
        for param in kernel.signature.params
        if param.name in args
        for name, extent in zip(param.shape, getattr(args[param.name], "shape", ()), strict=False)
    }


def _bytes(x: Any) -> int:
    """Return the bytes of the arrays of *x*: an array, a matrix, or a tuple of them."""
    if isinstance(x, tuple):
        return sum(map(_bytes, x))
    if isinstance(x, np.ndarray):
        return x.nbytes
    levels = [array for level in getattr(x, "levels", ()) if level for array in level.arrays]
    arrays = [getattr(x, name, None) for name in NAMES] + levels
    return sum(array.nbytes for array in arrays if isinstance(array, np.ndarray))


def _peak() -> float:
    """Return the operations in a second that a polynomial reaches, float32, on all threads."""
    return _peak_with(get_num_threads())


@cache
def _peak_with(threads: int) -> float:  # noqa: ARG001 (what the machine code runs on)
    terms = "".join(f" * x[i] + {0.5 + at / DEGREE:g})" for at in range(DEGREE))
    kernel = compiled(f"y[i] = {'(' * DEGREE}x[i]{terms}", fast_math=True, tuned=False)
    x = np.full(SIZE, 0.5, np.float32)
    y = kernel(x=x)
    best = math.inf
    for _ in range(9):
        begin = perf_counter()
        kernel(x=x, out=y)
        best = min(best, perf_counter() - begin)
    return 2.0 * DEGREE * SIZE / best


def _si(value: float) -> str:
    """Return *value* with three digits and the prefix of its unit."""
    for prefix in ("", "k", "M", "G"):
        if value < 1000:
            return f"{value:.3g} {prefix}"
        value /= 1000
    return f"{value:.3g} T"
