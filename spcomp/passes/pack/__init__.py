"""Results made in one pass: rows side by side, put together afterwards."""
