"""The old place of Parts, where pickles of version 0.6.0 look for it."""

from spcomp.tensors.parts.parts import Parts as Parts
