"""Sparse results: count, scan, fill; what a write becomes in each phase."""
