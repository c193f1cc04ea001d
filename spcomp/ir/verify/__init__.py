"""The rules of each level, checked between passes."""
