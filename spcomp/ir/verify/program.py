"""After every pass: checks the rules of a level; breaking one is a bug of that pass."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NoReturn

from spcomp.dtypes import DType, handle
from spcomp.errors import InternalError
from spcomp.ir.axis import AnyBuffer, Axis
from spcomp.ir.expr import Expr, Var
from spcomp.ir.func import Func
from spcomp.ir.module import HostAlloc, HostOp, Launch, Module, Return, Scan, Trim
from spcomp.ir.node import Node
from spcomp.ir.program import CoordFunc, FlatFunc, PosFunc
from spcomp.ir.verify.stmt import CoordVerifier, FlatVerifier, PosVerifier, StmtVerifier
from spcomp.ir.visitor import walk

_LEVELS: dict[type[Func], type[StmtVerifier]] = {
    CoordFunc: CoordVerifier,
    PosFunc: PosVerifier,
    FlatFunc: FlatVerifier,
}


def verify(program: Func | Module[Any], after: str) -> None:
    """Check that *program* keeps the rules of its level; *after* names the pass that built it.

    Raises:
        InternalError: A variable is unbound or bound twice, dtypes disagree, an index or axis is
            missing, or a node has no meaning at its level.
    """
    if isinstance(program, Module):
        _HostVerifier(program, after).check()
        for func in program.funcs:
            _verify_func(func, after)
    else:
        _verify_func(program, after)


def _verify_func(func: Func, after: str) -> None:
    verifier = _LEVELS[type(func)](func, after)
    _Declarations(func, verifier).check()
    verifier.visit(func.body)


class _Declarations:
    """Checks what a function declares: parameters, axes, buffers, domains."""

    def __init__(self, func: Func, verifier: StmtVerifier) -> None:
        self.func, self.fail = func, verifier.fail
        self.verifier = verifier
        self.handles = {param for param in func.params if param.dtype.kind == "handle"}

    def check(self) -> None:
        """Raise InternalError for the first declaration that is wrong."""
        func = self.func
        self._unique("parameter", [param.name for param in func.params])
        self._unique("axis", [axis.name for axis in func.axes])
        self._unique("buffer", [buffer.name for buffer in func.buffers])
        if isinstance(func, FlatFunc) and func.axes:
            self.fail(f"axis {func.axes[0].name} is declared at flat level", func)
        declared: set[Axis] = set()
        for axis in func.axes:
            self._axis(axis, declared)
            declared.add(axis)
        for buffer in func.buffers:
            self._handle(buffer.data, buffer)
            self.verifier.check_buffer(buffer)
        if isinstance(func, CoordFunc):
            self._unique("handle", [b.data.name for b in func.buffers if b.data is not None])
        for domain in func.domains:
            if domain.buffer not in func.buffers:
                self.fail(f"a domain is given for {domain.buffer.name}, which is undeclared", func)
            self._extent(domain.low, domain.buffer)
            self._extent(domain.high, domain.buffer)

    def _axis(self, axis: Axis, declared: set[Axis]) -> None:
        if (axis.parent is None) != (axis.kind == "dense_fixed"):
            self.fail(f"axis {axis.name} is {axis.kind}, its parent is {axis.parent}", axis)
        if axis.parent is not None and axis.parent not in declared:
            self.fail(f"axis {axis.name} is declared before its parent {axis.parent.name}", axis)
        self._arrays(axis)
        if (axis.nnz_cols is None) == (axis.kind == "sparse_fixed"):
            self.fail(f"nnz_cols of {axis.name} does not suit its kind {axis.kind}", axis)
        if axis.padded and (axis.indices is None or axis.sorted):
            self.fail(f"axis {axis.name} is padded, and sorted or without indices", axis)
        if axis.shifted and not (axis.padded and axis.is_below_root and axis.nnz_cols is not None):
            self.fail(f"axis {axis.name} is shifted, but no padded sparse_fixed one", axis)
        if axis.hashed and not (axis.padded and axis.unique and axis.is_variable):
            self.fail(f"axis {axis.name} is hashed, but no padded sparse_variable one", axis)
        if axis.idtype.kind != "int" or axis.idtype.bits < 32:
            self.fail(f"axis {axis.name} has the index type {axis.idtype}", axis)
        for extent in (axis.length, axis.nnz, axis.nnz_cols):
            if extent is not None:
                self._extent(extent, axis)

    def _arrays(self, axis: Axis) -> None:
        if not axis.is_assembled:
            self._array(axis, "indptr", axis.indptr, required=axis.is_variable)
            self._array(axis, "indices", axis.indices, required=axis.is_sparse)
        elif axis.indices is not None or axis.nnz is not None:
            self.fail(f"axis {axis.name} is assembled and has indices, or nnz", axis)

    def _array(self, axis: Axis, what: str, array: Var | None, *, required: bool) -> None:
        if required:
            self._handle(array, axis)
        elif array is not None:
            self.fail(f"axis {axis.name} is {axis.kind} and has {what}", axis)

    def _handle(self, var: Var | None, owner: Axis | AnyBuffer) -> None:
        if var not in self.handles:
            name = "no array" if var is None else var.name
            self.fail(f"{owner.name} lies at {name}, which is no handle parameter", owner)

    def _extent(self, extent: Expr, owner: Axis | AnyBuffer) -> None:
        """Check an integer that depends on parameters only."""
        self.verifier.visit(extent)
        if not extent.dtype.is_integer or extent.dtype.lanes > 1:
            self.fail(f"an extent of {owner.name} has dtype {extent.dtype}", owner)

    def _unique(self, what: str, names: list[str]) -> None:
        for name in names:
            if names.count(name) > 1:
                self.fail(f"{what} {name} is declared twice", self.func)


class _HostVerifier:
    """Checks that the host program allocates each array before its use, with the right dtype."""

    def __init__(self, module: Module[Any], after: str) -> None:
        self.module, self.after = module, after
        self.funcs = {func.name: func for func in module.funcs}
        params = module.source.params
        self.defined = {param.name for param in params}
        self.taken = {param.name for param in params if param.dtype.kind != "handle"}
        self.kinds = {param.name: param.dtype for param in params}
        self.arrays = {*_arrays(module.source)}

    def check(self) -> None:
        """Raise InternalError for the first operation that is wrong."""
        if len({type(func) for func in self.module.funcs}) > 1:
            self._fail("its functions are of several levels")
        if len(self.funcs) < len(self.module.funcs):
            self._fail("it has two functions of one name")
        for op in self.module.host:
            self._op(op)
        back = {b.name for op in self.module.host if isinstance(op, Return) for b in op.buffers}
        for name in (
            () if isinstance(self.module.funcs[0], CoordFunc) else _results(self.module.source)
        ):
            if name not in back:
                self._fail(f"the host does not return {name}, which is of a result")

    def _op(self, op: HostOp) -> None:
        match op:
            case Launch(func=name):
                if name not in self.funcs:
                    self._fail(f"the host launches {name}, which does not exist")
                self._launch(self.funcs[name])
            case HostAlloc(buffer=buffer):
                if len(buffer.shape) != 1:
                    self._fail(f"the host allocates {buffer.name}, not one-dimensional", buffer)
                if buffer.name in self.taken:
                    self._fail(f"the host allocates {buffer.name} twice, or as a scalar", buffer)
                self.taken.add(buffer.name)
                self._uses(_names(buffer.shape[0]), f"the size of {buffer.name}")
                self.defined.add(buffer.name)
                self.kinds[buffer.name] = handle
                self.arrays = {array for array in self.arrays if array[0] != buffer.name}
                self.arrays.add((buffer.name, buffer.dtype))
            case Scan(buffer=buffer):
                self._uses([buffer.name], "a scan")
                if not buffer.dtype.is_integer:
                    self._fail(f"a scan adds up {buffer.name}, which is {buffer.dtype}", buffer)
            case Trim(buffer=buffer, size=size):
                self._uses([buffer.name, *_names(size)], "a trim")
            case Return(buffers=buffers):
                self._uses([buffer.name for buffer in buffers], "the return")

    def _launch(self, func: Func) -> None:
        """Check that the arguments of *func* have the dtypes it declares, bound by name."""
        self._uses([param.name for param in func.params], func.name)
        for param in func.params:
            if param.dtype != (kind := self.kinds[param.name]):
                self._fail(f"{func.name} takes {param.name} as {param.dtype}, it is {kind}", param)
        for name, dtype in _arrays(func):
            allocated = sorted(
                str(array_dtype) for array, array_dtype in self.arrays if array == name
            )
            if allocated and str(dtype) not in allocated:
                self._fail(f"{func.name} takes {name} as {dtype}, it is {allocated[0]}", func)

    def _uses(self, names: list[str], user: str) -> None:
        for name in names:
            if name not in self.defined:
                self._fail(f"{user} uses {name}, which is neither given nor allocated before")

    def _fail(self, message: str, node: Node | None = None) -> NoReturn:
        name, span = self.module.source.name, None if node is None else node.span
        raise InternalError(self.after, f"module {name}: {message}", message, span)


def _arrays(func: Func) -> Iterator[tuple[str, DType]]:
    """Yield the arrays that *func* takes, by the names of their parameters, with their dtypes."""
    for axis in func.axes:
        for array in (axis.indptr, axis.indices):
            if array is not None:
                yield array.name, axis.idtype
    for buffer in func.buffers:
        if buffer.data is not None:
            yield buffer.data.name, buffer.dtype


def _results(source: Func) -> Iterator[str]:
    """Yield the names of the arrays that a host program for *source* has to return."""
    assembled = [axis for axis in source.axes if axis.is_assembled]
    for axis in assembled:
        yield from (f"{axis.name}_indptr", f"{axis.name}_indices")
    for buffer in source.buffers:
        if buffer.data is not None and {*assembled} & {*getattr(buffer, "axes", ())}:
            yield buffer.data.name


def _names(expr: Expr) -> list[str]:
    """Return the names of the variables and buffers in *expr*."""
    buffers = (x.buffer for x in walk(expr) if hasattr(x, "buffer"))
    return [b.name for b in buffers] + [x.name for x in walk(expr) if isinstance(x, Var)]
