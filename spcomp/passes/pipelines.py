"""From level to level: the pipelines of the route by name, and as functions on programs."""

from __future__ import annotations

from typing import Any, TypeVar

from spcomp.errors import InternalError, LoweringError, ScriptError, expect
from spcomp.ir.analysis.names import distinct
from spcomp.ir.func import Func
from spcomp.ir.module import Module, single
from spcomp.ir.verify.program import verify
from spcomp.passes.base import Pipeline, Stage, stage_of
from spcomp.passes.flat.flatten_buffers import FlattenBuffers
from spcomp.passes.flat.lower_blocks import LowerBlocks
from spcomp.passes.iterations.lower_iterations import LowerIterations
from spcomp.passes.merge.lower_merge import LowerMerge
from spcomp.passes.pack.pack_results import PackResults

P = TypeVar("P", Func, Module[Any])

TO_POSITION = Pipeline((LowerIterations(),))
TO_FLAT = Pipeline((PackResults(), LowerMerge(), LowerBlocks(), FlattenBuffers()))


def legal(module: Module[Any]) -> Module[Any]:
    """Return *module*, as a user wrote it, with names that are distinct.

    Raises ScriptError, at its line, for what breaks a law of its level: no rule of the language is
    in the way of it, and no pass reckons with it.
    """
    module = module.with_funcs(*map(distinct, module.funcs))
    try:
        verify(module, "parsing")
    except InternalError as error:
        raise ScriptError(error.law, error.span or module.source.span) from None
    return module


def lower_sparse_iter(
    program: P, *, check_invalid_binary_search: bool = False, search_blocks: bool = False
) -> P:
    """Return *program*, a function or a Module, in position space: iterations become loops.

    A program that is there, or below, comes back as it is. *check_invalid_binary_search* is
    SparseTIR's: whether what a search did not find is looked at. Here it always is: a miss reads
    as fill, and writing to it fails the call; the code is the same for both values.
    *search_blocks*: as in SparseTIR, searches run before everything else, each in a block
    ``binary_search_block_0_0`` that is preprocessing, and their results are kept in memory; else
    each is an expression, as far out as what it depends on allows. Raises LoweringError, also for a
    function that needs several phases, which a Module has. Source: SparseTIR (ASPLOS 2023),
    section 3.3.
    """
    del check_invalid_binary_search
    pipeline = Pipeline((LowerIterations(search_blocks=True),)) if search_blocks else TO_POSITION
    return _lowered(program, Stage.COORDINATE, pipeline)


def lower_sparse_buffer(program: P) -> P:
    """Return *program*, a function or a Module, over flat buffers: no axes, no blocks.

    A program that is there comes back as it is. Raises LoweringError for one in coordinate space.
    Source: SparseTIR (ASPLOS 2023), section 3.4.
    """
    return _lowered(program, Stage.POSITION, TO_FLAT)


def _lowered(program: P, level: Stage, pipeline: Pipeline) -> P:
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
    made: Any = pipeline.run(legal(module))
    if isinstance(program, Func) and not made.is_single:
        raise LoweringError(
            f"{program.name} assembles its output in {len(made.funcs)} phases",
            program.span,
            hint="lower the Module of it: spcomp.ir.module.single(func)",
        )
    lowered: P = made.funcs[0] if isinstance(program, Func) else made
    return lowered
