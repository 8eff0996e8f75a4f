"""Errors that say what was expected, what came, and what was probably meant."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches

from torch import Tensor, nn


def one_of(what: str, value: object, allowed: Iterable[str], shown: str | None = None) -> None:
    """Raises ValueError unless value is one of the allowed names, which may be shown shorter."""
    names = list(allowed)
    if value in names:
        return
    if not names:
        raise ValueError(f"{what}: expected none, got {value!r}")
    closest = get_close_matches(str(value), names, n=1, cutoff=0.0)[0]
    raise ValueError(
        f"{what}: expected one of {shown or ', '.join(names)}; got {value!r} (closest: {closest!r})"
    )


def one_of_depths(network: str, depth: int, allowed: Sequence[int]) -> None:
    """Raises ValueError unless the depth is one of those allowed."""
    if depth not in allowed:
        closest = min(allowed, key=lambda other: abs(other - depth))
        expected = " or ".join(str(other) for other in allowed)
        raise ValueError(
            f"{network}: expected a depth of {expected}, got {depth} (closest: {closest})"
        )


def at_least(what: str, value: object, minimum: int) -> None:
    """Raises ValueError unless value is a whole number of at least the minimum."""
    if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
        raise ValueError(f"{what}: expected a whole number >= {minimum}, got {value!r}")


class Images(nn.Module):
    """Passes images on and refuses what the network cannot take.

    Args:
        network: name for the error.
        channels: expected channels.
        smallest: smallest height and width.
        exact: whether `smallest` is the only height and width.

    Shape:
        - Input, output: [batch, channels, height, width].
    """

    def __init__(self, network: str, channels: int, smallest: int, *, exact: bool = False) -> None:
        super().__init__()
        self.network = network
        self.channels = channels
        self.smallest = smallest
        self.exact = exact

    def forward(self, images: Tensor) -> Tensor:
        fits = images.dim() == 4 and images.size(1) == self.channels
        if fits:
            sides = (images.size(2), images.size(3))
            fits = min(sides) >= self.smallest and (not self.exact or max(sides) == self.smallest)
        if not fits:
            size = f"{self.smallest}x{self.smallest}" + ("" if self.exact else " or larger")
            raise ValueError(
                f"{self.network}: expected images [batch, {self.channels}, height, width] of "
                f"{size}, got {list(images.shape)}"
            )
        return images

    def extra_repr(self) -> str:
        relation = "==" if self.exact else ">="
        return f"channels={self.channels}, size{relation}{self.smallest}"
