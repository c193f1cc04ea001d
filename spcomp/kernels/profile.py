"""Beside a call: the time that each of its phases, and each nest of loops, takes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from spcomp.compiler.backends import backend_of
from spcomp.errors import ArgumentError
from spcomp.ir.access import Load, Search
from spcomp.ir.module import Launch, Module
from spcomp.ir.places import place
from spcomp.ir.stmt import For, Let, Seq, Stmt, Store
from spcomp.ir.visitor import walk
from spcomp.kernels.call import prepare
from spcomp.runtime import host, pool

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from spcomp.compiler.backends import Loaded
    from spcomp.compiler.compiled import Compiled
    from spcomp.errors import Span
    from spcomp.ir.func import Func
    from spcomp.ir.module import HostOp
    from spcomp.kernels.frame import Frame


@dataclass(frozen=True, slots=True)
class Phase:
    """A part of a call: what it is, where it was written if that is known, and its *seconds*.

    *moved*: the bytes of the arrays that it touches, each counted once; 0 if it has no loop.
    *busy*: the share of the time of all threads that they worked, from the first chunk of a
    parallel loop to the last; None if none was.
    """

    what: str
    place: Span | None
    seconds: float
    moved: int = 0
    busy: float | None = None

    @property
    def bandwidth(self) -> float:
        """The bytes in a second."""
        return self.moved / self.seconds if self.seconds else 0.0

    def __str__(self) -> str:
        rate = f"{self.moved:>12} B {self.bandwidth * 1e-9:>6.1f} GB/s" if self.moved else " " * 26
        busy = "" if self.busy is None else f"{100 * self.busy:.0f} %"
        where = f"  {self.place}" if self.place is not None else ""
        return f"{self.seconds * 1e6:>12.1f} us {rate} {busy:>6}  {self.what}{where}"


@dataclass(frozen=True, slots=True)
class Profile:
    """The *phases* of a call in order, and the seconds of the *whole*, both without Python.

    Phases are compiled as functions of their own, so that their sum differs a little. Printed,
    they have their time, bytes and bandwidth, how busy threads were, and their line.
    """

    whole: float
    phases: tuple[Phase, ...]

    def __str__(self) -> str:
        return "\n".join(map(str, (*self.phases, Phase("the whole", None, self.whole))))


def profile(compiled: Compiled, frame: Frame, repeat: int) -> Profile:
    """Return the medians of *repeat* calls of *compiled*, whose arguments *frame* has.

    The calls run on copies. Raises ArgumentError for arguments that a call cannot take, and for
    kernels for a GPU, whose own profilers know more.
    """
    if not isinstance(repeat, int) or repeat < 1:
        raise ArgumentError(f"argument repeat: got {repeat!r}, expected a positive integer")
    if compiled.target.kind != "cpu":
        raise ArgumentError("profile: the kernel is for a GPU", hint="use Nsight Compute")
    prepare(frame, verify=True)
    code = compiled.variant(frame.values)
    module, nests = split(code.stages.flat)
    backend = backend_of(code.target.kind)
    fast_math = code.options.fast_math
    emitted = backend.emit(module, code.target, fast_math=fast_math, debug=False)
    parts = backend.load(emitted, code.target)
    funcs = {func.name: func for func in module.funcs}
    base = {
        name: np.array(value, order="C") if isinstance(value, np.ndarray) else value
        for name, value in frame.values.items()
    }
    wholes, rounds = [], []
    for _ in range(repeat + 1):  # the first one warms up
        values = dict(base)
        begin = perf_counter()
        host.run(code.host, code.funcs, code, values)
        wholes.append(perf_counter() - begin)
        rounds.append(_round(module, funcs, parts, dict(base)))
    busy: list[float | None] = []
    _round(module, funcs, parts, values := dict(base), busy)
    phases = tuple(
        _phase(op, nests.get(getattr(op, "func", "")), median(times), values, share)
        for op, times, share in zip(module.host, zip(*rounds[1:], strict=True), busy, strict=True)
    )
    return Profile(median(wholes[1:]), phases)


def _round(
    module: Module[Any],
    funcs: Mapping[str, Func],
    code: Loaded,
    values: dict[str, Any],
    busy: list[float | None] | None = None,
) -> list[float]:
    """Return the seconds of each operation of the host program of *module*.

    *busy* gets the share of the time that threads worked in each.
    """
    seconds = []
    for op in module.host:
        begin = perf_counter()
        if busy is None:
            host.run((op,), funcs, code, values)
        else:
            with pool.log() as chunks:
                host.run((op,), funcs, code, values)
            busy.append(pool.busy_share(chunks, pool.get_num_threads()))
        seconds.append(perf_counter() - begin)
    return seconds


def _said(op: HostOp) -> str:
    buffer = getattr(op, "buffer", None)
    word = {"HostAlloc": "allocate"}.get(type(op).__name__, type(op).__name__.lower())
    return word if buffer is None else f"{word} {buffer.name}"


def _phase(
    op: HostOp, nest: Stmt | None, seconds: float, values: Mapping[str, Any], busy: float | None
) -> Phase:
    """Return the phase of *op*, which runs *nest* on the arrays among *values*."""
    if nest is None:
        return Phase(_said(op), None, seconds)
    loop = next((node for node in walk(nest) if isinstance(node, For)), None)
    what = f"loop {loop.var.name}" if loop is not None else "statements"
    touched = {
        node.buffer.data.name
        for node in walk(nest)
        if isinstance(node, Load | Store | Search) and node.buffer.data is not None
    }
    moved = sum(getattr(values.get(name), "nbytes", 0) for name in touched)
    return Phase(what, place(nest if loop is None else loop), seconds, moved, busy)


def split(module: Module[Any]) -> tuple[Module[Any], dict[str, Stmt]]:
    """Return flat *module* with a function for each nest, and the nests by those names."""
    funcs: list[Func] = []
    parts: dict[str, list[str]] = {}
    nests: dict[str, Stmt] = {}
    for func in module.funcs:
        for k, nest in enumerate(_nests(func.body)):
            name = f"{func.name}__nest{k}"
            funcs.append(func.replace(name=name, body=nest))
            nests[name] = nest
            parts.setdefault(func.name, []).append(name)
    operations: list[HostOp] = []
    for op in module.host:
        if isinstance(op, Launch):
            operations += [replace(op, func=name) for name in parts[op.func]]
        else:
            operations.append(op)
    return Module(module.source, tuple(funcs), tuple(operations)), nests


def _nests(body: Stmt) -> Iterator[Stmt]:
    """Yield the parts of *body* that can be functions: they share no variable and no buffer.

    A variable that is computed of sizes alone is computed in each part.
    """
    if isinstance(body, Seq) and body.body:
        for part in body.body:
            yield from _nests(part)
    elif isinstance(body, Let) and not any(isinstance(node, Load) for node in walk(body.value)):
        for part in _nests(body.body):
            yield body.replace(body=part)
    else:
        yield body
