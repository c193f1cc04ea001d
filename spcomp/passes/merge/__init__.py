"""Co-iteration: merges of several fibers become loops over their cases."""
