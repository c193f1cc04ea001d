"""Steps on sparse iterations in coordinate space."""
