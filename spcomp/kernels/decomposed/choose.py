"""Around the route: programs over formats that are chosen when the matrix is known."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from spcomp.compiler.interface import Interface, Signature, interface
from spcomp.compiler.options import Options
from spcomp.errors import ArgumentError
from spcomp.formats.rules import ComposableFormat
from spcomp.ir.program import CoordFunc
from spcomp.kernels.decomposed.kernel import Decomposed, FormatKernel, formats_text, with_parts
from spcomp.kernels.decomposed.latest import Latest, identity_of
from spcomp.kernels.kernel import Kernel
from spcomp.kernels.protocol import Bound, InnerCall, Runnable
from spcomp.locks import Lock
from spcomp.tensors.arguments import storage_of
from spcomp.tensors.parts.parts import Parts, no_pattern

MOST = 32  # choices of formats that a Kernel keeps compiled


@dataclass(frozen=True, slots=True, eq=False)
class Undecided:
    """A program over *formats*, by buffer, some of them chosen by the matrix at the call."""

    source: CoordFunc
    formats: Mapping[str, ComposableFormat]

    def compile(self, **options: Any) -> ChoosingKernel:
        """Return the Kernel that chooses and converts; takes the options of ``compile``."""
        return ChoosingKernel(self, Options.of(**options))

    def settle(self, **matrices: Any) -> Decomposed:
        """Return the program over the parts of the formats chosen for *matrices*.

        It takes an argument for each buffer in an open format, as the Kernel does. Raises
        ArgumentError.
        """
        return with_parts(self.source, self.choose(interface(self.source), matrices))

    def choose(self, face: Interface, matrices: Mapping[str, Any]) -> dict[str, ComposableFormat]:
        """Return the format of each buffer for the arguments *matrices*; raises ArgumentError."""
        chosen = {}
        for name, layout in self.formats.items():
            if layout.is_open and name not in matrices:
                hint = "a matrix that is stored in a format is bound, or given at every call"
                raise ArgumentError(f"missing argument {name} of {self.source.name}", hint=hint)
            chosen[name] = _chosen(name, layout, face, matrices.get(name))
        return chosen

    def __reduce__(self) -> tuple[Any, ...]:
        return Undecided, (self.source, dict(self.formats))


def _chosen(name: str, layout: ComposableFormat, face: Interface, matrix: Any) -> ComposableFormat:
    if not layout.is_open:
        return layout
    if isinstance(matrix, Parts):
        return matrix.format
    storage = storage_of(matrix, face.by_name[name], verify=False)
    level = storage.levels[1] if storage.levels is not None else None
    if level is None or level.indptr is None or storage.shape is None:
        raise no_pattern(name)
    return layout.chosen(np.diff(level.indptr), storage.shape[1])


class ChoosingKernel(Runnable):
    """A Kernel that chooses formats by the matrix and converts it; made by ``spcomp.compile``.

    Call it like a FormatKernel. It compiles one for each choice, when that is first needed.
    """

    chooses = True

    def __init__(self, program: Undecided, options: Options) -> None:
        self.program, self._options = program, options
        self._face = interface(program.source)
        self._kernels: OrderedDict[tuple[ComposableFormat, ...], FormatKernel] = OrderedDict()
        self._choice: Latest[FormatKernel] = Latest()
        self._latest: FormatKernel | None = None
        self._lock = Lock()

    def __call__(self, /, *args: Any, out: Any = None, **named: Any) -> Any:
        """Run the program; returns as the Kernel does. Raises ArgumentError."""
        return self.choose(**named)(*args, out=out, **named)

    def bind(self, /, **named: Any) -> Bound:
        """Return a callable for the other arguments; matrices are converted, and copied."""
        return self.choose(**named).bind(**named)

    def specialize(self, /, **named: Any) -> Runnable:
        """Return the Kernel over the parts that a call with arguments like these runs."""
        return self.choose(**named).specialize(**named)

    def explain(self, /, **named: Any) -> str:
        """Return the formats chosen for arguments like *named*, or chosen last, and the steps."""
        return (self.choose(**named) if named else self.latest).explain(**named)

    def inner_call(self, named: Mapping[str, Any]) -> InnerCall:
        """Return the call with *named* of the kernel for the formats chosen for them."""
        return self.choose(**named).inner_call(named)

    @property
    def signature(self) -> Signature:
        """The parameters of the program before the decomposition, by which it is called."""
        return self._face.signature

    def kernels(self) -> tuple[Kernel, ...]:
        """Return the Kernel over the parts that was chosen last. Raises ArgumentError."""
        return self.latest.kernels()

    def convert(self, **matrix: Any) -> Parts:
        """Return one argument, ``A=csr``, converted to the format chosen for it."""
        return self.choose(**matrix).convert(**matrix)

    def choose(self, **matrices: Any) -> FormatKernel:
        """Return the Kernel for the formats that *matrices* are stored in. Raises ArgumentError."""
        identity = identity_of(self.program.formats, matrices)
        kernel = self._choice.find(identity)
        if kernel is None:
            kernel = self._choice.keep(identity, self._compiled(matrices))
        self._latest = kernel
        return kernel

    def _compiled(self, matrices: Mapping[str, Any]) -> FormatKernel:
        """Return the Kernel for the formats chosen for *matrices*, compiled if it is new."""
        formats = self.program.choose(self._face, matrices)
        key = tuple(formats.values())
        with self._lock:
            kernel = self._kernels.get(key)
            if kernel is None:
                program = with_parts(self.program.source, formats)
                kernel = self._kernels[key] = FormatKernel.of(program, self._options)
            self._kernels.move_to_end(key)
            while len(self._kernels) > MOST:
                self._kernels.popitem(last=False)
        return kernel

    @property
    def latest(self) -> FormatKernel:
        """The Kernel that was chosen last. Raises ArgumentError if none was."""
        if self._latest is None:
            raise ArgumentError(
                f"{self.name}: formats are not chosen yet",
                hint="call it first, or take kernel.specialize(...) with its arguments",
            )
        return self._latest

    @property
    def last_chosen(self) -> Mapping[str, ComposableFormat]:
        """The formats that were chosen last; before any choice, the formats to choose from."""
        return (self if self._latest is None else self._latest).program.formats

    @property
    def name(self) -> str:
        """The name given to ``compile``, else the program's."""
        return self._options.name or self.program.source.name

    def __repr__(self) -> str:
        return f"<Kernel {self.name} with {formats_text(self.program.formats)}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return ChoosingKernel, (self.program, self._options)
