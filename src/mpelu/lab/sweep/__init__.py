"""A sweep: a grid of runs, on this machine or on Ray, and the table made from them."""

from mpelu.lab.sweep.study import Execution, Options, Setting, Study

__all__ = ["Execution", "Options", "Setting", "Study"]
