"""MPELU in a Lightning module.

pip install lightning
python examples/lightning_module.py
"""

from __future__ import annotations

import lightning
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import mpelu


class Classifier(lightning.LightningModule):
    def __init__(self, lr: float = 0.02) -> None:
        super().__init__()
        self.lr = lr
        self.losses: list[float] = []
        self.model = nn.Sequential(
            nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Conv2d(16, 32, 3), nn.ReLU(), nn.Flatten(),
            nn.Linear(512, 10),
        )  # fmt: skip
        # In __init__, so that load_from_checkpoint makes the same modules.
        mpelu.convert(self.model, torch.zeros(2, 1, 8, 8))

    def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        images, labels = batch
        loss = F.cross_entropy(self.model(images), labels)
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(mpelu.param_groups(self.model, lr=self.lr), momentum=0.9)


def main() -> None:
    lightning.seed_everything(0, verbose=False)
    digits = load_digits()
    x = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 8 - 1
    data = DataLoader(TensorDataset(x, torch.tensor(digits.target)), batch_size=100, shuffle=True)
    module = Classifier()
    mpelu.init.initialize_(module.model, x[:100], method="exact")
    trainer = lightning.Trainer(
        max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(module, data)
    print(f"loss {module.losses[0]:.2f} -> {module.losses[-1]:.2f}")


if __name__ == "__main__":
    main()
