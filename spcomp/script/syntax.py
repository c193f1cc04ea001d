"""Before parsing: the names of the script language, with signatures by which calls are parsed.

Inside a decorated function these names are syntax and never run; called outside they raise.
"""

# ruff: noqa: FBT002
from __future__ import annotations

from typing import Any

from spcomp.script.syntax_host import (
    host_alloc,
    host_return,
    launch,
    only_in_scripts,
    outside,
    prefix,
    scan,
    trim,
)

# fmt: off
__all__ = (
    "abs", "acos", "acosh", "alloc_buffer", "alloc_sparse_buffer", "asin", "asinh",
    "assume_buffer_domain", "atan", "atan2", "atanh", "attach", "axis", "bfloat16", "block",
    "block_attr", "bool", "broadcast", "Buffer", "case", "Cast", "cast", "cbrt", "ceil", "cos",
    "cosh", "cursor", "dense_fixed", "dense_variable", "erf", "evaluate", "exp", "exp2", "expm1",
    "fail", "flatten", "float16", "float32", "float64", "floor", "floordiv", "floormod", "fma",
    "func_attr", "fuse", "gallop", "grid", "handle", "hash_probe", "host_alloc",
    "host_return", "hypot", "if_then_else", "init", "int16", "int32", "int64", "int8", "intersect",
    "isinf", "isnan", "iter", "launch", "let", "linear_search", "log", "log10",
    "log1p", "log2", "lower_bound", "masked_load", "match_buffer", "match_sparse_buffer", "max",
    "max_value", "merge", "min", "min_value", "parallel", "popcount", "pow", "prefetch", "prefix",
    "print", "ramp", "reads", "round", "rsqrt", "run_end", "scan", "Select", "serial",
    "sigmoid", "sin", "sinh", "sp_iter", "sp_iter_attr", "sparse_fixed", "sparse_variable", "sqrt",
    "store", "stored", "tan", "tanh", "thread_binding", "trim", "trunc", "tvm_storage_sync",
    "uint16", "uint32", "uint64", "uint8", "uniform", "union", "unroll", "upper_bound",
    "vector_reduce", "vectorized", "where", "writes",
)
# fmt: on


class DTypeName:
    """``T.float32``: a parameter's annotation, and in a script a typed constant or a cast."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __call__(self, value: Any) -> Any:
        """Raise: outside a script a type has no values."""
        raise outside(self.__name__)

    def __repr__(self) -> str:
        return f"T.{self.__name__}"


int8, int16, int32, int64 = (DTypeName(f"int{b}") for b in (8, 16, 32, 64))
uint8, uint16, uint32, uint64 = (DTypeName(f"uint{b}") for b in (8, 16, 32, 64))
float16, float32, float64 = (DTypeName(f"float{b}") for b in (16, 32, 64))
bfloat16, handle = DTypeName("bfloat16"), DTypeName("handle")
bool = DTypeName("bool")


class Buffer:
    """``T.Buffer[(m, 4), "float32"]``: a handle parameter, with the array that it points to."""

    def __init__(self, shape: Any, dtype: Any = "float32") -> None:
        """Take the form ``T.Buffer((m, 4), "float32")`` as well."""

    def __class_getitem__(cls, item: Any) -> type[Buffer]:
        return cls


# -- declarations and sparse iterations ------------------------------------------------------


@only_in_scripts
def func_attr(attrs: dict[str, Any]) -> None:
    """Attributes of the function; unknown ones are kept."""


@only_in_scripts
def dense_fixed(length: Any, idtype: Any = "int32") -> Any:
    """An axis ``0..length-1``, the root of a tree."""


@only_in_scripts
def dense_variable(
    parent: Any, shape: Any, indptr: Any, idtype: Any = "int32", nnz: Any = None
) -> Any:
    """A dense fiber per position of *parent*; *shape* is ``(length, nnz)`` or the length."""


@only_in_scripts
def sparse_fixed(
    parent: Any,
    shape: Any,
    indices: Any,
    idtype: Any = "int32",
    sorted: Any = True,
    unique: Any = True,
    padded: Any = False,
    shifted: Any = False,
) -> Any:
    """``c`` stored coordinates per position of *parent*; *shape* is ``(length, c)``."""


@only_in_scripts
def sparse_variable(
    parent: Any,
    shape: Any,
    arrays: Any,
    idtype: Any = "int32",
    sorted: Any = True,
    unique: Any = True,
    nnz: Any = None,
    padded: Any = False,
    hashed: Any = False,
) -> Any:
    """The stored coordinates per position of *parent*; *arrays*: (indptr, indices), or Nones."""


@only_in_scripts
def match_sparse_buffer(
    param: Any,
    axes: Any,
    dtype: Any = "float32",
    fill: Any = 0,
    extra_storage: Any = 0,
    scope: Any = "global",
    distinct: Any = False,
) -> Any:
    """The values along *axes* at the handle *param*; elements not stored read as *fill*.

    *distinct*: promise that no value occurs twice, so that rows of another array can be written at
    these values in parallel. A call checks it.
    """


@only_in_scripts
def alloc_sparse_buffer(
    axes: Any, dtype: Any = "float32", scope: Any = "global", fill: Any = 0, extra_storage: Any = 0
) -> Any:
    """A buffer along *axes* for the rest of the statements."""


@only_in_scripts
def match_buffer(
    param: Any,
    shape: Any,
    dtype: Any = "float32",
    strides: Any = None,
    scope: Any = "global",
    align: Any = None,
    offset_factor: Any = None,
    distinct: Any = False,
) -> Any:
    """The dense array of *shape* at the handle *param*, row-major unless *strides* say else.

    *distinct* is that of ``match_sparse_buffer``. *align* and *offset_factor*, TVM's promises about
    the address, are not relied on.
    """


@only_in_scripts
def alloc_buffer(
    shape: Any, dtype: Any = "float32", scope: Any = "global", strides: Any = None
) -> Any:
    """A dense array of *shape* for the rest of the statements."""


@only_in_scripts
def assume_buffer_domain(buffer: Any, domain: Any) -> None:
    """Promise that every value of *buffer* lies in ``[low, high]``, both included."""


@only_in_scripts
def sp_iter(axes: Any, kinds: str, name: str = "") -> Any:
    """Run the body once per coordinate tuple of the domains; *kinds* has S or R per variable."""


@only_in_scripts
def iter(axes: Any, kinds: str, name: str = "") -> Any:
    """The old name of sp_iter."""


@only_in_scripts
def sp_iter_attr(attrs: dict[str, Any]) -> None:
    """Attributes of the enclosing sp_iter."""


@only_in_scripts
def init() -> Any:
    """The statements that run before a reduction accumulates."""


@only_in_scripts
def fuse(*axes: Any) -> Any:
    """One loop over the stored positions of the last axis; binds a variable for each axis."""


@only_in_scripts
def attach(axis: Any, to: Any) -> Any:
    """The fiber of *axis* at the coordinate that runs over *to*."""


@only_in_scripts
def flatten(*axes: Any) -> Any:
    """One loop over the positions of the last axis; its variable is that position."""


@only_in_scripts
def union(*axes: Any) -> Any:
    """The coordinates stored in at least one of *axes*."""


@only_in_scripts
def intersect(*axes: Any) -> Any:
    """The coordinates stored in all of *axes*."""


# -- blocks and merges -----------------------------------------------------------------------


@only_in_scripts
def block(name: str = "") -> Any:
    """A unit of computation."""


class axis:
    """The variables of a block, for the loops around it."""

    @staticmethod
    @only_in_scripts
    def spatial(extent: Any, value: Any) -> Any:
        """A variable in ``0..extent-1`` whose iterations write different elements."""

    @staticmethod
    @only_in_scripts
    def reduce(extent: Any, value: Any) -> Any:
        """A variable in ``0..extent-1`` whose iterations accumulate into the same elements."""

    @staticmethod
    @only_in_scripts
    def remap(kinds: str, loops: Any) -> Any:
        """One variable per loop variable, S or R as *kinds* says, extents from the loops."""

    S, R = spatial, reduce


@only_in_scripts
def where(condition: Any) -> None:
    """The block runs only where *condition* holds."""


@only_in_scripts
def reads(*regions: Any) -> None:
    """The regions that the block reads."""


@only_in_scripts
def writes(*regions: Any) -> None:
    """The regions that the block writes."""


@only_in_scripts
def block_attr(attrs: dict[str, Any]) -> None:
    """Attributes of the enclosing block."""


@only_in_scripts
def merge(kind: str, *cursors: Any) -> Any:
    """Co-iterate *cursors*; binds the coordinate and the position of each."""


@only_in_scripts
def cursor(indices: Any, begin: Any, end: Any) -> Any:
    """The positions ``begin..end-1`` of *indices*; None for a dense fiber."""


@only_in_scripts
def case(*present: Any) -> Any:
    """The statements for a coordinate that exactly the cursors marked 1 have."""


# -- loops and statements --------------------------------------------------------------------


@only_in_scripts
def serial(begin: Any, end: Any = None, annotations: Any = None) -> Any:
    """A loop in order."""


@only_in_scripts
def parallel(begin: Any, end: Any = None, annotations: Any = None) -> Any:
    """A loop on all cores."""


@only_in_scripts
def vectorized(begin: Any, end: Any = None, annotations: Any = None) -> Any:
    """A loop in vector lanes."""


@only_in_scripts
def unroll(begin: Any, end: Any = None, annotations: Any = None) -> Any:
    """A loop that is unrolled."""


@only_in_scripts
def thread_binding(begin: Any, end: Any = None, thread: Any = None, annotations: Any = None) -> Any:
    """A loop over a hardware index, ``blockIdx.x`` and such."""


@only_in_scripts
def grid(*extents: Any) -> Any:
    """Nested serial loops."""


@only_in_scripts
def let(value: Any) -> Any:
    """``with T.let(value) as x:`` binds x for these statements only."""


@only_in_scripts
def store(buffer: Any, index: Any, value: Any, mask: Any = None, atomic: Any = False) -> None:
    """``buffer[index] = value`` for the lanes of *mask*, perhaps atomically."""


@only_in_scripts
def uniform(condition: Any) -> Any:
    """``if T.uniform(condition):``: lanes of a warp may all do what ``else`` says, if one does."""


@only_in_scripts
def evaluate(value: Any) -> None:
    """Compute *value* and drop it."""


@only_in_scripts
def fail(*message: Any) -> None:
    """Make the call raise with *message* at its end: texts and numbers, with blanks between."""


@only_in_scripts
def print(*parts: Any) -> None:
    """Print a line of texts and numbers, with blanks between, as Python's ``print`` does."""


@only_in_scripts
def tvm_storage_sync(scope: str, lanes: int = 0) -> None:
    """Let the threads of a block see what others did: all, or groups of *lanes* neighbours."""


@only_in_scripts
def prefetch(buffer: Any, *indices: Any) -> None:
    """Hint that ``buffer[indices]`` will be read soon."""


# -- expressions -----------------------------------------------------------------------------


@only_in_scripts
def min(*values: Any) -> Any:
    """The smallest of two or more values."""


@only_in_scripts
def max(*values: Any) -> Any:
    """The largest of two or more values."""


@only_in_scripts
def floordiv(a: Any, b: Any) -> Any:
    """``a // b``."""


@only_in_scripts
def floormod(a: Any, b: Any) -> Any:
    """``a % b``."""


@only_in_scripts
def if_then_else(condition: Any, then: Any, otherwise: Any) -> Any:
    """*then* if *condition* else *otherwise*; only the chosen side is evaluated."""


@only_in_scripts
def Select(condition: Any, then: Any, otherwise: Any) -> Any:
    """The same as if_then_else."""


@only_in_scripts
def cast(value: Any, dtype: Any) -> Any:
    """*value* converted to *dtype*; takes the arguments in either order."""


@only_in_scripts
def Cast(dtype: Any, value: Any) -> Any:
    """The same as cast."""


@only_in_scripts
def min_value(dtype: Any) -> Any:
    """The smallest value of *dtype*; minus infinity for floats."""


@only_in_scripts
def max_value(dtype: Any) -> Any:
    """The largest value of *dtype*; infinity for floats."""


@only_in_scripts
def masked_load(buffer: Any, index: Any, mask: Any) -> Any:
    """``buffer[index]`` where *mask* holds, else 0."""


@only_in_scripts
def stored(element: Any) -> Any:
    """Whether ``A[i, j]`` is stored, at the coordinate level; else it reads as the fill value."""


@only_in_scripts
def lower_bound(buffer: Any, begin: Any, end: Any, key: Any, slope: int = 0) -> Any:
    """The first position in ``begin..end-1`` whose value is not below *key*, else *end*."""


@only_in_scripts
def upper_bound(buffer: Any, begin: Any, end: Any, key: Any, slope: int = 0) -> Any:
    """The first position in ``begin..end-1`` whose value is above *key*, else *end*."""


@only_in_scripts
def gallop(buffer: Any, begin: Any, end: Any, key: Any) -> Any:
    """``lower_bound`` in steps that double, starting at *begin*."""


@only_in_scripts
def linear_search(buffer: Any, begin: Any, end: Any, key: Any) -> Any:
    """The first position in ``begin..end-1`` whose value is *key*, else *end*."""


@only_in_scripts
def hash_probe(buffer: Any, begin: Any, end: Any, key: Any) -> Any:
    """The position of *key* in the hash table in the slots ``begin..end-1``, else *end*."""


@only_in_scripts
def run_end(buffer: Any, begin: Any, end: Any, key: Any) -> Any:
    """The first position in ``begin..end-1`` whose value is not *key*, else *end*."""


@only_in_scripts
def ramp(base: Any, stride: Any, lanes: Any) -> Any:
    """The vector ``base, base + stride, ...``."""


@only_in_scripts
def broadcast(value: Any, lanes: Any) -> Any:
    """The vector of *lanes* copies of *value*."""


@only_in_scripts
def vector_reduce(op: str, value: Any) -> Any:
    """The lanes of *value* combined by ``+``, ``*``, ``min`` or ``max``."""


@only_in_scripts
def fma(a: Any, b: Any, c: Any, dtype: Any = None) -> Any:
    """``a * b + c``, rounded once."""


class MathName:
    """A function of one number; with *dtype*, its value is cast to that."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __call__(self, x: Any, dtype: Any = None) -> Any:
        """Raise: only the parser gives it a meaning."""
        raise outside(self.__name__)


class MathNameOfTwo(MathName):
    """A function of two numbers: ``pow(x, y)``, ``atan2(y, x)``, ``hypot(x, y)``."""

    def __call__(self, x: Any, y: Any, dtype: Any = None) -> Any:  # type: ignore[override]
        """Raise: only the parser gives it a meaning."""
        raise outside(self.__name__)


exp, exp2, expm1 = map(MathName, ("exp", "exp2", "expm1"))
log, log2, log10, log1p = map(MathName, ("log", "log2", "log10", "log1p"))
sqrt, rsqrt, cbrt, sigmoid, erf = map(MathName, ("sqrt", "rsqrt", "cbrt", "sigmoid", "erf"))
sin, cos, tan, sinh, cosh, tanh = map(MathName, ("sin", "cos", "tan", "sinh", "cosh", "tanh"))
asin, acos, atan = map(MathName, ("asin", "acos", "atan"))
asinh, acosh, atanh = map(MathName, ("asinh", "acosh", "atanh"))
floor, ceil, round, trunc = map(MathName, ("floor", "ceil", "round", "trunc"))
pow, atan2, hypot = map(MathNameOfTwo, ("pow", "atan2", "hypot"))
abs, popcount, isnan, isinf = map(MathName, ("abs", "popcount", "isnan", "isinf"))
