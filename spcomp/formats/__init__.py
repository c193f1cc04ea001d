"""How coordinates are stored: pure description."""
