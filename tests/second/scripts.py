"""Random programs of the script language: axes of every kind below each other, buffers, nests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from tests.second import terms as t

DENSE = {"i": "I", "j": "J_dense", "l": "L_dense", "k": "K", "f": "F"}
TREES = ({"i": "I", "j": "J", "l": "L"}, {"i": "I", "j": "JB"})  # the second has one row of axes
SIZES = {"i": "m", "j": "n", "l": "p", "k": "feat", "f": "heads"}
KINDS = ("dense_variable", "sparse_fixed", "sparse_variable", "sparse_variable")
OVER = ("tree", "tree", "tree", "dense", "fuse", "union", "intersect")


@dataclass(frozen=True)
class Buffer:
    """A buffer: the variables that read it, the first *depth* of them along a tree of axes."""

    name: str
    variables: tuple[str, ...]
    dtype: str
    depth: int = 0
    tree: int = 0

    @property
    def deepest(self) -> str:
        """Return the axis whose positions its elements have; "" if all its axes are dense."""
        return TREES[self.tree][self.variables[self.depth - 1]] if self.depth > 1 else ""


@dataclass(frozen=True)
class Nest:
    """An iteration that reduces, or writes each element once.

    It runs over a tree (its axes fused, at times), the dense axes beside it, or the union or
    intersection of two trees.
    """

    name: str
    order: tuple[str, ...]
    target: Buffer
    value: t.Term
    update: str = ""
    start: float = 0.0
    over: str = "tree"


@dataclass
class Script:
    """A program."""

    kinds: dict[str, str]  # of the axes J, L and JB
    idtype: str
    inputs: dict[str, Buffer]
    nests: list[Nest]
    scratch: list[Buffer] = field(default_factory=list)

    def results(self) -> list[Buffer]:
        """Return what the program gives back."""
        return [nest.target for nest in self.nests if nest.target not in self.scratch]

    def variables(self) -> list[str]:
        """Return the variables whose axes the program has."""
        return ["i", "j", "l", "k", "f"] if "L" in self.kinds else ["i", "j", "k", "f"]


def dimension(axis: str) -> str:
    """Return the variable of *axis*."""
    return axis[0].lower()


def spelled(term: t.Term) -> str:
    """Return *term* in the script language."""
    if isinstance(term, t.Ref):
        return term.text()
    if isinstance(term, t.Number | t.Stored):
        return t.text_of(term)
    if isinstance(term, t.Masked) and term.other is not None:
        parts = (term.condition, term.term, term.other)
        return f"T.if_then_else({', '.join(map(spelled, parts))})"
    assert isinstance(term, t.Op)
    texts = [spelled(arg) for arg in term.args]
    if term.name in t.INFIX:
        return f"({texts[0]} {term.name} {texts[1]})"
    if term.name == "neg":
        return f"(-{texts[0]})"
    called = {"maximum": "max", "minimum": "min"}.get(term.name, term.name)
    return f"T.{called}({', '.join(texts)})"


def parameters(script: Script) -> list[str]:
    """Return the parameters in order: values, index arrays, sizes."""
    buffers = [*script.inputs.values(), *script.results()]
    names = [f"{buffer.name.lower()}_data" for buffer in buffers]
    for axis, kind in script.kinds.items():
        names += [f"{axis}_indptr"] if kind != "sparse_fixed" else []
        names += [f"{axis}_indices"] if kind != "dense_variable" else []
    return [*names, *sizes_of(script)]


def sizes_of(script: Script) -> list[str]:
    """Return the parameters that are sizes."""
    names = [SIZES[variable] for variable in script.variables()]
    for axis, kind in script.kinds.items():
        names.append(f"{axis}_width" if kind == "sparse_fixed" else f"{axis}_nnz")
    return names


def text(script: Script) -> str:
    """Return the program as it is written."""
    sizes = sizes_of(script)
    typed = [f"{name}: T.{'int32' if name in sizes else 'handle'}" for name in parameters(script)]
    lines = ["from spcomp import script as T", "", "", "@T.prim_func"]
    lines += [f"def program({', '.join(typed)}) -> None:"]
    lines += [f"    {line}" for line in _declarations(script)]
    for nest in script.nests:
        lines += _nest_lines(nest)
    return "\n".join(lines) + "\n"


def _declarations(script: Script) -> list[str]:
    lines = [
        f"{DENSE[variable]} = T.dense_fixed({SIZES[variable]})" for variable in script.variables()
    ]
    for axis, kind in script.kinds.items():
        above = "J" if axis == "L" else "I"
        extent = f"{axis}_width" if kind == "sparse_fixed" else f"{axis}_nnz"
        arrays = {
            "sparse_fixed": f"{axis}_indices",
            "dense_variable": f"{axis}_indptr",
            "sparse_variable": f"({axis}_indptr, {axis}_indices)",
        }[kind]
        size = SIZES[dimension(axis)]
        lines.append(f"{axis} = T.{kind}({above}, ({size}, {extent}), {arrays}, {script.idtype!r})")
    for buffer in [*script.inputs.values(), *script.results()]:
        given = f"{buffer.name.lower()}_data, {_axes(buffer)}, {buffer.dtype!r}"
        lines.append(f"{buffer.name} = T.match_sparse_buffer({given})")
    lines += [
        f"{buffer.name} = T.alloc_sparse_buffer({_axes(buffer)}, {buffer.dtype!r})"
        for buffer in script.scratch
    ]
    return lines


def _axes(buffer: Buffer) -> str:
    tree = TREES[buffer.tree]
    names = [tree[variable] for variable in buffer.variables[: buffer.depth]]
    names += [DENSE[variable] for variable in buffer.variables[buffer.depth :]]
    return f"({', '.join(names)},)"


def _domain(nest: Nest) -> list[str]:
    """Return the axes that *nest* runs over."""
    tree = {} if nest.over == "dense" else TREES[0]
    axes = [tree.get(variable, DENSE[variable]) for variable in nest.order]
    if nest.over in ("union", "intersect"):
        axes[nest.order.index("j")] = f"T.{nest.over}(J, JB)"
    at = nest.order.index("i") if "i" in nest.order else 0
    if nest.over == "fuse" and nest.order[at : at + 2] == ("i", "j"):
        axes[at : at + 2] = ["T.fuse(I, J)"]
    return axes


def _nest_lines(nest: Nest) -> list[str]:
    letters = "".join("S" if variable in nest.target.variables else "R" for variable in nest.order)
    target = t.Ref(nest.target.name, tuple(map(t.Index, nest.target.variables))).text()
    value = spelled(nest.value)
    head = f"T.sp_iter([{', '.join(_domain(nest))}], {letters!r}, {nest.name!r})"
    lines = [f"    with {head} as [{', '.join(nest.order)}]:"]
    if not nest.update:
        return [*lines, f"        {target} = {value}"]
    lines += ["        with T.init():", f"            {target} = {nest.start!r}"]
    if nest.update in "+*":
        return [*lines, f"        {target} = {target} {nest.update} {value}"]
    return [*lines, f"        {target} = T.{nest.update}({target}, {value})"]


class ScriptAuthor:
    """Writes programs of the script language."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.kinds = {"J": rng.choice(KINDS)}
        if rng.random() < 0.25:
            self.kinds["L"] = rng.choice(KINDS)
        elif self.kinds["J"] == "sparse_variable":
            self.kinds["JB"] = "sparse_variable"
        self.tree = ["i", "j", "l"] if "L" in self.kinds else ["i", "j"]
        self.inputs: dict[str, Buffer] = {}
        self.readable: list[Buffer] = []
        self.dtypes = rng.choice((["float32"], ["float64"], ["float32", "float64"], ["int32"]))

    def chance(self, part: float) -> bool:
        return self.rng.random() < part

    def buffer(self, variables: Sequence[str], depth: int) -> t.Ref:
        name = "ABDEGHMNPQRSUVWX"[len(self.inputs)] + "_"
        second = depth == 2 and "JB" in self.kinds and self.chance(0.4)
        made = Buffer(name, tuple(variables), self.rng.choice(self.dtypes), depth, int(second))
        self.inputs[name] = made
        self.readable.append(made)
        return t.Ref(name, tuple(map(t.Index, variables)))

    def read(self, order: Sequence[str]) -> t.Ref:
        """Return a read of a buffer, along a tree or dense axes, at variables of *order*."""
        same = [one for one in self.readable if set(one.variables) <= set(order)]
        if same and (self.chance(0.3) or len(self.inputs) > 7):
            chosen = self.rng.choice(same)
            return t.Ref(chosen.name, tuple(map(t.Index, chosen.variables)))
        inside = [variable for variable in self.tree if variable in order]
        if len(inside) > 1 and self.chance(0.4):
            rest = [variable for variable in ("k", "f") if variable in order]
            return self.buffer([*inside, *rest[: self.rng.choice((0, 0, 0, 1))]], len(inside))
        size = min(len(order), self.rng.choice((1, 1, 2, 2, 3)))
        return self.buffer(self.rng.sample(list(order), size), 0)

    def value(self, order: Sequence[str], depth: int) -> t.Term:
        kind = self.rng.random()
        if depth <= 0 or kind < 0.15:
            return self.read(order)
        left = self.value(order, depth - 1)
        if kind < 0.65:
            name = self.rng.choice("***+-")
            return t.Op(name, (left, self.value(order, depth - 1)))
        if kind < 0.75 and self.dtypes != ["int32"]:
            return t.Op(self.rng.choice(("exp", "tanh", "abs", "sigmoid", "sin", "floor")), (left,))
        if kind < 0.85:
            return t.Op(self.rng.choice(("maximum", "minimum")), (left, self.read(order)))
        if kind < 0.95:
            return t.Masked(left, self.condition(order), self.read(order))
        return t.Op("neg", (left,))

    def condition(self, order: Sequence[str]) -> t.Term:
        """Return a condition: a comparison, or whether an element is stored."""
        ref = self.read(order)
        if self.inputs.get(ref.name) and self.inputs[ref.name].depth > 1:
            return t.Stored(ref, "T.stored({})")
        return t.Op(self.rng.choice(("<", ">", "!=")), (ref, t.Number(self.rng.choice((0, 1)))))

    def nest(self, name: str, target: str) -> Nest:
        order = [*self.tree[: self.rng.choice((len(self.tree), len(self.tree), 1))]]
        over = self.rng.choice(OVER[: 7 if "JB" in self.kinds and "j" in order else 5])
        for variable in ("k", "f"):
            if self.chance(0.5):
                order.insert(self.rng.randrange(len(order) + 1), variable)
        value = self.value(order, self.rng.choice((1, 1, 2, 3)))
        buffer = self.target(target, order, over)
        inside = [variable for variable in order if variable in self.tree]
        whole = over == "dense" or len(inside) == 1 or buffer.depth == len(inside)
        if whole and set(buffer.variables) == set(order) and self.chance(0.5):
            return Nest(name, tuple(order), buffer, value, over=over)
        update = self.rng.choice(("+", "+", "+", "max", "min", "*"))
        number = self.rng.choice(
            {"+": (0, 0, 2), "*": (1, 1, 2), "max": (-100, 0), "min": (100, 0)}[update]
        )
        start = number if buffer.dtype == "int32" else float(number)
        return Nest(name, tuple(order), buffer, value, update, start, over)

    def target(self, name: str, order: list[str], over: str) -> Buffer:
        """Return a buffer for results over some of *order*, at times along the tree."""
        whole = self.dtypes == ["int32"]
        dtype = "int32" if whole else self.rng.choice(("float64", self.dtypes[-1]))
        spatial = [variable for variable in order if self.chance(0.6)] or order[:1]
        inside = [variable for variable in self.tree if variable in spatial]
        first = self.tree[: len(inside)]
        if len(inside) > 1 and inside == first and over in ("tree", "fuse") and self.chance(0.5):
            rest = [variable for variable in spatial if variable not in inside]
            return Buffer(name, (*inside, *rest), dtype, len(inside))
        return Buffer(name, tuple(self.rng.sample(spatial, len(spatial))), dtype)


def script(rng: Random) -> Script:
    """Return a random program."""
    author = ScriptAuthor(rng)
    nests = [author.nest("first", "OUT")]
    scratch: list[Buffer] = []
    if rng.random() < 0.35:
        if rng.random() < 0.6:
            scratch.append(nests[0].target)
        author.readable.append(nests[0].target)
        nests.append(author.nest("second", "OUT2"))
    read = {term.name for nest in nests for term in nest.value.walk() if isinstance(term, t.Ref)}
    inputs = {name: one for name, one in author.inputs.items() if name in read}
    return Script(author.kinds, rng.choice(("int32", "int32", "int64")), inputs, nests, scratch)
