"""Under the steps: which changes keep the meaning of a program."""
