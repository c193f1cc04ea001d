"""I to I, before the route: a program to the program of its gradients."""
