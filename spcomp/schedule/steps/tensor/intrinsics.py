"""Beside stage II: intrinsics of the user, a small dense computation and how it is best done."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from spcomp.dtypes import int64
from spcomp.errors import ArgumentError, InternalError, ScheduleError
from spcomp.ir.access import Load, Search
from spcomp.ir.analysis.exprs import from_zero
from spcomp.ir.arith.simplify import prove
from spcomp.ir.axis import AnyBuffer, Buffer
from spcomp.ir.expr import BinOp, Broadcast, Const, Expr, Ramp, Reduce, Select, Var, cast, const
from spcomp.ir.func import Func
from spcomp.ir.position import Block, Merge
from spcomp.ir.program import FlatFunc, PosFunc
from spcomp.ir.rewrite import substitute
from spcomp.ir.stmt import Alloc, Fail, For, Seq, Stmt, Store, While
from spcomp.ir.structural import content_hash
from spcomp.ir.visitor import walk
from spcomp.schedule.nests.nests import chain
from spcomp.schedule.steps.claims import without_false_claims
from spcomp.schedule.steps.sharing.split_nnz import named

if TYPE_CHECKING:
    import numpy as np

DRAWS = 3  # how many random inputs an implementation is tried on


@dataclass(frozen=True, slots=True)
class Intrinsic:
    """*implementation* does what *loops* around *body* do; both are over the same parameters.

    *places*: for each buffer of the description the loop that runs along each of its axes (None
    along one of length 1); *partners*: which buffer of the implementation is which of its.
    *digest*: what tells it from others of its name, 16 hexadecimal digits.
    """

    name: str
    description: Func
    implementation: Func
    loops: tuple[For, ...]
    body: Stmt
    places: dict[AnyBuffer, tuple[Var | None, ...]]
    partners: dict[AnyBuffer, AnyBuffer]
    digest: str


INTRINSICS: dict[str, Intrinsic] = {}


def register_intrinsic(
    name: str, description: Func, implementation: Func, *, override: bool = False
) -> str:
    """Register what ``Schedule.tensorize`` may put in the place of a nest, and return *name*.

    Args:
        name: What schedules, and their traces, call it.
        description: One perfect nest of loops with constant trip counts around plain stores to
            dense buffers (``T.match_buffer``, sizes constant), each indexed by the loops that run
            along its axes. It must not start a reduction, nor read under a condition.
        implementation: A program over the same parameters, with local buffers, vectorized and
            unrolled loops as it likes; its indices are proved to stay inside the buffers.
        override: Replace an intrinsic that has the name.

    Raises:
        ScheduleError: They are not of this form; a loop claims what does not hold; the name is
            taken; or the two differ: both are run by the interpreter on random inputs, integers
            must be equal and floats up to rounding. That is a test, not a proof.

    Source: TVM's TensorIntrin.register.
    """
    made = _Making(name, description, implementation).intrinsic()
    old = INTRINSICS.get(name)
    if old is not None and not override and old.digest != made.digest:
        raise ScheduleError(f"intrinsic {name!r} is registered", hint="override=True")
    INTRINSICS[name] = made
    return name


def straight(block: Stmt) -> Stmt | None:
    """Return the stores of *block* in terms of the loops around it; None if there is more."""
    if isinstance(block, Block):
        if block.where is not None or block.init is not None:
            return None
        block = substitute(block.body, block.values)
    parts = block.body if isinstance(block, Seq) else (block,)
    plain = bool(parts) and all(isinstance(s, Store) and not s.mask and not s.atomic for s in parts)
    return block if plain else None


def accesses(stmt: Stmt) -> Iterator[Load | Store]:
    """Yield the loads and stores of *stmt*."""
    return (node for node in walk(stmt) if isinstance(node, (Load, Store)))


class _Making:
    """Checks a description and an implementation."""

    def __init__(self, name: str, description: Func, implementation: Func) -> None:
        self.name = name
        self.funcs = self._raised(description), self._raised(implementation)

    def _raised(self, func: Func) -> Func:
        """Return *func* in position space, where what is flat and has no vectors may stand too.

        A block around all of it, TVM's ``root``, is left out.
        """
        if isinstance(func, PosFunc):
            match func.body:
                case Block(iters=(), init=None, where=None, body=For() as nest):
                    return func.replace(body=nest)
            return func
        vectors = (Ramp, Broadcast, Reduce)
        if not isinstance(func, FlatFunc) or any(isinstance(n, vectors) for n in walk(func.body)):
            where = func if isinstance(func, Func) else None
            raise self.error(
                "it is made of programs below coordinate space, without vectors", where
            )
        return PosFunc(
            func.name, func.params, (), func.buffers, func.body, attrs=func.attrs, span=func.span
        )

    def error(self, why: str, func: Func | None = None) -> ScheduleError:
        """Return the error that says *why*."""
        return ScheduleError(f"intrinsic {self.name!r}: {why}", func.span if func else None)

    def intrinsic(self) -> Intrinsic:
        """Return what was made, checked."""
        description, implementation = self.funcs
        for func in self.funcs:
            self._check_form(func)
        partners = self._partners()
        loops, body = self._nest(description)
        places = self._places(loops, body, description)
        self._check_implementation(implementation, partners, body)
        self._check_equal()
        name, digest = self.name, content_hash((description, implementation))[:16]
        return Intrinsic(name, description, implementation, loops, body, places, partners, digest)

    def _check_form(self, func: Func) -> None:
        for buffer in func.buffers:
            dense = isinstance(buffer, Buffer) and buffer.strides is None
            if not dense or not all(isinstance(n, Const) for n in buffer.shape):  # type: ignore[union-attr]
                raise self.error(f"{buffer.name} is no dense buffer of constant sizes", func)

    def _partners(self) -> dict[AnyBuffer, AnyBuffer]:
        """Return the buffer of the description for each of the implementation."""
        first, second = self.funcs
        if [p.dtype for p in first.params] != [p.dtype for p in second.params]:
            raise self.error("the parameters of description and implementation differ")
        for param in first.params:
            if param.dtype.kind != "handle" and param not in walk(first.body):
                raise self.error(f"the description does not use {param.name}", first)
        partner = dict(zip(second.params, first.params, strict=True))
        of_handle = {buffer.data: buffer for buffer in first.buffers}
        found: dict[AnyBuffer, AnyBuffer] = {}
        for buffer in second.buffers:
            other = None if buffer.data is None else of_handle.get(partner[buffer.data])
            if other is None or _form(other) != _form(buffer):
                raise self.error(f"the description has no buffer like {buffer.name}")
            found[buffer] = other
        return found

    def _nest(self, func: Func) -> tuple[tuple[For, ...], Stmt]:
        loops, inner = chain(func.body) if isinstance(func.body, For) else ([], func.body)
        body = straight(inner)
        if body is None:
            raise self.error("the description is no perfect nest of loops around stores", func)
        for node in walk(body):
            branches: tuple[Expr, ...] = ()
            match node:
                case Select(then=then, otherwise=otherwise):
                    branches = then, otherwise
                case BinOp(op="and" | "or", rhs=rhs):
                    branches = (rhs,)
            if any(isinstance(n, Load) for branch in branches for n in walk(branch)):
                raise self.error("the description reads elements under a condition", func)
        for loop in loops:
            if not from_zero(loop) or not isinstance(loop.end, Const):
                raise self.error(f"the trip count of {loop.var.name!r} is not a constant", func)
        return tuple(loops), body

    def _places(
        self, loops: tuple[For, ...], body: Stmt, func: Func
    ) -> dict[AnyBuffer, tuple[Var | None, ...]]:
        """Return the loop that runs along each axis of each buffer."""
        sizes = {loop.var: _value(loop.end) for loop in loops}
        found: dict[AnyBuffer, tuple[Var | None, ...]] = {}
        for access in accesses(body):
            buffer = access.buffer
            assert isinstance(buffer, Buffer)
            pairs = zip(access.indices, buffer.shape, strict=True)
            along = [_along(index, _value(size), sizes) for index, size in pairs]
            place = tuple(var if isinstance(var, Var) else None for var in along)
            own = [var for var in place if var is not None]
            if False in along or len(own) > len({*own}) or found.get(buffer, place) != place:
                raise self.error(
                    f"{buffer.name} is not indexed by one loop along each of its axes", func
                )
            found[buffer] = place
        return found

    def _check_implementation(
        self, func: Func, partners: dict[AnyBuffer, AnyBuffer], body: Stmt
    ) -> None:
        written = {node.buffer for node in walk(body) if isinstance(node, Store)}
        used = {node.buffer for node in accesses(body)}
        local = {node.buffer for node in walk(func.body) if isinstance(node, Alloc)}
        for node in walk(func.body):
            if isinstance(node, (While, Merge, Search, Fail)):
                raise self.error(f"the implementation has a {type(node).__name__}", func)
            if isinstance(node, For) and node.kind in ("parallel", "bound"):
                raise self.error(f"loop {node.var.name} is {node.kind}", func)
        values = named(func.body)
        ranges = {
            node.var: (substitute(node.begin, values), substitute(node.end, values))
            for node in walk(func.body)
            if isinstance(node, For)
        }
        for access in accesses(func.body):
            if not _inside(access, values, ranges):
                raise self.error(f"an index of {access.buffer.name} may be outside it", func)
            known = written if isinstance(access, Store) else used
            if access.buffer not in local and partners[access.buffer] not in known:
                verb = "writes" if isinstance(access, Store) else "reads"
                raise self.error(f"only the implementation {verb} {access.buffer.name}", func)
        without_false_claims(func)

    def _check_equal(self) -> None:
        """Run both on random inputs."""
        import numpy as np

        description, implementation = self.funcs
        rng = np.random.default_rng(0)
        for draw in range(DRAWS):
            inputs = _inputs(description, rng, whole=draw == 0)
            for buffer, want, got in self._run(inputs):
                if not _close(want, got, buffer):
                    at = next(zip(*np.nonzero(~_equal(want, got, buffer)), strict=True))
                    raise self.error(
                        f"description and implementation differ: {buffer.name} has"
                        f" {want[at]} and {got[at]} at element {at[0]} of a random input",
                        implementation,
                    )

    def _run(self, inputs: list[Any]) -> Iterator[tuple[AnyBuffer, Any, Any]]:
        from spcomp.ir.interpret.program import interpret
        from spcomp.ir.interpret.storage import decode

        results: list[dict[Var, Any]] = []
        for func in self.funcs:
            own = [x.copy() if hasattr(x, "copy") else x for x in inputs]
            try:
                interpret(func, dict(zip((p.name for p in func.params), own, strict=True)))
            except (InternalError, ArgumentError) as error:
                raise self.error(f"{func.name} cannot be run: {error}", func) from error
            results.append(dict(zip(self.funcs[0].params, own, strict=True)))
        for buffer in self.funcs[0].buffers:
            assert buffer.data is not None
            want, got = (decode(result[buffer.data], buffer.dtype) for result in results)
            yield buffer, want, got


def _inside(
    access: Load | Store, values: dict[Var, Expr], ranges: dict[Var, tuple[Expr, Expr]]
) -> bool:
    """Whether all indices of *access* are proved to be inside its buffer."""
    for index, size in zip(access.indices, getattr(access.buffer, "shape", ()), strict=True):
        if index is None:
            return False
        place = substitute(cast(index, int64), values)
        low, high = BinOp("<=", const(0), place), BinOp("<", place, cast(size, int64))
        if not (prove(low, ranges) and prove(high, ranges)):
            return False
    return True


def _value(size: Expr) -> int:
    assert isinstance(size, Const)
    return int(size.value)


def _form(buffer: AnyBuffer) -> object:
    return buffer.dtype, tuple(_value(n) for n in getattr(buffer, "shape", ()))


def _along(index: Expr | None, size: int, sizes: dict[Var, int]) -> Var | bool:
    """Return the loop that runs along an axis of *size*; True where none need, False if none do."""
    if isinstance(index, Var) and sizes.get(index) == size:
        return index
    return size == 1 and isinstance(index, Const) and index.value == 0


def _inputs(func: Func, rng: np.random.Generator, *, whole: bool) -> list[Any]:
    """Return an argument for each parameter: small integers, or as drawn."""
    from spcomp.ir.interpret.storage import encode

    sizes = {b.data: math.prod(_value(n) for n in getattr(b, "shape", ())) for b in func.buffers}
    dtypes = {b.data: b.dtype for b in func.buffers}
    made: list[Any] = []
    for param in func.params:
        dtype = dtypes.get(param, param.dtype)
        count = sizes.get(param, 1)
        exact = whole or not dtype.is_float
        drawn = rng.integers(-4, 5, count) if exact else rng.uniform(-1, 1, count)
        made.append(encode(drawn, dtype) if param in sizes else drawn[0])
    return made


def _equal(want: Any, got: Any, buffer: AnyBuffer) -> Any:
    import numpy as np

    if not buffer.dtype.is_float:
        return want == got
    digits = {"bfloat": 8}.get(buffer.dtype.kind, {16: 11, 32: 24, 64: 53}.get(buffer.dtype.bits))
    slack = 64 * 2.0 ** -(digits or 8)
    a, b = want.astype("float64"), got.astype("float64")
    return np.isclose(a, b, rtol=slack, atol=slack, equal_nan=True)


def _close(want: Any, got: Any, buffer: AnyBuffer) -> bool:
    return bool(_equal(want, got, buffer).all())
