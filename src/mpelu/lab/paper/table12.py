"""Table 12: the proposed network and the state of the art on CIFAR-10 and CIFAR-100."""

from __future__ import annotations

from dataclasses import replace

from mpelu.lab.data import registry
from mpelu.lab.paper import table09
from mpelu.lab.paper.settings import resnet
from mpelu.lab.sweep.study import Setting

QUOTED = (
    # method, settings, depth, parameters, CIFAR-10, CIFAR-100
    ("NIN", "-", "-", "-", "8.81", "-"),
    ("DSN", "-", "-", "-", "7.97", "34.57"),
    ("All-CNN", "-", "-", "-", "7.25", "33.71"),
    ("Highway", "-", "-", "-", "7.72", "32.39"),
    ("ELU", "-", "-", "-", "6.55", "24.28"),
    ("Fitnets", "-", "-", "-", "8.39", "35.04"),
    ("ResNet", "-", "110", "1.7M", "6.61", "-"),
    ("ResNet", "-", "1202", "19.4M", "7.93", "-"),
    ("sto. ResNet", "-", "110", "1.7M", "5.23", "24.58"),
    ("sto. ResNet", "-", "1202", "10.2M", "4.91", "-"),
    ("Wide ResNet", "k = 8", "16", "11.0M", "4.81", "22.07"),
    ("Wide ResNet", "k = 10", "28", "36.5M", "4.17", "20.50"),
    ("Pre-ResNet", "-", "164", "1.7M", "5.46", "24.33"),
    ("Pre-ResNet", "-", "1001", "10.2M", "4.62 (4.69 ± 0.20)", "22.71 (22.68 ± 0.22)"),
)

PAPER = (
    # alpha, depth, whether marked †, parameters, CIFAR-10, CIFAR-100
    (1.0, 164, True, "1.696M", "4.58 (4.67 ± 0.06)", "21.35 (21.78 ± 0.33)"),
    (1.0, 1001, True, "10.28M", "3.63 (3.78 ± 0.09)", "18.96 (19.08 ± 0.16)"),
    (0.25, 164, False, "1.696M", "4.87 (5.06 ± 0.14)", "23.16 (23.29 ± 0.11)"),
    (0.25, 164, True, "1.696M", "4.43 (4.53 ± 0.12)", "21.69 (21.88 ± 0.19)"),
    (0.25, 1001, True, "10.28M", "3.57 (3.71 ± 0.11)", "18.81 (18.98 ± 0.19)"),
)

DATA = ("cifar10", "cifar100")


def settings(source: str) -> list[Setting]:
    found = []
    for index, (*labels, on_cifar10, on_cifar100) in enumerate(QUOTED):
        for data, error in zip(DATA, (on_cifar10, on_cifar100), strict=True):
            if error != "-":
                name, of = f"quoted-{index}-{data}", registry.find(data).label
                found.append(Setting(name=name, labels=(*labels, of), paper=error, config=None))
    for alpha, layers, dagger, parameters, *errors in PAPER:
        for data, error in zip(DATA, errors, strict=True):
            config = resnet(
                f"nopre-resnet-{layers}", source, dagger=dagger, data=data, alpha=alpha,
                gradient_checkpointing=layers == 1001,
            )  # fmt: skip
            shown = (f"alpha = {alpha:g}, beta = 1", f"{layers}{'†' * dagger}", parameters)
            labels = ["MPELU nopre ResNet", *shown, registry.find(data).label]
            name = f"nopre-{layers}-alpha{alpha:g}{'-dagger' * dagger}-{data}"
            found.append(Setting(name=name, labels=tuple(labels), paper=error, config=config))
    return found


STUDY = replace(
    table09.STUDY,
    name="table12",
    title="The proposed network and the state of the art on CIFAR-10 and CIFAR-100 (†: 300 epochs)",
    needs="CIFAR-10/100",
    labels=("method", "settings", "layers", "params, paper", "data"),
    settings=settings,
    seeds={"smoke": 1, "small": 2, "full": 5},
    comparisons=(
        ("nopre-164-alpha0.25-dagger-cifar10", "nopre-164-alpha0.25-cifar10"),
        ("nopre-164-alpha1-dagger-cifar10", "nopre-164-alpha0.25-dagger-cifar10"),
    ),
)
