"""In position space: steps on blocks and buffers: caching, moving, inlining, layout, rfactor."""
