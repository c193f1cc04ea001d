"""The schedule of programs that have none: what is decided, and from which facts."""
