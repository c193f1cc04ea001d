"""Beside pictures: the explorer's page of a call, with what was measured of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from spcomp.errors import ArgumentError
from spcomp.explore.explorer import Explorer, explorer
from spcomp.explore.page import Measured
from spcomp.kernels.decomposed.kernel import FormatKernel
from spcomp.kernels.kernel import Kernel
from spcomp.kernels.notation.kernel import NotationKernel
from spcomp.kernels.notation.specialized import kernel_behind
from spcomp.tensors.parts.parts import Parts
from spcomp.viz.matrix import format as picture_of_format
from spcomp.viz.matrix import spy
from spcomp.viz.roofline import roofline

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from spcomp.display.picture import Picture
    from spcomp.errors import Span
    from spcomp.kernels.protocol import Runnable


def explored(kernel: Runnable, named: Mapping[str, Any]) -> Explorer:
    """Return the page of what a call of *kernel* with *named* runs; raises ArgumentError."""
    chosen = kernel.specialize(**named)
    missing: list[str] = []
    times = tuple(_times(chosen, named, missing))
    pictures = [*_matrices(kernel, named), *_roofline(kernel, named, missing)]
    shown = tuple((picture.title, picture.svg) for picture in pictures)
    return explorer(kernel.name, chosen.kernels(), Measured(times, shown, "; ".join(missing)))


def _times(
    kernel: Runnable, named: Mapping[str, Any], missing: list[str]
) -> Iterator[tuple[Span, str]]:
    """Yield what was measured of each nest of loops, with its place; or say why nothing was."""
    inner = kernel_behind(kernel)
    if not isinstance(inner, Kernel) or inner.target.kind != "cpu":
        missing.append("times of nests are those of one program, on a CPU")
        return
    for phase in kernel.profile(**named).phases:
        if phase.place is not None:
            busy = "" if phase.busy is None else f", threads busy {100 * phase.busy:.0f} %"
            rate = f"{phase.bandwidth * 1e-9:.1f} GB/s"
            yield phase.place, f"{phase.seconds * 1e6:.1f} us, {rate}{busy}"


def _matrices(kernel: Runnable, named: Mapping[str, Any]) -> Iterator[Picture]:
    """Yield pictures of the sparse matrices among *named*, in their formats."""
    formats: Mapping[str, Any] = {}
    if isinstance(kernel, FormatKernel | NotationKernel):
        formats = kernel.formats if isinstance(kernel, NotationKernel) else kernel.program.formats
    for name, arg in named.items():
        if isinstance(arg, np.ndarray) or len(getattr(arg, "shape", ())) != 2:
            continue
        matrix = arg.whole() if isinstance(arg, Parts) else arg
        layout = arg.format if isinstance(arg, Parts) else formats.get(name)
        yield spy(matrix) if layout is None else picture_of_format(matrix, layout)


def _roofline(kernel: Runnable, named: Mapping[str, Any], missing: list[str]) -> Iterator[Picture]:
    """Yield the call in the roofline model, or say why it has no place there."""
    try:
        found = roofline(kernel, **named)
    except ArgumentError as error:
        missing.append(f"no roofline: {error.message}")
    else:
        yield found.picture
