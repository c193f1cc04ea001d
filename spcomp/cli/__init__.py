"""The command line, above everything else: thin commands over the public API."""
