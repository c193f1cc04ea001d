"""At the end of inductor: its code for the CPU keeps memory, and calls our operators directly.

Around its kernels inductor writes a Python function, which allocates what they write to and calls
operators through torch's dispatcher. That takes tens of microseconds for a call.
"""

from __future__ import annotations

from math import prod
from typing import Any

from torch._inductor.codegen.common import device_codegens, init_backend_registration
from torch._inductor.codegen.wrapper import PythonWrapperCodegen

from spcomp.torch.inductor import memory, operators
from spcomp.torch.inductor.memory import LEAST_BYTES
from spcomp.torch.inductor.passes import is_ours

THEIRS, OURS = "empty_strided_cpu(", "empty_strided_kept("  # calls that allocate
_IMPORTS = (
    f"from {memory.__name__} import {memory.empty_strided.__name__} as {OURS[:-1]}",
    f"import {operators.__name__} as spcomp_operators",
)
_DIRECT = {
    f"torch.ops.{operators.LIBRARY}.{call}.default": f"spcomp_operators.{call}"
    for call in ("index_key", "degree", "aggregate")
}


class Wrapper(PythonWrapperCodegen):  # type: ignore[misc]
    """The writer of that function; for other backends than ours it changes nothing."""

    @staticmethod
    def create(is_subgraph: bool, *args: Any) -> PythonWrapperCodegen:  # noqa: FBT001 (inductor's)
        """Return a writer; that of a part of a graph is inductor's."""
        return PythonWrapperCodegen.create(is_subgraph, *args) if is_subgraph else Wrapper()

    def write_header(self) -> None:
        """Write what the function imports."""
        super().write_header()
        if is_ours():
            self.header.writelines(_IMPORTS)

    def generate_fallback_kernel(self, node: Any) -> None:
        """Write the call of the operator of *node*."""
        if is_ours():
            node.python_kernel_name = _DIRECT.get(node.python_kernel_name, node.python_kernel_name)
        super().generate_fallback_kernel(node)

    def make_allocation(
        self, name: str, device: Any, dtype: Any, shape: Any, stride: Any, *args: Any, **named: Any
    ) -> str:
        """Return the line that allocates the buffer *name*."""
        line = super().make_allocation(name, device, dtype, shape, stride, *args, **named)
        size = prod(shape) * dtype.itemsize
        is_small = getattr(size, "is_number", True) and size < LEAST_BYTES
        return str(line) if is_small or not is_ours() else str(line).replace(THEIRS, OURS)


def register() -> None:
    """Let inductor use this writer, unless somebody else has derived one."""
    init_backend_registration()
    if device_codegens["cpu"].wrapper_codegen is PythonWrapperCodegen:
        device_codegens["cpu"].wrapper_codegen = Wrapper
