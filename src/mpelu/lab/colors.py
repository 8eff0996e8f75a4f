"""Colors of activations in figures and on the page, where they are lighter if it is dark."""

from __future__ import annotations

from typing import Any

from mpelu.activations import TABLE

COLORS = {
    "relu": "#000000",
    "leaky_relu": "#56B4E9",
    "prelu": "#0072B2",
    "rrelu": "#E69F00",
    "elu": "#009E73",
    "celu": "#117733",
    "srelu": "#CC79A7",
    "selu": "#44AA99",
    "gelu": "#332288",
    "silu": "#882255",
    "mish": "#AA4499",
    "relu6": "#661100",
    "hardswish": "#6699CC",
    "pelu": "#999933",
    "mpelu": "#D55E00",
    "identity": "#999999",
}
"""By name, as #rrggbb; add the color of an activation of your own here."""
OTHER = "#777777"
"""Color of activations of the table that have none of their own."""
DARK_PAPER = "#16181b"
"""Background of the dark theme."""
_LEAST_CONTRAST = 4.0


def color_name(activation: Any) -> str:
    """The name under which the page has the color of an activation; empty if it has none.

    Example:
        >>> color_name("relu"), color_name("mine:Swish"), color_name(None)
        ('relu', '', '')
    """
    return activation if isinstance(activation, str) and activation in TABLE else ""


def activation_styles() -> str:
    """A style sheet with a class c-NAME for each activation of the table."""
    colors = {name: COLORS.get(name, OTHER) for name in TABLE}
    light = "".join(f"--c-{name}: {color};" for name, color in colors.items())
    dark = "".join(f"--c-{name}: {lightened(color)};" for name, color in colors.items())
    rules = "".join(f".c-{name} {{--c: var(--c-{name})}}\n" for name in TABLE)
    return (
        f":root {{{light}}}\n"
        f':root[data-theme="dark"] {{{dark}}}\n'
        f'@media (prefers-color-scheme: dark) {{:root:not([data-theme="light"]) {{{dark}}}}}\n'
        f"{rules}"
    )


def lightened(color: str) -> str:
    """The color, mixed with as much white as it needs to be seen in the dark theme.

    Example:
        >>> lightened("#000000"), lightened("#56B4E9")
        ('#787878', '#56b4e9')
    """
    paper = _luminance(_parts(DARK_PAPER))
    for percent in range(101):
        mixed = [round(part + (255 - part) * percent / 100) for part in _parts(color)]
        if (_luminance(mixed) + 0.05) / (paper + 0.05) >= _LEAST_CONTRAST:
            break
    return "#" + "".join(f"{part:02x}" for part in mixed)


def _parts(color: str) -> list[int]:
    return [int(color[start : start + 2], 16) for start in (1, 3, 5)]


def _luminance(parts: list[int]) -> float:
    """Relative luminance, as the Web Content Accessibility Guidelines define it."""
    shares = [part / 255 for part in parts]
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in shares
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
