"""What may be changed without a change of meaning: dependence, reductions, cuts."""
