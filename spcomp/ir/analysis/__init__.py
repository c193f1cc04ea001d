"""Beside the route: what passes and steps ask of a program, such as reductions and regions."""
