"""In position space: steps that share the work of loops evenly among threads."""
