"""Attacks on the package: crashes, flipped bits, fuzzed inputs and hostile files.

    python -m torture [ATTACK ...] [--share X]

Every attack is a function of a folder and the number of cases. It returns an `Attack`, of which the
program prints a line. The tests run a sample of each.
"""
