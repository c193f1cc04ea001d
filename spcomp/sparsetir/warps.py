"""Before the route: TVM's intrinsics for tensor cores, which a warp runs together."""

from __future__ import annotations

from dataclasses import dataclass

from spcomp.errors import ScheduleError
from spcomp.ir.analysis.fragments import Role
from spcomp.ir.func import Func
from spcomp.schedule.steps.tensor.fragments import register_fragments
from spcomp.schedule.steps.tensor.intrinsics import register_intrinsic

WARP_CALLS: dict[str, Role] = {
    "tvm_fill_fragment": "fill",
    "tvm_load_matrix_sync": "load",
    "tvm_mma_sync": "multiply",
    "tvm_store_matrix_sync": "store",
}


@dataclass(frozen=True, slots=True)
class WarpImplementation:
    """The function *name*, which does *role* by one of TVM's calls.

    It is not parsed: the description of the intrinsic says all that is needed.
    """

    name: str
    role: Role


def register(
    name: str, desc: Func, impl: Func | WarpImplementation, *, override: bool = False
) -> str:
    """Register an intrinsic; see :func:`spcomp.register_intrinsic`.

    For one of the tensor cores the description decides what is done, and *impl* must do the same.
    Raises ScheduleError if it does not.
    """
    if not isinstance(impl, WarpImplementation):
        return register_intrinsic(name, desc, impl, override=override)
    role = register_fragments(name, desc, override=override)
    if role != impl.role:
        raise ScheduleError(
            f"intrinsic {name!r}: {impl.name} is to {impl.role}, and the description to {role}"
        )
    return name
