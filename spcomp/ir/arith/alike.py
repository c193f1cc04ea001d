"""Beside the proofs: a cache of answers for questions that differ only in names."""

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
ANSWERS = 1 << 12  # remembered, to questions of one kind
_NAMED = frozenset((Var, Buffer, SparseBuffer))
_PLAIN = frozenset((str, int, bool, type(None), Span))  # distinguished by kind and ==


def up_to_names(answer: Callable[[Q, Env], A]) -> Callable[[Q, Env], A]:
    """Return *answer* with a cache that serves all questions that differ only in names.

    A question is made of tuples and expressions. Its answer must depend only on its structure and
    on what the environment says of its variables and buffers, not on which ones they are. The
    kernels of a decomposed program ask the same questions, each about its own variables.
    """
    answers: dict[Hashable, A] = {}

    @wraps(answer)
    def ask(question: Q, env: Env) -> A:
        key, _ = pattern(question, env)
        try:
            return answers[key]
        except KeyError:
            result = answer(question, env)
        if len(answers) >= ANSWERS:
            answers.clear()
        answers[key] = result
        return result

    return ask


def pattern(question: object, env: Env, *, spans: bool = False) -> tuple[Hashable, Named]:
    """Return the structure of *question*, and its variables and buffers in order of appearance.

    The structure is a key of structural equality, within a process and under *env*: see
    ir.structural. Questions of one structure differ only in their variables and buffers, and in
    their spans unless *spans*: each token determines what it stands for, and how many follow.
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
                tokens.append(_properties(item, env))
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


def _properties(item: Var | Buffer | SparseBuffer, env: Env) -> Hashable:
    """Return all that proofs may use of *item*, but not its identity."""
    interval = env.vars.get(item) if isinstance(item, Var) else env.buffers.get(item)
    dtype, fill = item.dtype, getattr(item, "fill", None)
    ends = None if interval is None else (interval.low, interval.high)
    return (type(item), dtype.kind, dtype.bits, dtype.lanes, repr(fill), ends)
