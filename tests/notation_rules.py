"""Which reductions of index notation have to be written, read off a program's own syntax.

As in the oracle nothing is shared with the package: a mask without an else is to be written
``x if c else ABSENT``.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from collections.abc import Set as AbstractSet

from tests.notation_oracle import REDUCTIONS, free_indices, indices_of

CASTS = {"float64", "float32", "int64", "int32"}
_MULS: dict[str, type[ast.AST]] = {"*": ast.Mult, "and": ast.And}


def is_unclear(stmt: ast.stmt, sparse: AbstractSet[str], semiring: tuple[str, str]) -> bool:
    """Whether *stmt* has a reduction that is not written and could stand in two places."""
    assert isinstance(stmt, (ast.Assign, ast.AugAssign))
    target = stmt.targets[0] if isinstance(stmt, ast.Assign) else stmt.target
    return any(
        _turns(part, index, semiring) or (_is_full(part, index, sparse))
        for part in _addends(stmt.value, {*indices_of(target)})
        for index in free_indices(part) - {*indices_of(target)}
    )


def _addends(node: ast.expr, own: set[str]) -> Iterator[ast.expr]:
    match node:
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub(), right=right):
            yield from _addends(left, own)
            yield from _addends(right, own)
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            yield from _addends(inner, own)
        case ast.IfExp(body=body, orelse=ast.Name(id="ABSENT")) if not (
            (free_indices(node) - own) & free_indices(node.test)
        ):
            yield from _addends(body, own)
        case _:
            yield node


def _turns(node: ast.expr, index: str, semiring: tuple[str, str], *, counted: bool = False) -> bool:
    """Whether *index* of *node* stands inside what a sum cannot be moved through."""
    factors = [f for f in _factors(node, semiring[1]) if index in free_indices(f)]
    if len(factors) > 1:
        return False
    if not factors:
        return not counted
    (factor,) = factors
    match factor:
        case ast.Subscript() | ast.Name():
            return False
        case ast.IfExp(body=body, orelse=ast.Name(id="ABSENT")):
            inside = index in free_indices(factor.test)
            return _turns(body, index, semiring, counted=counted or inside)
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub(), right=right):
            return any(_turns(side, index, semiring, counted=counted) for side in (left, right))
        case ast.Call(func=ast.Name(id=name), args=[_, body]) if (
            REDUCTIONS.get(name) == semiring[0]
        ):
            return _turns(body, index, semiring, counted=counted)
    return True


def _factors(node: ast.expr, mul: str) -> list[ast.expr]:
    """What *node* multiplies; a divisor counts as what is divided by it, 1."""
    match node:
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            return _factors(inner, mul)
        case ast.Call(func=ast.Name(id=name), args=[inner]) if name in CASTS:
            return _factors(inner, mul)
        case ast.Call(func=ast.Name(id=name), args=[left, right]) if name == f"{mul}imum":
            return [*_factors(left, mul), *_factors(right, mul)]
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            return [*_factors(left, mul), *_factors(right, mul)]
        case ast.BoolOp(op=op, values=values) if isinstance(op, _MULS.get(mul, ast.Mult)):
            return [factor for value in values for factor in _factors(value, mul)]
        case ast.BinOp(left=left, op=ast.Div(), right=right):
            return [*_factors(left, mul), ast.BinOp(ast.Constant(1), ast.Pow(), right)]
    return [node]


def _is_full(node: ast.expr, index: str, sparse: AbstractSet[str]) -> bool:
    """Whether all of *index* would be gone through beside a sparse operand in another addend."""
    if follows(node, {index}, sparse):
        return False
    return any(
        follows(part.left, {index}, sparse) != follows(part.right, {index}, sparse)
        for part in _values(node)
        if isinstance(part, ast.BinOp) and isinstance(part.op, (ast.Add, ast.Sub))
    )


def _values(node: ast.AST) -> Iterator[ast.AST]:
    """*node* and what its value is made of, without conditions and reductions."""
    if isinstance(node, ast.Call) and _name(node.func) in {*REDUCTIONS, "argmax", "argmin"}:
        return
    yield node
    below = ast.iter_child_nodes(node)
    for child in (node.body, node.orelse) if isinstance(node, ast.IfExp) else below:
        yield from _values(child)


def follows(node: ast.AST, left: AbstractSet[str], sparse: AbstractSet[str]) -> bool:
    """Whether sparse operands with all the indices *left* decide where *node* is present."""
    match node:
        case ast.Subscript(value=ast.Name(id=name)):
            return name in sparse and left <= {*indices_of(node)}
        case (
            ast.BinOp(left=a, op=ast.Add() | ast.Sub(), right=b)
            | ast.Call(func=ast.Name(id="ffill"), args=[a, b])
        ):
            return follows(a, left, sparse) and follows(b, left, sparse)
        case ast.IfExp(body=a, test=b, orelse=c):
            kept = follows(a, left, sparse) or _asks(b, left, sparse)
            absent = isinstance(c, ast.Name) and c.id == "ABSENT"
            return kept and (absent or follows(c, left, sparse))
        case ast.Call(func=ast.Name(id=name)) if name in {*REDUCTIONS, "argmax", "argmin"}:
            return False
        case ast.Call(func=ast.Name(id="stored")) | ast.Compare(ops=[ast.Is() | ast.IsNot()]):
            return False
    return any(follows(child, left, sparse) for child in ast.iter_child_nodes(node))


def _asks(node: ast.expr, left: AbstractSet[str], sparse: AbstractSet[str]) -> bool:
    """Whether the condition *node* holds only where sparse operands with all of *left* are."""
    match node:
        case ast.Call(func=ast.Name(id="stored"), args=[inner]):
            return follows(inner, left, sparse)
        case ast.Compare(left=inner, ops=[ast.IsNot()]):
            return follows(inner, left, sparse)
        case ast.BoolOp(op=ast.And(), values=values):
            return any(_asks(value, left, sparse) for value in values)
        case ast.BinOp(left=a, op=ast.BitAnd(), right=b):
            return _asks(a, left, sparse) or _asks(b, left, sparse)
    return follows(node, left, sparse)


def _name(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else ""
