"""A sweep: a grid of runs, on this machine or on Ray, and the table made from them."""

from mpelu.lab.sweep.study import Options, Setting, Study

__all__ = ["Options", "Setting", "Study"]
