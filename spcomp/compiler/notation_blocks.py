"""Around the route: index notation over a matrix that is to be stored in blocks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from spcomp.errors import FormatError
from spcomp.formats.library import bsr, dbsr
from spcomp.notation.direct import adds_products
from spcomp.notation.layout import Layout
from spcomp.notation.nodes import accesses

if TYPE_CHECKING:
    from spcomp.compiler.compile import Options
    from spcomp.compiler.formats import FormatKernel
    from spcomp.compiler.notation import Planned
    from spcomp.notation.semiring import Semiring

LARGEST = 64  # values of a block: one element at least is in it


def in_blocks(
    planned: Planned, wanted: Mapping[str, Layout], semiring: Semiring, options: Options
) -> FormatKernel | None:
    """Return the Kernel that stores the one sparse matrix of *planned* in the blocks *wanted*.

    None where no blocks are asked for, or the program is none for them: more than a sum of products
    with dense operands, into a dense result. The matrix is then iterated as csr.
    """
    name = _blocked(planned, wanted)
    if name is None or not adds_products(planned.plans[0].stmt, semiring):
        return None
    from spcomp.compiler.compile import kernel_of
    from spcomp.compiler.formats import Decomposed, FormatKernel, decompose

    rows, columns = (kind.size or 1 for kind in wanted[name].kinds[2:])
    blocks = bsr if wanted[name].levels[0] == "dense" else dbsr
    try:
        program = decompose(planned.func, **{name: blocks((rows, columns))})
    except FormatError:
        return None
    if not isinstance(program, Decomposed):
        return None
    return FormatKernel(program, kernel_of(program.func, options))


def _blocked(planned: Planned, wanted: Mapping[str, Layout]) -> str | None:
    """The sparse matrix of a program that has no other, if it is asked for in blocks."""
    sparse = {n: a.operand for n, a in planned.arguments.items() if not a.operand.layout.is_dense}
    if len(sparse) != 1 or len(planned.plans) != 1:
        return None
    ((name, operand),) = sparse.items()
    plan, blocks = planned.plans[0], wanted.get(name)
    own = [access for access in accesses(plan.stmt.value) if access.name == name]
    if blocks is None or blocks.order != (0, 1, 0, 1) or str(operand.layout) != "csr":
        return None
    if len(own) != 1 or len(set(own[0].indices)) < 2 or plan.output.storage != "dense":
        return None
    sizes = [kind.size or 1 for kind in blocks.kinds[2:]]
    named = blocks.levels[0] in ("dense", "compressed") and blocks.levels[1] == "compressed"
    return name if named and sizes[0] * sizes[1] <= LARGEST else None
