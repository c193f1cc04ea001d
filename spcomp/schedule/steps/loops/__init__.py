"""In position space: steps on loops, such as split, reorder, vectorize and prefetch."""
