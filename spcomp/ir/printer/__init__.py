"""Programs as Python text that parses back to them."""
