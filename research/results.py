"""Rebuilds docs/results from the kept runs: figures, tables, and every number in the text.

    python -m research.results [--take OUT]

With --take, the kept runs are copied first from OUT, the directory that `mpelu reproduce` wrote to.
The page is docs/results/README.md. It is made from template.md: {{name}} stands for a value. A
section between <!-- if NAME --> and <!-- end --> is left out while the study has no kept runs, and
one after <!-- unless NAME --> once it has some.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from research import depth_page, summary
from research.activations import REACH
from research.depth import SOFTMAX
from research.kept import KEPT, KeptStudy, read

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "results"
STUDIES = ("pilot", "bn", "no-bn", "advice", "anchor", "limits")
WITHOUT_FIGURE = ("pilot", "limits")
"""Studies that compare nothing."""
COST = ROOT / "benchmarks" / "results" / "network.json"
MAIN = {
    "bn": "ResNet-20 of width 8, batch norm",
    "no-bn": "NIN of width 32, no batch norm",
}
RIVALS = ("elu", "prelu")
LABELS = {"relu": "ReLU", "prelu": "PReLU", "elu": "ELU", "mpelu": "MPELU"}
PAPER_SECONDS = {"relu": 0.2310, "prelu": 0.2417, "elu": 0.2299, "mpelu": 0.2441}
"""Table 4 of the paper."""


def take(out: Path) -> None:
    """Copies the kept runs of every study found in the directory."""
    for name in STUDIES:
        source = out / f"study-{name}-small" / KEPT
        if source.is_file():
            shutil.copyfile(source, RESULTS / f"study-{name}.json")


def kept_studies() -> dict[str, KeptStudy]:
    """The kept studies by name, without "study-"."""
    paths = {name: RESULTS / f"study-{name}.json" for name in STUDIES}
    return {name: read(path) for name, path in paths.items() if path.is_file()}


def markdown_table(header: tuple[str, ...], rows: Iterator[list[str]]) -> str:
    lines = [header, ("---",) * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def study_values(name: str, kept: KeptStudy) -> Iterator[tuple[str, str]]:
    """Names and texts that the template can use."""
    header, rows = summary.cells(kept, REACH if name == "no-bn" else None)
    if name == "pilot":
        yield f"{name}.table", by_learning_rate(kept)
    else:
        yield f"{name}.table", markdown_table(header, ([cell.text for cell in row] for row in rows))
    yield f"{name}.runs", str(len(kept.runs))
    yield f"{name}.machine", "; ".join(_machine(each) for each in kept.machines)
    pairs = [found.pairs for each, _ in kept.comparisons if (found := kept.difference(each))]
    yield f"{name}.n", str(min(pairs, default=0))
    for setting in kept.labels:
        errors = list(kept.errors(setting).values())
        if errors:
            yield f"{name}.{setting}.error", f"{sum(errors) / len(errors):.2f}"
        pairing = kept.difference(setting)
        if pairing and pairing.difference is not None:
            yield f"{name}.{setting}.difference", f"{pairing.difference:+.2f}"
            yield f"{name}.{setting}.interval", f"[{pairing.low:+.2f}, {pairing.high:+.2f}]"
            yield f"{name}.{setting}.detectable", f"{pairing.detectable:.2f}"
            yield f"{name}.{setting}.verdict", _verdict(pairing.low, pairing.high)


def rival_values(studies: dict[str, KeptStudy]) -> Iterator[tuple[str, str]]:
    """MPELU against its nearest relatives, all of these intervals holding together with 95 %."""
    pairs = [(name, other) for name in MAIN for other in RIVALS if name in studies]
    for name, other in pairs:
        found = studies[name].pairing("mpelu", other, len(pairs))
        if found.difference is None:  # no sentence of the page is about runs that diverged
            continue
        yield f"{name}.mpelu-{other}.difference", f"{found.difference:+.2f}"
        yield f"{name}.mpelu-{other}.interval", f"[{found.low:+.2f}, {found.high:+.2f}]"
        yield f"{name}.mpelu-{other}.detectable", f"{found.detectable:.2f}"
        yield f"{name}.mpelu-{other}.verdict", _verdict(found.low, found.high)


def depth_values() -> Iterator[tuple[str, str]]:
    """Mean test losses of the study of depth."""
    found = depth_page.losses()
    for name, losses in found.items():
        yield f"depth.{name}", f"{sum(losses) / len(losses):.3f}"
    yield "depth.n", str(len(found[SOFTMAX]))


def by_learning_rate(kept: KeptStudy) -> str:
    """The pilot: a row for each network and activation, a column for each learning rate."""
    found: dict[tuple[str, str], dict[str, str]] = {}
    for setting, label in kept.labels.items():
        network, _, rest = label.partition(", ")
        activation, _, rate = rest.rpartition(", ")
        errors = list(kept.errors(setting).values())
        cell = f"{errors[0]:.2f}" if errors else "diverged" if kept.diverged(setting) else ""
        found.setdefault((network, activation), {})[rate] = cell
    rates = sorted({rate for cells in found.values() for rate in cells}, key=float)
    header = ("network", "activation", *(f"learning rate {rate}" for rate in rates))
    rows = ([*names, *(cells.get(rate, "") for rate in rates)] for names, cells in found.items())
    return markdown_table(header, rows)


def _verdict(low: float, high: float) -> str:
    return "lower" if high < 0 else "higher" if low > 0 else "no difference found"


def _machine(values: dict[str, Any]) -> str:
    kernel = re.search(r"\(([^)]*)\)", str(values["kernel"]))
    return (
        f"{values['cpu']} ({kernel.group(1) if kernel else values['kernel']}), "
        f"{values['threads']} thread, torch {values['torch']}, commit {str(values['revision'])[:7]}"
    )


def cost_values() -> Iterator[tuple[str, str]]:
    """The cost of a training step, as benchmarks/network.py measured it."""
    data = json.loads(COST.read_text())
    yield "cost.machine", f"{data['machine']['cpu']}, torch {data['machine']['torch']}"
    rows = []
    for cell in data["cells"]:
        for name, values in cell["networks"].items():
            of_paper = PAPER_SECONDS[name] / PAPER_SECONDS["relu"]
            found = values["to_relu"]
            ratio = f"{found['median']:.2f} [{found['low']:.2f}, {found['high']:.2f}]"
            rows.append(
                [
                    f"{cell['network']}, batch {cell['batch']}", str(cell["threads"]),
                    cell["layout"], LABELS[name], f"{values['seconds']['p50'] * 1000:.0f}", ratio,
                    f"{values['saved_megabytes']:.0f}", f"{of_paper:.2f}",
                ]
            )  # fmt: skip
    header = (
        "network", "threads", "layout", "activation", "ms per step", "/ ReLU", "MB kept",
        "paper, / ReLU",
    )  # fmt: skip
    yield "cost.table", markdown_table(header, iter(rows))


def fill(template: str, values: dict[str, str], names: set[str]) -> str:
    """The template with its values.

    Raises:
        KeyError: for a value that there is none of.
    """
    sections = re.compile(r"<!-- (if|unless) (\S+) -->\n(.*?)<!-- end -->\n", re.DOTALL)
    text = sections.sub(
        lambda found: found[3] if (found[2] in names) == (found[1] == "if") else "", template
    )
    return re.sub(r"\{\{([^}]+)\}\}", lambda found: values[found[1]], text)


def page() -> str:
    """The text of docs/results/README.md."""
    studies = kept_studies()
    values = dict(cost_values())
    for name, kept in studies.items():
        values.update(study_values(name, kept))
    values.update(rival_values(studies))
    values.update(depth_values())
    runs = [run for kept in studies.values() for run in kept.runs]
    values["runs"] = str(len(runs))
    values["finished"] = str(sum(run.test_error is not None for run in runs))
    return fill((RESULTS / "template.md").read_text(), values, set(studies))


def draw() -> None:
    """Draws the figure of each study."""
    for name, kept in kept_studies().items():
        if name in WITHOUT_FIGURE:
            continue
        summary.figure(kept).savefig(RESULTS / f"{name}.png", dpi=110)
        if name == "advice":
            shown = ("mpelu", "no-decay", "alpha-0.25")
            summary.learned(kept, shown).savefig(RESULTS / "learned.png", dpi=110)


def draw_main() -> None:
    """The figure of the README."""
    studies = kept_studies()
    panels = {title: studies[name] for name, title in MAIN.items() if name in studies}
    if panels:
        cpu = next(iter(panels.values())).machines[0]["cpu"]
        caption = f"CIFAR-10 at 16x16 pixels, five epochs; one thread of an {cpu} for each run"
        summary.forests(panels, caption).savefig(RESULTS / "main.png", dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description="Rebuild docs/results from the kept runs.")
    parser.add_argument(
        "--take", type=Path, metavar="OUT", help="copy the kept runs from OUT first"
    )
    arguments = parser.parse_args()
    if arguments.take is not None:
        take(arguments.take)
    draw()
    draw_main()
    (RESULTS / "README.md").write_text(page())
    print(f"written to {RESULTS}: {len(kept_studies())} studies")


if __name__ == "__main__":
    main()
