"""At the call of an index notation kernel: tensors of PyTorch among its arguments."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np
import torch

from spcomp.arrays import Array
from spcomp.errors import ArgumentError
from spcomp.kernels.results import Results
from spcomp.runtime.cuda.arrays import note_write
from spcomp.tensors.libraries.foreign import outputs
from spcomp.tensors.libraries.torch import (
    HALVES,
    argument,
    array_of,
    bits_of,
    half_of,
    is_half,
    require_memory,
)
from spcomp.tensors.torch import to_torch


class TorchCall:
    """A call with tensors of torch: arrays for the kernel, and its results as tensors.

    *arguments* and *out*: those that the kernel takes. Results are tensors, of 16-bit floats if
    all arguments are; numbers, and arrays that were given, stay what they are.
    """

    def __init__(
        self,
        named: Mapping[str, Any],
        out: Any,
        written: Collection[str],
        bound: Iterable[Any] = (),
    ) -> None:
        """Take in the arguments *named*, of which those *written* may be written to, and *out*.

        *bound*: further arguments. Raises ArgumentError.
        """
        inputs = [*named.values(), *bound]
        self.given = [*inputs, *outputs(out)]
        self.half = half_of(inputs)  # the kernel sees float32
        self.places: list[tuple[torch.Tensor, Array]] = []  # written, and their arrays
        self.arguments = {n: self._argument(n, arg, n in written) for n, arg in named.items()}
        if isinstance(out, dict):
            self.out: Any = {name: self._place(name, arg) for name, arg in out.items()}
        elif isinstance(out, (list, tuple)):
            self.out = tuple(self._place("out", arg) for arg in out)
        else:
            self.out = self._place("out", out)
        if self.places and self.half:
            self._require_apart()

    def results(self, returned: Any) -> Any:
        """Return what the kernel *returned* as tensors, and write back what it wrote."""
        self._write_back()
        if isinstance(returned, Results):
            return Results.of(returned._fields, tuple(map(self._as_tensor, returned)))
        return self._as_tensor(returned)

    def _argument(self, who: str, arg: Any, written: bool) -> Any:  # noqa: FBT001
        """Return what the kernel takes for the argument *arg*; *written*: it may write to it."""
        if not isinstance(arg, torch.Tensor):
            return arg
        if written and arg.layout == torch.strided:
            return self._place(who, arg)
        if written:
            note_write(arg)
        return argument(who, arg)

    def _place(self, who: str, arg: Any) -> Any:
        """Return the array that is written in the place of *arg*; raises ArgumentError."""
        if not isinstance(arg, torch.Tensor):
            return arg
        require_memory(who, arg)
        is_short = arg.dtype in HALVES
        if is_short and arg.dtype != self.half:
            raise ArgumentError(
                f"argument {who}: got {arg.dtype}, but not all arguments are of that type",
                hint=f"leave it out, and convert the result with .to({arg.dtype})",
            )
        note_write(arg)
        self.places.append((arg, array_of(arg.float() if is_short else arg, who)))
        return self.places[-1][1]

    def _require_apart(self) -> None:
        """Raise ArgumentError for written tensors of 16-bit floats that share memory: copies."""
        tensors = [arg for arg in self.given if isinstance(arg, torch.Tensor)]
        views = [bits_of(tensor) for tensor in tensors if is_half(tensor)]
        for bits in (bits_of(tensor) for tensor, _ in self.places if is_half(tensor)):
            if sum(np.may_share_memory(bits, view) for view in views) > 1:
                raise ArgumentError(
                    "argument out: shares memory with another argument, and the program writes it",
                    hint="give a tensor of its own, or leave it out",
                )

    def _write_back(self) -> None:
        """Round the written arrays to their tensors of 16-bit floats."""
        for tensor, array in self.places:
            if is_half(tensor):
                bits_of(tensor)[...] = bits_of(torch.from_numpy(array).to(tensor.dtype))

    def _as_tensor(self, result: Any) -> Any:
        """Return the *result* as a tensor; numbers, and what was given, stay as they are."""
        for tensor, array in self.places:
            if result is array:
                return tensor
        if any(result is arg for arg in self.given) or not getattr(result, "shape", ()):
            return result
        tensor = to_torch(result)
        return tensor.to(self.half) if self.half and tensor.dtype == torch.float32 else tensor
