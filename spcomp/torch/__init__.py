"""Above the compiler: tensors of PyTorch to ours and back; the only package that imports torch."""

from spcomp.torch.tensors import from_torch, to_torch

__all__ = ["from_torch", "to_torch"]
