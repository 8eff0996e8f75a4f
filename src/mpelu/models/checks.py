"""Checks of arguments and inputs, with errors that say what was expected."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches

from torch import Tensor, nn


def one_of(noun: str, value: object, allowed: Iterable[str], *, network: str = "") -> None:
    """Raises ValueError unless the value is one of the allowed names.

    Args:
        noun: what the names are names of.
        value: the name that was given.
        allowed: all valid names.
        network: the network that takes them, if it isn't any network.

    Example:
        >>> one_of("shortcut", "D", ("A", "B"), network="resnet-20")
        Traceback (most recent call last):
        ValueError: resnet-20: unknown shortcut 'D'; choose A or B
    """
    names = list(allowed)
    if value in names:
        return
    message = f"{network}: " if network else ""
    message += f"unknown {noun} {value!r}; "
    if not names:
        raise ValueError(f"{message}there are none")
    close = get_close_matches(str(value), names, n=1)
    message += f"did you mean {close[0]!r}? Choose " if close else "choose "
    raise ValueError(message + listed(names))


def listed(names: Sequence[str]) -> str:
    """Returns names as they are listed in a sentence.

    Example:
        >>> listed(["a", "b", "c"])
        'a, b or c'
    """
    *others, last = names
    return f"{', '.join(others)} or {last}" if others else last


def one_of_depths(network: str, depth: int, allowed: Sequence[int]) -> None:
    """Raises ValueError unless the depth is one of those allowed."""
    if depth not in allowed:
        closest = min(allowed, key=lambda other: abs(other - depth))
        expected = listed([str(other) for other in allowed])
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
