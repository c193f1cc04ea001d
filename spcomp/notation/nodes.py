"""Index notation as values: the terms and statements of a program, before formats are known."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import TypeAlias

from spcomp.dtypes import SCALARS
from spcomp.errors import Span
from spcomp.notation.windows import IndexSet, Windows

REDUCTIONS = {
    "sum": "+",
    "prod": "*",
    "max": "max",
    "min": "min",
    "any": "or",
    "all": "and",
    "argmax": "argmax",
    "argmin": "argmin",
}
ARG_REDUCTIONS: dict[str, str] = {"argmax": "max", "argmin": "min"}  # which give a coordinate
TYPES = frozenset(str(t) for t in SCALARS)  # functions that cast, float32(x)
SYMBOLS = {op: name for name, op in REDUCTIONS.items()}
_PREFIX = {"neg": "-", "not": "not ", "~": "~"}
_STRENGTH = {
    "or": 1,
    "and": 2,
    "not": 3,
    "|": 5,
    "^": 6,
    "&": 7,
    "+": 9,
    "-": 9,
    "neg": 11,
    "~": 11,
    "**": 12,
}
_STRENGTH |= dict.fromkeys(("<", "<=", ">", ">=", "==", "!="), 4)
_STRENGTH |= dict.fromkeys(("<<", ">>"), 8) | dict.fromkeys(("*", "/", "//", "%"), 10)
ATOM = 13
MOST_NAME = 48  # characters of a name made from a program's text


@dataclass(frozen=True, slots=True)
class Term:
    """An expression of index notation; two are equal if they are spelled alike."""

    at: Span | None = field(default=None, compare=False, kw_only=True)


@dataclass(frozen=True, slots=True)
class Number(Term):
    """A literal; it takes the dtype of the other operand."""

    value: int | float | bool

    def __str__(self) -> str:
        return str(self.value)


@dataclass(frozen=True, slots=True)
class Scalar(Term):
    """An argument that is one number, ``alpha``."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class IndexValue(Term):
    """The current coordinate of an index, used as a number."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Vector:
    """An index vector: whole numbers, read at *rank* indices, that are coordinates elsewhere."""

    name: str
    rank: int = 1


@dataclass(frozen=True, slots=True)
class Access(Term):
    """``A[i, j]``; without indices a scalar that the program computes.

    *windows*: for each dimension a window, a fixed coordinate (which has no index), or None.
    *vectors*: for each dimension an index vector, whose indices stand in *indices*, or None;
    ``X[src[e], f]`` has the indices e and f. An access has windows, or vectors, or neither.
    """

    name: str
    indices: tuple[str, ...]
    windows: Windows = ()
    vectors: tuple[Vector | None, ...] = ()

    @property
    def rank(self) -> int:
        """The number of dimensions."""
        return len(self.windows or self.vectors or self.indices)

    @property
    def subscripts(self) -> tuple[str | Access, ...]:
        """For each dimension its index, or the access to its index vector."""
        if not self.vectors:
            return self.indices
        names = iter(self.indices)
        return tuple(
            next(names)
            if vector is None
            else Access(vector.name, tuple(islice(names, vector.rank)), at=self.at)
            for vector in self.vectors
        )

    @property
    def dimensions(self) -> tuple[str, ...]:
        """The index of each dimension; one with an index vector has an index of its own."""
        pairs = enumerate(self.subscripts)
        return tuple(s if isinstance(s, str) else f"{self.name}.{dim}" for dim, s in pairs)

    def __str__(self) -> str:
        if not self.indices and not self.windows:
            return self.name
        if self.vectors:
            return f"{self.name}[{', '.join(map(str, self.subscripts))}]"
        names = iter(self.indices)
        shown = []
        for window in self.windows or (None,) * len(self.indices):
            if isinstance(window, int):
                shown.append(str(window))
                continue
            name = next(names)
            shown.append(name if window is None else window.spelled(name))
        return f"{self.name}[{', '.join(shown)}]"


@dataclass(frozen=True, slots=True)
class Op(Term):
    """An operator on its operands, as Python spells it; ``neg``, ``not`` and ``~`` have one."""

    op: str
    args: tuple[Expr, ...]

    def __str__(self) -> str:
        strength = _STRENGTH[self.op]
        if len(self.args) == 1:
            return _PREFIX[self.op] + _inside(self.args[0], strength)
        left, right = self.args
        return f"{_inside(left, strength)} {self.op} {_inside(right, strength + 1)}"


@dataclass(frozen=True, slots=True)
class Call(Term):
    """A function applied to arguments, element by element."""

    func: str
    args: tuple[Expr, ...]

    def __str__(self) -> str:
        if self.func == "pow" and len(self.args) == 2:
            return f"{_inside(self.args[0], ATOM)} ** {_inside(self.args[1], _STRENGTH['neg'])}"
        return f"{self.func}({', '.join(map(str, self.args))})"


@dataclass(frozen=True, slots=True)
class Declared(Term):
    """A user's function: *body* is its value, *presence* says where it has one.

    ``and``: where all *args* are present; ``or``: where one is; ``always``: everywhere, and *body*
    reads as 0 where it is absent. The arguments of an ``or`` are wrapped in ``always``.
    """

    func: str
    args: tuple[Expr, ...]
    body: Expr
    presence: str

    def __str__(self) -> str:
        return f"{self.func}({', '.join(map(str, self.args))})"


@dataclass(frozen=True, slots=True)
class Reduce(Term):
    """*body* combined by *op* over the coordinates of *indices* at which it is present."""

    op: str
    indices: tuple[str, ...]
    body: Expr
    is_written: bool = field(default=True, compare=False)

    def __str__(self) -> str:
        over = self.indices[0] if len(self.indices) == 1 else f"({', '.join(self.indices)})"
        return f"{SYMBOLS[self.op]}({over}, {self.body})"


@dataclass(frozen=True, slots=True)
class Masked(Term):
    """``value if cond``, absent elsewhere, or ``value if cond else other``.

    A condition that is an access to a sparse operand asks whether the coordinate is stored; the
    function ``stored`` asks that of any operand.
    """

    value: Expr
    cond: Expr
    other: Expr | None = None

    def __str__(self) -> str:
        tail = "" if self.other is None else f" else {_inside(self.other, 1)}"
        return f"{_inside(self.value, 1)} if {_inside(self.cond, 1)}{tail}"


Expr: TypeAlias = Number | Scalar | IndexValue | Access | Op | Call | Declared | Reduce | Masked


@dataclass(frozen=True, slots=True)
class Assignment:
    """``target = value`` or ``target += value``; *is_dense*: the target is dense in any case.

    ``target -= value`` *subtracts*: its value is the negative, which is added. *of_type*: the
    operand whose type the target takes; by default the type is that of the value, or its own.
    *is_exact*: the target, a product, is sparse and stores nothing where a reduction is empty.
    """

    target: Access
    value: Expr
    accumulates: bool = False
    is_dense: bool = False
    subtracts: bool = field(default=False, compare=False)
    at: Span | None = field(default=None, compare=False)
    of_type: str = ""
    is_exact: bool = False

    def __str__(self) -> str:
        return f"{self.target} {'+=' if self.accumulates else '='} {self.value}"

    @property
    def addend(self) -> tuple[Expr, bool]:
        """The value, and whether it is subtracted, as its type may have no negative numbers."""
        if self.subtracts and isinstance(self.value, Op):
            (value,) = self.value.args
            return value, True
        return self.value, False

    @property
    def name(self) -> str:
        """Its text as an identifier, cut where it gets long: ``C_i_k_A_i_j_B_j_k``."""
        words = re.findall(r"[A-Za-z0-9]+", str(self))
        *_, last = (at for at in range(len(words) + 1) if len("_".join(words[:at])) <= MOST_NAME)
        name = "_".join(words[:last])
        return name if name[:1].isalpha() else f"program_{name}".rstrip("_")


@dataclass(frozen=True, slots=True)
class Program:
    """Statements in order."""

    statements: tuple[Assignment, ...]

    def __str__(self) -> str:
        return "\n".join(map(str, self.statements))


def target_fault(target: Access) -> str:
    """Return why *target* cannot be assigned; empty if it can."""
    sets = [window.coordinates for window in target.windows if isinstance(window, IndexSet)]
    if any(len(set(coords)) < len(coords) for coords in sets):
        return f"a coordinate occurs twice in the result {target}"
    if len(set(target.dimensions)) < len(target.dimensions):
        return f"an index occurs twice in the result {target}"
    return ""


def stored_fault(args: tuple[Expr, ...]) -> tuple[str, str] | None:
    """Return why ``stored`` does not take *args*, and a hint; None if it does."""
    if len(args) == 1 and isinstance(args[0], Access) and args[0].indices:
        return None
    shown = ", ".join(map(str, args))
    return f"only an operand with indices is stored, not {shown}", "write stored(A[i, j])"


def children(term: Expr) -> tuple[Expr, ...]:
    """Return the terms directly below *term*."""
    match term:
        case Access(vectors=vectors) if vectors:
            return tuple(s for s in term.subscripts if not isinstance(s, str))
        case Op(args=args) | Call(args=args):
            return args
        case Declared(body=body) | Reduce(body=body):
            return (body,)
        case Masked(value=value, cond=cond, other=other):
            return (value, cond) if other is None else (value, cond, other)
    return ()


def walk(term: Expr) -> Iterator[Expr]:
    """Yield *term* and everything below it, parents first."""
    yield term
    for child in children(term):
        yield from walk(child)


def free(term: Expr) -> tuple[str, ...]:
    """Return the indices of *term* that no reduction inside binds, in order of appearance."""
    match term:
        case Access(indices=indices):
            return tuple(dict.fromkeys(indices))
        case IndexValue(name=name):
            return (name,)
        case Reduce(indices=bound, body=body):
            return tuple(name for name in free(body) if name not in bound)
    return tuple(dict.fromkeys(name for child in children(term) for name in free(child)))


def accesses(term: Expr, *, vectors: bool = True) -> tuple[Access, ...]:
    """Return the accesses in *term*, each once, with those to its index *vectors* or without."""
    found = walk(term) if vectors else _above_accesses(term)
    return tuple(dict.fromkeys(t for t in found if isinstance(t, Access)))


def _above_accesses(term: Expr) -> Iterator[Expr]:
    """Yield *term* and everything below it, without the index vectors of accesses."""
    yield term
    for child in () if isinstance(term, Access) else children(term):
        yield from _above_accesses(child)


def _inside(term: Expr, strength: int) -> str:
    inner = ATOM
    match term:
        case Op(op=op):
            inner = _STRENGTH[op]
        case Masked():
            inner = 0
        case Call(func="pow"):
            inner = _STRENGTH["**"]
        case Number(value=value) if value < 0:
            inner = _STRENGTH["neg"]
    return str(term) if inner >= strength else f"({term})"
