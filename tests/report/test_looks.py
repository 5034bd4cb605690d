"""Colours can be read by everyone, in both schemes, and are not all that tells series apart."""

from itertools import combinations

import pytest

from hydra_ensembles.report.looks import DARK, LIGHT, look

SCHEMES = {"light": LIGHT, "dark": DARK}
TEXTS = ("ink", "soft", "link", "good", "bad")


def luminance(colour):
    """WCAG 2: relative luminance of sRGB."""
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(a, b):
    high, low = sorted((luminance(a), luminance(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_contrast_is_measured_as_wcag_does():
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#767676", "#ffffff") == pytest.approx(4.54, abs=0.01)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("ground", ["paper", "panel"])
def test_text_stands_out_from_its_ground(scheme, ground):
    colours = SCHEMES[scheme]
    for name in TEXTS:
        assert contrast(colours[name], colours[ground]) >= 4.5, name


@pytest.mark.parametrize("scheme", SCHEMES)
def test_lines_stand_out_as_text_must(scheme):
    colours = SCHEMES[scheme]
    for name in colours:
        if name.startswith("line-"):
            assert contrast(colours[name], colours["paper"]) >= 4.5, name


def test_both_schemes_have_every_colour_and_no_colour_twice():
    assert list(LIGHT) == list(DARK)
    for colours in (LIGHT, DARK):
        assert len(set(colours.values())) == len(colours)


def test_series_differ_without_colour():
    for a, b in combinations([look(place) for place in range(8)], 2):
        assert a.strokes != b.strokes
        assert a.marker != b.marker
