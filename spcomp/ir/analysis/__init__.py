"""What passes and steps ask of a program: reductions, forests, layouts, names, regions."""
