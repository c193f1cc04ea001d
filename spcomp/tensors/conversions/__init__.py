"""Conversions: elements are put in order, then stored as the levels of a format."""
