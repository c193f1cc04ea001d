"""Around the route: index notation over matrices that are stored in formats of several parts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeAlias

from spcomp.errors import FormatError, LoweringError
from spcomp.formats.library import bsr, dbsr
from spcomp.formats.rules import ComposableFormat, Kept
from spcomp.notation.direct import adds_products
from spcomp.notation.layout import Layout
from spcomp.notation.nodes import accesses
from spcomp.notation.reason import Reason

if TYPE_CHECKING:
    from spcomp.compiler.options import Options
    from spcomp.ir.program import CoordFunc
    from spcomp.kernels.decomposed.choose import ChoosingKernel
    from spcomp.kernels.decomposed.kernel import FormatKernel
    from spcomp.kernels.notation.planned import Planned
    from spcomp.kernels.protocol import Runnable
    from spcomp.notation.semiring import Semiring

PartFormats: TypeAlias = Mapping[str, ComposableFormat]  # by the names of operands
LARGEST = 64  # values of a block, of which only one may be an element


def format_texts(kernel: Runnable, stored: PartFormats) -> dict[str, str]:
    """Return the formats of the operands that *kernel* has *stored*, chosen last, as text.

    A tuned one chooses for operands that are not *stored* otherwise.
    """
    return {
        name: f"{stored.get(name, layout)}, iterated as csr"
        if isinstance(layout, Kept)
        else str(layout)
        for name, layout in (kernel.last_chosen or stored).items()
    }


def kernel_in_parts(
    planned: Planned, requested: PartFormats, offered: PartFormats, options: Options
) -> FormatKernel | ChoosingKernel | None:
    """Return the Kernel with operands in the formats *requested*, and *offered* where they fit.

    None if there are no such operands. Raises FormatError for a requested format that does not fit.
    """
    kernel: FormatKernel | ChoosingKernel | None = None
    formats: dict[str, ComposableFormat] = {}
    wishes = {name: layout for name, layout in offered.items() if layout != Kept()}
    for name, layout in {**requested, **wishes}.items():
        compiled = _assembled_from(planned, name) or _kernel(
            planned.func, {**formats, name: layout}, options
        )
        if not isinstance(compiled, Reason):
            kernel, formats[name] = compiled, layout
        elif name in requested:
            raise FormatError(
                f"argument formats: {name} cannot be stored as {layout} in this program:"
                f" {compiled}",
                hint=compiled.hint,
            )
    return kernel


def _kernel(
    func: CoordFunc, formats: PartFormats, options: Options
) -> FormatKernel | ChoosingKernel | Reason:
    """Return *func* over the parts of *formats*, compiled, or why it cannot be."""
    from spcomp.kernels.decomposed.choose import ChoosingKernel
    from spcomp.kernels.decomposed.decompose import decompose
    from spcomp.kernels.decomposed.kernel import Decomposed, FormatKernel

    name = list(formats)[-1]
    try:
        program = decompose(func, **formats)
        if isinstance(program, Decomposed):
            return FormatKernel.of(program, options)
        return ChoosingKernel(program, options)
    except (FormatError, LoweringError) as error:  # as passes say it by errors only
        whole, _, rest = error.message.partition(" cannot be decomposed: ")
        return _no_parts(name, rest or whole)


def _assembled_from(planned: Planned, name: str) -> Reason | None:
    """Return the reason that a result is assembled from the operand *name*; None if none is."""
    for plan in planned.plans:
        reads = any(access.name == name for access in accesses(plan.stmt.value))
        if reads and plan.output.is_assembled:
            return _no_parts(name, f"{plan.stmt.target.name} is assembled row by row")
    return None


def _no_parts(name: str, message: str) -> Reason:
    return Reason(
        message,
        hint=f"parts of {name} are iterated by themselves, into a dense result or one with the"
        ' pattern of it: ask for a dense result, split the statement, or ask for "csr"',
    )


def block_formats(
    planned: Planned, wanted: Mapping[str, Layout], semiring: Semiring
) -> PartFormats:
    """Return the format of the one sparse matrix of *planned*, if blocks are *wanted* and pay.

    They pay in a sum of products with dense operands, into a dense result. Else the matrix is
    iterated as csr, as loops cannot run over levels of blocks.
    """
    name = _blocked(planned, wanted)
    if name is None or not adds_products(planned.plans[0].stmt, semiring):
        return {}
    rows, columns = (kind.size or 1 for kind in wanted[name].kinds[2:])
    blocks = bsr if wanted[name].levels[0] == "dense" else dbsr
    return {name: blocks((rows, columns))}


def _blocked(planned: Planned, wanted: Mapping[str, Layout]) -> str | None:
    """Return the name of the only sparse matrix of a program, if it is wanted in blocks."""
    sparse = {n: a.operand for n, a in planned.arguments.items() if not a.operand.layout.is_dense}
    if len(sparse) != 1 or len(planned.plans) != 1:
        return None
    ((name, operand),) = sparse.items()
    plan, blocks = planned.plans[0], wanted.get(name)
    reads = [access for access in accesses(plan.stmt.value) if access.name == name]
    if blocks is None or blocks.order != (0, 1, 0, 1) or str(operand.layout) != "csr":
        return None
    if len(reads) != 1 or len(set(reads[0].indices)) < 2 or plan.output.storage != "dense":
        return None
    sizes = [kind.size or 1 for kind in blocks.kinds[2:]]
    is_rows = blocks.levels[0] in ("dense", "compressed") and blocks.levels[1] == "compressed"
    return name if is_rows and sizes[0] * sizes[1] <= LARGEST else None
