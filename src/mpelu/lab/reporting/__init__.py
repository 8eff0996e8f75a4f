"""The report: one page that shows runs, tables and the activation itself. Imports no torch."""
