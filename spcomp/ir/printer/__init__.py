"""Programs as Python text: what parses back to them."""
