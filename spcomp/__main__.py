"""The command line as ``python -m spcomp``."""

from spcomp.cli.main import main

if __name__ == "__main__":
    main(prog_name="spcomp")
