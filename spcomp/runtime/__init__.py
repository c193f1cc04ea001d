"""Running machine code: loading it, its threads, its caches."""
