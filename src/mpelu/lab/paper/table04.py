"""Table 4: running time of ReLU, PReLU, ELU and MPELU."""

from __future__ import annotations

import statistics
from dataclasses import replace

from mpelu.lab.config import Config
from mpelu.lab.paper import scale
from mpelu.lab.paper.settings import LABELS, OURS, plain
from mpelu.lab.sweep.estimate import data_facts, interleaved, steps_on_noise
from mpelu.lab.sweep.gather import Gathered
from mpelu.lab.sweep.study import Study, differences
from mpelu.lab.tables import Cell, Result

PAPER = {"relu": "0.2310", "prelu": "0.2417", "elu": "0.2299", "mpelu": "0.2441"}
"""Seconds per iteration: Caffe on a Titan X, mean of 600k iterations, batch size 64."""

ROUNDS = {"full": 100, "small": 9, "smoke": 3}


def config(activation: str, size: str) -> Config:
    """The 15-layer network at a scale."""
    full = plain(15, activation, OURS, "paper")
    if size == "full":
        return full
    if size == "smoke":
        return scale.plain(full, size)
    return replace(full, batch_size=8, model_options={"fc_width": 1024})


def summarize(gathered: Gathered) -> Result:
    """Measures and compares."""
    options = gathered.options
    configs = {name: config(name, options.scale) for name in PAPER}
    rounds = ROUNDS[options.scale]
    steps = {
        name: steps_on_noise(each, each.batch_size, data_facts(each))[0]
        for name, each in configs.items()
    }
    times = interleaved(steps, rounds)
    rows = []
    for name, printed in PAPER.items():
        median = statistics.median(times[name])
        of_paper = float(printed) / float(PAPER["relu"])
        # Within a round, what else the machine does slows both.
        ratio = statistics.median(
            own / relu for own, relu in zip(times[name], times["relu"], strict=True)
        )
        rows.append(
            (
                Cell(LABELS[name]),
                Cell(printed, float(printed)),
                Cell(f"{median:.4f}", median, tuple(times[name])),
                Cell(f"{of_paper:.2f}", of_paper),
                Cell("") if options.is_smoke else Cell(f"{ratio:.2f}", ratio),
                Cell(str(rounds), rounds),
            )
        )
    return gathered.result(
        shrunk=(
            f"median of {rounds} steps instead of the mean of 600k",
            *differences(config("relu", "full"), configs["relu"]),
        ),
        data="noise",
        header=(
            "activation",
            "paper, s/iteration",
            "measured, s/iteration",
            "paper, / ReLU",
            "measured, / ReLU",
            "n",
        ),
        rows=tuple(rows),
        compare=((3, 4),),
        notes=(
            "the four networks take turns in random order; a ratio is the median of the ratios "
            "within a round",
            "paper: Caffe on a Titan X with batch size 64; the seconds compare machines, the "
            "ratios compare activations",
        ),
    )


STUDY = Study(
    name="table4",
    title="Running time of a training step of the 15-layer network by activation",
    needs="nothing",
    summarize=summarize,
)
