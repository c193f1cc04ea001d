"""Position space to flat buffers, and the passes on these: guards, threads, vectors."""
