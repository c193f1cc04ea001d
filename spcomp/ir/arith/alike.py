"""Beside the proofs: questions that differ only in names have one answer, which is found once."""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from spcomp.dtypes import DType
from spcomp.errors import Span
from spcomp.ir.axis import Buffer, SparseBuffer
from spcomp.ir.expr import Var
from spcomp.ir.node import Node

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from spcomp.ir.arith.bounds import Env

Q = TypeVar("Q")
A = TypeVar("A")
Named: TypeAlias = tuple[Var | Buffer | SparseBuffer, ...]
ANSWERS = 1 << 12  # to questions of one kind, that are remembered
_NAMED = frozenset((Var, Buffer, SparseBuffer))
_PLAIN = frozenset((str, int, bool, type(None), Span))  # told apart by kind and ==


def up_to_names(answer: Callable[[Q, Env], A]) -> Callable[[Q, Env], A]:
    """Return *answer*, which is given once to all questions that differ only in names.

    A question is made of tuples and expressions. Its answer must follow from how it is built and
    from what the environment says of its variables and buffers, not from which ones these are. The
    kernels of a decomposed program ask the same, each of variables of its own.
    """
    known: dict[Hashable, A] = {}

    @wraps(answer)
    def ask(question: Q, env: Env) -> A:
        key, _ = pattern(question, env)
        try:
            return known[key]
        except KeyError:
            found = answer(question, env)
        if len(known) >= ANSWERS:
            known.clear()
        known[key] = found
        return found

    return ask


def pattern(question: object, env: Env, *, spans: bool = False) -> tuple[Hashable, Named]:
    """Return how *question* is built, and which variables and buffers it has, as they are met.

    What has one pattern differs in those only, and in where it was written if *spans* do not count:
    each token tells what it stands for, and so how many follow for it.
    """
    numbers: dict[Any, int] = {}
    last = None if spans else 0  # the span comes first
    tokens: list[object] = []
    stack: list[Any] = [question]
    while stack:
        item = stack.pop()
        kind = type(item)
        if kind in _NAMED:
            if (number := numbers.get(item)) is None:
                numbers[item] = len(numbers)
                tokens.append(_first(item, env))
            else:
                tokens.append(number)
        elif kind is tuple:
            tokens.append((kind, len(item)))
            stack.extend(item[::-1])
        elif isinstance(item, Node):
            tokens.append(kind)
            stack.extend(item.values_of(item)[:last:-1])
        elif kind is DType:
            tokens.append((item.kind, item.bits, item.lanes))
        else:
            tokens.append((kind, item if kind in _PLAIN else repr(item)))
    return tuple(tokens), tuple(numbers)


def _first(item: Var | Buffer | SparseBuffer, env: Env) -> Hashable:
    """Return all that may be known of *item*, besides which one it is."""
    where = env.vars.get(item) if isinstance(item, Var) else env.buffers.get(item)
    dtype, fill = item.dtype, getattr(item, "fill", None)
    ends = None if where is None else (where.low, where.high)
    return (type(item), dtype.kind, dtype.bits, dtype.lanes, repr(fill), ends)
