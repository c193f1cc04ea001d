"""Programs of every level run in Python, plainly: what compiled code is tested against."""
