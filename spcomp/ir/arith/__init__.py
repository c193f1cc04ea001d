"""Facts about integers: simplification, linear forms, bounds, proofs, index maps."""
