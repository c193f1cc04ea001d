"""Plain Python interpreters for programs of every level: compiled code is tested against them."""
