"""What a call on a GPU takes for formats that no other library has: a Tensor that lies there.

It is made there, by ``spcomp.convert`` or as a result with the pattern of another one.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from spcomp.errors import ArgumentError
from spcomp.formats.format import Format, text_of
from spcomp.runtime.cuda.arrays import DeviceArray, Library, OnDevice, place_of, to_host
from spcomp.tensors.levels import Level, texts
from spcomp.tensors.tensor import Tensor


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class DeviceTensor(OnDevice):
    """A sparse tensor of any rank on a GPU: what :class:`spcomp.Tensor` is on the host.

    The arrays of *levels* are DeviceArrays, which nobody else has; *data*: the values of the
    positions of the last level. Coordinates ascend in each fiber, and none occurs twice. *padding*:
    the numbers of fixed levels some of whose positions have no coordinate, but -1.
    """

    shape: tuple[int, ...]
    levels: tuple[Level | None, ...]
    data: DeviceArray
    layout: Format
    padding: tuple[int, ...] = ()
    device: int = field(init=False)
    library: Library = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "device", self.data.device)
        object.__setattr__(self, "library", self.data.library)

    @property
    def values(self) -> Any:
        """The values, an array of the library that the tensor was made with."""
        return self.data.owner

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the values; that of bfloat16 is uint16, its bits."""
        return np.dtype(self.data.dtype.numpy_name)

    @property
    def order(self) -> tuple[int, ...]:
        """The dimension that each level stores."""
        return self.layout.order

    @property
    def is_plain(self) -> bool:
        """Whether level k stores dimension k."""
        return self.order == tuple(range(len(self.order)))

    @property
    def format(self) -> str:
        """The levels, such as ``dense,fixed``."""
        return text_of(texts(self.levels), self.order)

    def padded(self, at: int) -> bool:
        """Whether level *at* has positions without a coordinate."""
        return at in self.padding

    def distinct(self, at: int) -> bool:  # noqa: ARG002
        """Whether no fiber of level *at* has a coordinate twice."""
        return True

    def ascending(self, axis: int, *, unique: bool) -> bool:  # noqa: ARG002
        """Whether the coordinates of each fiber of level *axis* ascend."""
        return not self.padded(axis)

    def with_values(self, data: DeviceArray) -> DeviceTensor:
        """Return a tensor with other values, *data*, that shares the levels."""
        if data.size != self.data.size:
            raise ArgumentError(f"got {data.size} values, expected {self.data.size}")
        return replace(self, data=data)

    def in_order(self) -> DeviceTensor:
        """Return the tensor with dimensions in the order of levels, over the same arrays."""
        if self.is_plain:
            return self
        shape = tuple(self.shape[dim] for dim in self.order)
        layout = replace(self.layout, order=tuple(range(len(shape))))
        return replace(self, shape=shape, layout=layout)

    def to_host(self) -> Tensor:
        """Return a copy on the host, after what the GPU was given so far."""
        stream = place_of([self.data]).stream
        levels = [level and _on_host(level, stream) for level in self.levels]
        values = to_host(self.data, stream).reshape(-1)
        return Tensor(self.shape, levels, values, self.order)

    def __repr__(self) -> str:
        where = f"levels {self.format}, on GPU {self.device}"
        return f"<DeviceTensor {self.shape} {self.data.dtype}, {where}>"


def _on_host(level: Level, stream: int) -> Level:
    arrays: dict[str, Any] = {part.name: getattr(level, part.name) for part in fields(level)}
    for name, array in arrays.items():
        if isinstance(array, DeviceArray):
            arrays[name] = to_host(array, stream)
    return Level(**arrays)
