"""What may be changed about how a program runs, each step a value; legality is decided in one place."""
