"""Index notation to index notation: the gradients of a program, as a program."""
