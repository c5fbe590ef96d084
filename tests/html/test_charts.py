"""Charts put numbers where they belong, and words where they can be read."""

from __future__ import annotations

import re
from itertools import pairwise

import numpy as np
import pytest

from page_cases import Page
from pathgp.html.charts import Axis, Chart, ranking
from pathgp.html.markup import Html


def chart(x: Axis | None = None, y: Axis | None = None) -> Chart:
    return Chart("key", "Title", "Finding 1", x or Axis(0.0, 10.0), y or Axis(0.0, 100.0))


def path(drawing: Html, kind: str) -> str:
    """The one path of a class."""
    (found,) = [str(a["d"]) for a in Page(str(drawing)).all("path") if a.get("class") == kind]
    return found


def points(d: str) -> list[tuple[float, float]]:
    return [(float(a), float(b)) for a, b in re.findall(r"[ML]([\d.-]+) ([\d.-]+)", d)]


def test_lines_go_through_the_corners() -> None:
    drawn = chart()
    drawn.line([0.0, 10.0], [0.0, 100.0])
    assert points(path(drawn.svg(), "accent")) == [
        (round(drawn.left, 1), drawn.bottom),
        (drawn.right, drawn.top),
    ]


def test_a_logarithmic_axis_has_equal_steps_for_equal_factors() -> None:
    places = Axis(1e-4, 1.0, log=True).fractions([1e-4, 1e-2, 1.0])
    assert places.tolist() == pytest.approx([0.0, 0.5, 1.0])


def test_lines_break_where_a_value_is_missing() -> None:
    drawn = chart()
    drawn.line([0.0, 1.0, 2.0, 3.0, 4.0], [1.0, 2.0, np.nan, 3.0, 4.0])
    assert re.sub(r"[^ML]", "", path(drawn.svg(), "accent")) == "MLML"


def test_dots_are_one_stroke_each() -> None:
    drawn = chart()
    drawn.dots([1.0, 2.0, np.nan], [10.0, 20.0, 30.0])
    assert path(drawn.svg(), "dots data").count("h0") == 2


def test_bars_have_the_height_of_their_numbers() -> None:
    drawn = chart()
    drawn.columns(np.array([0.0, 5.0, 10.0]), np.array([50.0, 100.0]))
    heights = [float(str(a["height"])) for a in Page(str(drawn.svg())).all("rect") if a.get("class") == "bar"]
    assert heights == pytest.approx([(drawn.bottom - drawn.top) / 2, drawn.bottom - drawn.top], abs=0.1)


@pytest.mark.parametrize("values", [[0.0], [3.0, 3.0], [-1e-9], [1e300, -1e300], [], [np.nan, 2.0]])
def test_an_axis_holds_its_values_whatever_they_are(values: list[float]) -> None:
    axis = Axis.around(values)
    finite = [value for value in values if np.isfinite(value)]
    assert axis.low < axis.high
    assert all(axis.low <= value <= axis.high for value in finite)
    assert 1 <= len(axis.labelled_ticks(5)) <= 8


@pytest.mark.parametrize("values", [[1.0], [1e-12, 1e12], [0.0, -3.0, 5.0]])
def test_a_logarithmic_axis_holds_the_positive_ones(values: list[float]) -> None:
    axis = Axis.around(values, log=True)
    assert all(axis.low < value < axis.high for value in values if value > 0)
    assert 1 <= len(axis.labelled_ticks(6)) <= 10


def test_labels_beside_curves_are_moved_apart_and_keep_their_order() -> None:
    drawn = chart()
    drawn.end_labels([(50.0, "b", ""), (50.5, "a", ""), (49.5, "c", ""), (0.0, "d", ""), (0.0, "e", "")])
    labels = re.findall(r'y="([\d.]+)">([a-e])<', drawn.svg())
    assert [name for _, name in labels] == ["a", "b", "c", "d", "e"]
    places = [float(place) for place, _ in labels]
    assert min(b - a for a, b in pairwise(places)) >= 12
    assert max(places) <= drawn.bottom + 5


def test_ticks_never_touch() -> None:
    wide = Axis(0.0, 1.0, ticks=tuple(np.linspace(0, 1, 30)))
    drawn = chart(x=wide)
    shown = [float(x) for x in re.findall(rf'<text x="([\d.]+)" y="{drawn.bottom + 16:g}"', drawn.svg())]
    assert len(shown) > 5
    assert min(b - a for a, b in pairwise(shown)) > 15


def test_words_are_escaped() -> None:
    drawn = Chart("key", "<b>", "<i> & 1", Axis(0, 1, "<x>"), Axis(0, 1, "<y>"))
    drawn.label(0.5, 0.5, "<z>")
    page = Page(str(drawn.svg()))
    assert page.words("title") == ["<b>"]
    assert {"<x>", "<y>", "<z>"} <= set(page.words("text"))
    assert "<u>" in Page(str(ranking("key", "t", "f", [("<u>", 1.0, "1")]))).words("text")


def test_the_longest_bar_belongs_to_the_largest_number() -> None:
    page = Page(str(ranking("key", "t", "f", [("a", 4.0, "4"), ("b", 1.0, "1"), ("c", 0.0, "0")])))
    widths = [float(str(a["width"])) for a in page.all("rect")]
    assert widths[0] == pytest.approx(4 * widths[1], rel=0.01)
    assert widths[2] == 0.5
