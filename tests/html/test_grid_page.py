"""The page of a field on a grid: maps of what is seen, inferred and unknown."""

from __future__ import annotations

import base64
import re
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch

import pathgp
from page_cases import EVIL, check, page_of
from pathgp import LatentKroneckerGP, kernels, metrics
from pathgp.html.charts import png
from pathgp.html.maps import HOLE, VALUES, choose_view, colour
from pathgp.html.numbers import number
from pathgp.posterior.grid import GridPosterior


def field(*shape: int) -> tuple[np.ndarray, np.ndarray]:
    """Values, and the same with a hole."""
    truth = np.sin(np.indices(shape).sum(0) / 2.0) + 0.05 * np.random.default_rng(0).normal(size=shape)
    seen = truth.copy()
    seen[tuple(slice(1, 4) for _ in shape)] = np.nan
    return truth, seen


def conditioned(seen: np.ndarray, factors: list[object] | None = None) -> GridPosterior:
    gp = LatentKroneckerGP([kernels.Matern(1.5, 3.0) for _ in seen.shape], noise=0.1)
    sides = [None] * seen.ndim if factors is None else factors
    return gp.condition(sides, seen, samples=8, generator=torch.Generator().manual_seed(0))


def test_a_grid_with_held_out_cells(tmp_path: Path) -> None:
    truth, seen = field(9, 12)
    post = conditioned(seen)
    page = page_of(post, tmp_path, y_test=truth, names=["place", EVIL], target=EVIL)
    check(page)
    hole = np.isnan(seen)
    mean, variance = post.mean()[hole], post.variance(noise=True)[hole]
    assert number(metrics.rmse(truth[hole], mean)) in page.words("td")
    assert number(metrics.nll(truth[hole], mean, variance)) in page.words("td")
    assert "99 of 108 cells are observed" in page.text
    assert {"One sample", "Standard deviation", f"Mean of {EVIL}"} <= set(page.words("title"))


@pytest.mark.parametrize("shape", [(8,), (5, 6), (4, 5, 6)])
def test_any_number_of_sides(shape: tuple[int, ...], tmp_path: Path) -> None:
    page = page_of(conditioned(field(*shape)[1]), tmp_path)
    check(page)
    assert "no values were held out" in page.text
    assert ("One sample" in page.words("title")) == (len(shape) > 1)


def test_scattered_points_can_be_held_out(tmp_path: Path) -> None:
    points = np.random.default_rng(0).uniform(0, 5, size=(30, 2))
    page = page_of(conditioned(field(6, 7)[1]), tmp_path, points, np.sin(points.sum(1) / 2))
    check(page)
    assert "30 held-out points" in page.text


def test_a_fit_and_a_file_without_data(tmp_path: Path) -> None:
    _, seen = field(6, 7)
    gp = LatentKroneckerGP([kernels.Scale(kernels.Matern(1.5, 3.0)), kernels.Matern(1.5, 3.0)], noise=0.1)
    report = gp.fit([None, None], seen, steps=2, samples=4, generator=torch.Generator().manual_seed(0))
    check(page_of(gp.posterior, tmp_path, fit=report))
    gp.posterior.save(tmp_path / "small.gp", data=False)
    page = page_of(pathgp.load(tmp_path / "small.gp"), tmp_path)
    check(page)
    assert "values are not known" in page.text


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"names": ["a"]}, "1 entries for 2 sides"),
        ({"y_test": np.zeros((2, 2))}, "y_test has shape"),
        ({"y_test": np.full((6, 7), np.nan)}, "nothing to compare"),
        ({"X_test": np.zeros((2, 2))}, "without y_test"),
    ],
)
def test_what_cannot_be_compared_is_refused(arguments: dict[str, object], match: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=match):
        conditioned(field(6, 7)[1]).to_html(tmp_path / "page.html", **arguments)


def test_places_become_a_map_of_the_slice_with_most_holes() -> None:
    lat, lon = (a.ravel() for a in np.meshgrid([1.0, 2.0, 3.0], [10.0, 20.0, 30.0, 40.0], indexing="ij"))
    sides = [np.stack([lat, lon], 1)[::-1], np.array([[5.0], [6.0]])]
    observed = np.ones((12, 2), dtype=bool)
    observed[:3, 1] = False
    view = choose_view(sides, observed, ["place", "month"])
    assert "month 6" in view.caption
    picture = view.picture(np.stack([np.zeros(12), 100 * sides[0][:, 0] + sides[0][:, 1]], 1))
    assert picture.tolist() == [[100.0 * a + b for b in (10, 20, 30, 40)] for a in (1, 2, 3)]


def test_a_side_without_order_is_sorted() -> None:
    sides = [np.array([[3.0], [1.0], [2.0]]), np.array([[0.0], [1.0]])]
    view = choose_view(sides, np.ones((3, 2), dtype=bool), ["a", "b"])
    assert view.picture(np.repeat(sides[0], 2, 1)).tolist() == [[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]]
    assert (view.y.low, view.y.high) == (0.5, 3.5)


def test_colours_run_from_the_first_to_the_last_and_holes_are_grey() -> None:
    found = colour(np.array([-9.0, 0.0, 1.0, np.nan]), (0.0, 1.0), VALUES)[:, :3]
    assert ["#" + bytes(colour).hex() for colour in found] == [VALUES[0], VALUES[0], VALUES[-1], HOLE]


def test_a_picture_survives_its_file() -> None:
    colours = np.random.default_rng(0).integers(0, 256, size=(3, 5, 4), dtype=np.uint8)
    file = png(colours)
    start = file.index(b"IDAT") + 4
    size = int.from_bytes(file[start - 8 : start - 4], "big")
    lines = np.frombuffer(zlib.decompress(file[start : start + size]), np.uint8).reshape(3, 21)
    assert (lines[:, 0] == 0).all()
    assert np.array_equal(lines[:, 1:].reshape(3, 5, 4), colours)


def test_pictures_are_in_the_page(tmp_path: Path) -> None:
    page = page_of(conditioned(field(6, 7)[1]), tmp_path)
    images = re.findall(r'href="data:image/png;base64,([^"]+)"', page.markup)
    assert len(images) == 8  # four maps and their scales
    assert all(base64.b64decode(image).startswith(b"\x89PNG") for image in images)
