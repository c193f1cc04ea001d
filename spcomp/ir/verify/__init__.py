"""What each level demands of a program, checked between passes."""
