"""A 50-layer MLP without batch norm on a table of numbers: torch's default weights against exact.

python examples/tabular_mlp.py
"""

from __future__ import annotations

import torch
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn
from torch.nn import functional as F

import mpelu

LAYERS, WIDTH, STEPS = 50, 48, 60


def table() -> list[Tensor]:
    """Inputs and labels, for training and for testing: 569 patients with 30 numbers each."""
    x, y = load_breast_cancer(return_X_y=True)
    parts = train_test_split(x, y, test_size=0.3, random_state=0, stratify=y)
    scale = StandardScaler().fit(parts[0])
    inputs = [torch.tensor(scale.transform(each), dtype=torch.float32) for each in parts[:2]]
    return [*inputs, *(torch.tensor(each) for each in parts[2:])]


def network() -> nn.Sequential:
    layers: list[nn.Module] = [nn.Linear(30, WIDTH), nn.ReLU()]
    for _ in range(LAYERS - 2):
        layers += [nn.Linear(WIDTH, WIDTH), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(WIDTH, 2))


def accuracy(exact: bool) -> float:
    """After a fixed number of steps."""
    torch.manual_seed(0)
    x_train, x_test, y_train, y_test = table()
    model = network()
    mpelu.convert(model, x_train)
    if exact:
        mpelu.init.initialize_(model, x_train, method="exact")
    groups = mpelu.param_groups(model, lr=3e-4, lr_mult=1.0)
    optimizer = torch.optim.Adam(groups)
    for step in range(STEPS):
        rows = torch.randperm(len(x_train))[:128]
        loss = F.cross_entropy(model(x_train[rows]), y_train[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if (step + 1) % 20 == 0:
            print(f"  step {step + 1}: loss {loss.item():.3f}")
    with torch.no_grad():
        return (model(x_test).argmax(1) == y_test).float().mean().item()


def main() -> None:
    for exact in (False, True):
        name = "exact" if exact else "default"
        print(f"{name} initialization")
        print(f"{name}: {accuracy(exact):.1%} of the test rows are right")


if __name__ == "__main__":
    main()
