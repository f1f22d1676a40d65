"""The colours of heatmaps: cividis, which people with any colour vision, and black-and-white print, show in order."""

from typing import NamedTuple

NAME = "cividis"
_STOPS = (
    (0, 34, 78),
    (18, 53, 112),
    (59, 73, 108),
    (87, 93, 109),
    (112, 113, 115),
    (138, 134, 120),
    (165, 156, 116),
    (195, 179, 105),
    (225, 204, 85),
    (254, 232, 56),
)
"""Ten equal steps of the map (Nunez, Anderton, Renslow, PLoS ONE 2018), sRGB."""


class Colour(NamedTuple):
    """A fill and the ink that can be read on it, as CSS."""

    fill: str
    ink: str


def colour(value: float, top: float) -> Colour:
    """The colour of a value between 0 and `top`."""
    share = min(max(value / top if top else 0.0, 0.0), 1.0) * (len(_STOPS) - 1)
    low = min(int(share), len(_STOPS) - 2)
    red, green, blue = (round(a + (b - a) * (share - low)) for a, b in zip(_STOPS[low], _STOPS[low + 1], strict=True))
    dark = 0.299 * red + 0.587 * green + 0.114 * blue < 128
    return Colour(f"#{red:02x}{green:02x}{blue:02x}", "#ffffff" if dark else "#000000")


def top_of(values: list[float]) -> float:
    """The end of a scale: the largest value rounded up to 1, 2 or 5 times a power of ten, at most 1."""
    largest = max(values, default=0.0)
    for exponent in range(-6, 1):
        for step in (1, 2, 5):
            if largest <= step * 10.0**exponent <= 1:
                return step * 10.0**exponent
    return 1.0
