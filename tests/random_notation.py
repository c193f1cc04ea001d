"""Random programs of index notation, their arguments, and what they must return."""

from __future__ import annotations

import ast
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sps

import spcomp
from spcomp.kernels.notation.kernel import NotationKernel
from tests.notation_oracle import SEMIRINGS, Oracle
from tests.notation_rules import follows, is_unclear
from tests.random_operands import NAMED, Given, operand

FUNCTIONS: dict[str, tuple[Callable[..., Any], str]] = {
    "fkeep": (lambda a, b: a * 2 - b * a, "keep"),
    "ffill": (lambda a, b: a * 3 + b + 1, "fill"),
}


@dataclass
class Case:
    """One program and its arguments; *arrays* has them as values and where they are present."""

    text: str = ""  # with ABSENT for the else that a mask lacks
    sizes: dict[str, int] = field(default_factory=dict)
    args: dict[str, Any] = field(default_factory=dict)
    arrays: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    sparse: set[str] = field(default_factory=set)
    formats: dict[str, Any] = field(default_factory=dict)
    semiring: str = "plus_times"
    exact: bool = True
    unclear: bool = False  # a reduction is not written that has to be

    @property
    def program(self) -> str:
        """What the user writes."""
        return self.text.replace(" else ABSENT", "")

    def arguments(self) -> dict[str, Any]:
        """What to call with; a result that is given is a copy, since it is written."""
        return {name: a.copy() if name == "C" else a for name, a in self.args.items()}

    def kernel(self) -> NotationKernel:
        functions = {
            name: spcomp.Function(func, zero)
            for name, (func, zero) in FUNCTIONS.items()
            if name in self.text
        }
        own = spcomp.Semiring(*SEMIRINGS[self.semiring])
        return spcomp.compile(self.program, formats=self.formats, semiring=own, functions=functions)

    def known(self, stored: Mapping[str, bool]) -> dict[str, tuple[Any, Any]]:
        """What the oracle says of every result; *stored*: which have a pattern, for those that
        later statements read."""
        oracle = Oracle(
            dict(self.arrays),
            self.sizes,
            SEMIRINGS[self.semiring],
            set(self.sparse),
            FUNCTIONS,
        )
        found: dict[str, tuple[Any, Any]] = {}
        with np.errstate(all="ignore"):
            for stmt in ast.parse(self.text).body:
                value, shown = oracle.statement(stmt)
                target = stmt.targets[0] if isinstance(stmt, ast.Assign) else stmt.target
                name = target.id if isinstance(target, ast.Name) else target.value.id
                found[name] = value, shown
                own = stored.get(name, False)
                oracle.arrays[name] = value, shown if own else np.ones_like(shown)
                oracle.sparse |= {name} if own else set()
        return found

    def check(self, results: Any, kernel: NotationKernel) -> None:
        """Assert that *results* are what the oracle says."""
        stored: dict[str, bool] = {}
        if "\n" in self.text:  # what a statement reads may have a pattern
            plans = kernel.planned(self.args).plans
            stored = {p.stmt.target.name: not p.output.layout.is_dense for p in plans}
        known = self.known(stored)
        names = kernel._runner.planner.prepared.results
        for name, result in zip(names, results if len(names) > 1 else (results,), strict=True):
            self._check(name, result, *known[name])

    def _check(self, name: str, result: Any, want: Any, shown: Any) -> None:
        if isinstance(result, (np.ndarray, np.generic)):
            self._close(result, want)
            assert _KINDS[np.asarray(result).dtype.kind] == _KINDS[want.dtype.kind], (
                f"{self}: {result.dtype}"
            )
            return
        assert tuple(result.shape) == want.shape, f"{self}: {result.shape}"
        coords, values = elements(result)
        got = np.zeros(want.shape, bool)
        got[coords] = True
        assert got.sum() == len(values), f"{self}: a coordinate is stored twice"
        if getattr(result, "format", "") == "dia":  # scipy takes a zero for padding
            shown = shown & (want != 0)
        assert not (shown & ~got).any(), f"{self}: an element is missing"
        there = shown[coords]
        self._close(values[there], want[coords][there])
        padding = ~there & (values != 0)  # of blocks and diagonals, and what is not there
        self._close(values[padding], want[coords][padding])

    def _close(self, result: Any, want: Any) -> None:
        if want.dtype.kind == result.dtype.kind == "i":  # what is neutral depends on the type
            own, theirs = np.iinfo(want.dtype), np.iinfo(result.dtype)
            for end, other in ((own.max, theirs.max), (own.min, theirs.min)):
                want = np.where((want == end) & (result == other), result, want)
        if self.exact:
            np.testing.assert_array_equal(result, want, err_msg=str(self))
            return
        narrow = any(np.asarray(v).dtype == np.float32 for v, _ in self.arrays.values())
        finite = np.abs(want[np.isfinite(want)]) if np.size(want) else np.zeros(0)
        top = max(1.0, float(finite.max(initial=0.0)))
        eps = 2e-6 if narrow or "float32" in self.text else 1e-12
        np.testing.assert_allclose(result, want, rtol=eps, atol=eps * top, err_msg=str(self))


def elements(result: Any) -> tuple[tuple[Any, ...], Any]:
    """The coordinates and the values that a sparse *result* stores."""
    if isinstance(result, spcomp.Tensor):
        coords, places = result.elements()
        return coords, np.asarray(result.values).reshape(-1)[places]
    coo = result.tocoo()
    return coo.coords, coo.data


class Piece(NamedTuple):
    """A part of an expression: its free indices, whether it is sparse, and exact."""

    text: str
    free: frozenset[str]
    sparse: bool
    exact: bool = True


class Writer:
    """Writes one program."""

    def __init__(self, seed: int) -> None:
        self.random, self.arrays = random.Random(seed), np.random.default_rng(seed)
        self.case = Case()
        self.operands: list[Piece] = []

    def write(self) -> Case:
        """Return the program of the seed."""
        random, case = self.random, self.case
        self._sizes()
        if random.random() < 0.15:
            case.semiring = random.choice(list(SEMIRINGS))
        shared = random.random() < 0.4  # all operands at the same indices, in some order
        pool = random.sample("ijkl", random.choice((1, 2, 2, 2, 3, 3, 4)))
        for name in "ABDE"[: random.choice((1, 2, 2, 3, 3, 4))]:
            rank = min(len(pool), random.choice((1, 2, 2, 2, 3, 3, 4)))
            self._operand(name, random.sample(pool, len(pool) if shared else rank))
        lines: list[str] = []
        if random.random() < 0.15:
            lines.append(self._statement("W", first=True))
        lines.append(self._statement("C"))
        if random.random() < 0.05 and case.semiring == "plus_times":
            lines.append(self._again(lines[-1]))
        case.text = "\n".join(lines)
        used = {name for name in case.args if f"{name}[" in case.text or name in ("alpha", "beta")}
        case.args = {n: a for n, a in case.args.items() if n in used and n in case.text}
        self._scalars()
        case.formats = {
            n: f for n, f in case.formats.items() if n in case.args or f"{n}[" in case.text
        }
        return case

    def _sizes(self) -> None:
        pick = self.random.random()
        usual = (1, 2, 3, 4, 5)
        self.case.sizes = {name: self.random.choice(usual) for name in "ijkl"}
        if pick < 0.06:
            self.case.sizes[self.random.choice("ijkl")] = 0
        self.case.sizes["m"] = self.case.sizes["i"]

    def _scalars(self) -> None:
        """Python numbers are those of Python, whose types give way."""
        for name in {"alpha", "beta"} & {*self.case.args}:
            self.case.arrays[name] = self.case.args[name], True

    def _operand(self, name: str, indices: list[str]) -> None:
        shape = tuple(self.case.sizes[index] for index in indices)
        given: Given = operand(self.random, self.arrays, name, indices, shape)
        self.case.args[name], self.case.arrays[name] = given.arg, (given.values, given.stored)
        if given.format is not None:
            self.case.formats[name] = given.format
        if given.sparse:
            self.case.sparse.add(name)
        piece = Piece(given.text, frozenset(indices), given.sparse)
        self.operands.append(piece)
        if given.text.count("i") == 1 and "i" in indices and self.random.random() < 0.15:
            text, free = given.text.replace("i", "m"), piece.free - {"i"} | {"m"}
            self.operands.append(Piece(text, free, given.sparse))
        square = len(shape) == 2 and shape[0] == shape[1] and "(" not in given.text
        if square and self.random.random() < 0.3:
            text = given.text.replace(indices[1], indices[0])
            self.operands.append(Piece(text, frozenset(indices[:1]), given.sparse))

    # -- statements ---------------------------------------------------------------------------

    def _statement(self, target: str, *, first: bool = False) -> str:
        """A statement; the *first* of several is of a few operands, and read by the next."""
        random, case = self.random, self.case
        piece = self._term(1 if first else random.choice((0, 1, 1, 2, 2, 2, 3)))
        if not piece.free:
            piece = self._times(piece, random.choice(self.operands))
        left = random.sample(sorted(piece.free), random.randint(0, len(piece.free)))
        if random.random() < 0.4:
            left = random.sample(sorted(piece.free), len(piece.free))
        piece, over = self._reduced(piece, sorted(piece.free - {*left}))
        piece = self._written(target, left, piece)
        reduces = bool(over) or any(f"{word}(" in piece.text for word in _WORDS)
        case.exact &= piece.exact
        self._format(target, left, piece, reduces)
        if first:
            partly = any(not piece.free >= {*left} for piece in self.operands if piece.sparse)
            if not left or reduces or partly:
                case.formats[target] = "dense"  # else its pattern is no matter of one rule
            self._read_later(target, left, piece)
        shown = f"{target}[{', '.join(left)}]" if left else target
        op = "="
        if target == "C" and left and random.random() < 0.03 and case.semiring == "plus_times":
            op = "+="
            shape = tuple(case.sizes[index] for index in left)
            node = ast.parse(piece.text, mode="eval").body
            patterned = not reduces and follows(node, set(left), case.sparse)
            self._given(shape, sparse=patterned and len(left) == 2 and random.random() < 0.7)
        return f"{shown} {op} {piece.text}"

    def _given(self, shape: tuple[int, ...], *, sparse: bool) -> None:
        """A result that is given, to be added to: dense, or a matrix that stores something."""
        case = self.case
        before = self.arrays.integers(-2, 3, shape).astype(np.float64)
        stored = np.ones(shape, bool)
        case.args["C"] = before
        if sparse:
            stored = before > 0
            before = np.where(stored, before, 0.0)
            layout = self.random.choice(("csr", "csc"))
            case.args["C"] = sps.coo_array(before).asformat(layout)
            case.sparse.add("C")
        case.arrays["C"] = before.copy(), stored
        case.formats.pop("C", None)

    def _read_later(self, target: str, left: list[str], piece: Piece) -> None:
        text = f"{target}[{', '.join(left)}]" if left else target
        dense = self.case.formats.get(target) == "dense"
        self.operands.append(Piece(text, frozenset(left), piece.sparse and not dense, piece.exact))
        self.operands.append(self.operands[-1])

    def _again(self, line: str) -> str:
        """One more statement that adds to a result."""
        target = line.split(" = ")[0].split(" += ")[0]
        left = set(target) & set("ijklm")
        fits = [p for p in self.operands if p.free <= left and not p.text.startswith(("W", "C"))]
        if not fits or "C" in self.case.sparse or self.case.formats.get("C", "dense") != "dense":
            return f"R = {self.operands[0].text}"
        self.case.formats["C"] = "dense"
        return f"{target} += {self.random.choice(fits).text}"

    def _format(self, target: str, left: list[str], piece: Piece, reduces: bool) -> None:
        """Ask for a format of the result, as often as not for one that it can have."""
        pick = self.random.random()
        if pick < 0.2:
            self.case.formats[target] = "dense"
        elif pick < 0.4 and len(left) in RESULTS and not reduces:
            node = ast.parse(piece.text, mode="eval").body
            if follows(node, set(left), self.case.sparse) or pick < 0.202:
                chosen = self.random.choice(RESULTS[len(left)])
                fits = all(self.case.sizes[index] % 6 == 0 for index in left)
                self.case.formats[target] = chosen if fits or "bsr" not in chosen else "csr"

    # -- expressions --------------------------------------------------------------------------

    def _times(self, a: Piece, b: Piece) -> Piece:
        sparse = a.sparse or b.sparse
        return Piece(f"({a.text} * {b.text})", a.free | b.free, sparse, a.exact and b.exact)

    def _leaf(self) -> Piece:
        if self.random.random() > 0.05:
            return self.random.choice(self.operands)
        name = self.random.choice(("2", "alpha", "3", "beta", "0.5"))
        known = {"alpha": 2, "beta": 0.5}
        if name in known:
            self.case.args[name], self.case.arrays[name] = known[name], (known[name], True)
        return Piece(name, frozenset(), False)

    def _term(self, depth: int) -> Piece:
        pick = self.random.random()
        if depth == 0 or pick < 0.1:
            return self._leaf()
        if pick < 0.22:
            return self._function(self._term(depth - 1))
        if pick < 0.27:
            return self._inner(self._term(depth - 1))
        a, b = self._term(depth - 1), self._term(depth - 1)
        if pick < 0.55:
            return self._times(a, b)
        if pick < 0.77:
            return self._joined(a, b)
        if pick < 0.9:
            return self._masked(a, b, depth)
        return self._compared(a, b)

    def _joined(self, a: Piece, b: Piece) -> Piece:
        plus = SEMIRINGS[self.case.semiring][0] == "+"
        sign = self.random.choice("++-" if plus else "+")
        parts = a.free | b.free, a.sparse and b.sparse, a.exact and b.exact
        if self.random.random() < 0.08 and self.case.semiring == "plus_times":
            return Piece(f"ffill({a.text}, {b.text})", *parts)
        return Piece(f"({a.text} {sign} {b.text})", *parts)

    def _masked(self, a: Piece, b: Piece, depth: int) -> Piece:
        exact, free, pick = a.exact and b.exact, a.free | b.free, self.random.random()
        if pick < 0.5:
            mask = b if b in self.operands else self.random.choice(self.operands)
            test, free = mask.text, a.free | mask.free
            sparse, exact = a.sparse or mask.sparse, a.exact and mask.exact
            if mask.text.startswith("W"):  # whether that has a pattern is not known here
                pass
            elif pick < 0.1:
                shown = self.random.choice(("{} is not None", "stored({})"))
                test = shown.format(mask.text)
            elif pick < 0.25:
                shown = self.random.choice(("{} is None", "not stored({})"))
                test, sparse = shown.format(mask.text), a.sparse
                if b.exact and self.random.random() < 0.2:
                    test, free = f"({test} and {b.text} > 0)", free | b.free
        else:
            test, sparse = f"{b.text} > 0", a.sparse or b.sparse
            if not b.exact:
                return a
        if pick < 0.85 or depth < 2:
            return Piece(f"({a.text} if {test} else ABSENT)", free, sparse, exact)
        other = self._term(depth - 1)
        free |= other.free
        both = sparse and other.sparse
        return Piece(f"({a.text} if {test} else {other.text})", free, both, exact and other.exact)

    def _compared(self, a: Piece, b: Piece) -> Piece:
        sparse, free, exact = a.sparse or b.sparse, a.free | b.free, a.exact and b.exact
        pick = self.random.randrange(6)
        if pick == 0 and exact:
            sign = self.random.choice(("<", "<=", ">", ">=", "==", "!="))
            return Piece(f"({a.text} {sign} {b.text})", free, sparse)
        if pick == 1:
            name = self.random.choice(("maximum", "minimum"))
            return Piece(f"{name}({a.text}, {b.text})", free, sparse, exact)
        if pick == 2 and exact:
            return Piece(f"where({a.text} > 0, {b.text}, {a.text})", free, sparse, exact)
        if pick == 3 and self.case.semiring == "plus_times":
            return Piece(f"fkeep({a.text}, {b.text})", free, sparse, exact)
        if pick == 4 and len(a.free - {"m"}) > 1:
            i, j = self.random.sample(sorted(a.free - {"m"}), 2)
            return Piece(f"({a.text} * ({i} <= {j}))", a.free, a.sparse, a.exact)
        op = self.random.choice(("and", "or"))
        return Piece(f"({a.text} > 0 {op} {b.text} > 0)", free, sparse) if exact else a

    def _function(self, a: Piece) -> Piece:
        name = self.random.choice(
            ("abs", "neg", "neg", "exp", "sqrt", "/ 2", "** 2", "float32", "// 2", "float64")
        )
        plus = SEMIRINGS[self.case.semiring][0] == "+"
        if name == "neg":
            return a._replace(text=f"-({a.text})") if plus else a
        if name == "exp":
            return a._replace(text=f"exp(-abs({a.text}))", exact=False)
        if name == "sqrt":
            return a._replace(text=f"sqrt(abs({a.text}))", exact=False)
        if name == "// 2" and not a.exact:
            return a
        if name in ("/ 2", "** 2", "// 2"):
            return a._replace(text=f"({a.text} {name})")
        return a._replace(text=f"{name}({a.text})")

    def _written(self, target: str, left: list[str], piece: Piece) -> Piece:
        """*piece* with the reductions written that have to be; seldom it is left as it is."""
        case, shown = self.case, f"{target}[{', '.join(left)}]" if left else target
        (stmt,) = ast.parse(f"{shown} = {piece.text}").body
        if not is_unclear(stmt, case.sparse, SEMIRINGS[case.semiring]):
            return piece
        if self.random.random() < 0.05:
            case.unclear = True
            return piece
        name = {"+": "sum", "or": "any"}.get(add := SEMIRINGS[case.semiring][0], add)
        over = ", ".join(sorted(piece.free - {*left}))
        indices = f"({over})" if "," in over else over
        return piece._replace(text=f"{name}({indices}, {piece.text})", free=frozenset(left))

    def _inner(self, piece: Piece) -> Piece:
        """A reduction that is written inside a term: a number, or one for each of some indices."""
        if not piece.free:
            return piece
        index = self.random.choice(sorted(piece.free))
        name = self.random.choice(("sum", "max", "min", "any", "prod"))
        text = f"{name}({index}, {piece.text})"
        return Piece(text, piece.free - {index}, False, piece.exact and name != "prod")

    def _reduced(self, piece: Piece, over: list[str]) -> tuple[Piece, list[str]]:
        """Write some of the reductions out; also what is reduced at all."""
        if not over or self.random.random() < 0.6:
            return piece, over
        own = over[: self.random.randint(1, len(over))]
        name = self.random.choice(_WORDS)
        exact = piece.exact and name != "prod"
        if name in ("argmax", "argmin"):
            if not piece.exact:
                return piece, over
            own = own[:1]
        indices = own[0] if len(own) == 1 else f"({', '.join(own)})"
        made = Piece(f"{name}({indices}, {piece.text})", piece.free - {*own}, False, exact)
        if self.random.random() < 0.4:
            other = self.random.choice(self.operands)
            if not other.free & {*own}:
                made = self._times(made, other)
        return made, over


RESULTS = {rank: (*NAMED[rank], *("csr", "csc") * (rank == 2)) for rank in NAMED}
_KINDS = {"b": "bool", "i": "int", "u": "int", "f": "float"}
_WORDS = ("sum", "max", "min", "prod", "any", "all", "argmax", "argmin")
