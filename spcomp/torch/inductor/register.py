"""At import: the backends are told to torch, where no installed package does it."""

from __future__ import annotations

from importlib.metadata import entry_points


def register() -> None:
    """Register the backends that the package has as entry points, unless they are known."""
    if "spcomp" in entry_points(group="torch_dynamo_backends").names:
        return
    from torch._dynamo.backends.registry import _BACKENDS, register_backend

    from spcomp.torch.inductor.backend import backend, eager_backend

    for name, found in (("spcomp", backend), ("spcomp_eager", eager_backend)):
        if name not in _BACKENDS:
            register_backend(found, name=name)
