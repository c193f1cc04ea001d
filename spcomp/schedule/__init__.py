"""In position space: the steps that change how a program runs, and whether each is legal."""
