"""Beside a call: the same by the interpreters, to find the stage at which a number goes wrong."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from spcomp.errors import ArgumentError, expect
from spcomp.kernels.call import prepare
from spcomp.kernels.results import collect, result_wraps
from spcomp.runtime import host

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spcomp.arrays import Array
    from spcomp.compiler.compiled import Compiled
    from spcomp.kernels.frame import Frame

STAGES = ("coordinate", "position", "flat", "code")  # the last one is machine code
Arrays = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Difference:
    """The first element of *array* at which a stage differs from the one that it is compared to."""

    array: str
    index: tuple[int, ...]
    value: Any
    expected: Any

    def __str__(self) -> str:
        at = ", ".join(map(str, self.index))
        return f"{self.array}[{at}] is {self.value}, not {self.expected}"


@dataclass(frozen=True, slots=True)
class Comparison:
    """What each stage of a program computes, against the first of them.

    *found* has for every later stage, in order, the first element that differs, or None.
    """

    first: str
    found: Mapping[str, Difference | None]

    @property
    def stage(self) -> str | None:
        """The first stage that computes something else; None if all agree."""
        return next((stage for stage, what in self.found.items() if what is not None), None)

    def __bool__(self) -> bool:
        return self.stage is None

    def __str__(self) -> str:
        lines = (f"{stage}: {what or 'the same'}" for stage, what in self.found.items())
        return "\n".join((f"{self.first}: what the others are compared to", *lines))


class Interpretation:
    """A call of *compiled* that *frame* has the arguments of, to be run at any stage.

    Nothing that the caller gave is written to. Raises ArgumentError as the call would.
    """

    def __init__(self, compiled: Compiled, frame: Frame) -> None:
        prepare(frame, verify=True)
        self.frame, self.code = frame, compiled.variant(frame.values)
        outputs = frame.interface.outputs
        self.outputs = {plan.handle: plan.name for plan in outputs}
        self.bfloats = {plan.name for plan in outputs if plan.dtype.kind == "bfloat"}

    @property
    def stages(self) -> tuple[str, ...]:
        """The stages that the program has."""
        above = (stage for stage in STAGES[:-1] if getattr(self.code.stages, stage) is not None)
        return (*above, "code")

    def result(self, stage: str) -> Any:
        """Return what the call would return; raises ArgumentError if there is no such stage."""
        expect("stage", stage, str, f"one of {', '.join(self.stages)}")
        if stage not in self.stages:
            hint = f"stages of this program are {', '.join(self.stages)}"
            raise ArgumentError(f"argument stage: got {stage!r}", hint=hint)
        values, arrays = self._run(stage)
        frame, before, given = self.frame, dict(self.frame.values), dict(self.frame.given)
        frame.values.update(values)
        frame.given.clear()  # results are new: what was given stays as it was
        try:
            return collect(frame, result_wraps(frame, arrays), arrays)
        finally:
            frame.values.update(before)
            frame.given.update(given)

    def comparison(self) -> Comparison:
        """Return how all stages compare."""
        first, *others = self.stages
        values, arrays = self._run(first)
        want, found = self._outputs(values, arrays), {}
        for stage in others:
            got = self._outputs(*self._run(stage))
            differences = (
                _difference(name, got[name], want[name], bits=name in self.bfloats) for name in want
            )
            found[stage] = next((d for d in differences if d is not None), None)
        return Comparison(first, found)

    def _run(self, stage: str) -> tuple[Arrays, Arrays]:
        """Return copies of the values of the call after it ran, and the assembled arrays."""
        values = {
            name: np.array(value, order="C") if isinstance(value, np.ndarray) else value
            for name, value in self.frame.values.items()
        }
        if stage == "code":
            return values, host.run(self.code.host, self.code.funcs, self.code, values)
        from spcomp.ir.interpret.program import interpret  # only here, so only when asked for

        module = getattr(self.code.stages, stage)
        names = {param.name for param in module.source.params} & {*values}
        args = {name: np.reshape(values[name], -1) for name in names if np.ndim(values[name])}
        return values, interpret(module, {name: args.get(name, values[name]) for name in names})

    def _outputs(self, values: Arrays, arrays: Arrays) -> Arrays:
        """Return the arrays of all results by name."""
        dense = {name: values[handle] for handle, name in self.outputs.items() if handle in values}
        named = {self.outputs.get(handle, handle): array for handle, array in arrays.items()}
        return dense | named


def _difference(name: str, got: Array, want: Array, *, bits: bool) -> Difference | None:
    """Return where two arrays called *name* differ by more than rounding in another order does.

    *bits*: they are the bits of bfloat16.
    """
    if got.shape != want.shape:
        return Difference(f"{name}.shape", (), got.shape, want.shape)
    if bits:
        got, want = ((a.astype(np.uint32) << 16).view(np.float32) for a in (got, want))
    if got.dtype.kind not in "fc":
        differs = got != want
    else:
        tolerance = float(np.sqrt(2.0**-7 if bits else np.finfo(got.dtype).eps))
        finite = np.abs(want[np.isfinite(want)])
        least = tolerance * float(finite.max(initial=0))
        differs = ~np.isclose(got, want, rtol=tolerance, atol=least, equal_nan=True)
    if not differs.any():
        return None
    index = tuple(int(k) for k in np.unravel_index(int(np.argmax(differs)), differs.shape))
    return Difference(name, index, got[index].item(), want[index].item())
