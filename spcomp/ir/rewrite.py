"""Beside the route: programs with some nodes replaced; all other nodes stay the same objects."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, replace
from operator import is_not
from typing import Any, TypeAlias, TypeVar, cast

from spcomp.ir.axis import AnyBuffer, Axis, Buffer, SparseBuffer
from spcomp.ir.expr import Expr, Var
from spcomp.ir.func import Func
from spcomp.ir.node import Node
from spcomp.ir.places import inherit
from spcomp.ir.visitor import Visitor, is_idle

Fn = TypeVar("Fn", bound=Func)
N = TypeVar("N", bound=Node)
Indices: TypeAlias = tuple[Expr | None, ...]


class Rewriter(Visitor[Node]):
    """Bottom-up rewriter; an unchanged subtree comes back as the same object.

    What a method returns for a node without saying where it comes from has the place of that node.
    """

    @classmethod
    def _lookup(cls, kind: type[Node]) -> Callable[..., Any] | None:
        method = super()._lookup(kind)
        idle = method is Rewriter.visit_Node and is_idle(cls, kind)
        return Rewriter._keep if idle else method

    def visit(self, node: Node) -> Node:
        """Rewrite *node*; this is where places in the source survive the passes."""
        try:
            method = self._table[type(node)]
        except KeyError:
            method = self._method(type(node))
        new: Node = method(self, node)
        if new is not node and new.span is None and node.span is not None:
            inherit(new, node)
        return new

    def _keep(self, node: Node) -> Node:
        """Return *node*, below which the rewriter changes nothing."""
        return node

    def visit_Node(self, node: Node) -> Node:
        """Rebuild *node* only if a child changed."""
        changes: dict[str, Any] = {}
        for name in node.CHILDREN:
            old = getattr(node, name)
            if type(old) is tuple:
                new: Any = tuple([None if child is None else self.visit(child) for child in old])
                if any(map(is_not, old, new)):
                    changes[name] = new
            elif old is not None and (new := self.visit(old)) is not old:
                changes[name] = new
        if not changes:
            return node
        rebuilt = node.rebuilt(**changes)
        declared = [name for name in node.DECLARES if name in changes]
        return _relink_below(node, rebuilt, declared) if declared else rebuilt

    def rewrite(self, node: N) -> N:
        """Return *node* rewritten; for rewriters that keep a statement a statement."""
        return cast("N", self.visit(node))


def _relink_below(node: N, rebuilt: N, declared: list[str]) -> N:
    """Return *rebuilt*, the new *node*; nodes below now refer to its new *declared* fields."""
    link = Relink({}, {}, {getattr(node, name): getattr(rebuilt, name) for name in declared})
    below = [name for name in rebuilt.CHILDREN if name not in declared]
    return rebuilt.replace(**{name: link.value(getattr(rebuilt, name)) for name in below})


class Replace(Rewriter):
    """Puts *new* in the place of the node *old*."""

    def __init__(self, old: Node, new: Node) -> None:
        self.old, self.new = old, new
        self.deep = isinstance(old, Expr)  # expressions hold no statement

    def visit(self, node: Node) -> Node:
        """Stop at the node to replace."""
        if node is self.old:
            return self.new
        return super().visit(node) if self.deep or not isinstance(node, Expr) else node


class Redirect(Rewriter):
    """Lets loads, stores and prefetches of *buffer* use *target*, where *place* maps their indices.

    *place* is given the indices after they have been rewritten themselves.
    """

    def __init__(
        self, buffer: AnyBuffer, target: AnyBuffer, place: Callable[[Indices], Indices]
    ) -> None:
        self.buffer, self.target, self.place = buffer, target, place

    def visit_Load(self, access: Node) -> Node:
        """Return the access to the target."""
        new: Any = self.visit_Node(access)
        if new.buffer is not self.buffer:
            return cast("Node", new)
        return cast("Node", new.replace(buffer=self.target, indices=self.place(new.indices)))

    visit_Store = visit_Prefetch = visit_Load


class Substitute(Rewriter):
    """Replaces uses of variables by expressions; binders stay."""

    def __init__(self, values: Mapping[Var, Expr]) -> None:
        self.values = values

    def visit_Var(self, var: Var) -> Node:
        """Return what *var* stands for."""
        return self.values.get(var, var)


def substitute(node: N, values: Mapping[Var, Expr]) -> N:
    """Return *node* with each variable of *values* replaced; the same object if none occurs."""
    return Substitute(values).rewrite(node) if values else node


# Fields that a Rewriter takes for data, although they refer to variables, axes or buffers.
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

    Axes and buffers that refer to replaced ones are rebuilt, once each. A parameter replaced by a
    variable becomes that variable; one replaced by anything else disappears. Nodes that are not
    affected come back as the same objects.
    """
    return Relink(vars or {}, axes or {}, buffers or {}).rewrite(func)


def rename(node: N, names: Mapping[Any, Any]) -> N:
    """Return *node* with variables and buffers replaced by others, also where they are bound."""
    variables = {old: new for old, new in names.items() if isinstance(old, Var)}
    return Relink(variables, {}, {b: names[b] for b in names if b not in variables}).rewrite(node)


class Relink(Rewriter):
    """The rewriter behind relink; it also works on a part of a function."""

    def __init__(
        self,
        variables: Mapping[Var, Expr],
        axes: Mapping[Axis, Axis],
        buffers: Mapping[AnyBuffer, AnyBuffer],
    ) -> None:
        self.values = variables
        self.replaced: dict[Node, Node] = dict(axes.items())
        self.replaced.update(buffers.items())
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
        """Rebuild *func*; a replaced parameter disappears, or becomes the variable put for it."""
        params = tuple(dict.fromkeys(v for p in func.params if isinstance(v := self.visit(p), Var)))
        new = self.visit_Node(func)
        return new if params == func.params else new.replace(params=params)

    def value(self, value: Any, *, only_names: bool = False) -> Any:
        """Return *value*, the content of a field, with everything in it replaced.

        *only_names*: variables in it are only replaced by variables.
        """
        if isinstance(value, tuple):
            new = tuple([self.value(item, only_names=only_names) for item in value])
            return new if any(a is not b for a, b in zip(value, new, strict=True)) else value
        if isinstance(value, Var):
            replacement = self.visit(value)
            return value if only_names and not isinstance(replacement, Var) else replacement
        if isinstance(value, Node):
            return self.visit(value)
        if is_dataclass(value) and not isinstance(value, type):  # a domain or a host operation
            old = {field.name: getattr(value, field.name) for field in fields(value)}
            parts = {name: self.value(part) for name, part in old.items()}
            same = all(parts[name] is part for name, part in old.items())
            return value if same else replace(value, **parts)
        return value

    def _once(self, node: Node) -> Node:
        if node not in self.replaced:
            self.replaced[node] = self.visit_Node(node)
        return self.replaced[node]
