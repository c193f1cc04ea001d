"""For users of torch.compile: what compiled models keep between calls, given back."""

from __future__ import annotations

from spcomp.torch.inductor.memory import MEMORY
from spcomp.torch.inductor.sorting import forget


def empty_cache() -> None:
    """Give back what compiled models keep: memory of results that are gone, and sorted indices.

    The next call makes it anew. Results, and what a backward pass still needs, stay as they are.
    """
    MEMORY.clear()
    forget()
