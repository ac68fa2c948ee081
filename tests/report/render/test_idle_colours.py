"""The colours of idle causes are distinguishable with any colour vision, in both themes."""

import re
from itertools import combinations

import numpy as np
import pytest

from tests.report.render.test_html import PAGE, luminance
from trainyard import words

# Linear RGB as seen without the cones for long, medium and short wavelengths (Machado, Oliveira and Fernandes, 2009).
VISIONS = {
    "trichromat": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanope": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deuteranope": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.01182, 0.04294, 0.968881)),
    "tritanope": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.3039)),
}
XYZ = np.array(((0.4124564, 0.3575761, 0.1804375), (0.2126729, 0.7151522, 0.072175), (0.0193339, 0.119192, 0.9503041)))
WHITE = np.array((0.95047, 1, 1.08883))
CAUSES = {**{key: word.colour for key, word in words.GAPS.items()}, "data_wait": words.KINDS["data_wait"].colour}


def lab(colour: str, vision: str) -> np.ndarray:
    """The colour in CIE L*a*b* as seen with this vision."""
    values = np.array([int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)])
    linear = np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)
    ratio = XYZ @ np.clip(np.array(VISIONS[vision]) @ linear, 0, 1) / WHITE
    root = np.where(ratio > 216 / 24389, np.cbrt(ratio), (24389 / 27 * ratio + 16) / 116)
    return np.array((116 * root[1] - 16, 500 * (root[0] - root[1]), 200 * (root[1] - root[2])))


@pytest.mark.parametrize("vision", VISIONS)
def test_causes_of_idle_time_differ(vision):
    """2.3 is just noticeable side by side."""
    seen = {key: lab(colour, vision) for key, colour in CAUSES.items()}
    differences = {pair: float(np.linalg.norm(seen[pair[0]] - seen[pair[1]])) for pair in combinations(seen, 2)}
    assert min(differences.values()) >= 15, min(differences, key=lambda pair: differences[pair])


@pytest.mark.parametrize("key", CAUSES)
def test_colours_are_drawn_unchanged_in_both_themes(key):
    """A colour with less contrast to the card is moved towards the ink, and may then equal another (`tuned`)."""
    style = (PAGE / "page.css").read_text(encoding="utf-8")
    for card in re.search(r"--card: light-dark\((#\w{6}), (#\w{6})\)", style).groups():
        low, high = sorted((luminance(card), luminance(CAUSES[key])))
        assert (high + 0.05) / (low + 0.05) >= 1.9
