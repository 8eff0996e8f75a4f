"""The report: one page that shows runs, tables and the activation. It doesn't import torch."""

from mpelu.lab.reporting.page import WrittenReport, write_explorer, write_report

__all__ = ["WrittenReport", "write_explorer", "write_report"]
