"""Under the IR: visitors and walks: one dispatch table per class, built once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Any, ClassVar, Generic, TypeVar, cast

from spcomp.ir.expr import Expr
from spcomp.ir.node import NODES, Node

R = TypeVar("R")
T = TypeVar("T")


class Visitor(Generic[R]):
    """Calls ``visit_X`` for a node of class X, or for its nearest base class with such a method.

    A class that lists node classes in *COVERS* must have a method for each of them; a
    ``visit_X`` that names no node class is an error. Both are checked when the class is defined.
    """

    COVERS: ClassVar[tuple[type[Node], ...]] = ()
    _table: ClassVar[dict[type[Node], Callable[..., Any]]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls._table = {}
        for name in vars(cls):
            if name.startswith("visit_") and name[6:] not in NODES:
                raise TypeError(f"{cls.__name__}.{name} names no IR node")
        for kind in cls.COVERS:
            if cls._lookup(kind) is None:
                raise TypeError(f"{cls.__name__} has no visit_{kind.__name__}")

    @classmethod
    def _lookup(cls, kind: type[Node]) -> Callable[..., Any] | None:
        for base in kind.__mro__:
            if (method := getattr(cls, f"visit_{base.__name__}", None)) is not None:
                return cast("Callable[..., Any]", method)
        return None

    def visit(self, node: Node) -> R:
        """Dispatch on the exact class of *node*; the first node of a class fills the table."""
        try:
            method = self._table[type(node)]
        except KeyError:
            method = self._method(type(node))
        result: R = method(self, node)
        return result

    @classmethod
    def _method(cls, kind: type[Node]) -> Callable[..., Any]:
        """Return the method for nodes of class *kind*, and remember it."""
        method = cls._lookup(kind)
        if method is None:
            raise TypeError(f"{cls.__name__} cannot visit {kind.__name__}")
        cls._table[kind] = method
        return method


def is_idle(cls: type[Visitor[Any]], kind: type[Node]) -> bool:
    """Whether *cls* has no method for nodes of class *kind*, nor for any nodes below them.

    Only leaves and expressions can be idle; expressions only hold expressions.
    """
    if not issubclass(kind, Expr):
        return not kind.CHILDREN
    expr_classes = (node_class for node_class in NODES.values() if issubclass(node_class, Expr))
    return cls.visit is Visitor.visit and not any(
        hasattr(cls, f"visit_{k.__name__}") for k in expr_classes
    )


class Walker(Visitor[None]):
    """Visits a node and all below it, parents first; subclasses override methods as needed."""

    @classmethod
    def _lookup(cls, kind: type[Node]) -> Callable[..., Any] | None:
        method = super()._lookup(kind)
        idle = method is Walker.visit_Node and is_idle(cls, kind)
        return Walker._pass if idle else method

    def _pass(self, _: Node) -> None:
        """Visit nothing below a node whose children are all ignored."""

    def visit_Node(self, node: Node) -> None:
        """Visit the children of *node*."""
        for name in node.CHILDREN:
            child = getattr(node, name)
            if type(child) is tuple:
                for item in child:
                    if item is not None:
                        self.visit(item)
            elif child is not None:
                self.visit(child)


def below(node: Node) -> list[Node]:
    """Return the nodes directly below *node*, in order."""
    result: list[Node] = []
    for name in node.CHILDREN:
        child = getattr(node, name)
        if type(child) is tuple:
            result += [item for item in child if item is not None]
        elif child is not None:
            result.append(child)
    return result


def walk(node: Node, skip: type[Node] | None = None) -> Iterator[Node]:
    """Yield *node* and everything below it, parents first; leave out nodes of class *skip*."""
    stack = [node]
    while stack:
        top = stack.pop()
        yield top
        for name in top.CHILDREN[::-1]:
            child = getattr(top, name)
            if child is None or (skip is not None and isinstance(child, skip)):
                continue
            if type(child) is tuple:
                stack.extend([item for item in child[::-1] if item is not None])
            else:
                stack.append(child)


_HOLD = frozenset(("body", "init", "then", "otherwise", "cases"))
_held: dict[type[Node], tuple[str, ...]] = {}  # by class, its children that hold statements


def holds(node: Node) -> tuple[str, ...]:
    """Return the names of the children of *node* that are, or hold, statements."""
    names = _held.get(type(node))
    if names is None:
        names = _held[type(node)] = tuple(n for n in node.CHILDREN if n in _HOLD)
    return names


def children(node: Node) -> list[Node]:
    """Return the statements, and cases of a merge, directly below the statement *node*."""
    result: list[Node] = []
    for name in holds(node):
        child = getattr(node, name)
        if type(child) is tuple:
            result.extend(child)
        elif child is not None:
            result.append(child)
    return result


def statements(node: Node) -> Iterator[Node]:
    """Yield *node* and the statements below it, parents first, without their expressions.

    These are the nodes of walk that are statements or cases of a merge, found much faster.
    """
    stack = [node]
    while stack:
        top = stack.pop()
        yield top
        for name in reversed(holds(top)):
            child = getattr(top, name)
            if isinstance(child, tuple):
                stack.extend(reversed(child))
            elif child is not None:
                stack.append(child)


REMEMBERED = 1 << 11  # statements whose lists are cached


def collector(
    collect: Callable[[Node], Iterable[T]],
) -> Callable[[Node], tuple[T, ...]]:
    """Return a function that lists what *collect* finds in a statement and in those below it.

    Parents come first. The lists are cached for each statement: programs that differ in one nest,
    such as those before and after a step, share the others.
    """

    @lru_cache(maxsize=REMEMBERED)
    def gather(node: Node) -> tuple[T, ...]:
        items = list(collect(node))
        for child in children(node):
            items.extend(gather(child) if holds(child) else collect(child))
        return tuple(items)

    return gather
