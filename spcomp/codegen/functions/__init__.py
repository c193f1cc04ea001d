"""Functions as LLVM text: mathematical functions of floats and vectors, by plain arithmetic."""
