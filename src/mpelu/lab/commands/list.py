"""`mpelu list`: the recipes and what they need."""

from __future__ import annotations

import argparse
from typing import Any


def add(subparsers: Any) -> None:
    parser = subparsers.add_parser("list", help="list the recipes of `mpelu reproduce`")
    parser.set_defaults(run=run)


def run(_: argparse.Namespace) -> None:
    from mpelu.lab import studies as recipes

    rows: list[tuple[str, ...]] = [
        ("recipe", "runs: smoke", "small", "full", "data at full scale", "what it is")
    ]
    for name in recipes.names():
        recipe = recipes.find(name)
        counts = [
            str(len(recipe.runs(recipes.Options(scale=scale))) or "-")
            for scale in ("smoke", "small", "full")
        ]
        rows.append((name, *counts, recipe.needs, recipe.title))
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    for row in rows:
        fixed = "  ".join(text.ljust(width) for text, width in zip(row[:5], widths, strict=True))
        print(f"{fixed}  {row[5]}")
