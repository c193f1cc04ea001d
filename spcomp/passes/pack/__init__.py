"""Results computed in one pass: blocks of rows, put together afterwards."""
