"""The whole route: ``compile()`` takes a program to a Kernel, and a Kernel takes arguments."""
