"""The old place of Tensor, where pickles of version 0.6.0 look for it."""

from spcomp.tensors.tensor import Tensor as Tensor
