"""In coordinate space: steps on sparse iterations; in position space: on intersections."""
