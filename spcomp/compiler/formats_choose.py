"""Around the route: programs over formats that are chosen when the matrix is known."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from spcomp.compiler.convert import convert
from spcomp.compiler.evaluator import Timed
from spcomp.compiler.formats import (
    Bound,
    Decomposed,
    FormatKernel,
    fixed,
    settled,
)
from spcomp.compiler.formats_parts import Parts, no_pattern
from spcomp.compiler.signature import Interface, interface
from spcomp.errors import ArgumentError
from spcomp.formats.rules import ComposableFormat
from spcomp.ir.program import CoordFunc
from spcomp.locks import Lock

if TYPE_CHECKING:
    from spcomp.compiler.compile import Options

MOST = 32  # choices that a Kernel keeps compiled


@dataclass(frozen=True, slots=True, eq=False)
class Undecided:
    """A program over *formats*, by buffer, of which some are chosen by the matrix at the call."""

    source: CoordFunc
    formats: Mapping[str, ComposableFormat]

    def compile(self, **options: Any) -> ChoosingKernel:
        """Return the Kernel that chooses and converts; takes the options of ``compile``."""
        from spcomp.compiler.compile import compile as compile_program

        kernel: ChoosingKernel = compile_program(self, **options)
        return kernel

    def settle(self, **matrices: Any) -> Decomposed:
        """Return the program over the parts of the formats chosen for *matrices*.

        It takes an argument for each buffer in a format that is open, as the Kernel does. Raises
        ArgumentError.
        """
        return settled(self.source, self.choose(interface(self.source), matrices))

    def choose(self, face: Interface, matrices: Mapping[str, Any]) -> dict[str, ComposableFormat]:
        """Return the format of each buffer for the arguments *matrices*; raises ArgumentError."""
        made = {}
        for name, layout in self.formats.items():
            if layout.is_open and name not in matrices:
                hint = "a matrix that is stored in a format is bound, or given at every call"
                raise ArgumentError(f"missing argument {name} of {self.source.name}", hint=hint)
            made[name] = _chosen(name, layout, face, matrices.get(name))
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return Undecided, (self.source, dict(self.formats))


def _chosen(name: str, layout: ComposableFormat, face: Interface, given: Any) -> ComposableFormat:
    if not layout.is_open:
        return layout
    if isinstance(given, Parts):
        return given.format
    storage = convert(given, face.by_name[name], verify=False)
    level = storage.levels[1] if storage.levels is not None else None
    if level is None or level.indptr is None or storage.shape is None:
        raise no_pattern(name)
    return layout.chosen(np.diff(level.indptr), storage.shape[1])


class ChoosingKernel(Timed):
    """A Kernel that chooses formats by the matrix and converts it; made by ``spcomp.compile``.

    Called as a FormatKernel, of which it makes one for each choice, when it is first needed.
    """

    def __init__(self, program: Undecided, options: Options) -> None:
        self.program, self._options = program, options
        self._face = interface(program.source)
        self._made: OrderedDict[tuple[ComposableFormat, ...], FormatKernel] = OrderedDict()
        self._last: tuple[list[weakref.ref[Any]], FormatKernel] | None = None
        self._latest: FormatKernel | None = None
        self._lock = Lock()

    def __call__(self, *args: Any, out: Any = None, **named: Any) -> Any:
        """Run the program; returns as the Kernel does. Raises ArgumentError."""
        return self.choose(**named)(*args, out=out, **named)

    def bind(self, **named: Any) -> Bound:
        """Return a callable for the rest of the arguments; matrices are converted, and copied."""
        return self.choose(**named).bind(**named)

    def convert(self, **matrix: Any) -> Parts:
        """Return one argument, ``A=csr``, converted to the format chosen for it."""
        return self.choose(**matrix).convert(**matrix)

    def choose(self, **matrices: Any) -> FormatKernel:
        """Return the Kernel for the formats that *matrices* are stored in. Raises ArgumentError."""
        owners = [fixed(matrices.get(name)) for name in self.program.formats]
        own = [x for parts in owners for x in parts] if all(owners) else []
        last = self._last
        if own and last is not None and all(a() is b for a, b in zip(last[0], own, strict=True)):
            self._latest = last[1]
            return last[1]
        formats = self.program.choose(self._face, matrices)
        key = tuple(formats.values())
        with self._lock:
            kernel = self._made.get(key)
            if kernel is None:
                kernel = self._made[key] = self._compiled(formats)
            self._made.move_to_end(key)
            while len(self._made) > MOST:
                self._made.popitem(last=False)
        if own:
            self._last = [weakref.ref(x) for x in own], kernel
        self._latest = kernel
        return kernel

    def _compiled(self, formats: Mapping[str, ComposableFormat]) -> FormatKernel:
        options = {
            field.name: getattr(self._options, field.name) for field in fields(self._options)
        }
        options.pop("facts")
        return settled(self.program.source, formats).compile(**options)

    @property
    def latest(self) -> FormatKernel:
        """The Kernel that was chosen last. Raises ArgumentError if none was."""
        if self._latest is None:
            raise ArgumentError(
                f"{self.name}: formats are not chosen yet",
                hint="call it first, or give its matrices to .choose",
            )
        return self._latest

    @property
    def last_chosen(self) -> Mapping[str, ComposableFormat]:
        """The formats that were chosen last; those that are chosen from if none were."""
        return (self if self._latest is None else self._latest).program.formats

    def stage(self, name: str) -> str:
        """Return the Kernel that was chosen last, printed at a stage, as ``Kernel.stage``."""
        text: str = self.latest.stage(name)
        return text

    def source(self, kind: str = "llvm") -> str:
        """Return the code of the Kernel that was chosen last, as ``Kernel.source``."""
        text: str = self.latest.source(kind)
        return text

    @property
    def name(self) -> str:
        """The name given to ``compile``, else the program's."""
        return self._options.name or self.program.source.name

    def __repr__(self) -> str:
        layouts = ", ".join(f"{name} in {how}" for name, how in self.program.formats.items())
        return f"<Kernel {self.name} with {layouts}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return ChoosingKernel, (self.program, self._options)
