"""Table 5: initialization of 15 and 30 layers, with and without batch normalization."""

from __future__ import annotations

from dataclasses import replace

from mpelu.lab.paper import convergence, scale
from mpelu.lab.paper.settings import GAUSSIAN, LABELS, OURS, PLAIN_SOURCES, plain
from mpelu.lab.sweep.study import Setting, Study

FAILS = "× (fails to converge)"

PAPER = (
    # layers, activation, initialization, batch normalization, top-1 error
    (30, "elu", GAUSSIAN, False, FAILS),
    (30, "mpelu", GAUSSIAN, False, FAILS),
    (30, "elu", OURS, False, "37.08"),
    (30, "mpelu", OURS, False, "36.49"),
    (30, "mpelu", GAUSSIAN, True, "44.28"),
    (30, "mpelu", OURS, True, "42.96"),
    (15, "elu", GAUSSIAN, True, "40.36"),
    (15, "mpelu", GAUSSIAN, True, "39.53"),
    (15, "elu", OURS, True, "39.83"),
    (15, "mpelu", OURS, True, "38.42"),
)


def settings(source: str) -> list[Setting]:
    found = []
    for depth, activation, method, batch_norm, printed in PAPER:
        # In this section of the paper, alpha and beta have no weight decay.
        config = replace(
            plain(depth, activation, method, source, alpha=1.0, batch_norm=batch_norm),
            activation_decay_mult=0.0,
        )
        name = f"{activation}-{depth}-{method.lower()}{'-bn' * batch_norm}"
        labels = (f"{depth}", LABELS[activation], method + " + BN" * batch_norm)
        found.append(Setting(name=name, labels=labels, paper=printed, config=config))
    return found


STUDY = Study(
    name="table5",
    title="Initialization of 15 and 30 layers on ImageNet, with and without batch normalization",
    needs="ImageNet",
    labels=("layers", "activation", "init"),
    quantity="top-1 error %",
    settings=settings,
    shrink=scale.plain,
    seeds={"smoke": 1, "small": 2, "full": 1},
    sources=PLAIN_SOURCES,
    comparisons=(
        ("elu-30-ours", "elu-30-gaussian"),
        ("mpelu-30-ours", "mpelu-30-gaussian"),
        ("mpelu-30-ours-bn", "mpelu-30-gaussian-bn"),
        ("mpelu-15-ours-bn", "mpelu-15-gaussian-bn"),
    ),
    summarize=convergence.table,
)
