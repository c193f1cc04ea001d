"""Steps on blocks and buffers: caching, moving, inlining, layouts, rfactor."""
