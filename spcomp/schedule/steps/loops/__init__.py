"""Steps on loops: split, reorder, unroll, vectorize, bind, sample, prefetch."""
