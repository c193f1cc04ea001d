"""The whole route, from a program to machine code; spcomp/kernels calls it with arguments."""
