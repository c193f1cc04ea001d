"""The front door: public names, imported when they are first used (PEP 562).

``import spcomp`` itself loads nothing heavy.
"""

from __future__ import annotations

from importlib import import_module
from types import FunctionType
from typing import TYPE_CHECKING, Any

from spcomp.errors import BackendError, front_door

if TYPE_CHECKING:
    from spcomp import errors as errors
    from spcomp import formats as formats
    from spcomp import notation as notation
    from spcomp import script as script
    from spcomp import target as target
    from spcomp import tune as tune
    from spcomp import viz as viz
    from spcomp.formats.format import Format as Format
    from spcomp.formats.rules import FormatRewriteRule as FormatRewriteRule
    from spcomp.io.read import read as read
    from spcomp.io.write import write as write
    from spcomp.kernels.adjoint.derive import adjoint as adjoint
    from spcomp.kernels.compile import compile as compile  # noqa: A004
    from spcomp.kernels.decomposed.decompose import decompose as decompose
    from spcomp.kernels.einsum import einsum as einsum
    from spcomp.kernels.kernel import Kernel as Kernel
    from spcomp.notation.objects import Function as Function
    from spcomp.notation.objects import indices as indices
    from spcomp.notation.objects import symbols as symbols
    from spcomp.notation.semiring import Semiring as Semiring
    from spcomp.passes.decompose.decompose_formats import format_decompose as format_decompose
    from spcomp.passes.decompose.preprocess import extract_preprocess as extract_preprocess
    from spcomp.passes.decompose.preprocess import remove_preprocess as remove_preprocess
    from spcomp.passes.decompose.preprocess import remove_unused_args as remove_unused_args
    from spcomp.passes.decompose.preprocess import specialize_buffer as specialize_buffer
    from spcomp.passes.pipelines import lower_sparse_buffer as lower_sparse_buffer
    from spcomp.passes.pipelines import lower_sparse_iter as lower_sparse_iter
    from spcomp.runtime.pool import get_num_threads as get_num_threads
    from spcomp.runtime.pool import num_threads as num_threads
    from spcomp.runtime.pool import set_num_threads as set_num_threads
    from spcomp.schedule.schedule import Schedule as Schedule
    from spcomp.schedule.steps.tensor.fragments import register_fragments as register_fragments
    from spcomp.schedule.steps.tensor.intrinsics import register_intrinsic as register_intrinsic
    from spcomp.script.parse import parse as parse
    from spcomp.tensors.convert import convert as convert
    from spcomp.tensors.parts.parts import Parts as Parts
    from spcomp.tensors.tensor import Tensor as Tensor
    from spcomp.tune.suggestion import suggest as suggest

__version__ = "0.9.0"

_HOME = {
    "einsum": "spcomp.kernels.einsum",
    "indices": "spcomp.notation.objects",
    "symbols": "spcomp.notation.objects",
    "Function": "spcomp.notation.objects",
    "Semiring": "spcomp.notation.semiring",
    "notation": "",
    "adjoint": "spcomp.kernels.adjoint.derive",
    "compile": "spcomp.kernels.compile",
    "Kernel": "spcomp.kernels.kernel",
    "convert": "spcomp.tensors.convert",
    "decompose": "spcomp.kernels.decomposed.decompose",
    "Format": "spcomp.formats.format",
    "Parts": "spcomp.tensors.parts.parts",
    "Tensor": "spcomp.tensors.tensor",
    "read": "spcomp.io.read",
    "write": "spcomp.io.write",
    "Schedule": "spcomp.schedule.schedule",
    "parse": "spcomp.script.parse",
    "register_fragments": "spcomp.schedule.steps.tensor.fragments",
    "register_intrinsic": "spcomp.schedule.steps.tensor.intrinsics",
    "lower_sparse_iter": "spcomp.passes.pipelines",
    "lower_sparse_buffer": "spcomp.passes.pipelines",
    "FormatRewriteRule": "spcomp.formats.rules",
    "format_decompose": "spcomp.passes.decompose.decompose_formats",
    "extract_preprocess": "spcomp.passes.decompose.preprocess",
    "remove_preprocess": "spcomp.passes.decompose.preprocess",
    "remove_unused_args": "spcomp.passes.decompose.preprocess",
    "specialize_buffer": "spcomp.passes.decompose.preprocess",
    "set_num_threads": "spcomp.runtime.pool",
    "get_num_threads": "spcomp.runtime.pool",
    "num_threads": "spcomp.runtime.pool",
    "suggest": "spcomp.tune.suggestion",
    "script": "",  # a module of its own
    "errors": "",
    "formats": "",
    "target": "",
    "tune": "",
    "viz": "",
}

_OPTIONAL = {"torch": ("torch", "PyTorch"), "dask": ("dask", "dask.array", "Dask")}

__all__ = [
    "Format",
    "FormatRewriteRule",
    "Function",
    "Kernel",
    "Parts",
    "Schedule",
    "Semiring",
    "Tensor",
    "__version__",
    "adjoint",
    "compile",
    "convert",
    "decompose",
    "einsum",
    "errors",
    "extract_preprocess",
    "format_decompose",
    "formats",
    "get_num_threads",
    "indices",
    "lower_sparse_buffer",
    "lower_sparse_iter",
    "notation",
    "num_threads",
    "parse",
    "read",
    "register_fragments",
    "register_intrinsic",
    "remove_preprocess",
    "remove_unused_args",
    "script",
    "set_num_threads",
    "specialize_buffer",
    "suggest",
    "symbols",
    "target",
    "tune",
    "viz",
    "write",
]


def __getattr__(name: str) -> Any:
    if name in _OPTIONAL:
        return _optional(name)
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = _HOME[name]
    value = getattr(import_module(home), name) if home else import_module(f"{__name__}.{name}")
    if isinstance(value, FunctionType):
        value = front_door(value)
        value.__module__ = __name__  # where pickle finds it
    globals()[name] = value
    return value


def _optional(name: str) -> Any:
    """Return a module that is no part of ``__all__``: what it stands on may be missing."""
    try:
        return import_module(f"{__name__}.{name}")
    except ModuleNotFoundError as error:
        if error.name not in _OPTIONAL[name]:
            raise
        raise BackendError(
            f"spcomp.{name} needs {_OPTIONAL[name][-1]}, which is not installed",
            hint=f"pip install spcomp[{name}]",
        ) from None


def __dir__() -> list[str]:
    return sorted(__all__)
