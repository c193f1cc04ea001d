"""Index notation, beside the route: conditions on sparse operands that could mean two things.

An element that is not stored is absent, not false. So ``not M[i, j]`` holds only where M stores
something, and ``M[i, j] or N[i, j]`` only where both do, unlike with dense arrays. And
``M[i, j] is None or M[i, j] > 2`` does not hold where nothing is stored, although it seems to.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Set as AbstractSet

from spcomp.errors import ScriptError
from spcomp.notation.algebra import ALWAYS, presence
from spcomp.notation.nodes import (
    Access,
    Assignment,
    Call,
    Expr,
    Masked,
    Op,
    Reduce,
    children,
    walk,
)

_LOGIC = frozenset({"and", "or", "not", "&", "|", "^", "~"})
_ANY, _ALL = frozenset({"or", "|"}), frozenset({"and", "&"})


def refuse_negated(stmt: Assignment, sparse: AbstractSet[str], bools: AbstractSet[str]) -> None:
    """Raise ScriptError where *stmt* negates a sparse operand as if it were false elsewhere.

    *sparse*: the names of sparse operands, *bools*: of operands of bools.
    """
    for term in walk(stmt.value):
        match term:
            case Op(op="not", args=(inner,)):
                _refuse(term, _bare(inner, sparse))
            case Op(op="~", args=(inner,)):
                _refuse(term, (a for a in _bare(inner, sparse) if a.name in bools))
            case Masked(cond=cond):
                _refuse_condition(cond, sparse)
            case Call(func="where", args=(cond, _, _)):
                _refuse_condition(cond, sparse)
                if isinstance(cond, Access):
                    _refuse(term, _bare(cond, sparse))


def _refuse_condition(cond: Expr, sparse: AbstractSet[str]) -> None:
    for term in walk(cond):
        if isinstance(term, Op) and term.op in ("~", "or", "|", "^"):
            _refuse(term, _bare(term, sparse))


def _bare(term: Expr, sparse: AbstractSet[str]) -> Iterator[Access]:
    """Yield the sparse operands whose values *term* takes as truth values."""
    if isinstance(term, Access) and term.name in sparse:
        yield term
    elif isinstance(term, Op) and term.op in _LOGIC:
        for child in children(term):
            yield from _bare(child, sparse)


def _refuse(term: Expr, operands: Iterator[Access]) -> None:
    operand = next(operands, None)
    if operand is None:
        return
    if isinstance(term, Op) and len(term.args) == 1:
        says, both = "is not stored, or is zero", (f"{operand} is None", f"{operand} == 0")
    else:
        says, both = "is stored, or is not zero", (f"stored({operand})", f"{operand} != 0")
    raise ScriptError(
        f"{term} does not say whether {operand}, which is sparse, {says}",
        term.at,
        hint=f"write {both[0]}, or {both[1]}, which asks only what is stored",
    )


# -- answers that are lost where another operand is absent -----------------------------------------


def refuse_lost_answers(stmt: Assignment, sparse: frozenset[str]) -> None:
    """Raise ScriptError where *stmt* asks what is stored, and the answer is lost.

    In a logic of true, false and absent, ``M[i, j] is None or M[i, j] > 2`` is true where M stores
    nothing, but an operator is present only where all its operands are. Under ``not`` the same
    holds for ``and``. Where absent and false do the same, as in ``is not None and``, all is well.
    """
    _refuse_lost(stmt.value, _ANY, sparse)


def _refuse_lost(term: Expr, decisive: frozenset[str], sparse: frozenset[str]) -> None:
    """Raise ScriptError for *decisive* operators in *term* that lose an answer.

    One operand of them may decide alone: of ``or`` where it matters that *term* is true, of ``and``
    where it matters that it is false.
    """
    match term:
        case Op(op="not" | "~", args=(inner,)):
            _refuse_lost(inner, (_ANY | _ALL) - decisive or decisive, sparse)
            return
        case Op(op=op, args=(left, right)) if op in decisive and _asks(term):
            if presence(term, sparse) != ALWAYS:
                raise _unclear(term, left, right, sparse)
        case Call(func="where", args=(cond, value, other)) if _asks(cond):
            if presence(term, sparse) != ALWAYS:
                raise ScriptError(
                    f"{_spelled(cond)} decides nothing in where, which has a value only where all"
                    " its arguments have one",
                    term.at,
                    hint=f"write {value} if {_spelled(cond)} else {other}",
                )
    for child in children(term):
        _refuse_lost(child, _decisive(term, child, decisive), sparse)


def _decisive(term: Expr, child: Expr, decisive: frozenset[str]) -> frozenset[str]:
    """Return the decisive operators in *child*, directly below *term*, which has *decisive*."""
    match term:
        case Masked(cond=cond) if child is cond:
            return _ANY
        case Masked() | Op(op="and" | "or" | "&" | "|" | "+" | "-" | "*" | "neg"):
            return decisive
        case Reduce(op="+" | "or" | "max"):
            return decisive
    return _ANY | _ALL


def _asks(term: Expr) -> bool:
    """Whether *term* asks what is stored, alone or inside logical operators."""
    if isinstance(term, Call):
        return term.func == "stored"
    return isinstance(term, Op) and term.op in _LOGIC and any(map(_asks, term.args))


def _unclear(term: Op, left: Expr, right: Expr, sparse: frozenset[str]) -> ScriptError:
    asked, other = (left, right) if presence(left, sparse) == ALWAYS else (right, left)
    told = ""
    if presence(asked, sparse) == ALWAYS:
        cases = ("True", _spelled(other)) if term.op in _ANY else (_spelled(other), "False")
        told = f"write ({cases[0]} if {_spelled(asked)} else {cases[1]})"
    return ScriptError(
        f"{_spelled(left)} {term.op} {_spelled(right)} is present only where its operands are, so"
        " that what it asks of what is stored would decide nothing elsewhere",
        term.at,
        hint=told or "write value if A[i, j] is None else other for each question",
    )


def _spelled(term: Expr) -> str:
    """Return *term* as text, ``M[i, j] is None`` as such."""
    match term:
        case Op(op="not", args=(Call(func="stored", args=(operand,)),)):
            return f"{operand} is None"
        case Call(func="stored", args=(operand,)):
            return f"{operand} is not None"
    return str(term)
