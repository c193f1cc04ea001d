"""At a call that follows gradients: jagged nested tensors, as their values and where rows begin."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from spcomp.errors import ArgumentError
from spcomp.kernels.gradients import is_jagged, is_transformed
from spcomp.tensors.libraries.torch import argument, array_of
from spcomp.tensors.tensor import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Jagged:
    """How the nested tensor *like* is stored: a Tensor of it, dense, ragged, then dense."""

    tensor: Tensor
    like: torch.Tensor

    @classmethod
    def of(cls, who: str, nested: Any) -> Jagged:
        """Return how *nested*, the argument *who*, is stored; raises ArgumentError."""
        is_plain = nested.layout == torch.jagged and nested._ragged_idx == 1  # noqa: SLF001
        if not is_plain or nested.lengths() is not None:
            raise ArgumentError(
                f"argument {who}: is nested otherwise than in rows without gaps",
                hint="make it by torch.nested.nested_tensor_from_jagged(values, offsets)",
            )
        values = nested.values()
        if is_transformed([values]):
            raise ArgumentError(
                f"argument {who}: is nested, which torch.func does not transform",
                hint="transform a function of its values",
            )
        offsets = array_of(nested.offsets(), who)
        longest = int(np.diff(offsets).max(initial=0))
        shape = len(offsets) - 1, longest, *values.shape[1:]
        levels = None, ("ragged", offsets), *[None] * (len(shape) - 2)
        array = argument(who, values.detach())
        return cls(Tensor(shape, levels, np.ascontiguousarray(array).reshape(-1)), nested)

    def with_values_of(self, values: torch.Tensor) -> Tensor:
        """Return the Tensor with these *values*."""
        return self.tensor.with_values(argument("values", values).reshape(-1))

    def is_of(self, other: Any) -> bool:
        """Whether *other* is a Tensor whose rows begin where these do, by the same array."""
        if not isinstance(other, Tensor) or [level and level.kind for level in other.levels] != [
            level and level.kind for level in self.tensor.levels
        ]:
            return False
        mine, its = self.tensor.levels[1], other.levels[1]
        assert mine is not None
        assert its is not None
        return its.arrays[0] is mine.arrays[0]

    def nested(self, values: torch.Tensor) -> torch.Tensor:
        """Return *values* as a nested tensor with the very offsets of this one."""
        make = torch.nested.nested_tensor_from_jagged
        made: torch.Tensor = make(values, offsets=self.like.offsets())
        return made


def jagged_of(named: dict[str, Any]) -> dict[str, Jagged]:
    """Return how the nested tensors among the arguments *named* are stored, by name."""
    return {name: Jagged.of(name, arg) for name, arg in named.items() if is_jagged(arg)}
