"""The explorer: all stages of a program side by side, linked line by line, as one page of HTML."""
