"""Random schedules: steps proposed by chance over the corpus; those that are legal make a trace."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import spcomp
from spcomp.errors import ScheduleError
from spcomp.ir.axis import AnyBuffer
from spcomp.ir.coordinate import SpIter
from spcomp.ir.func import Func
from spcomp.ir.node import Node
from spcomp.ir.position import Block, Merge
from spcomp.ir.stmt import Alloc, For
from spcomp.ir.visitor import statements, walk
from spcomp.schedule.nests.nests import reduction_loops
from spcomp.schedule.schedule import Schedule
from spcomp.script.parse import parse_source
from tests.corpus_base import Inputs, Program

LONGEST = 12
SIZES = (2, 3, 4)
LAYOUTS = {
    1: ("lambda a: (a // 2, a % 2)", "lambda a: a"),
    2: (
        "lambda a, b: (b, a)",
        "lambda a, b: (a // 3, b, a % 3)",
        "lambda a, b: (b // 2, a, b % 2)",
    ),
    3: ("lambda a, b, c: (c, a, b)", "lambda a, b, c: (b, a // 2, c, a % 2)"),
}
INTRINSICS = {  # what each declares, and computes for i below its size
    "axpy": ("x: T.handle, y: T.handle, a: T.float32", "Y[i] = Y[i] + a * X[i]"),
    "dot": ("x: T.handle, z: T.handle, y: T.handle", "Y[0] = Y[0] + X[i] * Z[i]"),
    "zero": ("y: T.handle", "Y[i] = 0.0"),
}
SCOPES = ("global", "local", "shared")
THREADS = ("blockIdx.x", "blockIdx.y", "threadIdx.x", "threadIdx.y", "vthread")
Arguments = tuple[Any, ...]


@dataclass
class Composer:
    """A schedule in the making over one program; *accepted* and *refused* count steps by kind."""

    schedule: Schedule
    rng: random.Random
    accepted: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    made: list[str] = field(default_factory=list)  # blocks that steps made, for those that move
    _of: Func | None = None
    _nodes: list[Node] = field(default_factory=list)

    def attempt(self, kind: str) -> bool:
        """Apply a step of *kind* with arguments drawn by chance; say whether it was legal."""
        before = self.accepted[kind]
        arguments = PROPOSALS[kind](self)
        if arguments is not None:
            self.take(kind, *arguments)
        return self.accepted[kind] > before

    def take(self, kind: str, *arguments: Any) -> bool:
        """Apply the step if it is legal; say whether it was."""
        try:
            schedule = getattr(self.schedule, kind)(*arguments)
        except ScheduleError:
            self.refused[kind] += 1
            return False
        before = set(self.blocks)
        self.schedule = schedule
        self.made += [name for name in self.blocks if name not in before]
        self.accepted[kind] += 1
        return True

    @property
    def nodes(self) -> list[Node]:
        """The statements of the program at hand, outer ones first."""
        if self._of is not self.schedule.func:
            self._of = self.schedule.func
            self._nodes = list(statements(self._of.body))
        return self._nodes

    def goes_on(self, kind: str) -> bool:
        """Whether there is anything that steps could change."""
        return bool(self.iterations if kind in STAGE_I else self.loops and self.blocks)

    @property
    def loops(self) -> list[For]:
        """All loops, outer ones first."""
        return [n for n in self.nodes if isinstance(n, For)]

    @property
    def blocks(self) -> list[str]:
        """The names of all blocks."""
        return [n.name for n in self.nodes if isinstance(n, Block)]

    @property
    def iterations(self) -> list[SpIter]:
        """The sparse iterations, while there are any."""
        return [n for n in self.nodes if isinstance(n, SpIter)]

    def loop(self) -> str:
        """Return the name of a loop."""
        return self.rng.choice(self.loops).var.name

    def block(self) -> str:
        """Return the name of a block, more often of one that a step made."""
        fresh = [name for name in self.made if name in self.blocks]
        return self.rng.choice(fresh if fresh and self.rng.random() < 0.6 else self.blocks)

    def block_and_loop(self) -> Arguments:
        """Return a block and one of the loops around it, or any other."""
        block = self.block()
        around = self.schedule.get_loops(block)
        near = around and self.rng.random() < 0.8
        return block, self.rng.choice(around) if near else self.loop()

    def nested(self, most: int) -> list[str]:
        """Return up to *most* loops nested directly in each other."""
        loop = self.rng.choice(self.loops)
        chain = [loop.var.name]
        while isinstance(loop.body, For) and len(chain) < most:
            loop = loop.body
            chain.append(loop.var.name)
        return chain

    def shuffled(self) -> Arguments | None:
        """Return nested loops in another order."""
        chain = self.nested(self.rng.randint(2, 4))
        self.rng.shuffle(chain)
        return tuple(chain) if len(chain) > 1 else None

    def factors(self) -> Any:
        """Return what a loop is split by."""
        if self.rng.random() < 0.5:
            return self.rng.choice((1, 2, 3, 4))
        factors: list[int | None] = [self.rng.randint(1, 4) for _ in range(self.rng.randint(1, 2))]
        factors.insert(self.rng.randint(0, len(factors)), None)
        return factors

    def buffer_of_block(self) -> Arguments:
        """Return a block, the index of a buffer it touches, and a scope."""
        return self.block(), self.rng.choice((0, 0, 0, 1, 2)), self.rng.choice(SCOPES)

    def tile_or_buffer(self) -> Arguments:
        """Return a tile of what a block writes, inside a loop, or all of it."""
        if self.rng.random() < 0.5:
            return self.buffer_of_block()
        block, loop = self.block_and_loop()
        return block, 0, "local", loop

    @property
    def nests(self) -> list[str]:
        """The names of the loops that are inside no other, in their order."""
        inside = {n for loop in self.loops for n in statements(loop.body)}
        return [loop.var.name for loop in self.loops if loop not in inside]

    def local_buffer(self) -> str:
        """Return the name of a buffer that is allocated inside, or of none."""
        found = [n.buffer.name for n in self.nodes if isinstance(n, Alloc)]
        return self.rng.choice(found or ["none"])

    def merged(self) -> str:
        """Return the coordinate of something merged; nothing if there is none."""
        found = [n.coordinate.name for n in self.nodes if isinstance(n, Merge)]
        return self.rng.choice(found) if found else ""

    def block_order(self) -> Arguments:
        """Return a block and its iters in another order."""
        block = self.block()
        (found,) = (n for n in self.nodes if _is_block(n, block))
        order = list(range(len(found.iters)))
        self.rng.shuffle(order)
        return block, order

    def annotation(self) -> Arguments:
        """Return a loop or block, and something to say of it."""
        target = self.rng.choice((self.loop(), self.block()))
        return target, *self.rng.choice((("pragma_note", 1), ("atomic", True), ("unit", "x")))

    def layout(self) -> Arguments | None:
        """Return a block, a buffer that is allocated inside, and another layout for it."""
        found = [n.buffer for n in self.nodes if isinstance(n, Alloc)]
        if not found:
            return None
        buffer = self.rng.choice(found)
        layouts = LAYOUTS.get(len(getattr(buffer, "shape", ())))
        if layouts is None:
            return None
        users = [name for name in self.blocks if self.touches(name, buffer)]
        return (self.rng.choice(users), buffer.name, self.rng.choice(layouts)) if users else None

    def touches(self, block: str, buffer: AnyBuffer) -> bool:
        """Whether *block* reads or writes *buffer*."""
        (found,) = (n for n in self.nodes if _is_block(n, block))
        return any(getattr(n, "buffer", None) is buffer for n in walk(found))

    def reducing(self) -> Arguments | None:
        """Return a loop that drives a reduction, or a piece of one, and an axis for it."""
        loops = [x for x in self.loops if x.var in reduction_loops(self.schedule.func)]
        if not loops:
            return None
        name = self.rng.choice(loops).var.name
        if self.rng.random() < 0.7 and self.take("split", name, self.rng.randint(2, 4)):
            name = f"{name}_i"
        return name, self.rng.choice((0, 0, 1, -1))

    def intrinsic(self) -> None:
        """Cut an innermost loop to the size of an intrinsic, and put one in its place."""
        inner = [
            x.var.name
            for x in self.loops
            if not any(isinstance(n, For) for n in statements(x.body))
        ]
        if not inner:
            return
        name, size = self.rng.choice(inner), self.rng.choice(SIZES)
        start = self.schedule, self.accepted.copy(), [*self.made]
        for block in self.blocks:
            if name in (around := self.schedule.get_loops(block)):
                self.take("decompose_reduction", block, around[0])
        self.take("loop_partition", name, size)
        if self.take("split", name, size):
            name = f"{name}_i"
        if not any(self.take("tensorize", name, f"{kind}_{size}") for kind in INTRINSICS):
            self.schedule, self.accepted, self.made = start

    def axes(self, *, order: bool) -> Arguments | None:
        """Return an iteration and some of its variables, in *order* or shuffled."""
        if not self.iterations:
            return None
        it = self.rng.choice(self.iterations)
        names = [var.name for var in it.vars]
        if order:
            first = self.rng.randrange(len(names))
            names = names[first : first + self.rng.randint(2, 3)]
        else:
            self.rng.shuffle(names)
        return it.name, names


Composed = tuple[Program, Composer, Inputs]
PROPOSALS: dict[str, Callable[[Composer], Arguments | None]] = {
    "sparse_reorder": lambda c: c.axes(order=False),
    "sparse_fuse": lambda c: c.axes(order=True),
    "split": lambda c: (c.loop(), c.factors()),
    "fuse": lambda c: tuple(chain) if len(chain := c.nested(c.rng.randint(2, 3))) > 1 else None,
    "reorder": Composer.shuffled,
    "loop_partition": lambda c: (c.loop(), c.rng.randint(1, 4)),
    "add_unit_loop": lambda c: (c.rng.choice((c.loop(), c.block())),),
    "lift_loop": lambda c: (c.loop(),),
    "parallel": lambda c: (c.loop(),),
    "vectorize": lambda c: (c.loop(),),
    "unroll": lambda c: (c.loop(),),
    "bind": lambda c: (c.loop(), c.rng.choice(THREADS)),
    "prefetch": lambda c: (c.loop(), c.rng.randint(1, 3)),
    "split_nnz": lambda c: (c.loop(), c.rng.randint(1, 8)),
    "split_hubs": lambda c: (c.loop(), c.loop(), c.rng.randint(1, 4)),
    "split_rows": lambda c: (c.loop(), c.loop(), c.rng.randint(1, 4)),
    "split_positions": lambda c: (
        *(c.loop(), c.loop(), c.rng.randint(1, 4), c.rng.randint(1, 9)),
        *(c.rng.choice((1, 3)), c.rng.choice((0, 0, 2))),
    ),
    "stage_products": lambda c: (
        *(c.loop(), c.loop(), c.rng.randint(1, 4), c.rng.randint(1, 9)),
        *(c.rng.choice((0, 5)), c.rng.choice((0, 0, 2))),
    ),
    "stage_weights": lambda c: (c.loop(), c.loop()),
    "split_sorted": lambda c: (c.loop(), c.rng.randint(1, 4), c.rng.randint(0, 2)),
    "split_runs": lambda c: (c.loop(), 4 * c.rng.randint(1, 2), c.rng.randint(1, 4)),
    "list_runs": lambda c: (c.loop(), 4 * c.rng.randint(1, 2), c.rng.randint(1, 4)),
    "group_runs": lambda c: (c.loop(),),
    "decompose_reduction": Composer.block_and_loop,
    "cache_read": Composer.buffer_of_block,
    "cache_write": Composer.tile_or_buffer,
    "reverse_cache_read": Composer.buffer_of_block,
    "reverse_cache_write": Composer.buffer_of_block,
    "compute_at": Composer.block_and_loop,
    "reverse_compute_at": Composer.block_and_loop,
    "compute_inline": lambda c: (c.block(),),
    "reverse_compute_inline": lambda c: (c.block(),),
    "set_scope": Composer.buffer_of_block,
    "storage_align": lambda c: (*c.buffer_of_block()[:2], c.rng.randint(-1, 1), 4, 1),
    "rfactor": Composer.reducing,
    "blockize": lambda c: (c.loop(),),
    "tensorize": Composer.intrinsic,
    "transform_layout": Composer.layout,
    "pad_einsum": lambda c: (c.block(), [c.rng.randint(1, 4) for _ in range(c.rng.randint(1, 3))]),
    "reorder_block_iter_var": Composer.block_order,
    "match_to_alloc": lambda c: c.buffer_of_block()[:2],
    "hide_buffer_access": lambda c: (c.block(), c.rng.choice(("read", "write")), [0]),
    "annotate": Composer.annotation,
    "unannotate": lambda c: c.annotation()[:2],
    "compact": lambda c: (c.local_buffer(), c.loop()),
    "horizontal_fuse": lambda c: (
        sorted(c.rng.sample(c.nests, min(2, len(c.nests))), key=c.nests.index),
        c.rng.randint(1, 8),
    ),
    "gather_rows": lambda c: (c.nests[c.rng.randrange(len(c.nests)) :], c.rng.randint(1, 2)),
    "mark_fiber": lambda c: (name, c.rng.randint(0, 1)) if (name := c.merged()) else None,
    "partial_results": lambda c: (c.loop(),),
    "sorted_rows": lambda c: (c.loop(), c.loop(), c.rng.randint(1, 4)),
    "sample_perfect_tile": lambda c: (c.loop(), c.rng.randint(1, 3)),
    "sample_categorical": lambda c: ([1, 2, 4], [0.25, 0.25, 0.5]),
}

STAGE_I = ("sparse_reorder", "sparse_fuse")
STAGE_II = tuple(kind for kind in PROPOSALS if kind not in STAGE_I)
MOST_TRIED = 400  # traces of one program
TRIES = 24


def compose(program: Program, seed: int, kind: str) -> tuple[Composer, Inputs] | None:
    """Return a schedule of *program* after up to LONGEST legal steps, one of *kind*, and inputs.

    None if no step of *kind* was legal.
    """
    register_intrinsics()
    rng = random.Random(seed)
    inputs = program.inputs(rng.choice(program.cases), program.dtypes[0], seed=seed)
    func = program.build(program.dtypes[0])
    if rng.random() < 0.5:  # extents that are known allow more
        func = func.specialize({k: v for k, v in inputs.items() if isinstance(v, int)})
    composer = Composer(Schedule(func), rng)
    for other in rng.choices(STAGE_I, k=rng.randint(0, 2)):
        composer.attempt(other)
    if kind in STAGE_I and not _insist(composer, kind):
        return None
    composer.schedule = composer.schedule.lower_sparse_iter()
    wanted = rng.randint(1, LONGEST)
    _fill(composer, rng.randint(0, wanted - 1))
    if kind in STAGE_II and not _insist(composer, kind):
        return None
    _fill(composer, wanted)
    return composer, inputs


@cache
def register_intrinsics() -> None:
    """Register each of INTRINSICS in every size: the loop, run in vectors or written out."""
    for kind, (params, body) in INTRINSICS.items():
        for size in SIZES:
            extents = {"Y": 1 if kind == "dot" else size, "X": size, "Z": size}
            buffers = [
                f'    {name} = T.match_buffer({name.lower()}, ({extent},), "float32")\n'
                for name, extent in extents.items()
                if f"{name.lower()}: T.handle" in params
            ]
            head = f"from spcomp import script as T\n\n\n@T.prim_func\ndef f({params}) -> None:\n"
            text = "{}{}    for i in T.{}({}):\n        {}\n"
            fast = "unroll" if kind == "dot" else "vectorized"
            made = (
                parse_source(text.format(head, "".join(buffers), how, size, body), "intrinsic.py")[
                    0
                ]
                for how in ("serial", fast)
            )
            spcomp.register_intrinsic(f"{kind}_{size}", *made)


def _is_block(node: Any, name: str) -> bool:
    return isinstance(node, Block) and node.name == name


def _insist(composer: Composer, kind: str) -> bool:
    return any(composer.attempt(kind) for _ in range(TRIES) if composer.goes_on(kind))


def _fill(composer: Composer, wanted: int) -> None:
    """Attempt steps until *wanted* are accepted, or very many are not."""
    for kind in composer.rng.choices(STAGE_II, k=6 * LONGEST):
        if composer.accepted.total() >= wanted or not composer.goes_on(kind):
            return
        composer.attempt(kind)


def composed(kind: str, count: int, programs: Sequence[Program]) -> Iterator[Composed]:
    """Yield *count* traces with a step of *kind*, of as many programs as allow it."""
    found: Counter[str] = Counter()
    tried: Counter[str] = Counter()
    seed = 0

    def untried(program: Program) -> bool:
        return tried[program.name] <= MOST_TRIED

    def hopeless(program: Program) -> bool:  # others take its place, while there are any
        return not found[program.name] and tried[program.name] > 1 and len(found) > 2

    while found.total() < count:
        left = [p for p in programs if untried(p)]
        assert left, f"{kind} is hardly ever legal"
        left = [p for p in left if not hopeless(p)] or left
        program = left[seed % len(left)]
        seed += 1
        tried[program.name] += 1
        made = compose(program, seed, kind)
        if made is not None:
            found[program.name] += 1
            yield program, *made
