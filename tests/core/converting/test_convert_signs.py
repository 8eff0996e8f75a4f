"""convert leaves an activation whose output must not become negative, and no other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Categorical, Normal, Poisson
from torch.nn import functional as F

import mpelu


class LinearAttention(nn.Module):
    """As EfficientViT has it: a one beside the values makes the normalizer."""

    def __init__(self, channels: int = 8) -> None:
        super().__init__()
        self.qkv, self.proj = nn.Conv2d(channels, 3 * channels, 1), nn.Conv2d(channels, channels, 1)
        self.norm, self.kernel_func = nn.BatchNorm2d(channels), nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).flatten(2).transpose(-1, -2).chunk(3, dim=-1)
        q, k = self.kernel_func(q), self.kernel_func(k)
        out = q @ (k.mT @ F.pad(v, (0, 1), value=1.0))
        out = out[..., :-1] / (out[..., -1:] + 1e-5)
        shown: Tensor = self.norm(self.proj(out.mT.reshape(x.shape)))
        return x + shown


def test_linear_attention_is_left_with_the_reason_and_trains() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), LinearAttention(), nn.ReLU(),
        LinearAttention(), nn.Flatten(), nn.Linear(8 * 36, 10),
    )  # fmt: skip
    x, target = torch.randn(16, 3, 8, 8), torch.arange(16) % 10
    conversion = mpelu.convert(model, x)
    assert [row.path for row in conversion.swapped] == ["2", "4"]
    assert [row.path for row in conversion.left] == ["3.kernel_func", "5.kernel_func"]
    for row in conversion.left:
        place, _, reason = row.note.partition(" ")
        assert place.startswith(__file__)
        assert reason == "divides by what it returns, which must not be negative"
    optimizer = torch.optim.SGD(mpelu.param_groups(model, lr=0.1), lr=0.1, momentum=0.9)
    for _ in range(20):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), target)
        loss.backward()
        optimizer.step()
        assert loss.isfinite()


def test_without_inputs_it_is_left_too() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), LinearAttention())
    conversion = mpelu.convert(model)
    assert [row.path for row in conversion.swapped] == ["1"]
    (row,) = conversion.left
    assert row.note == "the model divides by what it returns, which must not be negative"


class Then(nn.Module):
    """An activation, and what is done with its output; then another activation."""

    def __init__(self, then: Callable[..., Tensor], activation: nn.Module) -> None:
        super().__init__()
        self.linear, self.then, self.act = nn.Linear(6, 6), then, activation
        self.last, self.weight = nn.ReLU(), nn.Linear(6, 6)
        self.gamma = nn.Parameter(torch.ones(6))

    def forward(self, x: Tensor) -> Tensor:
        h = self.act(self.linear(x))
        shown: Tensor = self.last(self.linear(self.then(h, x, self)))
        return shown


STAYS: dict[str, Callable[..., Tensor]] = {
    "share": lambda h, x, m: h / (h.sum(-1, keepdim=True) + 1e-6),
    "share with a floor": lambda h, x, m: h / h.sum(-1, keepdim=True).clamp(min=1e-6),
    "share in place": lambda h, x, m: x.clone().div_(h.mean(0) + 1e-6),
    "reciprocal": lambda h, x, m: h * (1 / (h.amax(-1, keepdim=True) + 1)),
    "negative power": lambda h, x, m: x * (h + 1) ** -1,
    "logarithm": lambda h, x, m: torch.log(1e-6 + h),
    "log1p": lambda h, x, m: torch.log1p(h),
    "logarithm of a sum": lambda h, x, m: (1 + h).log() + x,
    "root": lambda h, x, m: torch.sqrt(h + 1e-8),
    "signed root of products": lambda h, x, m: (h.unsqueeze(-1) * h.flip(-1).unsqueeze(1)).sum(
        -1).sqrt(),
    "inverse root": lambda h, x, m: x * torch.rsqrt(h.mean(-1, keepdim=True) + 1e-6),
    "fractional power": lambda h, x, m: (h + 1e-6) ** 0.75,
    "learned power": lambda h, x, m: h.add(1e-6).pow(m.gamma),
    "degrees of a graph": lambda h, x, m: (h @ h.mT / (h @ h.mT).sum(-1, keepdim=True).add(1)) @ x,
    "einsum": lambda h, x, m: x / (torch.einsum("bi,ci->bc", h, h).sum(-1, keepdim=True) + 1),
    "smoothed": lambda h, x, m: x / (h @ torch.full((6, 6), 1 / 6) + 1e-6),
    "probabilities": lambda h, x, m: x * torch.bernoulli(h.clamp(max=1)),
    "rates": lambda h, x, m: torch.poisson(h) + x,
    "distribution": lambda h, x, m: Poisson(h, validate_args=True).mean + x,
    "deviation": lambda h, x, m: Normal(x, h + 1, validate_args=True).loc,
    "categories": lambda h, x, m: Categorical(h + 1e-6).probs + x,
}  # fmt: skip

SWAPPED: dict[str, Callable[..., Tensor]] = {
    "nothing": lambda h, x, m: h,
    "numerator": lambda h, x, m: h / (x.abs() + 1),
    "squared sum": lambda h, x, m: h / (h * h).mean(-1, keepdim=True).add(1e-6).sqrt(),
    "variance": lambda h, x, m: (h - h.mean(-1, keepdim=True)) * (h.var(0) + 1).rsqrt(),
    "norm": lambda h, x, m: h / (h.norm(dim=-1, keepdim=True) + 1e-6),
    "normalize": lambda h, x, m: F.normalize(h),
    "response": lambda h, x, m: h * (n := h.norm(dim=0, keepdim=True)) / (n.mean(-1, True) + 1e-6),
    "softmax": lambda h, x, m: (e := h.exp()) / e.sum(-1, keepdim=True),
    "entropy": lambda h, x, m: h.softmax(-1).log(),
    "attention": lambda h, x, m: torch.softmax(h @ h.mT / 6**0.5, -1) @ x,
    "gate": lambda h, x, m: x * torch.sigmoid(m.weight(h)),
    "layer": lambda h, x, m: x / (1 + m.weight(h).abs()),
    "cosine": lambda h, x, m: F.cosine_similarity(h, x).unsqueeze(-1) + x,
    "layer norm": lambda h, x, m: F.layer_norm(h, (6,)),
    "constant": lambda h, x, m: h.div(3).pow(2),
    "count": lambda h, x, m: x / (1 + (h > 0).sum(-1, keepdim=True)),
    "power after a floor": lambda h, x, m: h.clamp(min=1e-6).pow(m.gamma).mean(-1, True) ** 0.3 + x,
    "softplus": lambda h, x, m: F.softplus(h).log(),
    "a sign that is looked at": lambda h, x, m: torch.where(h >= 0, h, x),
}  # fmt: skip


@pytest.mark.parametrize("then", STAYS)
def test_an_output_that_must_not_be_negative_is_left(then: str) -> None:
    torch.manual_seed(0)
    model = Then(STAYS[then], nn.ReLU())
    conversion = mpelu.convert(model, torch.randn(4, 6))
    assert [row.path for row in conversion.left] == ["act"]
    assert "what it returns, which must not be negative" in conversion.left[0].note
    assert __file__ in conversion.left[0].note
    assert [row.path for row in conversion.swapped] == ["last"]


@pytest.mark.parametrize("then", SWAPPED)
def test_an_output_that_may_be_negative_is_swapped(then: str) -> None:
    torch.manual_seed(0)
    model = Then(SWAPPED[then], nn.ReLU())
    conversion = mpelu.convert(model, torch.randn(4, 6))
    assert conversion.left == ()
    assert model(torch.randn(4, 6)).isfinite().all()


def test_elu_plus_one_is_positive_until_alpha_learns() -> None:
    model = Then(lambda h, x, m: (h + 1) / (h + 1).sum(-1, keepdim=True), nn.ELU())
    assert [row.path for row in mpelu.convert(model, torch.randn(4, 6)).left] == ["act"]
    # Without the one the sum has had both signs before.
    model = Then(lambda h, x, m: h / (h.sum(-1, keepdim=True)), nn.ELU())
    assert mpelu.convert(model, torch.randn(64, 6)).left == ()


@pytest.mark.parametrize("rewrite", [False, True])
def test_a_function_whose_output_must_not_be_negative_is_left(rewrite: bool) -> None:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.k, self.act = nn.Linear(4, 4), nn.Linear(4, 4), nn.ReLU()

        def forward(self, x: Tensor) -> Tensor:
            q, k = F.elu(self.q(x)) + 1, F.elu(self.k(x)) + 1
            x = q @ (k.mT @ x) / (q @ k.sum(-2, keepdim=True).mT)
            shown: Tensor = self.act(x)
            return shown

    model: Any = Attention()
    conversion = mpelu.convert(model, torch.randn(2, 5, 4), rewrite=rewrite)
    assert [row.path for row in conversion.swapped] == ["act"]
    assert len(conversion.left) == 1  # both are in one line
    assert "divides by what it returns" in conversion.left[0].note
    assert "rewrite" not in conversion.left[0].note
