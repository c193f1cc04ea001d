"""In position space: the default schedule of programs that have none."""
