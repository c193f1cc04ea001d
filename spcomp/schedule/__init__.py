"""What may be changed about how a program runs: steps as values, legality decided once."""
