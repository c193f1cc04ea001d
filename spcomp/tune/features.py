"""Beside the route: the loop ("itervar") features of AutoTVM, of programs at any level.

The names, their order and the numbers are those of ``tvm.autotvm.feature``; docs/tuning.md says
what each means, and where AutoTVM's own documentation and code differ.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import log2
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from spcomp.errors import ArgumentError, expect, front_door
from spcomp.ir.arith.simplify import simplify_stmt
from spcomp.ir.func import Func
from spcomp.ir.module import Module, single
from spcomp.ir.position import Block
from spcomp.ir.program import FlatFunc
from spcomp.ir.rewrite import Rewriter
from spcomp.passes.base import Stage, stage_of
from spcomp.passes.pipelines import lower_sparse_buffer, lower_sparse_iter
from spcomp.schedule.schedule import Schedule
from spcomp.tune.loops import ANNOTATIONS, Axis, axes_of
from spcomp.tune.tvm_ast import from_tvm_ast as from_tvm_ast

if TYPE_CHECKING:
    from collections.abc import Iterator

    from spcomp.ir.node import Node

Row: TypeAlias = list[list[Any]]
Program: TypeAlias = Func | Module[Any] | Schedule
Slots: TypeAlias = Literal[10, 11]

_FIELDS = {
    "_attr_": ("length", "nest_level", "topdown", "bottomup"),
    "_arith_": ("add", "mul", "div"),
}
_TOUCH_FIELDS = ("stride", "mod", "count", "reuse", "T_count", "T_reuse")


class LoopName(str):
    """The name of a loop; it prints without quotes, like a variable."""

    __slots__ = ()
    __repr__ = str.__str__


@front_door
def get_itervar_feature(
    program: Program,
    take_log: bool = False,  # noqa: FBT001, FBT002 (AutoTVM's signature)
    *,
    slots: Slots = 11,
    init: bool = False,
    extents: Mapping[str, int] | None = None,
) -> list[Row]:
    """Return AutoTVM's features of *program*, a row for each loop, outer ones first.

    A row is ``[["_itervar_", name], ["_attr_", length, nest_level, topdown, bottomup, *one_hot],
    ["_arith_", add, mul, div]]`` and then, for each access under the loop, by name,
    ``[name, stride, mod, count, reuse, T_count, T_reuse]``.

    Args:
        program: A Schedule, a function or a Module at any level. It is lowered to flat buffers; a
            flat function is taken as it is.
        take_log: Scale numbers x to ``log2(x + 1)``, negative ones to ``-log2(1 - x)``.
        slots: Length of the one-hot code of the loop's kind: 11, or 10, without ``vthread``.
        init: Whether the inits of blocks count. AutoTVM has dropped them since 2018. Those of a
            flat function are stores like others.
        extents: Lengths for loops whose extent is not a constant, by name (``while`` for while
            loops); others have the length -1.

    Raises:
        ArgumentError: An argument has the wrong type or value.
        LoweringError: *program* is a function that needs several phases: give its Module.
    """
    if slots not in (10, 11):
        raise ArgumentError(f"slots is {slots!r}", hint="10 or 11")
    lengths = dict(extents or {})
    for name, length in lengths.items():
        expect(f"extents[{name!r}]", length, int, "a number of iterations")
    scale = _logarithm if take_log else _same
    axes = [axis for func in _flat(program, init=init) for axis in axes_of(func, lengths)]
    loops = {axis.name: None for axis in axes}
    for name in lengths:
        if name not in loops:
            raise ArgumentError(f"extents: no loop {name!r}", hint=f"loops are {', '.join(loops)}")
    return [_row(axis, slots, scale) for axis in axes]


@front_door
def flatten_itervar_feature(fea: list[Row]) -> list[float]:
    """Return all numbers of the rows *fea*, from ``get_itervar_feature``, as one list."""
    return [float(number) for _, _, numbers in _entries(fea) for number in numbers]


@front_door
def get_itervar_feature_flatten(
    program: Program,
    take_log: bool = True,  # noqa: FBT001, FBT002 (AutoTVM's signature)
    *,
    slots: Slots = 11,
    init: bool = False,
    extents: Mapping[str, int] | None = None,
) -> list[float]:
    """Return the features of *program* as one list, in single precision and by default scaled.

    The arguments are those of ``get_itervar_feature``.
    """
    fea = get_itervar_feature(program, take_log, slots=slots, init=init, extents=extents)
    return [float(number) for number in np.array(flatten_itervar_feature(fea), np.float32)]


@front_door
def get_flatten_name(fea: list[Row]) -> list[str]:
    """Return a name for each number of ``flatten_itervar_feature(fea)``: ``f0.i._attr_.length``."""
    names = []
    for loop, key, numbers in _entries(fea):
        fields = _FIELDS.get(key, _TOUCH_FIELDS)
        ranks = range(len(numbers) - len(fields))
        names += [f"{loop}.{key}.{name}" for name in (*fields, *(f"ann_{k}" for k in ranks))]
    return [f"f{k}.{name}" for k, name in enumerate(names)]


def _entries(fea: list[Row]) -> Iterator[tuple[str, str, list[float]]]:
    """Yield loop, key and numbers of each entry of *fea*, names aside."""
    for (_, loop), *entries in fea:
        for key, *numbers in entries:
            yield loop, key, numbers


def _flat(program: Program, *, init: bool) -> tuple[FlatFunc, ...]:
    what = "a Schedule, a function or a Module"
    expect("program", program, (Schedule, Func, Module), what)
    if isinstance(program, FlatFunc):
        return (program,)
    module: Module[Any]
    if isinstance(program, Schedule):
        module = program.mod
    else:
        module = program if isinstance(program, Module) else single(program)
    if stage_of(module) is Stage.FLAT:
        return module.funcs
    module = lower_sparse_iter(module)
    if not init:
        module = module.with_funcs(*map(_WithoutInits().rewrite, module.funcs))
    return tuple(map(simplify_stmt, lower_sparse_buffer(module).funcs))


class _WithoutInits(Rewriter):
    def visit_Block(self, block: Block) -> Node:
        new = self.visit_Node(block)
        return new if block.init is None else new.replace(init=None)


def _row(axis: Axis, slots: int, scale: Callable[[int], float]) -> Row:
    one_hot = [int(axis.annotation == name) for name in ANNOTATIONS[:slots]]
    around = (scale(axis.length), axis.nest_level, scale(axis.topdown), scale(axis.bottomup))
    touches = (
        [name, *map(scale, (t.stride, t.mod, t.count, t.reuse, t.thread_count, t.thread_reuse))]
        for name, t in sorted(axis.touches.items(), key=lambda item: item[0].encode())
    )
    return [
        ["_itervar_", LoopName(axis.name)],
        ["_attr_", *around, *one_hot],
        ["_arith_", scale(axis.add), scale(axis.mul), scale(axis.div)],
        *touches,
    ]


def _same(number: int) -> float:
    return number


def _logarithm(number: int) -> float:
    return log2(number + 1) if number >= 0 else -log2(1 - number)
