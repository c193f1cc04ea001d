"""A call: arguments are taken apart and checked, code runs, results are wrapped; its record."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from spcomp.errors import ArgumentError
from spcomp.kernels.results import allocate, collect, new_array, result_wraps
from spcomp.runtime import host

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from spcomp.compiler.compiled import Compiled
    from spcomp.compiler.interface import BufferPlan, Interface
    from spcomp.kernels.frame import Frame
    from spcomp.kernels.results import Wrap


class CallRecord(NamedTuple):
    """What a call did, a field per step; ``str`` shows the steps in order.

    *named*: the arguments. *frame*: the same taken apart and checked; its values include the sizes.
    *allocated*: the outputs that the call allocated. *code*: the version that ran. *wraps*: how the
    results were made of arrays. *result*: what the call returned.
    """

    named: Mapping[str, Any]
    frame: Frame
    allocated: tuple[BufferPlan, ...]
    code: Compiled
    wraps: tuple[Wrap | None, ...]
    result: Any

    def __str__(self) -> str:
        return "\n".join(f"{step:<10}{what}" for step, what in self._steps())

    def _steps(self) -> Iterator[tuple[str, str]]:
        frame, values = self.frame, self.frame.values
        for name, arg in self.named.items():
            source = frame.arguments[name][1].source if name in frame.arguments else arg
            yield "take", f"{name}: {type(arg).__name__}, {source}"
        arrays = {name: v for name, v in values.items() if isinstance(v, np.ndarray)}
        numbers = (f"{name} = {v}" for name, v in values.items() if name not in arrays)
        yield "sizes", ", ".join(numbers)
        for check in frame.checks:
            yield "check", str(check)
        for plan in self.allocated:
            yield "allocate", f"{plan.name}: {plan.np_dtype}{list(arrays[plan.handle].shape)}"
        yield "version", str(self.code.version)
        yield "run", ", ".join(map(str, self.code.host))
        for plan, wrap in zip(frame.interface.outputs, self.wraps, strict=True):
            how = "the array" if wrap is None else f"{wrap.look} {list(wrap.shape)}"
            yield "wrap", f"{plan.name}: {how}"


def in_place(face: Interface, name: str, named: Mapping[str, Any]) -> dict[str, Any]:
    """Return *named*, which has all parameters of *face*, in the order in which to take them.

    Raises ArgumentError if the program *name* has a result that cannot be given.
    """
    for plan in face.buffers:
        if plan.is_assembled:
            raise ArgumentError(
                f"{name}: its result {plan.name} is assembled, so it has no array to write in"
                " place",
                hint="call it by name",
            )
    is_number = face.scalars.__contains__  # first: arrays are measured against them
    return {key: named[key] for key in sorted(named, key=is_number, reverse=True)}


def prepare(
    frame: Frame,
    *,
    verify: bool,
    make: Callable[[tuple[int, ...], BufferPlan], Any] = new_array,
) -> tuple[BufferPlan, ...]:
    """Unify sizes, check and allocate; then all parameters of *frame* are known.

    Returns the outputs that were allocated, by *make*. *verify*: check what arrays hold. Raises
    ArgumentError.
    """
    frame.resolve_sizes()
    frame.require()
    frame.check(verify=verify)
    plans = allocate(frame, make)
    frame.resolve_sizes()
    return plans


def perform(
    compiled: Compiled, frame: Frame, named: Mapping[str, Any], *, verify: bool
) -> CallRecord:
    """Run *compiled* on the arguments *named*, which *frame* has taken; return the record.

    *verify*: check what arrays hold. Raises SpcompError.
    """
    allocated = prepare(frame, verify=verify)
    code = compiled.variant(frame.values)
    frame.check_order(code.order_needed, verify=verify)
    arrays = host.run(code.host, code.funcs, code, frame.values)
    wraps = result_wraps(frame, arrays)
    result = collect(frame, wraps, arrays, verify=bool(arrays) and code.is_measured)
    return CallRecord(named, frame, allocated, code, wraps, result)
