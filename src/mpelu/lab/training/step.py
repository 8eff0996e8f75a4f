"""One batch: its gradients, its loss and errors, and what in it wasn't finite."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from mpelu.lab.config import Config
from mpelu.lab.training.process import World, derive

if TYPE_CHECKING:
    from mpelu.lab.data import Dataset


COMPANION_WEIGHT = 0.1
"""Initial weight of each companion loss of a deeply-supervised net. It decays linearly to 0."""
SMALLEST_SCALE = 2.0**-14
"""A loss scale below this means that gradients overflow at any scale."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchSums:
    """Sums over the samples of a batch that this process computed, still on the device."""

    step: int
    count: int
    """Samples; 0 if this process had no share."""
    values: Tensor
    """float [4]: the loss that is minimized, that of the output alone, the number of errors, and
    the index of the last parameter whose gradient isn't finite, or -1."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GradientStep:
    """Computes the gradients of a batch: in parts, in several processes, in low precision."""

    config: Config
    model: nn.Module
    wrapped: nn.Module
    """The model, in DistributedDataParallel if there are several processes."""
    scaler: torch.amp.GradScaler
    world: World
    steps: int
    """Of the whole run."""
    names: tuple[str, ...] = ()
    """Of the model's parameters."""

    @classmethod
    def of(cls, model: nn.Module, config: Config, world: World, steps: int) -> GradientStep:
        wrapped = model
        if world.size > 1:
            # A block that stochastic depth skips has no gradients in that step.
            skips = any(getattr(module, "survival", 1.0) < 1 for module in model.modules())
            wrapped = DistributedDataParallel(model, find_unused_parameters=skips)
        scaler = torch.amp.GradScaler(world.device.type, enabled=config.precision == "fp16")
        return cls(
            config=config,
            model=model,
            wrapped=wrapped,
            scaler=scaler,
            world=world,
            steps=steps,
            names=tuple(name for name, _ in model.named_parameters()),
        )

    def parts(self, batch: Tensor) -> list[Tensor]:
        """The parts of a batch of indices that this process computes.

        A process without a share computes one sample, with weight 0, to stay in step.
        """
        mine = self.world.share(batch)
        parts = mine.tensor_split(self.config.accumulate)
        return [part for part in parts if len(part)] or [batch[:1]]

    def gradients(
        self, step: int, batch: Tensor, stream: Iterator[tuple[Tensor, Tensor]]
    ) -> BatchSums:
        """Leaves the gradients of the batch's mean loss in the model's parameters.

        Nothing is read from the device, so a GPU need not be waited for. (With fp16 it is, because
        torch's GradScaler reads whether gradients overflowed.)

        Args:
            step: number of the step.
            batch: indices of the whole batch, across all processes.
            stream: yields images and labels for each of `parts(batch)`.
        """
        idle = len(self.world.share(batch)) == 0
        # DistributedDataParallel averages over processes; each contributes a part of a sum.
        weight = 0.0 if idle else self.world.size / len(batch)
        parts = self.parts(batch)
        self._seed(step)
        sums = torch.zeros(3, device=self.world.device)
        samples = 0
        for index, part in enumerate(parts):
            images, labels = next(stream)
            samples += len(labels)
            is_lost = len(labels) == 0  # all its files are damaged, but others wait for gradients
            if is_lost:
                images = images.new_zeros(len(part), *images.shape[1:])
                labels = labels.new_zeros(len(part))
            with self._synchronized(index == len(parts) - 1):
                total, loss, wrong = self._forward(step, images, labels)
                self.scaler.scale(total * (0.0 if is_lost else weight)).backward()
            if not is_lost:
                sums += torch.stack([total.detach(), loss.detach(), wrong])
        if self.scaler.is_enabled():
            # The scaler skips steps whose gradients overflow, and halves its scale.
            is_lost = self.scaler.get_scale() <= SMALLEST_SCALE
            worst = torch.full((), len(self.names) if is_lost else -1, device=self.world.device)
        else:
            worst = self._worst()
        return BatchSums(
            step=step,
            count=0 if idle else samples,
            values=torch.cat([sums, worst.to(sums).view(1)]),
        )

    def _worst(self) -> Tensor:
        """The index of the last parameter whose gradient isn't finite, or -1."""
        grads = [p.grad for p in self.model.parameters()]
        gradients = [each for each in grads if each is not None and each.numel()]
        # The 2-norm is far cheaper on the CPU than the largest element. It may overflow where no
        # gradient does; then each is checked.
        is_free = self.world.reads_freely
        norms = torch._foreach_norm(gradients, 2 if is_free else math.inf)
        none = torch.full((), -1, device=self.world.device)
        if is_free and (math.isfinite(torch.stack(norms).sum()) or all_finite(gradients)):
            return none
        found = iter(norms)
        zero = norms[0].new_zeros(())
        stacked = torch.stack(
            [zero if each is None or not each.numel() else next(found) for each in grads]
        )
        index = torch.arange(len(grads), device=self.world.device)
        return torch.where(stacked.isfinite(), none, index).max()

    def module_of(self, worst: int) -> str:
        """The module of a parameter by its index; "" if there is none."""
        return self.names[worst].rpartition(".")[0] if 0 <= worst < len(self.names) else ""

    def find(
        self, step: int, batch: Tensor, dataset: Dataset, seed: int, loss_is_finite: bool
    ) -> Divergence:
        """Finds what wasn't finite in a step; the same answer in every process."""
        # The module is found by hooks, which a compiled network doesn't call.
        self.model._compiled_call_impl = None
        self._seed(step)
        found = find_divergence(
            self.model,
            step,
            (images for images, _ in dataset.train(self.parts(batch), seed) if len(images)),
            lambda images: self._logits(self.model, images),
            loss_is_finite=loss_is_finite,
        )
        for each in self.world.gather(found):
            if each is not None:
                return each
        return Divergence(step=step, module="", quantity="gradient")

    def _seed(self, step: int) -> None:
        seed = derive(self.config.seed, step, self.world.rank, "step")
        torch.default_generator.manual_seed(seed)
        if self.world.device.type == "cuda":
            torch.cuda.manual_seed(seed)
        elif self.world.device.type == "mps":
            torch.mps.manual_seed(seed)

    def _synchronized(self, last: bool) -> contextlib.AbstractContextManager[object]:
        """Gradients are exchanged between processes with the last part only."""
        if isinstance(self.wrapped, DistributedDataParallel) and not last:
            return self.wrapped.no_sync()
        return contextlib.nullcontext()

    def _logits(self, model: nn.Module, images: Tensor) -> object:
        with autocast(self.config, self.world.device):
            return model(to_memory_format(images, self.config))

    def _forward(self, step: int, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The summed loss to minimize, that of the output alone, and the number of errors."""
        output = self._logits(self.wrapped, images)
        logits, *companions = output if isinstance(output, tuple) else (output,)
        smoothing = self.config.label_smoothing
        loss = F.cross_entropy(logits.float(), labels, reduction="sum", label_smoothing=smoothing)
        total = loss
        if companions:
            weight = COMPANION_WEIGHT * (1 - (step - 1) / self.steps)
            for each in companions:
                total = total + weight * F.cross_entropy(each.float(), labels, reduction="sum")
        return total, loss, (logits.detach().argmax(1) != labels).sum(dtype=torch.float32)


_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def clip_gradients(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler,
    norm: float | None,
) -> None:
    """Clips the norm of all gradients together, if there is a limit."""
    if norm is not None:
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), norm)


@torch.no_grad()
def update_average(average: nn.Module, model: nn.Module, decay: float) -> None:
    """Moves the exponential moving average of parameters and statistics towards the model."""
    current = model.state_dict()
    for name, value in average.state_dict().items():
        if value.is_floating_point():
            value.lerp_(current[name], 1 - decay)
        else:
            value.copy_(current[name])


def set_lr(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Sets the learning rate of every group, times the group's multiplier."""
    for group in optimizer.param_groups:
        group["lr"] = lr * group["lr_mult"]


def evaluate(
    model: nn.Module,
    dataset: Dataset,
    config: Config,
    world: World | None = None,
    split: str = "test",
) -> tuple[float, float]:
    """Mean loss and error in % over the test or validation images, without damaged files.

    Args:
        model: the network; its mode is restored.
        dataset: data set whose images are used, each once.
        config: batch size, precision and memory format.
        world: the processes that share the work; None for this one alone.
        split: "test", or "validation" for a data set that has validation images.
    """
    device = next(model.parameters()).device
    world = World(device=device) if world is None else world
    read, images_in_split = dataset.test, dataset.test_count
    if split == "validation":
        read, images_in_split = dataset.validation, dataset.validation_count
    mine = world.share(torch.arange(images_in_split))
    was_training = model.training
    model.eval()
    # Apple's GPUs have no double precision.
    wide = torch.float32 if device.type == "mps" else torch.float64
    loss = torch.zeros((), dtype=wide, device=device)
    wrong = torch.zeros((), dtype=wide, device=device)
    count = 0
    with torch.no_grad(), autocast(config, device):
        for images, labels in read(mine.split(config.batch_size) if len(mine) else []):
            logits = model(to_memory_format(images, config)).float()
            loss += F.cross_entropy(logits, labels, reduction="sum")
            wrong += (logits.argmax(1) != labels).sum()
            count += len(labels)
    model.train(was_training)
    total_loss, total_wrong, total = world.sum([loss.item(), wrong.item(), float(count)])
    return total_loss / total, 100 * total_wrong / total


def autocast(config: Config, device: torch.device) -> contextlib.AbstractContextManager[object]:
    """Autocast to the precision of the config, if it isn't fp32."""
    if config.precision == "fp32":
        return contextlib.nullcontext()
    return torch.autocast(device.type, _DTYPES[config.precision])


def to_memory_format(images: Tensor, config: Config) -> Tensor:
    """Images in the memory format of the config."""
    return images.to(memory_format=torch.channels_last) if config.channels_last else images


@dataclass(frozen=True, kw_only=True, slots=True)
class Divergence:
    """What wasn't all_finite, where and at which step."""

    step: int
    module: str
    quantity: str
    """activation, loss or gradient."""

    def __str__(self) -> str:
        where = f" of {self.module}" if self.module else ""
        return f"diverged at step {self.step}: the {self.quantity}{where} isn't finite"


def find_divergence(
    model: nn.Module,
    step: int,
    batches: Iterable[Tensor],
    forward: Callable[[Tensor], object],
    *,
    loss_is_finite: bool,
) -> Divergence | None:
    """Repeats the forward pass of a step and looks for the first value that isn't all_finite.

    Args:
        model: in training mode, with the gradients of the step.
        step: number of the step.
        batches: the images of the step.
        forward: calls the model as the step did.
        loss_is_finite: whether the loss of the step was all_finite.

    Returns:
        None if nothing in this process is the cause.
    """
    found: list[str] = []

    def look(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, inputs: object, output: object) -> None:
            if isinstance(output, Tensor) and not output.isfinite().all():
                found.append(name)

        return hook

    hooks = [
        module.register_forward_hook(look(name))
        for name, module in model.named_modules()
        if next(module.children(), None) is None
    ]
    try:
        with torch.no_grad():
            for images in batches:
                forward(images)
                if found:
                    return Divergence(step=step, module=found[0], quantity="activation")
    finally:
        for hook in hooks:
            hook.remove()
    if not loss_is_finite:
        return Divergence(step=step, module="", quantity="loss")
    # Backward starts at the output, so the last layer's gradient is the first to be wrong.
    for name, parameter in reversed(list(model.named_parameters())):
        if parameter.grad is not None and not parameter.grad.isfinite().all():
            module = name.rpartition(".")[0]
            return Divergence(step=step, module=module, quantity="gradient")
    return None


def all_finite(gradients: list[Tensor]) -> bool:
    """Whether every element of every gradient is all_finite."""
    return all(bool(gradient.isfinite().all()) for gradient in gradients)
