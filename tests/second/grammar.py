"""Random programs of index notation."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

from tests.second import terms as t
from tests.second.oracle import CASTS, SEMIRINGS

Extent = str | int  # a label, whose length each call chooses, or a length

UNARY = ("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "rsqrt", "cbrt", "abs",
         "sigmoid", "erf", "floor", "ceil", "round", "trunc", "sin", "cos", "tan", "asin", "acos",
         "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "neg")  # fmt: skip
BINARY = ("maximum", "minimum", "/", "pow", "**", "//", "%", "atan2", "hypot",
          "own_keep", "own_fill")  # fmt: skip
COMPARED = ("<", "<=", ">", ">=", "==", "!=")
REDUCTIONS = ("sum", "sum", "sum", "max", "min", "prod", "any", "all")
DTYPES = ["float64"] * 8 + ["float32"] * 5 + ["int64", "int32"] * 2 + [*CASTS]
INTEGERS = [name for name in CASTS if "int" in name]


@dataclass(frozen=True)
class Declared:
    """An operand: its extents, type, and whether it is sparse."""

    extents: tuple[Extent, ...]
    dtype: str
    sparse: bool


@dataclass
class Program:
    """Statements and what they are about."""

    statements: list[t.Statement]
    operands: dict[str, Declared]
    formats: dict[str, str] = field(default_factory=dict)
    semiring: str = "plus_times"
    constants: dict[str, float] = field(default_factory=dict)

    def text(self) -> str:
        return "\n".join(statement.text() for statement in self.statements)

    def ring(self) -> tuple[str, str]:
        """Return what + and * are, as the oracle calls them."""
        if self.semiring in SEMIRINGS:
            return SEMIRINGS[self.semiring]
        add, _, mul = self.semiring.partition(" ")
        return add, mul


class Author:
    """Writes programs: draws terms over indices, and declares the operands that it needs."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.operands: dict[str, Declared] = {}
        self.known: dict[str, Declared] = {}  # what an earlier statement assigned
        labels = rng.choice((["m"], ["m", "n"], ["m", "n", "p"], ["m", "n", "p", "q"]))
        self.extents: dict[str, Extent] = {}
        for at, name in enumerate("ijkl"):
            self.extents[name] = labels[at] if at < len(labels) else rng.choice(labels)
        self.sparse = rng.choice((0.0, 0.4, 0.7, 1.0))
        self.dtypes = rng.choice((["float64"], ["float32"], DTYPES, DTYPES, INTEGERS))

    def chance(self, part: float) -> bool:
        return self.rng.random() < part

    # operands

    def ref(
        self, names: list[str], dtypes: list[str] | None = None, sparse: float | None = None
    ) -> t.Ref:
        """Return a tensor over the indices *names*, at times with a fixed coordinate besides."""
        places: list[t.Place] = []
        extents: list[Extent] = []
        for name in names:
            place, extent = self._place(name)
            places.append(place)
            extents.append(extent)
        if names and len(names) < 4 and self.chance(0.05):
            at = self.rng.randrange(len(names) + 1)
            places.insert(at, t.Fixed(self.rng.randrange(2)))
            extents.insert(at, self.rng.choice((2, 3)))
        dtype = self.rng.choice(dtypes or self.dtypes)
        chance = self.sparse if sparse is None else sparse
        shape = tuple(extents)
        wanted = Declared(shape, dtype, bool(shape) and self.chance(chance))
        same = [name for name, one in (self.operands | self.known).items() if one.extents == shape]
        if dtypes:
            same = [name for name in same if (self.operands | self.known)[name].dtype in dtypes]
        if same and self.chance(0.35):
            return t.Ref(self.rng.choice(same), tuple(places))
        name = f"{'ABDEFGHMNPQRSTUVWXYZ'[len(self.operands) % 20]}{len(self.operands) // 20 or ''}"
        self.operands[name] = wanted
        return t.Ref(name, tuple(places))

    def _place(self, name: str) -> tuple[t.Place, Extent]:
        extent = self.extents[name]
        if isinstance(extent, int) and self.chance(0.5):
            return self.window(name, extent)
        return t.Index(name), extent

    def window(self, name: str, length: int) -> tuple[t.Window, int]:
        """Return a part of *length* coordinates, and a length of the dimension that it is in."""
        step = self.rng.choice((1, 1, 2, 3))
        start = self.rng.randrange(3)
        run = range(start, start + step * (length - 1) + 1 if length else start, step)
        size = run.stop + self.rng.randrange(3)
        kind = self.rng.random()
        if kind < 0.2 and length:
            picked = [self.rng.randrange(size) for _ in range(length)]
            return t.Window(name, tuple(picked), f"{picked}"), size
        if kind < 0.4 and length:
            turned = f"{run[-1]}, {run[0] - 1}, {-step}"
            return t.Window(name, tuple(reversed(run)), turned), size
        return t.Window(name, tuple(run), f"{start}, {run.stop}, {step}"), size

    def subset(self, names: list[str], least: int = 0) -> list[str]:
        """Return some of *names*, in any order."""
        size = self.rng.randint(min(least, len(names)), min(len(names), 3))
        return self.rng.sample(names, size)

    # terms

    def leaf(self, names: list[str]) -> t.Term:
        kind = self.rng.random()
        if kind < 0.08:
            return t.Number(self.rng.choice((0, 1, 2, 3, 0.5, 2.5, 1.0, 0.0)))
        if kind < 0.12 and names:
            return t.Coordinate(self.rng.choice(names))
        if kind < 0.18:
            return self.ref([])
        return self.ref(self.subset(names, 1))

    def term(self, names: list[str], depth: int) -> t.Term:
        """Return a term over indices *names*, with written reductions."""
        if depth <= 0 or self.chance(0.1):
            return self.leaf(names)
        kind = self.rng.random()
        if kind < 0.42:
            name = self.rng.choice("**+-")
            return t.Op(name, (self.term(names, depth - 1), self.term(names, depth - 1)))
        if kind < 0.58:
            return t.Op(self.rng.choice(UNARY), (self.term(names, depth - 1),))
        if kind < 0.68:
            return self._binary(names, depth)
        if kind < 0.74:
            return t.Op(self.rng.choice(CASTS), (self.term(names, depth - 1),))
        if kind < 0.88:
            return self.reduction(names, depth)
        return self.masked(self.term(names, depth - 1), names, depth)

    def _binary(self, names: list[str], depth: int) -> t.Term:
        kind = self.rng.random()
        left, right = self.term(names, depth - 1), self.term(names, depth - 2)
        if kind < 0.55:
            name = self.rng.choice(BINARY)
            if name in ("//", "%"):
                right = t.Number(self.rng.choice((2, 3, 2.5))) if self.chance(0.7) else right
            if name in ("**", "pow"):
                right = t.Number(self.rng.choice((2, 3, 0.5, -1, 0))) if self.chance(0.8) else right
            return t.Op(name, (left, right))
        if kind < 0.65:
            return t.Op("where", (self.condition(names, depth - 1), left, right))
        if kind < 0.75:
            return t.Op("fma", (left, right, self.leaf(names)))
        if kind < 0.85:
            whole = [self.ref(self.subset(names, 1), INTEGERS[:-1]) for _ in range(2)]
            name = self.rng.choice("&|^~")
            return t.Op(name, tuple(whole[: 1 if name == "~" else 2]))
        if kind < 0.9:
            return t.Op(self.rng.choice(("isnan", "isinf")), (left,))
        return t.Op(self.rng.choice(COMPARED), (left, right))

    def condition(self, names: list[str], depth: int) -> t.Term:
        kind = self.rng.random()
        if kind < 0.6 or depth <= 0:
            name = self.rng.choice(COMPARED)
            right = self.leaf(names) if self.chance(0.5) else t.Number(self.rng.choice((0, 1, 0.5)))
            return t.Op(name, (self.leaf(names), right))
        if kind < 0.75 and names:
            spelling = self.rng.choice(t.POSITIVE + t.NEGATIVE)
            return t.Stored(self.ref(self.subset(names, 1)), spelling)
        if kind < 0.9:
            args = tuple(self.condition(names, depth - 1) for _ in range(2))
            return t.Op(self.rng.choice(("and", "or")), args)
        return t.Op("not", (self.condition(names, 0),))

    def masked(self, term: t.Term, names: list[str], depth: int) -> t.Term:
        kind = self.rng.random()
        if kind < 0.45 and names:
            return t.Masked(term, self.ref(self.subset(names, 1)))
        condition = self.condition(names, 1)
        other = self.term(names, depth - 2) if self.chance(0.3) else None
        return t.Masked(term, condition, other)

    def reduction(self, names: list[str], depth: int) -> t.Term:
        """Return a written reduction, at times over an index that has the name of one outside."""
        fresh = [name for name in "ijkl" if name not in names]
        shadowed = self.chance(0.1) and names
        if not fresh and not shadowed:
            return self.leaf(names)
        pool = names if shadowed else fresh
        over = self.rng.sample(pool, 2 if len(pool) > 1 and self.chance(0.2) else 1)
        inside = [*dict.fromkeys([*names, *over])]
        own = self.ref([*over, *self.subset([n for n in names if n not in over])][:3])
        term: t.Term = own
        if depth > 1:
            rest = self.term(inside, depth - 2)
            term = t.Op(self.rng.choice("***+"), (own, rest))
            if self.chance(0.2):
                term = t.Op(self.rng.choice(UNARY), (term,))
        if self.chance(0.15):
            term = self.masked(term, inside, 1)
        return t.Reduce(self.rng.choice(REDUCTIONS), tuple(over), term)

    # statements

    def statement(self, name: str) -> t.Statement:
        rank = self.rng.choice((0, 1, 1, 2, 2, 2, 2, 3, 3, 4))
        names = self.rng.sample("ijkl", rank)
        self._fix_extents()
        kind = self.rng.random()
        if kind < 0.45:
            value = self.sum_of_products(names)
        elif kind < 0.6:
            value = self.reduction(names, self.rng.randrange(3))
        elif kind < 0.65 and rank < 4:
            over = self.rng.choice([index for index in "ijkl" if index not in names])
            own = self.ref([*self.subset(names), over][-3:])
            value = t.Reduce(self.rng.choice(("argmax", "argmin")), (over,), own)
        else:
            value = self.term(names, self.rng.choice((1, 2, 2, 3)))
        value = self._covered(value, names)
        target = t.Ref(name, tuple(t.Index(index) for index in names))
        sliced = self.rng.choice(names) if names and self.chance(0.07) else ""
        if sliced and not self._may_be_sliced(value, sliced):
            sliced = ""
        return t.Statement(target, value, sliced=sliced)

    def _fix_extents(self) -> None:
        """Let an index have a constant length at times, so that it can run over parts."""
        for name in "ijkl":
            if self.chance(0.06) and isinstance(self.extents[name], str):
                self.extents[name] = self.rng.choice((0, 1, 1, 2, 3, 5, 9))

    def _may_be_sliced(self, value: t.Term, name: str) -> bool:
        for term in value.walk():
            if isinstance(term, t.Coordinate | t.Reduce) and name in (
                getattr(term, "name", ""),
                *getattr(term, "over", ()),
            ):
                return False
            if (
                isinstance(term, t.Ref)
                and sum(getattr(p, "name", "") == name for p in term.places) > 1
            ):
                return False
        return True

    def _covered(self, value: t.Term, names: list[str]) -> t.Term:
        """Return *value* times tensors over the indices of the result that it does not have."""
        have = frozenset[str]().union(*(_bound(term) for term in _outside(value)))
        missing = [name for name in names if name not in have]
        while missing:
            value = t.Op("*", (value, self.ref(missing[:2])))
            missing = missing[2:]
        return value

    def sum_of_products(self, names: list[str]) -> t.Term:
        """Return products added up, with reductions that are not written."""
        extra = [name for name in "ijkl" if name not in names]
        total: t.Term | None = None
        for _ in range(self.rng.choice((1, 1, 1, 1, 2, 2, 3))):
            over = self.rng.sample(extra, min(len(extra), self.rng.choice((0, 1, 1, 2))))
            product = self._product(names, over)
            if self.chance(0.12):
                product = self.masked(product, names + over, 1)
            total = product if total is None else t.Op(self.rng.choice("+++-"), (total, product))
        assert total is not None
        return total

    def _product(self, names: list[str], over: list[str]) -> t.Term:
        wanted = names + over
        self.rng.shuffle(wanted)
        factors: list[t.Term] = []
        while wanted or not factors or (self.chance(0.2) and len(factors) < 3):
            size = self.rng.choice((1, 2, 2, 2, 3))
            own, wanted = wanted[:size], wanted[size:]
            rest = [name for name in names + over if name not in own]
            own += self.rng.sample(
                rest, min(len(rest), self.rng.choice((0, 0, 1, 1, 2)), 3 - min(len(own), 3))
            )
            self.rng.shuffle(own)
            factors.append(self.ref(own) if self.chance(0.92) or own else self.leaf([]))
        if self.chance(0.1):
            factors.append(self.leaf(names))
        product = factors[0]
        for factor in factors[1:]:
            product = t.Op("*", (product, factor))
        if self.chance(0.1):
            product = t.Op(self.rng.choice(("neg", "float64", "float32", "int64")), (product,))
        return product


def _as_slice(window: t.Window) -> bool:
    """Return whether *window* means the same as a slice, whose negative ends count from the end."""
    return "[" not in window.written and "-" not in window.written


def _outside(term: t.Term) -> list[t.Term]:
    """Return the references of *term* that have indices it does not bind."""
    if isinstance(term, t.Reduce):
        return [_Without(inner, frozenset(term.over)) for inner in _outside(term.term)]
    if isinstance(term, t.Ref | t.Stored):
        return [term]
    return [inner for child in term.children() for inner in _outside(child)]


@dataclass(frozen=True)
class _Without(t.Term):
    """A reference under a reduction."""

    inner: t.Term
    over: frozenset[str]


def _bound(term: t.Term) -> frozenset[str]:
    if isinstance(term, _Without):
        return _bound(term.inner) - term.over
    return term.free()


def program(rng: Random) -> Program:
    """Return a random program."""
    author = Author(rng)
    count = rng.choice((1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 3))
    statements: list[t.Statement] = []
    for at in range(count):
        statement = author.statement("C" if at == count - 1 else f"t{at}")
        statements.append(statement)
        if at < count - 1:
            _remember(author, statement)
    formats = _formats(rng, author, statements[-1])
    semiring = "plus_times"
    if rng.random() < 0.15:
        semiring = rng.choice([*SEMIRINGS, "max min", "+ max", "min *", "* +", "max first"])
    if semiring == "plus_times" and "C" not in formats and rng.random() < 0.08:
        statements[-1] = _added(author, statements[-1])
    return Program(statements, author.operands, formats, semiring)


def _added(author: Author, statement: t.Statement) -> t.Statement:
    """Return *statement* as one that adds to its target, which is an argument then."""
    names = [place.name for place in statement.target.places]  # type: ignore[union-attr]
    if not names:
        return statement
    sparse = author.chance(0.3)  # then the result may be a new one, of the wider type
    places, extents = _written(author, names, whole=sparse)
    part = any(not isinstance(place, t.Index) for place in places)
    dtype = "float64" if sparse else author.rng.choice(("float64", "float32", "int64"))
    author.operands["C"] = Declared(extents, dtype, sparse)
    sign = author.rng.choice(("+=", "-=", "=") if part else ("+=", "-="))
    return t.Statement(t.Ref("C", places), statement.value, sign)


def _written(
    author: Author, names: list[str], *, whole: bool
) -> tuple[tuple[t.Place, ...], tuple[Extent, ...]]:
    """Return the places of a target that is given, and its extents; not *whole*: a part of it."""
    places: list[t.Place] = [t.Index(name) for name in names]
    extents = [author.extents[name] for name in names]
    for at, extent in enumerate(extents):
        if isinstance(extent, int) and not whole and author.chance(0.7):
            window, size = author.window(names[at], extent)
            if "[" not in window.written:  # of an index set, a coordinate may be there twice
                places[at], extents[at] = window, size
    if not whole and len(names) < 4 and author.chance(0.3):
        places.append(t.Fixed(author.rng.randrange(2)))
        extents.append(2)
    return tuple(places), tuple(extents)


def _remember(author: Author, statement: t.Statement) -> None:
    """Let later statements read what *statement* assigns, if it is surely dense."""
    refs = [term for term in statement.value.walk() if isinstance(term, t.Ref)]
    declared = author.operands | author.known
    scalar = not statement.target.places
    if scalar or not any(declared[ref.name].sparse for ref in refs):
        extents = tuple(author.extents[place.name] for place in statement.target.places)  # type: ignore[union-attr]
        author.known[statement.target.name] = Declared(extents, "", False)


def _formats(rng: Random, author: Author, statement: t.Statement) -> dict[str, Any]:
    formats: dict[str, Any] = {}
    rank = len(statement.target.places)
    if rank and statement.sign == "=" and rng.random() < 0.3:
        names = {
            1: ["sparse", "hash", "dense"],
            2: ["csr", "csc", "dcsr", "coo", "dense", "lil", "bsr(1)", "hash", "ell"],
        }
        formats["C"] = rng.choice(
            names.get(
                rank, ["csf", "coo", "dense", "dense,compressed" + ",compressed" * (rank - 2)]
            )
        )
    for name, one in author.operands.items():
        if one.sparse and len(one.extents) == 2 and rng.random() < 0.07:
            formats[name] = rng.choice(
                ("hyb", "csr", "csc", "dcsr", "coo", "hash", "bsr(1)", "ell", "dense,hashed")
            )
    return formats
