"""Calls repeated as a plan says that was learnt from one that was accepted."""
