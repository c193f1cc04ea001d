"""Beside position space: intrinsics of tensor cores, which follow from their descriptions."""

from __future__ import annotations

from spcomp.errors import ScheduleError
from spcomp.ir.analysis.fragments import COLLECTIVE, Role, role_of_store
from spcomp.ir.expr import Const
from spcomp.ir.func import Func
from spcomp.ir.stmt import Store
from spcomp.schedule.nests.nests import nest
from spcomp.schedule.steps.tensor.intrinsics import described, register_intrinsic


def register_fragments(name: str, description: Func, *, override: bool = False) -> Role:
    """Register an intrinsic that a warp runs on tensor cores; return what it does.

    Its *description*, as for :func:`spcomp.register_intrinsic`, has a single store: of a number to
    a buffer of the scope ``wmma.accumulator``; of elements of memory to a ``wmma.matrix_a`` or
    ``wmma.matrix_b``; of an accumulator to memory; or of the product of two matrices, added to an
    accumulator. Where code is not for a GPU, the description is what runs. Raises ScheduleError for
    another description.
    """
    func, loops, body = described(name, description)
    role = role_of_store(body) if isinstance(body, Store) else None
    if role is None:
        why = "the description neither fills, loads, multiplies nor stores a matrix of a warp"
        raise ScheduleError(f"intrinsic {name!r}: {why}", func.span)
    first = next((x for x in loops if isinstance(x.end, Const) and x.end.value > 1), loops[0])
    marked = first.replace(attrs=(*first.attrs, (COLLECTIVE, role)))
    whole = nest([marked if loop is first else loop for loop in loops], body)
    implementation = func.replace(name=f"{func.name}_warp", body=whole)
    register_intrinsic(name, description, implementation, override=override)
    return role
