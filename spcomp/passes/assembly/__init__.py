"""Sparse results: count, scan, fill; how writes are lowered in each phase."""
