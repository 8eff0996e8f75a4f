"""`python -m mpelu` runs the `mpelu` command, as `python -m mpelu.lab` does.

The library doesn't import the lab, so the lab is found by its name.
"""

import runpy

if __name__ == "__main__":
    runpy.run_module("mpelu.lab", run_name="__main__", alter_sys=True)
