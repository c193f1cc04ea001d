"""A second generator of random programs, written from the documentation alone.

It knows what docs/ promises and nothing of how it is kept: an oracle of its own in plain numpy, on
numbers beside a mask of what is present and a bound of what rounding may do to them.

    terms      index notation as a tree, and as text
    values     arithmetic on (numbers, present, error)
    oracle     what a program means
    grammar    random programs
    operands   random tensors, and every way to store them
    trials     a program, its kernels and their calls; compared with the oracle
    shrink     smaller programs that fail in the same way
    scripts    programs of the script language, their schedules and stages
    __main__   child processes, counts
"""
