"""Programs that we compile against libraries that people use: ``python -m benchmarks``."""
