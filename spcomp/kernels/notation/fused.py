"""Around the route: which statements of a program of index notation share loops, as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spcomp.compiler.backends import backend_of
from spcomp.ir.analysis.names import distinct
from spcomp.ir.module import single
from spcomp.knobs import knobs_of
from spcomp.passes.pipelines import to_position
from spcomp.schedule.default.rows import FUSE_ROWS, row_fusion, softmax_turns

if TYPE_CHECKING:
    from spcomp.compiler.options import Options
    from spcomp.kernels.notation.planned import Planned


def explain_rows(planned: Planned, options: Options) -> str:
    """Return where each statement of *planned* runs, and why apart from others; "" for one."""
    if not planned.func.attr(FUSE_ROWS):
        return ""
    lines = [f"memory: {temporary}" for temporary in planned.temporaries]
    target = backend_of(options.target.kind).resolve(options.target)
    for func in to_position(target).run(single(planned.func)).funcs:
        fusion = row_fusion(distinct(func), knobs_of(target))
        lines += [f"rows: {nest}" for nest in fusion.nests]
        lines += [f"softmax: {turns}" for turns in softmax_turns(fusion, knobs_of(target))]
    return "\n".join(lines)
