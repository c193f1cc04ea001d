"""Tensors of other libraries: reading and building them."""
