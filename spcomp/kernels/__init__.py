"""What compile() returns: kernels, and their calls."""
