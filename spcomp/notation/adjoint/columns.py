"""Index notation to index notation: operands that are read by their columns.

``grad_B[j, k] = sum(i, A[i, j] * grad_C[i, k])`` over a matrix stored by rows would scatter; over
the same matrix stored by columns it gathers.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from spcomp.notation.adjoint.terms import names_of
from spcomp.notation.algebra import rebuilt
from spcomp.notation.nodes import Access, Assignment, Expr, Op, Program, Reduce, accesses
from spcomp.notation.prepare import free_name


def by_columns(
    program: Program, outer: Mapping[str, int], dense: Collection[str]
) -> tuple[Program, dict[str, str]]:
    """Return *program* with new operands for matrices that it reads by columns, and their sources.

    *outer*: the dimension that has the rows of each matrix. *dense*: what stores every element.
    """
    taken = names_of(program)
    sources: dict[str, str] = {}
    names: dict[str, str] = {}

    def addend(term: Expr, stmt: Assignment) -> Expr:
        if isinstance(term, Op) and term.op in ("+", "-", "neg"):
            return rebuilt(term, lambda part: addend(part, stmt))
        if not isinstance(term, Reduce) or term.op != "+":
            return term
        sparse = {a for a in accesses(term.body) if a.name not in dense}
        if len(sparse) != 1 or not _scatters(access := sparse.pop(), term, stmt, outer):
            return term
        if access.name not in names:
            names[access.name] = free_name(access.name, taken)
            sources[names[access.name]] = access.name
        return _renamed(term, access.name, names[access.name])

    statements = tuple(replace(s, value=addend(s.value, s)) for s in program.statements)
    return Program(statements), sources


def _scatters(access: Access, term: Reduce, stmt: Assignment, outer: Mapping[str, int]) -> bool:
    """Whether *term* sums over the rows of *access*, a matrix, into places given by its columns."""
    if access.name not in outer or len(access.indices) != 2 or access.windows:
        return False
    row, column = access.indices[outer[access.name]], access.indices[1 - outer[access.name]]
    return row in term.indices and column in stmt.target.indices


def _renamed(term: Expr, old: str, new: str) -> Expr:
    if isinstance(term, Access) and term.name == old:
        return replace(term, name=new)
    return rebuilt(term, lambda part: _renamed(part, old, new))
