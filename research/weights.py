"""Publishes the best networks of study E: their weights, each with a card.

    python -m research.weights OUT

OUT is the directory that `mpelu reproduce research.activations:anchor` wrote to. For each
activation the run with the lowest test error goes to docs/results/weights, as a folder that
`mpelu.lab.load_network` reads.
The card has what a reader needs to trust the file: data, error, seed, digest, and the scores of a
fixed input.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mpelu.lab import files, load_network
from mpelu.lab.run import folder

WEIGHTS = Path(__file__).parents[1] / "docs" / "results" / "weights"
ACTIVATIONS = ("relu", "mpelu")
COPIED = (folder.DATA, folder.PREPROCESS, folder.WEIGHTS)


def fixed_images(size: int) -> Tensor:
    """Two images, uint8 [2, 3, size, size], the same everywhere."""
    values = torch.arange(2 * 3 * size * size) * 37 % 251
    return values.to(torch.uint8).reshape(2, 3, size, size)


@torch.no_grad()
def scores(run: Path) -> list[list[float]]:
    """The scores that the network of a run gives the fixed images."""
    trained = load_network(run, device="cpu")
    found: Tensor = trained.model(trained.preprocess(fixed_images(trained.size)))
    return [[round(value, 6) for value in row] for row in found.tolist()]


def publish(run: Path, target: Path) -> dict[str, Any]:
    """Copies what the network of a run needs, and writes its card, which is returned."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    for name in COPIED:
        shutil.copyfile(run / name, target / name)
    config = files.read_json(run / folder.CONFIG) | {"data_dir": None}
    files.write_json(target / folder.CONFIG, config)
    status = files.read_json(run / folder.STATUS)
    environment = files.read_json(run / folder.ENVIRONMENT)
    data = files.read_json(run / folder.DATA)
    card = {
        "model": config["model"],
        "activation": config["activation"],
        "epochs": config["epochs"],
        "learning_rate": config["lr"],
        "seed": config["seed"],
        "test_error": status["test_error"],
        "data": data["name"],
        "train_images": data["train_count"],
        "test_images": data["test_count"],
        "data_fingerprint": data["fingerprint"],
        "cpu": environment["cpu"],
        "torch": environment["torch"],
        "commit": environment["revision"],
        folder.CARD_DIGEST: hashlib.sha256((target / folder.WEIGHTS).read_bytes()).hexdigest(),
        "scores_of_fixed_images": scores(target),
    }
    files.write_json(target / folder.CARD, card)
    return card


def page(cards: dict[str, dict[str, Any]]) -> str:
    """The text of docs/results/weights/README.md."""
    lines = [
        "| folder | network | activation | test error, % | seed | sha256 of the weights |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| `{name}` | {card['model']} | {card['activation']} | {card['test_error']:.2f} "
        f"| {card['seed']} | `{card['sha256_of_weights'][:16]}` |"
        for name, card in cards.items()
    ]
    first = next(iter(cards.values()))
    return f"""# Trained networks

The best run of each activation in [study E](../README.md#e-an-anchor-at-full-size):
{first["epochs"]} epochs on the {first["train_images"]:,} training images of CIFAR-10, without
augmentation. They are meant for trying `inspect`, `eval` and `load_network`; networks that train to
the end do much better.

{chr(10).join(lines)}

```python
from mpelu.lab import load_network

trained = load_network("docs/results/weights/{next(iter(cards))}")
scores = trained.model(trained.preprocess(images))  # images: uint8, [batch, 3, 32, 32]
```

`mpelu eval docs/results/weights/{next(iter(cards))} --data-dir DATA` measures the error again.
Each `card.json` has the learning rate, the digest of the data, the machine, the commit, and the
scores of a fixed input.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description="Publish the best networks of study E.")
    parser.add_argument("out", type=Path, metavar="OUT", help="where study E was run")
    runs = parser.parse_args().out / "study-anchor-small" / "runs"
    cards = {}
    for activation in ACTIVATIONS:
        found = {
            run: files.read_json(run / folder.STATUS)
            for run in sorted(runs.glob(f"{activation}-seed*"))
        }
        finished = {run: each for run, each in found.items() if each.get("state") == "finished"}
        if not finished:
            parser.error(f"OUT: expected finished runs of {activation} in {runs}, got none")
        best = min(finished, key=lambda run: finished[run]["test_error"])
        name = f"resnet-20-{activation}"
        cards[name] = publish(best, WEIGHTS / name)
    (WEIGHTS / "README.md").write_text(page(cards))
    print(f"written to {WEIGHTS}: {', '.join(cards)}")


if __name__ == "__main__":
    main()
