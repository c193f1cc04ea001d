"""Flat IR to machine code; knows no other level."""
