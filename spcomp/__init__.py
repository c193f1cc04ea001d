"""The front door: public names, imported when they are first used.

``import spcomp`` itself loads nothing heavy; see PEP 562.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spcomp import errors as errors
    from spcomp import formats as formats
    from spcomp import script as script
    from spcomp import target as target
    from spcomp.compiler.compile import compile as compile  # noqa: A004
    from spcomp.compiler.formats import decompose as decompose
    from spcomp.compiler.kernel import Kernel as Kernel
    from spcomp.compiler.tensor import Tensor as Tensor
    from spcomp.runtime.pool import get_num_threads as get_num_threads
    from spcomp.runtime.pool import num_threads as num_threads
    from spcomp.runtime.pool import set_num_threads as set_num_threads
    from spcomp.schedule.schedule import Schedule as Schedule

__version__ = "0.2.0"

_HOME = {
    "compile": "spcomp.compiler.compile",
    "Kernel": "spcomp.compiler.kernel",
    "decompose": "spcomp.compiler.formats",
    "Tensor": "spcomp.compiler.tensor",
    "Schedule": "spcomp.schedule.schedule",
    "set_num_threads": "spcomp.runtime.pool",
    "get_num_threads": "spcomp.runtime.pool",
    "num_threads": "spcomp.runtime.pool",
    "script": "",  # a module of its own
    "errors": "",
    "formats": "",
    "target": "",
}

__all__ = [
    "Kernel",
    "Schedule",
    "Tensor",
    "__version__",
    "compile",
    "decompose",
    "errors",
    "formats",
    "get_num_threads",
    "num_threads",
    "script",
    "set_num_threads",
    "target",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = _HOME[name]
    value = getattr(import_module(home), name) if home else import_module(f"{__name__}.{name}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
