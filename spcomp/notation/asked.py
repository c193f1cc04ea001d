"""Index notation, beside the route: what is asked of sparse operands, where it has two meanings.

What is not stored is absent, not false. So ``not M[i, j]`` holds at no coordinate that M does not
store, and ``M[i, j] or N[i, j]`` only where both store something, unlike with dense arrays.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Set as AbstractSet

from spcomp.errors import ScriptError
from spcomp.notation.nodes import Access, Assignment, Call, Expr, Masked, Op, children, walk

_LOGIC = frozenset({"and", "or", "not", "&", "|", "^", "~"})


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
    """Yield the sparse operands whose truth *term* asks."""
    if isinstance(term, Access) and term.name in sparse:
        yield term
    elif isinstance(term, Op) and term.op in _LOGIC:
        for child in children(term):
            yield from _bare(child, sparse)


def _refuse(term: Expr, found: Iterator[Access]) -> None:
    operand = next(found, None)
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
