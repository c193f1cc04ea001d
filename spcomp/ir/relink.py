"""Rebuild a function on other variables, axes and buffers; fix scalar parameters to constants."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, TypeVar

from spcomp.errors import ArgumentError, expect
from spcomp.ir.expr import Const, Expr, Var, const
from spcomp.ir.module import Module
from spcomp.ir.node import Node
from spcomp.ir.stmt import Func
from spcomp.ir.visitor import Rewriter

if TYPE_CHECKING:
    from spcomp.dtypes import DType
    from spcomp.ir.axis import AnyBuffer, Axis, Buffer, SparseBuffer

Fn = TypeVar("Fn", bound=Func)
N = TypeVar("N", bound=Node)
Scalar = int | float | bool

# Fields that are data to a Rewriter and yet refer to variables, axes or buffers.
_NAMES = frozenset(("var", "vars", "pos", "coordinate", "indptr", "indices", "data"))  # stay Vars
_LINKS = _NAMES | {
    *("buffer", "buffers", "domains", "axes", "shape", "strides"),
    *("parent", "length", "nnz", "nnz_cols"),
}


def relink(
    func: Fn,
    *,
    vars: Mapping[Var, Expr] | None = None,  # noqa: A002
    axes: Mapping[Axis, Axis] | None = None,
    buffers: Mapping[AnyBuffer, AnyBuffer] | None = None,
) -> Fn:
    """Return *func* with variables, axes and buffers replaced wherever they are referred to.

    Axes and buffers that refer to what is replaced are rebuilt, once each. A parameter replaced by
    a variable becomes that variable, by anything else disappears. What is not affected comes back
    as the same object.
    """
    return Relink(vars or {}, axes or {}, buffers or {}).rewrite(func)


def renamed(node: N, names: Mapping[Any, Any]) -> N:
    """Return *node* with variables and buffers replaced by others, also where they are bound."""
    variables = {old: new for old, new in names.items() if isinstance(old, Var)}
    return Relink(variables, {}, {b: names[b] for b in names if b not in variables}).rewrite(node)


class Relink(Rewriter):
    """The rewriter behind relink; usable on a part of a function, too."""

    def __init__(
        self,
        variables: Mapping[Var, Expr],
        axes: Mapping[Axis, Axis],
        buffers: Mapping[AnyBuffer, AnyBuffer],
    ) -> None:
        self.values = variables
        self.made: dict[Node, Node] = dict(axes.items())
        self.made.update(buffers.items())
        self.links: dict[type, tuple[str, ...]] = {}

    def visit_Node(self, node: Node) -> Node:
        """Rebuild *node* if a child, or something it refers to, changed."""
        node = super().visit_Node(node)
        names = self.links.get(type(node))
        if names is None:
            attrs = set(node.FIELDS) - set(node.CHILDREN)
            names = self.links[type(node)] = tuple(n for n in node.FIELDS if n in attrs & _LINKS)
        changes = {}
        for name in names:
            old = getattr(node, name)
            if (new := self.value(old, only_names=name in _NAMES)) is not old:
                changes[name] = new
        return node.replace(**changes) if changes else node

    def visit_Var(self, var: Var) -> Node:
        """Return what *var* stands for."""
        return self.values.get(var, var)

    def visit_Axis(self, axis: Axis) -> Node:
        """Return the axis that takes the place of *axis*."""
        return self._once(axis)

    def visit_SparseBuffer(self, buffer: SparseBuffer) -> Node:
        """Return the buffer that takes the place of *buffer*."""
        return self._once(buffer)

    def visit_Buffer(self, buffer: Buffer) -> Node:
        """Return the buffer that takes the place of *buffer*."""
        return self._once(buffer)

    def visit_Func(self, func: Func) -> Node:
        """Rebuild *func*; replaced parameters go, or become the variable that replaces them."""
        params = tuple(dict.fromkeys(v for p in func.params if isinstance(v := self.visit(p), Var)))
        new = self.visit_Node(func)
        return new if params == func.params else new.replace(params=params)

    def value(self, value: Any, *, only_names: bool = False) -> Any:
        """Return *value*, a field's content, with everything in it replaced.

        *only_names*: variables in it are replaced by variables only.
        """
        if isinstance(value, tuple):
            new = tuple([self.value(item, only_names=only_names) for item in value])
            return new if any(a is not b for a, b in zip(value, new, strict=True)) else value
        if isinstance(value, Var):
            other = self.visit(value)
            return value if only_names and not isinstance(other, Var) else other
        if isinstance(value, Node):
            return self.visit(value)
        if is_dataclass(value) and not isinstance(value, type):  # a domain or a host operation
            old = {field.name: getattr(value, field.name) for field in fields(value)}
            parts = {name: self.value(part) for name, part in old.items()}
            same = all(parts[name] is part for name, part in old.items())
            return value if same else replace(value, **parts)
        return value

    def _once(self, node: Node) -> Node:
        if node not in self.made:
            self.made[node] = self.visit_Node(node)
        return self.made[node]


def specialize(func: Fn, values: Mapping[Var | str, Scalar]) -> Fn:
    """Return *func* with scalar parameters, given as variables or names, fixed to *values*.

    They are parameters no longer. Raises ArgumentError for a name that is no scalar parameter and
    for a value that its dtype does not hold.
    """
    expect("values", values, Mapping, "numbers by parameters")
    by_name = {key.name if isinstance(key, Var) else key: value for key, value in values.items()}
    return relink(func, vars=_constants(func, by_name))


def specialize_module(module: Module[Fn], values: Mapping[Var | str, Scalar]) -> Module[Fn]:
    """Return *module* with scalar parameters of its source fixed, in every phase and on the host.

    Raises ArgumentError as specialize does.
    """
    by_name = {key.name if isinstance(key, Var) else key: value for key, value in values.items()}
    known = _constants(module.source, by_name)
    source = relink(module.source, vars=known)
    funcs = []
    for func in module.funcs:
        mine = {var: by_name[var.name] for var in func.params if var.name in by_name}
        known |= {var: _constant(var, value) for var, value in mine.items()}
        funcs.append(relink(func, vars=known))
    host = Relink(known, {}, {})
    return Module(source, tuple(funcs), tuple(host.value(op) for op in module.host))


def _constants(func: Func, values: Mapping[str, Scalar]) -> dict[Var, Expr]:
    scalars = {var.name: var for var in func.params if var.type.kind != "handle"}
    for name in values:
        if name not in scalars:
            kind = "a handle" if name in (var.name for var in func.params) else "no parameter"
            listed = ", ".join(scalars) or "there are none"
            raise ArgumentError(
                f"cannot specialize {name!r}, it is {kind} of {func.name}",
                hint=f"scalar parameters: {listed}",
            )
    return {scalars[name]: _constant(scalars[name], value) for name, value in values.items()}


def _constant(var: Var, value: Scalar) -> Const:
    if not _fits(value, var.type):
        raise ArgumentError(
            f"cannot specialize {var.name!r}, {value!r} is no {var.type}",
            hint=f"give a value that {var.type} holds",
        )
    return const(value, var.type)


_LARGEST = {"float16": 65504.0, "bfloat16": 3.3895313892515355e38, "float32": 3.4028234663852886e38}


def _fits(value: object, dtype: DType) -> bool:
    if dtype.kind == "bool":
        return isinstance(value, bool) or (isinstance(value, Integral) and value in (0, 1))
    if dtype.is_integer:
        low = -(1 << dtype.bits - 1) if dtype.kind == "int" else 0
        if not isinstance(value, Integral) or isinstance(value, bool):
            return False
        return low <= int(value) < low + (1 << dtype.bits)
    if not isinstance(value, Real) or isinstance(value, bool):
        return False
    largest = _LARGEST.get(str(dtype), math.inf)
    return not math.isfinite(value) or abs(float(value)) <= largest
