"""Under the tuner: how a program is compiled, as a value that prints, is kept, and compiles."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from spcomp.errors import ArgumentError
from spcomp.kernels.kernel import Kernel
from spcomp.kernels.protocol import Bound, Runnable
from spcomp.runtime.pool import get_num_threads
from spcomp.schedule.step import Trace
from spcomp.tune.layouts import format_of

if TYPE_CHECKING:
    from spcomp.compiler.options import Options
    from spcomp.formats.rules import ComposableFormat
    from spcomp.ir.func import Func
    from spcomp.kernels.decomposed.choose import ChoosingKernel
    from spcomp.kernels.decomposed.kernel import FormatKernel


@dataclass(frozen=True, slots=True)
class Choice:
    """How a program is compiled. One without fields is what ``compile`` does by itself.

    *formats*: texts of the formats in which matrices are stored, by buffer; *rules*: formats that
    have no text, made of the user's rules. *trace*: the steps; None: the default ones, in versions
    for the arguments. *extents*: the sizes that the trace is made for, which are compiled in.
    *threads*: how many a call uses, unless fewer are allowed; None: as many as are allowed.
    """

    formats: tuple[tuple[str, str], ...] = ()
    trace: Trace | None = None
    extents: tuple[tuple[str, int], ...] = ()
    threads: int | None = None
    rules: tuple[tuple[str, ComposableFormat], ...] = ()

    @property
    def layouts(self) -> dict[str, ComposableFormat]:
        """The formats by buffer."""
        return {**{name: format_of(text) for name, text in self.formats}, **dict(self.rules)}

    @property
    def sizes(self) -> Mapping[str, int]:
        """The sizes that are compiled in, by name."""
        return dict(self.extents) if self.trace is not None else {}

    def taken(self, named: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the arguments *named* without those that state a size that is compiled in.

        Raises ArgumentError if that is another one.
        """
        stated = {name: size for name, size in self.sizes.items() if name in named}
        if not stated:
            return named
        for name, size in stated.items():
            if named[name] != size:
                raise ArgumentError(
                    f"argument {name}: got {named[name]}, expected {size}, which is compiled in"
                )
        return {name: arg for name, arg in named.items() if name not in stated}

    @property
    def is_stored(self) -> bool:
        """Whether a text says everything about it: rules of the user's are none."""
        return not self.rules

    def kernel(self, func: Func, options: Options) -> Kernel | FormatKernel | ChoosingKernel:
        """Return *func* compiled this way; raises SpcompError where it cannot be."""
        options = replace(
            options,
            constants={**options.constants, **self.sizes},
            trace=self.trace,
            threads=self._threads(options.threads),
            tuned=None,
        )
        if not self.formats and not self.rules:
            return Kernel.of(func, options)
        from spcomp.ir.program import CoordFunc
        from spcomp.kernels.decomposed.choose import ChoosingKernel, Undecided
        from spcomp.kernels.decomposed.decompose import decompose
        from spcomp.kernels.decomposed.kernel import FormatKernel

        if not isinstance(func, CoordFunc):
            raise ArgumentError("only programs in coordinate space can have other formats")
        program = decompose(func, **self.layouts)
        if isinstance(program, Undecided):
            return ChoosingKernel(program, options)
        return FormatKernel.of(program, options)

    def _threads(self, allowed: int | None) -> int | None:
        """Return how many threads a call uses, of those that ``compile`` or the process allows."""
        return allowed if self.threads is None else min(self.threads, allowed or get_num_threads())

    def to_json(self) -> str:
        """Return the choice as text; raises ArgumentError if it has rules of the user's."""
        if not self.is_stored:
            raise ArgumentError("formats made of rules cannot be written as text")
        return json.dumps(
            {
                "formats": dict(self.formats),
                "trace": None if self.trace is None else self.trace.to_json_lines(),
                "extents": dict(self.extents),
                "threads": self.threads,
            }
        )

    @staticmethod
    def from_json(text: str) -> Choice:
        """Return the choice that *text* says; raises ArgumentError or ScheduleError if none."""
        try:
            read = json.loads(text)
            trace, threads = read["trace"], read["threads"] and int(read["threads"])
            formats = tuple((str(k), str(v)) for k, v in read["formats"].items())
            extents = tuple((str(k), int(v)) for k, v in read["extents"].items())
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise ArgumentError(f"no choice of a tuner: {text[:100]!r}") from error
        for _, layout in formats:
            format_of(layout)
        steps = None if trace is None else Trace.from_json_lines(trace)
        return Choice(formats, steps, extents, threads)

    def __str__(self) -> str:
        stored = [f"{name} in {text}" for name, text in self.formats]
        stored += [f"{name} in {layout}" for name, layout in self.rules]
        steps = "default steps" if self.trace is None else f"{len(self.trace)} steps"
        threads = "" if self.threads is None else f", {self.threads} threads"
        return f"{', '.join(stored) or 'as it comes'}, {steps}{threads}"


class SizedBound(Bound):
    """The kernel *bound*, with *arguments* bound, of *choice*, whose sizes calls may state."""

    def __init__(self, bound: Runnable, arguments: Mapping[str, Any], choice: Choice) -> None:
        super().__init__(bound, arguments)
        self._choice = choice

    def __call__(self, *, out: Any = None, **named: Any) -> Any:
        """Run the program on the bound arguments and *named*; returns as the Kernel does."""
        return self.kernel(out=out, **self._choice.taken(named))

    def _with_bound(self, named: Mapping[str, Any]) -> dict[str, Any]:
        return dict(self._choice.taken(named))  # the kernel has the bound ones

    def __reduce__(self) -> tuple[Any, ...]:
        return SizedBound, (self.kernel, self.arguments, self._choice)


def layouts_of(formats: Any) -> Mapping[str, Any]:
    """Return *formats*, which a user's space yields, by buffer; raises ArgumentError."""
    if formats is None:
        return {}
    if isinstance(formats, Mapping):
        return formats
    raise ArgumentError(
        f"a space yields formats by the names of buffers, got {type(formats).__name__}",
        hint='write {"A": spcomp.formats.bsr(4)}, or None for the format of the argument',
    )
