"""A second generator of random programs, written from the documentation alone.

It knows what docs/ promises and nothing of how it is kept: an oracle of its own in plain numpy, on
numbers beside a mask of what is present and a bound of what rounding may do to them.

    terms          index notation as a tree, and as text
    values         arithmetic on (numbers, present, error)
    oracle         what a program means
    grammar        random programs
    operands       random tensors, and every way to store them
    trials         what a seed stands for: a program, storage, data, and what should come out
    spellings      the same program as Python objects, as einsum, as its printed stages
    calls          the kernels of a program, and calls of them in every way
    comparison     results beside what the oracle says
    shrink         smaller programs that fail in the same way
    scripts        random programs of the script language
    script_oracle  what these mean
    stages         their kernels: scheduled at random, stored in parts, printed and read back
    report         what came of a program, as data
    __main__       child processes, counts
"""
