"""`python -m mpelu.lab` runs the `mpelu` command."""

import sys

from mpelu.lab.cli import main

if __name__ == "__main__":
    sys.exit(main())
