"""At the end of inductor: its code for the CPU has large arrays in memory that is kept.

Around its kernels inductor writes a Python function, which allocates what they write to.
"""

from __future__ import annotations

from typing import Any

from torch._inductor.codegen.common import device_codegens, init_backend_registration
from torch._inductor.codegen.wrapper import PythonWrapperCodegen

from spcomp.torch.inductor import memory
from spcomp.torch.inductor.backend import is_ours

_IMPORT = f"from {memory.__name__} import {memory.empty_strided.__name__} as empty_strided_cpu"


class Wrapper(PythonWrapperCodegen):  # type: ignore[misc]
    """The writer of that function; for other backends than ours it changes nothing."""

    @staticmethod
    def create(is_subgraph: bool, *args: Any) -> PythonWrapperCodegen:  # noqa: FBT001 (inductor's)
        """Return a writer; that of a part of a graph shares the head of the whole."""
        return PythonWrapperCodegen.create(is_subgraph, *args) if is_subgraph else Wrapper()

    def write_header(self) -> None:
        """Write what the function imports."""
        super().write_header()
        if is_ours():
            self.header.writeline(_IMPORT)


def register() -> None:
    """Let inductor use this writer, unless somebody else has derived one."""
    init_backend_registration()
    if device_codegens["cpu"].wrapper_codegen is PythonWrapperCodegen:
        device_codegens["cpu"].wrapper_codegen = Wrapper
