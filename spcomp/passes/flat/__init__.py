"""Position space to flat buffers, and what is done there: guards, threads, vectors."""
