"""Coordinate to position space: sparse iterations become loops over fibers."""
