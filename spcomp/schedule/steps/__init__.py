"""In coordinate and position space: the steps, one frozen value for each call of a Schedule."""
