"""Beside the route: files of matrices and tensors, checked to the last byte, in and out."""
