"""Lines can be told apart: in greyscale, by the colour-blind, and by their markers alone."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest

from orchestrator.results.plot.panels import HOW, SERIES, SERIES_ON_DARK, line_style

# Machado, Oliveira and Fernandes 2009, table 1 at severity 1.0: what somebody without one kind of cone sees.
COLOUR_BLIND = {
    "protanopia": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deuteranopia": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
    "tritanopia": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.303900)),
}


def linear(colour: str) -> list[float]:
    """Linear light of an sRGB colour (IEC 61966-2-1)."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    return [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]


def cie_lab(light: Sequence[float]) -> tuple[float, float, float]:
    red, green, blue = (min(max(part, 0.0), 1.0) for part in light)
    x = (0.4124 * red + 0.3576 * green + 0.1805 * blue) / 0.9505
    y = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    z = (0.0193 * red + 0.1192 * green + 0.9505 * blue) / 1.089
    fx, fy, fz = (part ** (1 / 3) if part > 0.008856 else 7.787 * part + 16 / 116 for part in (x, y, z))
    return 116 * fy - 16, 500 * (fx - fy), 200 * (fy - fz)


def lightness(colour: str) -> float:
    return cie_lab(linear(colour))[0]


def seen_by(kind: str, colour: str) -> tuple[float, float, float]:
    light = linear(colour)
    return cie_lab([sum(a * b for a, b in zip(row, light, strict=True)) for row in COLOUR_BLIND[kind]])


def apart(colours: Sequence[str]) -> float:
    return min(abs(lightness(a) - lightness(b)) for a, b in itertools.combinations(colours, 2))


@pytest.mark.parametrize(("lines", "steps"), [(2, 30), (3, 15), (4, 8), (6, 7), (8, 4)])
@pytest.mark.parametrize("colours", [SERIES, SERIES_ON_DARK])
def test_lines_differ_in_lightness_so_that_a_grey_print_shows_them(
    colours: Sequence[str], lines: int, steps: float
) -> None:
    assert apart(colours[:lines]) >= steps


@pytest.mark.parametrize("kind", COLOUR_BLIND)
@pytest.mark.parametrize(("lines", "distance"), [(3, 20), (4, 14)])
@pytest.mark.parametrize("colours", [SERIES, SERIES_ON_DARK])
def test_lines_differ_for_the_colour_blind(kind: str, colours: Sequence[str], lines: int, distance: float) -> None:
    seen = [seen_by(kind, colour) for colour in colours[:lines]]
    pairs = itertools.combinations(seen, 2)
    assert min(sum((a - b) ** 2 for a, b in zip(*pair, strict=True)) ** 0.5 for pair in pairs) >= distance


def test_no_line_vanishes_on_its_own_background() -> None:
    assert max(map(lightness, SERIES)) <= 80 and min(map(lightness, SERIES_ON_DARK)) >= 45


def test_no_two_lines_of_twenty_look_the_same_and_neighbours_have_other_markers() -> None:
    looks = [line_style(number) for number in range(20)]
    assert len({(one.colour, one.marker, str(one.dashes)) for one in looks}) == 20
    assert all(one.marker != other.marker for one, other in itertools.pairwise(looks))


def test_how_a_number_is_known_shows_without_any_colour() -> None:
    assert len({(how.hatch, how.tinted) for how in HOW.values()}) == len(HOW)
    assert len({(how.inner, how.tinted) for how in HOW.values()}) == len(HOW)
