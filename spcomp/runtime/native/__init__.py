"""LLVM text of our own, loaded beside the code of programs: the pool, checks, the call entry."""
