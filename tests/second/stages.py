"""Programs of the script language at work: as written, scheduled, stored in parts, read back."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np

import spcomp
from spcomp.errors import SpcompError
from tests.second import comparison, script_oracle, scripts
from tests.second.comparison import Failure
from tests.second.script_oracle import Given
from tests.second.scripts import Buffer, Script
from tests.second.values import Array, Value

CALLS = 4
MOST = 65  # no dimension is longer
FORMATS: list[Callable[[], Any]] = [
    lambda: spcomp.formats.bsr(2),
    lambda: spcomp.formats.dbsr((2, 3)),
    lambda: spcomp.formats.dcsr(),
    lambda: spcomp.formats.ell(),
    lambda: spcomp.formats.ell(2),
    lambda: spcomp.formats.padding(2),
    lambda: spcomp.formats.hyb(),
    lambda: spcomp.formats.hyb(2),
    lambda: spcomp.formats.hyb(1, [1, 2, 4]),
    lambda: spcomp.formats.hyb(2, [1, 2], padded=True),
    lambda: spcomp.formats.sr_bcrs(2, 2),
    lambda: spcomp.formats.dia(),
    lambda: spcomp.formats.sliced_diagonal(4),
    lambda: spcomp.formats.sell(2),
]


@dataclass
class ScriptTrial:
    """A program, and the seed of its schedules and calls."""

    script: Script
    seed: int
    calls: int = CALLS
    most: int = MOST
    steps: int = 6
    counts: dict[str, int] = field(default_factory=lambda: {"calls": 0, "versions": 0})


def trial(seed: int) -> ScriptTrial:
    """Return the trial that *seed* stands for."""
    return ScriptTrial(scripts.script(Random(seed)), seed)


def arrays_of(script: Script, data: Given) -> dict[str, Any]:
    """Return sizes and index arrays by the names of the parameters."""
    out: dict[str, Any] = {scripts.SIZES[name]: data.lengths[name] for name in script.variables()}
    for axis, kind in script.kinds.items():
        mask = data.masks[axis]
        above = data.masks["J"] if axis == "L" else np.ones(mask.shape[:1], bool)
        indptr = np.concatenate([[0], np.cumsum(mask.sum(-1)[above])]).astype(script.idtype)
        indices = np.nonzero(mask)[-1].astype(script.idtype)
        if kind == "sparse_fixed":
            out[f"{axis}_width"] = data.widths[axis]
            out[f"{axis}_indices"] = indices.reshape(int(above.sum()), data.widths[axis])
            continue
        out[f"{axis}_nnz"], out[f"{axis}_indptr"] = len(indices), indptr
        if kind == "sparse_variable":
            out[f"{axis}_indices"] = indices
    return out


def values_of(buffer: Buffer, number: Array, data: Given) -> Array:
    """Return what a buffer stores of *number*: elements of the tree side by side."""
    return number[data.masks[buffer.deepest]] if buffer.deepest else number.copy()


def tensor_of(buffer: Buffer, number: Array, script: Script, data: Given) -> Any:
    """Return *number* as a Tensor along the axes of *buffer*."""
    if not buffer.deepest:
        return number.copy()
    arrays = arrays_of(script, data)
    levels: list[Any] = [None]
    for axis in axes_of(buffer):
        indptr, indices = (arrays.get(f"{axis}_{what}") for what in ("indptr", "indices"))
        kinds = {
            "dense_variable": ("ragged", indptr),
            "sparse_fixed": ("fixed", indices),
            "sparse_variable": ("compressed", indptr, indices),
        }
        levels.append(kinds[script.kinds[axis]])
    levels += [None] * (len(buffer.variables) - buffer.depth)
    return spcomp.Tensor(number.shape, levels, values_of(buffer, number, data))


def axes_of(buffer: Buffer) -> list[str]:
    """Return the sparse axes along which *buffer* lies."""
    return [scripts.TREES[buffer.tree][variable] for variable in buffer.variables[1 : buffer.depth]]


def call(kernel: Any, case: ScriptTrial, data: Given, rng: Random, how: str) -> dict[str, Any]:
    """Return the results of a call, by buffer."""
    script = case.script
    arrays = arrays_of(script, data)
    results = script.results()
    case.counts["calls"] += 1
    if how == "position":
        made = {
            f"{name.lower()}_data": values_of(script.inputs[name], number, data)
            for name, number in data.numbers.items()
        }
        for buffer in results:
            empty = np.full([data.lengths[name] for name in buffer.variables], 9, buffer.dtype)
            made[f"{buffer.name.lower()}_data"] = values_of(buffer, empty, data)
        kernel(*((made | arrays)[name] for name in scripts.parameters(script)))
        return {buffer.name: made[f"{buffer.name.lower()}_data"] for buffer in results}
    arguments: dict[str, Any] = dict(arrays)
    for name, number in data.numbers.items():
        buffer = script.inputs[name]
        make = (
            tensor_of(buffer, number, script, data)
            if how == "tensors"
            else values_of(buffer, number, data)
        )
        arguments[name] = make
    if how == "tensors":  # index arrays and their sizes follow from the tensors
        known = {axis for buffer in script.inputs.values() for axis in axes_of(buffer)}
        implied = {
            f"{axis}_{what}" for axis in known for what in ("indptr", "indices", "nnz", "width")
        }
        arguments = {name: value for name, value in arguments.items() if name not in implied}
    found = kernel(**arguments)
    return dict(
        zip([one.name for one in results], [found] if len(results) == 1 else found, strict=True)
    )


def compare(found: dict[str, Any], want: dict[str, Value], script: Script, data: Given) -> None:
    """Raise a Failure where results are not what is wanted."""
    for buffer in script.results():
        value, result = want[buffer.name], found[buffer.name]
        if not buffer.deepest:
            comparison.compare(buffer.name, result, value, [0])
            continue
        mask = data.masks[buffer.deepest]
        flat = Value(
            *(
                np.broadcast_to(x, value.number.shape)[mask]
                for x in (value.number, value.present, value.error)
            )
        )
        if not isinstance(result, np.ndarray):
            result = comparison.opened(result)[0][mask]
        comparison.compare(buffer.name, np.asarray(result).reshape(flat.number.shape), flat, [0])


def kernels(case: ScriptTrial, rng: Random) -> Iterator[tuple[str, Any, list[str]]]:
    """Yield kernels of the program, what they are, and how they can be called."""
    func: Any = spcomp.parse(scripts.text(case.script))
    every = ["named", "tensors", "position"]
    base = spcomp.compile(func)
    yield "default", base, every
    for at in range(2):
        schedule, log = scheduled(func, rng, case.steps)
        try:
            kernel = spcomp.compile(schedule, check=rng.choice(("full", "full", "off")))
        except SpcompError as error:
            yield f"refused: {error}", None, []
            continue
        yield f"schedule {at}: {log}", kernel, every
        stage = rng.choice(("coordinate", "position", "flat") if at else ("position", "flat"))
        printed = (base if at else kernel).stage(stage)
        yield (
            f"{stage} stage of {log if not at else 'default'} read back",
            spcomp.compile(spcomp.parse(printed)),
            ["position"],
        )
    matrix = [
        one
        for one in case.script.inputs.values()
        if one.variables == ("i", "j") and one.deepest == "J"
    ]
    if case.script.kinds["J"] == "sparse_variable" and matrix:
        format = rng.choice(FORMATS)()
        try:
            kernel = spcomp.compile(spcomp.decompose(func, **{matrix[0].name: format}))
        except SpcompError as error:
            yield f"refused: {error}", None, []
            return
        yield f"{matrix[0].name} in {format}", kernel, ["tensors"]


BLOCKS = re.compile(r"T\.block\(\"(\w+)\"\)")


def scheduled(func: Any, rng: Random, steps: int) -> tuple[Any, list[str]]:
    """Return a Schedule of *func* after random steps, and these; what is not legal is left out."""
    schedule = spcomp.Schedule(func)
    log: list[str] = []

    def attempt(name: str, *args: Any) -> None:
        nonlocal schedule
        try:
            schedule = getattr(schedule, name)(*args)
        except SpcompError:
            return
        log.append(f"{name}{args}")

    for name in ("first", "second"):
        try:
            variables = list(schedule.get_sp_iters(name))
        except SpcompError:
            continue
        if rng.random() < 0.3:
            attempt("sparse_reorder", name, rng.sample(variables, len(variables)))
        if rng.random() < 0.3 and len(variables) > 1:
            at = rng.randrange(len(variables) - 1)
            attempt("sparse_fuse", name, variables[at : at + 2])
    attempt("lower_sparse_iter")
    for _ in range(rng.randrange(1, steps + 1)):
        attempt(*random_step(schedule, rng))
    return schedule, log


def random_step(schedule: Any, rng: Random) -> tuple[Any, ...]:
    """Return the name of a step and arguments that may fit."""
    loops = list(schedule.loops) or ["none"]
    blocks = BLOCKS.findall(schedule.func.script()) or ["none"]
    loop, block = rng.choice(loops), rng.choice(blocks)
    size = rng.choice((1, 2, 3, 4, 8))
    at = rng.randrange(2)
    scope = rng.choice(("local", "global"))
    steps: list[tuple[Any, ...]] = [
        ("split", loop, size), ("split", loop, [size, None]), ("split", loop, [None, 2, size]),
        ("fuse", loop, rng.choice(loops)), ("reorder", loop, rng.choice(loops)),
        ("reorder", *rng.sample(loops, len(loops))), ("loop_partition", loop, size),
        ("add_unit_loop", loop), ("lift_loop", loop), ("parallel", loop), ("vectorize", loops[-1]),
        ("vectorize", loop), ("unroll", loop), ("bind", loop, "blockIdx.x"),
        ("bind", loop, "threadIdx.x"), ("split_nnz", loop, size),
        ("split_hubs", loop, rng.choice(loops), size),
        ("group_runs", loop), ("prefetch", loop, size), ("partial_results", loop),
        ("cache_read", block, at, scope), ("cache_write", block, 0, scope),
        ("cache_write", block, 0, "local", loop), ("reverse_cache_read", block, at, scope, []),
        ("compute_at", block, loop), ("reverse_compute_at", block, loop), ("compute_inline", block),
        ("reverse_compute_inline", block), ("decompose_reduction", block, loop),
        ("rfactor", loop, at),
        ("blockize", loop), ("pad_einsum", block, [size] * 3), ("annotate", loop, "grain", size),
        ("horizontal_fuse", rng.sample(loops, min(2, len(loops))), size),
        ("set_scope", block, 0, "shared"),
        ("storage_align", block, 0, 0, size, 1), ("reorder_block_iter_var", block, [1, 0]),
        ("compact", rng.choice(("OUT", "A_")), loop), ("annotate", block, "atomic", True),
    ]  # fmt: skip
    return rng.choice(steps)


def run(case: ScriptTrial) -> str:
    """Run *case*; returns "" or why it was refused, raises Failure."""
    rng = Random(case.seed + 1)
    what = "compilation"
    refused = ""
    try:
        for what, kernel, hows in kernels(case, rng):
            if kernel is None:
                refused = what
                continue
            refused = _calls(case, kernel, rng, what, hows) or refused
            case.counts["versions"] += 1
    except SpcompError as error:
        if what == "compilation":
            return str(error)
        raise Failure("read back", f"{what}: {error}") from error
    except Failure as failure:
        failure.text = f"{what}: {failure.text}"
        raise
    return ""


def _calls(case: ScriptTrial, kernel: Any, rng: Random, what: str, hows: list[str]) -> str:
    """Call *kernel* with random data and compare; returns why it refused all calls."""
    data = script_oracle.given(case.script, rng, case.most)
    refused = ""
    for _ in range(case.calls):
        if rng.random() < 0.4:
            data = script_oracle.given(case.script, rng, case.most)
        if rng.random() < 0.1:
            spcomp.set_num_threads(rng.choice((1, 2, 3)))
        want = script_oracle.expected(case.script, data)
        try:
            found = call(kernel, case, data, rng, rng.choice(hows))
        except SpcompError as error:
            refused = str(error)
            raise Failure("refused", f"{data.lengths}: {error}") from error
        except Failure:
            raise
        except Exception as error:
            raise Failure(type(error).__name__, f"{data.lengths}: {error}") from error
        try:
            compare(found, want, case.script, data)
        except Failure as failure:
            failure.text += f" at {data.lengths}"
            failure.arguments = {
                **data.numbers,
                **data.masks,
            }
            raise
    return refused
