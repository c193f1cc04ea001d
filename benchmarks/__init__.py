"""Compiled programs against the libraries that people would use instead: ``python -m benchmarks``."""
