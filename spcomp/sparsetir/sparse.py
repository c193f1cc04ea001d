"""Before the route: ``tvm.sparse``, that is rules, decomposition, lowering and conversions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from spcomp.formats.rules import FormatRewriteRule as FormatRewriteRule
from spcomp.ir.arith.indexmap import IndexMap
from spcomp.ir.program import CoordFunc
from spcomp.passes.decompose import preprocess
from spcomp.passes.decompose.decompose_formats import format_decompose as decompose
from spcomp.sparsetir.composable import (
    in_published_order,
    with_inits_first,
    with_original_lengths,
    with_own_init,
    with_whole_fibers,
)
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
    "specialize_buffer",
]


def format_decompose(
    mod: IRModule,
    composable_formats: Sequence[FormatRewriteRule],
    include_format_rewrite_blks: bool = True,  # noqa: FBT001, FBT002 (SparseTIR's signature)
) -> IRModule:
    """Return *mod* with one iteration per rule; see ``spcomp.passes.decompose.decompose_formats``.

    *include_format_rewrite_blks* adds iterations before them that fill the parts. As in SparseTIR's
    loops, the only fiber of a sparse_variable axis has all of its ``nnz`` positions, and a single
    rule stores the whole in another format, with axes that have all coordinates for its inits.
    """

    def decomposed(func: CoordFunc) -> CoordFunc:
        result = decompose(func, composable_formats, include_format_rewrite_blks)
        if len(composable_formats) == 1:
            result = with_own_init(result, composable_formats[0].name)
        for rule in (rule.core() for rule in composable_formats):
            result = with_original_lengths(result, func, rule)
            result = in_published_order(result, func, rule)
        return with_whole_fibers(with_inits_first(result))

    return as_module(mod).map_funcs(decomposed)


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


def specialize_buffer(
    mod: IRModule, buffer_name: str, idx_map: IndexMap | Callable[..., Any]
) -> IRModule:
    """Return *mod* with a buffer computed by *idx_map* where it was read."""
    return as_module(mod).map_funcs(
        lambda func: preprocess.specialize_buffer(func, buffer_name, idx_map)
    )
