"""Programs nobody would write: any domains, kinds, indices and bodies that the grammar allows.

A program is drawn from a seed. Spatial claims are made at random, most of them wrong; indices are
shifted, divided, wrapped, loaded from arrays. What the interpreter of the source says is right.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from tests.corpus_base import HEADER, Inputs

AXES = {
    "I": "T.dense_fixed(m)",
    "N": "T.dense_fixed(n)",
    "K": "T.dense_fixed(k)",
    "J": "T.sparse_variable(I, (n, j_nnz), (j_ptr, j_ind), idtype='{idtype}')",
    "J2": "T.sparse_variable(I, (n, j2_nnz), (j2_ptr, j2_ind), idtype='{idtype}')",
    "L": "T.sparse_variable(J, (k, l_nnz), (l_ptr, l_ind), idtype='{idtype}')",
    "V": "T.dense_variable(I, (k, v_nnz), v_ptr, idtype='{idtype}')",
    "F": "T.sparse_fixed(I, (n, w), f_ind, idtype='{idtype}')",
    "IT": "T.sparse_variable(N, (m, t_nnz), (t_ptr, t_ind), idtype='{idtype}')",
}
PARENT = {"J": "I", "J2": "I", "V": "I", "F": "I", "L": "J", "IT": "N"}
EXTENT = dict.fromkeys(("I", "IT"), "m") | dict.fromkeys(("N", "J", "J2", "F"), "n")
EXTENT |= dict.fromkeys(("K", "V", "L"), "k")
LAYOUTS = (
    *("I", "N", "K", "I K", "N K", "K I", "I N", "I J", "I J2", "I V", "I F", "I J L", "I J K"),
    *("K I J", "N IT", ""),
)
ARRAYS = ("j_ptr", "j_ind", "j2_ptr", "j2_ind", "l_ptr", "l_ind", "v_ptr", "f_ind", "t_ptr")
ARRAYS += ("t_ind",)
SIZES = ("m", "n", "k", "w", "s", "j_nnz", "j2_nnz", "l_nnz", "v_nnz", "t_nnz")
COMBINE = ("{old} + {new}", "{new} + {old}", "T.max({old}, {new})", "T.min({old}, {new})")
COMBINE += ("{old} - {new}", "{old} * {new}", "{new} - {old}")


@dataclass
class Writer:
    """Draws one program: *source* is its text, *inputs* draws arguments for it."""

    seed: int
    dtype: str = ""
    idtype: str = ""
    lines: list[str] = field(default_factory=list)
    read: dict[str, str] = field(default_factory=dict)  # buffer -> layout
    written: dict[str, str] = field(default_factory=dict)
    lets: list[str] = field(default_factory=list)
    axis_of: dict[str, str] = field(default_factory=dict)  # variable in scope -> axis

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.dtype = self.rng.choice(("int32", "int64", "int32", "float64", "float32"))
        self.idtype = self.rng.choice(("int32", "int64"))
        shuffled = self.rng.sample(LAYOUTS, 5)
        self.read = {f"A{at}": axes for at, axes in enumerate(shuffled[:4])}
        dense = [axes for axes in LAYOUTS if not set(axes.split()) & PARENT.keys()]
        results = (shuffled[4], *self.rng.sample(dense, 2))
        self.written = {f"C{at}": axes for at, axes in enumerate(results)}
        self.index = {"E0": "I", "E1": "N", "E2": self.rng.choice(("I J", "I K", "K"))}
        for at in range(self.rng.choice((1, 1, 1, 2))):
            self.iteration(at)

    def chance(self, share: float) -> bool:
        """Return True that often."""
        return self.rng.random() < share

    # -- iterations ---------------------------------------------------------------------------

    def domains(self) -> Iterator[tuple[str, list[str]]]:
        """Yield domains and the axes they bind, parents before children."""
        open_axes, used = ["I", "N", "K"], set()
        for _ in range(self.rng.choice((1, 2, 2, 3, 3, 4))):
            axis = self.rng.choice([a for a in open_axes if a not in used] or ["K"])
            if axis in used:
                return
            text, own = axis, [axis]
            if axis == "J" and self.chance(0.25):
                text = f"T.{self.rng.choice(('union', 'intersect'))}(J, J2)"
                used.add("J2")
            elif axis == "I" and self.chance(0.15):
                child = self.rng.choice(("J", "V", "F"))
                flat = self.chance(0.3)
                text = f"T.{'flatten' if flat else 'fuse'}(I, {child})"
                own = [child] if flat else ["I", child]
                used.update(("I", child))
                open_axes += ["L"] if child == "J" and not flat else []
            elif axis in ("J", "F") and "N" not in used and self.chance(0.15):
                yield axis, [axis]
                used.update((axis, "IT"))
                text, own = f"T.attach(IT, {axis})", ["IT"]
            used.add(axis)
            open_axes += [child for child, parent in PARENT.items() if parent == axis]
            yield text, own

    def iteration(self, number: int) -> None:
        """Write one sp_iter."""
        found = list(self.domains())
        axes = [axis for _, own in found for axis in own]
        names = [axis.lower() + "_" for axis in axes]
        self.axis_of = dict(zip(names, axes, strict=True))
        share = self.rng.choice((0.2, 0.5, 0.8, 1.0))
        kinds = "".join("S" if self.chance(share) else "R" for _ in names)
        domains = ", ".join(text for text, _ in found)
        head = f"with T.sp_iter([{domains}], '{kinds}', 'it{number}') as [{', '.join(names)}]:"
        self.lines.append(f"    {head}")
        self.lets = []
        target = self.target()
        if self.chance(0.4):
            spatial = {v: a for v, a in self.axis_of.items() if kinds[names.index(v)] == "S"}
            self.initialise(target, spatial)
        for at in range(self.rng.choice((1, 1, 2, 3))):
            self.statement(target if not at or self.chance(0.5) else self.target(), "        ", 2)

    def initialise(self, target: str, spatial: dict[str, str]) -> None:
        """Write an init of *target*, over spatial variables alone."""
        everything, self.axis_of = self.axis_of, spatial
        if all(axis in spatial.values() for axis in self.layout(target)) or self.chance(0.1):
            element = target if self.chance(0.5) else self.element(target.partition("[")[0])
            if not set(_names(element)) & (everything.keys() - spatial.keys()):
                self.lines += ["        with T.init():", f"            {element} = {self.leaf()}"]
        self.axis_of = everything

    def statement(self, target: str, pad: str, depth: int) -> None:
        """Write one statement."""
        kind = self.rng.random()
        if depth and kind < 0.1:
            self.lines.append(f"{pad}if {self.condition()}:")
            self.statement(target, pad + "    ", depth - 1)
            if self.chance(0.4):
                self.lines.append(f"{pad}else:")
                self.statement(self.target(), pad + "    ", depth - 1)
        elif depth and kind < 0.16:
            end = self.rng.choice(("2", "k", "s", "n"))
            self.lines.append(f"{pad}for q{depth} in T.serial({end}):")
            self.axis_of[f"q{depth}"] = "K"
            self.statement(self.target(), pad + "    ", depth - 1)
            del self.axis_of[f"q{depth}"]
        elif kind < 0.24 and pad == "        ":
            name = f"x{len(self.lines)}"
            self.lines.append(f"{pad}{name} = {self.value(2)}")
            self.lets.append(name)
            self.statement(target, pad, depth)
        else:
            self.lines.append(pad + self.store(target))

    def store(self, target: str) -> str:
        """Return an assignment or an update."""
        if self.chance(0.3):
            return f"{target} = {self.value(2)}"
        if self.chance(0.2):
            return f"{target} += {self.value(2)}"
        old = target if self.chance(0.9) else self.element(self.rng.choice(list(self.written)))
        grows = "float" in self.dtype
        form = self.rng.choice(COMBINE[:5] if grows else COMBINE)
        return f"{target} = {form.format(old=old, new=self.value(1))}"

    # -- expressions --------------------------------------------------------------------------

    def layout(self, element: str) -> list[str]:
        """Return the axes of the buffer of *element*."""
        name = element.partition("[")[0]
        return (self.written | self.read | self.index)[name].split()

    def target(self) -> str:
        """Return an element to write: of a sparse buffer, where the iteration stands."""
        here = set(self.axis_of.values())
        open_ = [n for n, of in self.written.items() if set(of.split()) & PARENT.keys() <= here]
        return self.element(self.rng.choice(open_), wild=0.25, safe=not self.chance(0.03))

    def element(self, name: str, wild: float = 0.4, *, safe: bool = False) -> str:
        """Return an element of a buffer: mostly at the variables that run over its axes.

        *safe*: it is stored, unless an index array leads elsewhere.
        """
        sparse = bool(set(self.layout(name)) & PARENT.keys())
        indices = []
        for axis in self.layout(name):
            own = [v for v, a in self.axis_of.items() if a == axis or EXTENT[a] == EXTENT[axis]]
            exact = [v for v in own if self.axis_of[v] == axis]
            if (sparse and exact and safe) or (own and not self.chance(wild)):
                indices.append(self.rng.choice(exact or own))
            elif safe or self.chance(0.8):
                indices.append(f"({self.position()}) % {EXTENT[axis]}")
            else:
                indices.append(self.position())
        return f"{name}[{', '.join(indices) or '()'}]"

    def position(self) -> str:
        """Return an index expression."""
        var = self.rng.choice([*self.axis_of, "s"])
        other = self.rng.choice([*self.axis_of, "s", "m", "2"])
        forms = (
            *(var, f"{var} + 1", f"{var} - 1", f"{var} // 2", f"{var} % 2", f"{var} * 2"),
            *(f"{var} + {other}", f"{var} * k + {other}", f"n - 1 - {var}", f"{var} * 3 % 5"),
            *(f"({var} + {other}) // 2", f"{var} - {other}", "0", f"T.max({var}, {other})"),
            *(f"{var} ^ 1", f"{var} * {other}", f"T.if_then_else({var} > 1, {other}, {var})"),
        )
        if self.chance(0.2):
            own = {"I": ["i_"], "N": ["n_", "j_", "f_"], "K": ["k_", "v_"]}
            name = self.rng.choice(("E0", "E1"))
            here = [v for v in own[self.index[name]] if v in self.axis_of]
            return f"{name}[{here[0] if here else var}]"
        return self.rng.choice(forms)

    def condition(self) -> str:
        """Return something true or false."""
        op = self.rng.choice(("<", "<=", "==", "!=", ">"))
        if self.chance(0.5):
            return f"{self.position()} {op} {self.position()}"
        return f"{self.value(1)} {op} {self.value(0)}"

    def leaf(self) -> str:
        """Return a value without operands."""
        return f"T.{self.dtype}({self.rng.randint(-3, 5)})"

    def value(self, depth: int) -> str:
        """Return an expression of the program's dtype."""
        kind = self.rng.random()
        if not depth or kind < 0.45:
            if kind < 0.05 or self.chance(0.1):
                return self.leaf()
            if self.chance(0.1):
                return f"T.cast({self.position()}, '{self.dtype}')"
            if self.lets and self.chance(0.4):
                return self.rng.choice(self.lets)
            buffers = list(self.read) * 3 + list(self.written)
            return self.element(self.rng.choice(buffers))
        a, b = self.value(depth - 1), self.value(depth - 1)
        if kind < 0.5:
            return f"T.if_then_else({self.condition()}, {a}, {b})"
        if kind < 0.55 and "int" in self.dtype:
            return f"({a}) {self.rng.choice(('//', '%', '>>', '&', '^'))} ({b})"
        form = self.rng.choice(("({}) + ({})", "({}) - ({})", "({}) * ({})", "T.max({}, {})"))
        return form.format(a, b)

    # -- the program --------------------------------------------------------------------------

    @property
    def source(self) -> str:
        """The text of the program."""
        buffers = {**self.read, **self.written, **self.index}
        handles = [f"{name.lower()}_h" for name in buffers]
        params = ", ".join(f"{p}: T.handle" for p in (*handles, *ARRAYS))
        params += "".join(f", {p}: T.int32" for p in SIZES)
        text = [f"@T.prim_func\ndef random_program({params}) -> None:"]
        text += [f"    {axis} = {how.format(idtype=self.idtype)}" for axis, how in AXES.items()]
        for name, handle in zip(buffers, handles, strict=True):
            dtype = "int32" if name in self.index else self.dtype
            axes = "".join(f"{axis}, " for axis in buffers[name].split())
            text.append(f"    {name} = T.match_sparse_buffer({handle}, ({axes}), '{dtype}')")
        return HEADER + "\n".join([*text, *self.lines]) + "\n"

    def inputs(self, seed: int, scale: int = 1) -> Inputs:
        """Draw arguments; *scale* multiplies the sizes."""
        rng = np.random.default_rng(seed)
        m, n, k = (int(rng.integers(0 if self.chance(0.1) else 1, 6)) * scale for _ in range(3))
        w = int(rng.integers(0, n + 1)) if scale == 1 else min(n, 3)
        share = 0.5 if scale == 1 else 4 / max(n, 4)
        args = _structure(rng, self.idtype, share, m, n, k, w)
        args |= {"m": m, "n": n, "k": k, "w": w, "s": int(rng.integers(-2, 5))}
        elements = {"I": m, "N": n, "K": k, "J": args["j_nnz"], "J2": args["j2_nnz"]}
        elements |= {"V": args["v_nnz"], "F": m * w, "L": args["l_nnz"], "IT": args["t_nnz"]}
        for name, axes in {**self.read, **self.written, **self.index}.items():
            size = _size(axes.split(), elements)
            if name in self.index:
                top = max(n, m) + (2 if self.seed % 4 == 0 else 0)
                values = rng.integers(-1 if self.seed % 4 == 0 else 0, max(top, 1), size)
                args[f"{name.lower()}_h"] = values.astype("int32")
            else:
                args[f"{name.lower()}_h"] = rng.integers(-4, 5, size).astype(self.dtype)
        return args


def _names(text: str) -> list[str]:
    return "".join(c if c.isalnum() or c == "_" else " " for c in text).split()


def _size(axes: list[str], elements: dict[str, int]) -> int:
    parents = {PARENT.get(axis) for axis in axes}
    return int(np.prod([elements[axis] for axis in axes if axis not in parents], dtype=int))


def _structure(
    rng: np.random.Generator, idtype: str, share: float, m: int, n: int, k: int, w: int
) -> Inputs:
    def fibers(rows: int, length: int) -> tuple[np.ndarray, np.ndarray]:
        stored = [np.flatnonzero(rng.random(length) < share) for _ in range(rows)]
        indptr = np.cumsum([0, *map(len, stored)]).astype(idtype)
        return indptr, np.concatenate([*stored, np.zeros(0, int)]).astype(idtype)

    args: Inputs = {}
    for name, rows, length in (("j", m, n), ("j2", m, n), ("t", n, m)):
        args[f"{name}_ptr"], args[f"{name}_ind"] = fibers(rows, length)
        args[f"{name}_nnz"] = len(args[f"{name}_ind"])
    args["l_ptr"], args["l_ind"] = fibers(args["j_nnz"], k)
    args["v_ptr"], _ = fibers(m, k)
    args["l_nnz"], args["v_nnz"] = len(args["l_ind"]), int(args["v_ptr"][-1])
    chosen = [np.sort(rng.permutation(n)[:w]) for _ in range(m)]
    args["f_ind"] = np.concatenate([*chosen, np.zeros(0, int)]).astype(idtype)
    return args


Draw = Callable[[int], Writer]
