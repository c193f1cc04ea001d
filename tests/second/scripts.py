"""Random programs of the script language: axes of every kind below each other, buffers, nests.

The oracle sees an iteration as a mask over the coordinates of its axes, and a read of what is not
stored as 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

import numpy as np

from tests.second import oracle
from tests.second import terms as t
from tests.second.values import Array, Value, cast, combined, eps, exact

DENSE = {"i": "I", "j": "J_dense", "l": "L_dense", "k": "K", "f": "F"}
TREE = {"i": "I", "j": "J", "l": "L"}
SIZES = {"i": "m", "j": "n", "l": "p", "k": "feat", "f": "heads"}
KINDS = ("dense_variable", "sparse_fixed", "sparse_variable", "sparse_variable")
UPDATES = {"+": "sum", "*": "prod", "max": "max", "min": "min"}


@dataclass(frozen=True)
class Buffer:
    """A buffer: the variables that read it, those of the tree first if it lies along the tree."""

    name: str
    variables: tuple[str, ...]
    dtype: str
    tree: int = 0  # how many of the variables are axes of the tree


@dataclass(frozen=True)
class Nest:
    """An iteration that reduces, or writes each element once."""

    name: str
    order: tuple[str, ...]
    target: Buffer
    value: t.Term
    update: str = ""
    start: float = 0.0


@dataclass
class Script:
    """A program."""

    kinds: tuple[str, ...]  # of J and L
    idtype: str
    inputs: dict[str, Buffer]
    nests: list[Nest]
    scratch: list[Buffer] = field(default_factory=list)
    declared: str = ""

    @property
    def depth(self) -> int:
        """Return how many axes the tree has."""
        return len(self.kinds) + 1

    def results(self) -> list[Buffer]:
        """Return what the program gives back."""
        return [nest.target for nest in self.nests if nest.target not in self.scratch]

    def variables(self) -> list[str]:
        """Return the variables whose axes the program has."""
        return [*["i", "j", "l"][: self.depth], "k", "f"]


def spelled(term: t.Term) -> str:
    """Return *term* in the script language."""
    if isinstance(term, t.Ref):
        return term.text()
    if isinstance(term, t.Number):
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
    names = [
        f"{buffer.name.lower()}_data" for buffer in [*script.inputs.values(), *script.results()]
    ]
    for axis, kind in zip("jl", script.kinds, strict=False):
        upper = TREE[axis]
        names += [f"{upper}_indptr"] if kind != "sparse_fixed" else []
        names += [f"{upper}_indices"] if kind != "dense_variable" else []
    return [*names, *sizes_of(script)]


def sizes_of(script: Script) -> list[str]:
    """Return the parameters that are sizes."""
    names = [SIZES[variable] for variable in script.variables()]
    for axis, kind in zip("jl", script.kinds, strict=False):
        names.append(f"{TREE[axis]}_width" if kind == "sparse_fixed" else f"{TREE[axis]}_nnz")
    return names


def text(script: Script) -> str:
    """Return the program as it is written."""
    sizes = sizes_of(script)
    given = ", ".join(
        f"{name}: T.{'int32' if name in sizes else 'handle'}" for name in parameters(script)
    )
    lines = [
        "from spcomp import script as T",
        "",
        "",
        "@T.prim_func",
        f"def program({given}) -> None:",
    ]
    lines += ["    I = T.dense_fixed(m)"]
    above = "I"
    for axis, kind in zip("jl", script.kinds, strict=False):
        name, size = TREE[axis], SIZES[axis]
        extent = f"({size}, {name}_width)" if kind == "sparse_fixed" else f"({size}, {name}_nnz)"
        arrays = {
            "sparse_fixed": f"{name}_indices",
            "dense_variable": f"{name}_indptr",
            "sparse_variable": f"({name}_indptr, {name}_indices)",
        }[kind]
        lines.append(
            f"    {name} = T.{kind}({above}, {extent}, {arrays}, idtype={script.idtype!r})"
        )
        lines.append(f"    {name}_dense = T.dense_fixed({size})")
        above = name
    lines += ["    K = T.dense_fixed(feat)", "    F = T.dense_fixed(heads)"]
    for buffer in [*script.inputs.values(), *script.results()]:
        data = f"{buffer.name.lower()}_data"
        axes = _axes(buffer)
        lines.append(f"    {buffer.name} = T.match_sparse_buffer({data}, {axes}, {buffer.dtype!r})")
    for buffer in script.scratch:
        lines.append(
            f"    {buffer.name} = T.alloc_sparse_buffer({_axes(buffer)}, {buffer.dtype!r})"
        )
    for nest in script.nests:
        lines += _nest_lines(nest, script)
    return "\n".join(lines) + "\n"


def _axes(buffer: Buffer) -> str:
    names = [
        TREE[variable] if at < buffer.tree else DENSE[variable]
        for at, variable in enumerate(buffer.variables)
    ]
    return f"({', '.join(names)},)"


def _nest_lines(nest: Nest, script: Script) -> list[str]:
    axes = [TREE.get(variable, DENSE[variable]) for variable in nest.order]
    letters = "".join("S" if variable in nest.target.variables else "R" for variable in nest.order)
    target = t.Ref(nest.target.name, tuple(map(t.Index, nest.target.variables))).text()
    value = spelled(nest.value)
    head = f"T.sp_iter([{', '.join(axes)}], {letters!r}, {nest.name!r})"
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
        self.kinds = tuple(rng.choice(KINDS) for _ in range(rng.choice((1, 1, 1, 2))))
        self.tree = ["i", "j", "l"][: len(self.kinds) + 1]
        self.inputs: dict[str, Buffer] = {}
        self.readable: list[Buffer] = []
        self.dtypes = rng.choice((["float32"], ["float64"], ["float32", "float64"], ["int32"]))

    def buffer(self, variables: Sequence[str], tree: int) -> t.Ref:
        name = "ABDEFGHMN"[len(self.inputs)] + "_"
        made = Buffer(name, tuple(variables), self.rng.choice(self.dtypes), tree)
        self.inputs[name] = made
        self.readable.append(made)
        return t.Ref(name, tuple(map(t.Index, variables)))

    def read(self, order: Sequence[str], *, tree: bool) -> t.Ref:
        """Return a read of a buffer, along the tree or dense axes, at variables of *order*."""
        same = [one for one in self.readable if set(one.variables) <= set(order)]
        if same and (self.rng.random() < 0.3 or len(self.inputs) > 7):
            chosen = self.rng.choice(same)
            return t.Ref(chosen.name, tuple(map(t.Index, chosen.variables)))
        if tree:
            inside = [variable for variable in self.tree if variable in order]
            rest = [variable for variable in ("k", "f") if variable in order]
            more = rest[: self.rng.choice((0, 0, 0, 1))]
            return self.buffer([*inside, *more], len(inside))
        size = min(len(order), self.rng.choice((1, 1, 2, 2, 3)))
        return self.buffer(self.rng.sample(list(order), size), 0)

    def value(self, order: Sequence[str], depth: int) -> t.Term:
        kind = self.rng.random()
        if depth <= 0 or kind < 0.15:
            return self.read(order, tree=self.rng.random() < 0.4)
        if kind < 0.65:
            return t.Op(
                "*" if kind < 0.5 else self.rng.choice("+-"),
                (self.value(order, depth - 1), self.value(order, depth - 1)),
            )
        if kind < 0.75 and self.dtypes != ["int32"]:
            name = self.rng.choice(("exp", "tanh", "abs", "sigmoid", "sin", "floor"))
            return t.Op(name, (self.value(order, depth - 1),))
        if kind < 0.85:
            names = ("maximum", "minimum")
            return t.Op(
                self.rng.choice(names), (self.value(order, depth - 1), self.value(order, 0))
            )
        if kind < 0.93:
            condition = t.Op(
                self.rng.choice(("<", ">", "!=")),
                (self.value(order, 0), t.Number(self.rng.choice((0, 1)))),
            )
            return t.Masked(self.value(order, depth - 1), condition, self.value(order, 0))
        return t.Op("neg", (self.value(order, depth - 1),))

    def nest(self, name: str, target: str) -> Nest:
        order = [*self.tree[: self.rng.choice((len(self.tree), len(self.tree), 1))]]
        for variable in ("k", "f"):
            if self.rng.random() < 0.5:
                order.insert(self.rng.randrange(len(order) + 1), variable)
        spatial = [variable for variable in order if self.rng.random() < 0.6]
        value = self.value(order, self.rng.choice((1, 1, 2, 3)))
        wide = (
            "int32" if self.dtypes == ["int32"] else self.rng.choice(("float64", self.dtypes[-1]))
        )
        inside = [variable for variable in self.tree if variable in spatial]
        along = 0
        if inside and inside == self.tree[: len(inside)] and self.rng.random() < 0.5:
            along = len(inside)
            spatial = inside + [variable for variable in spatial if variable not in inside]
        else:
            self.rng.shuffle(spatial)
        if not spatial:
            spatial = [order[0]]
            along = 0
        buffer = Buffer(target, tuple(spatial), wide, along)
        sparse = len([variable for variable in order if variable in self.tree]) > 1
        once = set(spatial) == set(order) and (along == len(inside) or not sparse)
        if once and self.rng.random() < 0.5:
            return Nest(name, tuple(order), buffer, value)
        update = self.rng.choice(("+", "+", "+", "max", "min", "*"))
        start = {"+": (0, 0, 2), "*": (1, 1, 2), "max": (-100, 0), "min": (100, 0)}[update]
        number = self.rng.choice(start)
        return Nest(
            name, tuple(order), buffer, value, update, number if wide == "int32" else float(number)
        )


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


@dataclass
class Given:
    """Sizes, the masks of the tree, and dense numbers of the inputs."""

    lengths: dict[str, int]
    masks: list[Array]  # of (i, j) and (i, j, l)
    widths: dict[str, int]
    numbers: dict[str, Array]


def given(script: Script, rng: Random, most: int) -> Given:
    """Return random data for a call."""
    noise = np.random.default_rng(rng.randrange(2**32))
    lengths = {variable: rng.choice((0, 1, 1, 2, 3, 5, 8, 9)) for variable in script.variables()}
    if rng.random() < 0.3:
        lengths[rng.choice(script.variables())] = rng.choice((16, 17, 33, 64, 65))
    lengths = {variable: min(length, most) for variable, length in lengths.items()}
    masks: list[Array] = []
    widths: dict[str, int] = {}
    above = np.ones(lengths["i"], bool)
    for axis, kind in zip("jl", script.kinds, strict=False):
        length = lengths[axis]
        scores = noise.random((*above.shape, length))
        rank = np.argsort(np.argsort(scores, axis=-1), axis=-1)
        if kind == "sparse_fixed":
            widths[axis] = rng.randrange(min(length, 5) + 1)
            mask = rank < widths[axis]
        elif kind == "dense_variable":
            mask = np.arange(length) < noise.integers(0, length + 1, (*above.shape, 1))
        else:
            mask = scores < rng.choice((0.0, 0.2, 0.5, 1.0))
        masks.append(mask & above[..., None])
        above = masks[-1]
    numbers = {}
    for name, buffer in script.inputs.items():
        shape = tuple(lengths[variable] for variable in buffer.variables)
        values = noise.integers(-8, 9, shape) / (1 if buffer.dtype == "int32" else 4)
        stored = mask_of(buffer.variables[: buffer.tree], masks, shape)
        numbers[name] = np.where(stored, values, 0).astype(buffer.dtype)
    return Given(lengths, masks, widths, numbers)


def mask_of(variables: Sequence[str], masks: list[Array], shape: tuple[int, ...]) -> Array:
    """Return where a buffer along *variables* of the tree has elements, as an array of *shape*."""
    depth = len(variables)
    mask = np.ones(shape[:1] or (), bool) if depth < 2 else masks[depth - 2]
    return np.broadcast_to(mask.reshape(mask.shape + (1,) * (len(shape) - mask.ndim)), shape)


def expected(script: Script, data: Given) -> dict[str, Value]:
    """Return what the program computes, by buffer, what is not stored 0."""
    tensors = {name: oracle.Operand(exact(number)) for name, number in data.numbers.items()}
    out: dict[str, Value] = {}
    for nest in script.nests:
        value = _nested(nest, script, data, tensors)
        out[nest.target.name] = value
        tensors[nest.target.name] = oracle.Operand(value)
    return out


def _nested(nest: Nest, script: Script, data: Given, tensors: dict[str, oracle.Operand]) -> Value:
    names = [*nest.target.variables, *(v for v in nest.order if v not in nest.target.variables)]
    scope = oracle.Scope(
        tensors, ("+", "*"), {name: at for at, name in enumerate(names)}, dict(data.lengths)
    )
    full = [data.lengths[name] for name in names] + [1] * (oracle.RANK - len(names))
    inside = [variable for variable in ("i", "j", "l") if variable in nest.order]
    mask: Array = np.ones((1,) * oracle.RANK, bool)
    if len(inside) > 1:
        grid = data.masks[len(inside) - 2]
        picks = [scope.along(name, np.arange(data.lengths[name])) for name in inside]
        mask = grid[tuple(picks)]
    value = oracle.evaluate(nest.value, scope)
    shape = [data.lengths[name] for name in nest.target.variables]
    stored = mask_of(nest.target.variables[: nest.target.tree], data.masks, tuple(shape))
    value = Value(value.number, np.asarray(mask), value.error)
    if nest.update:
        value = _updated(nest, value, names, full)
    number, error = (
        np.broadcast_to(x, full[: len(shape)] + [1] * (oracle.RANK - len(shape))).reshape(shape)
        for x in (value.number, value.error)
    )
    kept = cast(Value(number, np.ones(shape, bool), error), nest.target.dtype)
    return Value(
        np.where(stored, kept.number, 0).astype(nest.target.dtype),
        kept.present,
        np.where(stored, kept.error, 0.0),
    )


def _updated(nest: Nest, value: Value, names: list[str], full: list[int]) -> Value:
    """Return the start updated with *value*, in the type of the target: a bound for each step."""
    over = [at for at, name in enumerate(names) if name not in nest.target.variables]
    wide = cast(value, nest.target.dtype)
    lengths = [full[at] for at in over]
    shown = [
        np.broadcast_to(x, np.broadcast_shapes(x.shape, full))
        for x in (wide.number, wide.present, wide.error)
    ]
    reduced = oracle.reduced(UPDATES[nest.update], Value(*shown), over, lengths)
    start = exact(np.full((1,) * oracle.RANK, nest.start, nest.target.dtype))
    name = {"max": "maximum", "min": "minimum"}.get(nest.update, nest.update)
    out = combined(name, [Value(reduced.number, np.asarray(True), reduced.error), start])
    terms = max(1, int(np.prod(lengths)))
    slack = terms * eps(np.dtype(nest.target.dtype)) * abs(nest.start)
    return Value(out.number, out.present, out.error + slack)
