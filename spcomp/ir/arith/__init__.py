"""Beside the route: facts about integers: simplification, sums, bounds, proofs, index maps."""
