"""Beside position space: the user's intrinsics, small dense computations with fast code."""

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
from spcomp.ir.stmt import Alloc, Fail, For, Print, Seq, Stmt, Store, While
from spcomp.ir.structural import content_hash
from spcomp.ir.visitor import walk
from spcomp.schedule.nests.claims import without_false_claims
from spcomp.schedule.nests.nests import chain
from spcomp.schedule.nests.values import binding_values

if TYPE_CHECKING:
    import numpy as np

DRAWS = 3  # how many random inputs an implementation is tried on


@dataclass(frozen=True, slots=True)
class Intrinsic:
    """A registered intrinsic: *implementation* computes the same as *loops* around *body*.

    Both are over the same parameters. *places*: for each buffer of the description the loop that
    runs along each of its axes (None along one of length 1); *partners*: the description's buffer
    for each of the implementation. *digest*: 16 hexadecimal digits, its own among all of its name.
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
    """Register an intrinsic for ``Schedule.tensorize``, to put in place of nests; return *name*.

    Args:
        name: Its name in schedules and their traces.
        description: One perfect nest of loops with constant trip counts around plain stores to
            dense buffers (``T.match_buffer``, sizes constant), each indexed by the loops that run
            along its axes. It must not start a reduction, nor read under a condition.
        implementation: A program over the same parameters. It may have local buffers, vectorized
            and unrolled loops; its indices must be provably inside the buffers.
        override: Replace an existing intrinsic of this name.

    Raises:
        ScheduleError: One of the two is not of this form; a loop claims to be what it is not; the
            name is taken; or the two differ. To compare them, the interpreter runs both on random
            inputs: integers must be equal, floats up to rounding. That is a test, not a proof.

    Source: TVM's TensorIntrin.register.
    """
    intrinsic = _Registration(name, description, implementation).intrinsic()
    old = INTRINSICS.get(name)
    if old is not None and not override and old.digest != intrinsic.digest:
        raise ScheduleError(f"intrinsic {name!r} is registered", hint="override=True")
    INTRINSICS[name] = intrinsic
    return name


def described(name: str, description: Func) -> tuple[Func, tuple[For, ...], Stmt]:
    """Return *description* in position space, its loops, and its stores; raises ScheduleError."""
    registration = _Registration(name, description, description)
    func = registration.funcs[0]
    return func, *registration.nest(func)


def plain_stores(block: Stmt) -> Stmt | None:
    """Return the stores of *block* in terms of the loops around it; None if it has more."""
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


class _Registration:
    """A description and an implementation that are to become an intrinsic."""

    def __init__(self, name: str, description: Func, implementation: Func) -> None:
        self.name = name
        self.funcs = self._to_position(description), self._to_position(implementation)

    def _to_position(self, func: Func) -> Func:
        """Return *func* in position space; a flat function comes as it is, but without vectors.

        A block around all of it, TVM's ``root``, is left out. Raises ScheduleError otherwise.
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
        """Return the intrinsic; raises ScheduleError if it is not correct."""
        description, implementation = self.funcs
        for func in self.funcs:
            self._check_form(func)
        partners = self._partners()
        loops, body = self.nest(description)
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
        partners: dict[AnyBuffer, AnyBuffer] = {}
        for buffer in second.buffers:
            other = None if buffer.data is None else of_handle.get(partner[buffer.data])
            if other is None or _form(other) != _form(buffer):
                raise self.error(f"the description has no buffer like {buffer.name}")
            partners[buffer] = other
        return partners

    def nest(self, func: Func) -> tuple[tuple[For, ...], Stmt]:
        """Return the loops and the stores of a description."""
        loops, inner = chain(func.body) if isinstance(func.body, For) else ([], func.body)
        body = plain_stores(inner)
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
        """Return, for each buffer, the loop that runs along each of its axes."""
        sizes = {loop.var: _value(loop.end) for loop in loops}
        places: dict[AnyBuffer, tuple[Var | None, ...]] = {}
        for access in accesses(body):
            buffer = access.buffer
            assert isinstance(buffer, Buffer)
            pairs = zip(access.indices, buffer.shape, strict=True)
            along = [_along(index, _value(size), sizes) for index, size in pairs]
            place = tuple(var if isinstance(var, Var) else None for var in along)
            loop_vars = [var for var in place if var is not None]
            if (
                False in along
                or len(loop_vars) > len({*loop_vars})
                or places.get(buffer, place) != place
            ):
                raise self.error(
                    f"{buffer.name} is not indexed by one loop along each of its axes", func
                )
            places[buffer] = place
        return places

    def _check_implementation(
        self, func: Func, partners: dict[AnyBuffer, AnyBuffer], body: Stmt
    ) -> None:
        written = {node.buffer for node in walk(body) if isinstance(node, Store)}
        used = {node.buffer for node in accesses(body)}
        local = {node.buffer for node in walk(func.body) if isinstance(node, Alloc)}
        for node in walk(func.body):
            if isinstance(node, (While, Merge, Search, Fail, Print)):
                raise self.error(f"the implementation has a {type(node).__name__}", func)
            if isinstance(node, For) and node.kind in ("parallel", "bound"):
                raise self.error(f"loop {node.var.name} is {node.kind}", func)
        values = binding_values(func.body)
        ranges = {
            node.var: (substitute(node.begin, values), substitute(node.end, values))
            for node in walk(func.body)
            if isinstance(node, For)
        }
        for access in accesses(func.body):
            if not _inside(access, values, ranges):
                raise self.error(f"an index of {access.buffer.name} may be outside it", func)
            allowed = written if isinstance(access, Store) else used
            if access.buffer not in local and partners[access.buffer] not in allowed:
                verb = "writes" if isinstance(access, Store) else "reads"
                raise self.error(f"only the implementation {verb} {access.buffer.name}", func)
        without_false_claims(func)

    def _check_equal(self) -> None:
        """Run both on random inputs; raise ScheduleError where their results differ."""
        import numpy as np

        description, implementation = self.funcs
        rng = np.random.default_rng(0)
        for draw in range(DRAWS):
            inputs = _inputs(description, rng, integers=draw == 0)
            for buffer, expected, actual in self._run(inputs):
                if not _close(expected, actual, buffer):
                    at = next(zip(*np.nonzero(~_equal(expected, actual, buffer)), strict=True))
                    raise self.error(
                        f"description and implementation differ: {buffer.name} has"
                        f" {expected[at]} and {actual[at]} at element {at[0]} of a random input",
                        implementation,
                    )

    def _run(self, inputs: list[Any]) -> Iterator[tuple[AnyBuffer, Any, Any]]:
        from spcomp.ir.interpret.program import interpret
        from spcomp.ir.interpret.storage import decode

        results: list[dict[Var, Any]] = []
        for func in self.funcs:
            args = [x.copy() if hasattr(x, "copy") else x for x in inputs]
            try:
                interpret(func, dict(zip((p.name for p in func.params), args, strict=True)))
            except (InternalError, ArgumentError) as error:
                raise self.error(f"{func.name} cannot be run: {error}", func) from error
            results.append(dict(zip(self.funcs[0].params, args, strict=True)))
        for buffer in self.funcs[0].buffers:
            assert buffer.data is not None
            expected, actual = (decode(result[buffer.data], buffer.dtype) for result in results)
            yield buffer, expected, actual


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
    """Return the loop along an axis of *size*; True if it needs none, False if none fits."""
    if isinstance(index, Var) and sizes.get(index) == size:
        return index
    return size == 1 and isinstance(index, Const) and index.value == 0


def _inputs(func: Func, rng: np.random.Generator, *, integers: bool) -> list[Any]:
    """Return a random argument for each parameter; *integers*: small ones, also for floats."""
    from spcomp.ir.interpret.storage import encode

    sizes = {b.data: math.prod(_value(n) for n in getattr(b, "shape", ())) for b in func.buffers}
    dtypes = {b.data: b.dtype for b in func.buffers}
    args: list[Any] = []
    for param in func.params:
        dtype = dtypes.get(param, param.dtype)
        count = sizes.get(param, 1)
        exact = integers or not dtype.is_float
        drawn = rng.integers(-4, 5, count) if exact else rng.uniform(-1, 1, count)
        args.append(encode(drawn, dtype) if param in sizes else drawn[0])
    return args


def _equal(expected: Any, actual: Any, buffer: AnyBuffer) -> Any:
    import numpy as np

    if not buffer.dtype.is_float:
        return expected == actual
    digits = {"bfloat": 8}.get(buffer.dtype.kind, {16: 11, 32: 24, 64: 53}.get(buffer.dtype.bits))
    slack = 64 * 2.0 ** -(digits or 8)
    a, b = expected.astype("float64"), actual.astype("float64")
    return np.isclose(a, b, rtol=slack, atol=slack, equal_nan=True)


def _close(expected: Any, actual: Any, buffer: AnyBuffer) -> bool:
    return bool(_equal(expected, actual, buffer).all())
