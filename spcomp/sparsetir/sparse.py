"""Before the route: ``tvm.sparse``: rules, decomposition, lowering, and conversions in numpy."""

from __future__ import annotations

from collections.abc import Sequence

from spcomp.formats.rules import FormatRewriteRule as FormatRewriteRule
from spcomp.ir.axis import Axis
from spcomp.ir.coordinate import CoordFunc
from spcomp.ir.expr import Const
from spcomp.ir.relink import relink
from spcomp.passes.decompose_formats import format_decompose as decompose
from spcomp.sparsetir.convert import column_part_hyb as column_part_hyb
from spcomp.sparsetir.convert import condense as condense
from spcomp.sparsetir.convert import csf_to_ell3d as csf_to_ell3d
from spcomp.sparsetir.module import IRModule, as_module

__all__ = [
    "FormatRewriteRule",
    "column_part_hyb",
    "condense",
    "csf_to_ell3d",
    "format_decompose",
    "lower_sparse_buffer",
    "lower_sparse_iter",
]


def format_decompose(
    mod: IRModule,
    composable_formats: Sequence[FormatRewriteRule],
    include_format_rewrite_blks: bool = True,  # noqa: FBT001, FBT002 (SparseTIR's signature)
) -> IRModule:
    """Return *mod* with one iteration per rule; see ``spcomp.passes.decompose_formats``.

    *include_format_rewrite_blks*: with iterations before them that fill the parts. As SparseTIR's
    loops have it, the only fiber of a sparse_variable axis is all of its ``nnz`` positions: its
    indptr stays a parameter that nothing reads.
    """
    return as_module(mod).map_funcs(
        lambda func: _with_whole_fibers(
            decompose(func, composable_formats, include_format_rewrite_blks)
        )
    )


def _with_whole_fibers(func: CoordFunc) -> CoordFunc:
    """Return *func* with sparse_variable axes that have one fiber as sparse_fixed ones."""
    made: dict[Axis, Axis] = {}
    for axis in func.axes:
        root = axis.parent
        if axis.kind != "sparse_variable" or root is None or root.parent is not None:
            continue
        if axis.nnz is not None and isinstance(root.length, Const) and root.length.value == 1:
            made[axis] = axis.replace(kind="sparse_fixed", indptr=None, nnz_cols=axis.nnz, nnz=None)
    return relink(func, axes=made)


def lower_sparse_iter(
    mod: IRModule,
    check_invalid_binary_search: bool = False,  # noqa: FBT001, FBT002
) -> IRModule:
    """Return *mod* in position space; see :func:`spcomp.lower_sparse_iter`."""
    return as_module(mod).map(
        lambda schedule: schedule.lower_sparse_iter(
            check_invalid_binary_search=check_invalid_binary_search, search_blocks=True
        )
    )


def lower_sparse_buffer(mod: IRModule) -> IRModule:
    """Return *mod* over flat buffers; see :func:`spcomp.lower_sparse_buffer`."""
    return as_module(mod).map(lambda schedule: schedule.lower_sparse_buffer())
