"""Co-iteration: merges of several fibers become loops, with their cases."""
