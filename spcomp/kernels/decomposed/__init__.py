"""Kernels over composable formats: they convert what they take."""
