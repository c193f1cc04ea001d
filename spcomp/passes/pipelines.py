"""From level to level: the pipelines of the route by name, and as functions on programs."""

from __future__ import annotations

from typing import Any, TypeVar

from spcomp.errors import InternalError, LoweringError, ScriptError, expect
from spcomp.ir.analysis.names import distinct
from spcomp.ir.func import Func
from spcomp.ir.module import Module, single
from spcomp.ir.verify.program import verify
from spcomp.knobs import CUDA_GRID, knobs_of
from spcomp.passes.base import Pass, Pipeline, Stage, stage_of
from spcomp.passes.flat.flatten_buffers import FlattenBuffers
from spcomp.passes.flat.lower_blocks import LowerBlocks
from spcomp.passes.iterations.lower_iterations import LowerIterations
from spcomp.passes.merge.lower_merge import LowerMerge
from spcomp.passes.pack.group_rows import GroupRows
from spcomp.passes.pack.pack_results import PackResults
from spcomp.target import Target
from spcomp.target import target as parse_target

P = TypeVar("P", Func, Module[Any])


def to_position(target: Target, *, search_blocks: bool = False) -> Pipeline:
    """Return the passes from coordinate to position space for *target*."""
    return Pipeline((LowerIterations(knobs_of(target), search_blocks),))


def to_flat(target: Target) -> Pipeline:
    """Return the passes from position space to flat buffers for *target*."""
    knobs = knobs_of(target)
    pack: Pass = PackResults(knobs) if knobs.packs_results else GroupRows(knobs, CUDA_GRID)
    return Pipeline((pack, LowerMerge(knobs), LowerBlocks(), FlattenBuffers()))


def legal(module: Module[Any]) -> Module[Any]:
    """Return *module*, as a user wrote it, with distinct names.

    Raises ScriptError, at its line, for a break of the rules of its level: the language allows it,
    but no pass can handle it.
    """
    module = module.with_funcs(*map(distinct, module.funcs))
    try:
        verify(module, "parsing")
    except InternalError as error:
        raise ScriptError(error.law, error.span or module.source.span) from None
    return module


def lower_sparse_iter(
    program: P,
    *,
    check_invalid_binary_search: bool = False,
    search_blocks: bool = False,
    target: str | Target = "cpu",
) -> P:
    """Return *program*, a function or a Module, in position space: iterations become loops.

    A program at that level, or below, comes back as it is. *check_invalid_binary_search* is
    SparseTIR's: whether to check for a miss of a search. Here both values give the same code, which
    always checks: a miss reads as fill, and writing to it fails the call. *search_blocks*: as in
    SparseTIR, searches run before everything else, each in a block ``binary_search_block_0_0`` that
    is preprocessing, and their results are kept in memory; otherwise each is an expression, as far
    out as its operands allow. *target*: the machine that the program is for, which decides which
    fibers are short. Raises LoweringError, also for a function that needs several phases: lower
    the Module of it. Source: SparseTIR (ASPLOS 2023), section 3.3.
    """
    del check_invalid_binary_search
    pipeline = to_position(parse_target(target), search_blocks=search_blocks)
    return _lower(program, Stage.COORDINATE, pipeline)


def lower_sparse_buffer(program: P, *, target: str | Target = "cpu") -> P:
    """Return *program*, a function or a Module, over flat buffers: no axes, no blocks.

    A program at that level comes back as it is. *target*: the machine that the program is for,
    which decides how merges run. Raises LoweringError for a program in coordinate space.
    Source: SparseTIR (ASPLOS 2023), section 3.4.
    """
    return _lower(program, Stage.POSITION, to_flat(parse_target(target)))


def _lower(program: P, level: Stage, pipeline: Pipeline) -> P:
    expect("program", program, (Func, Module), "a function of the script language or a Module")
    module: Module[Any] = program if isinstance(program, Module) else single(program)
    stage = stage_of(module)
    if stage > level:
        return program
    if stage < level:
        raise LoweringError(
            f"{module.source.name} still has sparse iterations",
            module.source.span,
            hint="lower_sparse_iter comes first",
        )
    final: Any = pipeline.run(legal(module))
    if isinstance(program, Func) and not final.is_single:
        raise LoweringError(
            f"{program.name} assembles its output in {len(final.funcs)} phases",
            program.span,
            hint="lower the Module of it: spcomp.ir.module.single(func)",
        )
    result: P = final.funcs[0] if isinstance(program, Func) else final
    return result
