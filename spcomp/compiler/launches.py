"""What a program for a GPU launches, as values: kernels, their arguments, grids, atomic sums."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from spcomp.errors import BackendError
from spcomp.ir.access import Load
from spcomp.ir.analysis.reduction import as_reduction
from spcomp.ir.analysis.sizes import text
from spcomp.ir.expr import BinOp, Cast, Const, Expr, Select, UnOp, Var
from spcomp.ir.module import Launch
from spcomp.ir.stmt import Store
from spcomp.ir.visitor import statements

if TYPE_CHECKING:
    from spcomp.codegen.abi import Emitted, Param
    from spcomp.ir.module import Module
    from spcomp.ir.program import FlatFunc

ANY_ORDER = ("min", "max", "and", "or")  # combine floats with the same result in any order


@dataclass(frozen=True, slots=True)
class KernelLaunch:
    """One launch: a *kernel*, its *symbol* in the PTX and its *params*, in order.

    *blocks*: their number along x, y and z, expressions of the numbers among *params*; *threads*
    and *shared_bytes* of a block. *may_fail*: one more parameter points to a status word, which is
    -1 before; *messages*: what it says afterwards. *atomic*: buffers of floats to which threads
    add in any order, so that the last bits of the result may differ from call to call.
    """

    kernel: str
    symbol: str
    params: tuple[Param, ...]
    blocks: tuple[Expr, ...]
    threads: tuple[int, int, int]
    shared_bytes: int
    may_fail: bool
    messages: tuple[str, ...]
    atomic: tuple[str, ...]

    def __str__(self) -> str:
        blocks = " x ".join(text(extent) for extent in _without_ones(self.blocks))
        threads = " x ".join(str(extent) for extent in self.threads if extent > 1) or "1"
        shared = f", {self.shared_bytes} bytes shared" if self.shared_bytes else ""
        sums = ", ".join(self.atomic)
        atomic = f"; adds floats to {sums} atomically, in any order" if sums else ""
        return f"{self.kernel}: blocks {blocks}, threads {threads}{shared}{atomic}"


def _without_ones(extents: tuple[Expr, ...]) -> tuple[Expr, ...]:
    kept = tuple(e for e in extents if not (isinstance(e, Const) and e.value == 1))
    return kept or extents[:1]


def launches(module: Module[FlatFunc], emitted: Emitted) -> tuple[KernelLaunch, ...]:
    """Return the launches of *module*, whose code is *emitted*, in order; none for a CPU."""
    result = []
    for op in module.host:
        if not isinstance(op, Launch):
            continue
        abi = emitted[op.func]
        if (grid := abi.grid) is None:
            return ()
        launch = KernelLaunch(
            *(abi.name, abi.symbol, abi.params, grid.blocks, grid.threads, grid.shared),
            *(grid.may_fail, abi.messages, _atomic(module[op.func])),
        )
        result.append(launch)
    return tuple(result)


def _atomic(func: FlatFunc) -> tuple[str, ...]:
    """Return the names of buffers of floats whose elements get sums from several threads."""
    names: dict[str, None] = {}
    for stmt in statements(func.body):
        if isinstance(stmt, Store) and stmt.atomic and stmt.buffer.dtype.is_float:
            reduction = as_reduction(stmt.replace(mask=None))
            if reduction is None or reduction.combiner not in ANY_ORDER:
                names[stmt.buffer.name] = None
    return tuple(names)


def number(value: float) -> str:
    """Return *value* as an expression of Python."""
    return repr(value) if value - value == 0 else f'float("{value}")'


def as_python(expr: Expr) -> str:
    """Return *expr* as an expression of Python over the names of parameters.

    Elements of arrays are read by ``element(array, index)``. Raises BackendError for what the host
    cannot compute.
    """
    match expr:
        case Var(name=name):
            return name
        case Const(value=value):
            return number(value)
        case BinOp(op="min" | "max" as op, lhs=lhs, rhs=rhs):
            return f"{op}({as_python(lhs)}, {as_python(rhs)})"
        case BinOp(op=op, lhs=lhs, rhs=rhs):
            return f"({as_python(lhs)} {op} {as_python(rhs)})"
        case UnOp(op=op, value=value):
            return f"({op} {as_python(value)})"
        case Cast(value=value, type=dtype):
            return f"{'float' if dtype.is_float else 'int'}({as_python(value)})"
        case Select(cond=cond, then=then, otherwise=other):
            return f"({as_python(then)} if {as_python(cond)} else {as_python(other)})"
        case Load(buffer=buffer, indices=(Expr() as index,)):
            name = buffer.name if buffer.data is None else buffer.data.name
            return f"element({name}, {as_python(index)})"
    raise BackendError(f"the host cannot compute {text(expr)}", expr.span)
