"""The empirical variogram against sums over pairs, and its estimators."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from pathgp import kernels
from pathgp.kriging import empirical_variogram, krige, variogram

RNG = np.random.default_rng(0)
POINTS = RNG.uniform(0, 3, (60, 2))
VALUES = POINTS[:, 0] + RNG.standard_normal(60)


def pairs_by_hand() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    i, j = np.triu_indices(len(VALUES), 1)
    difference = POINTS[j] - POINTS[i]
    return np.linalg.norm(difference, axis=1), np.abs(VALUES[i] - VALUES[j]), difference


@pytest.mark.parametrize("estimator", ["classical", "robust"])
def test_sums_over_pairs(estimator: str) -> None:
    lag, difference, _ = pairs_by_hand()
    edges = [0.0, 0.3, 0.5, 1.1]
    found = variogram(POINTS, VALUES, bins=edges, estimator=estimator)
    for k, (low, high) in enumerate(itertools.pairwise(edges)):
        inside = (lag > low) & (lag <= high)
        expected = 0.5 * np.mean(difference[inside] ** 2)
        if estimator == "robust":
            expected = 0.5 * np.mean(np.sqrt(difference[inside])) ** 4 / (0.457 + 0.494 / inside.sum())
        assert found.pairs[k] == inside.sum() > 0
        assert found.lags[k] == pytest.approx(lag[inside].mean())
        assert found.values[k] == pytest.approx(expected)


def test_directions_split_the_pairs() -> None:
    lag, difference, vector = pairs_by_hand()
    angle = np.abs((np.degrees(np.arctan2(vector[:, 1], vector[:, 0])) + 90) % 180 - 90)
    found = variogram(POINTS, VALUES, bins=[0.0, 1.0], directions=[0, 90], tolerance=30)
    assert found.values.shape == (2, 1)
    for k, inside in enumerate([(lag <= 1) & (angle <= 30), (lag <= 1) & (angle >= 60)]):
        assert found.pairs[k, 0] == inside.sum()
        assert found.values[k, 0] == pytest.approx(0.5 * np.mean(difference[inside] ** 2))
    everywhere = variogram(POINTS, VALUES, bins=[0.0, 1.0])
    together = variogram(POINTS, VALUES, bins=[0.0, 1.0], directions=[0, 45, 90, 135]).pairs.sum()
    assert together == everywhere.pairs.sum()


def test_many_points_use_a_random_subset(monkeypatch: pytest.MonkeyPatch) -> None:
    """The subset's average is near that of all pairs: 30 of 60 rows, a spread of about a tenth."""
    every = variogram(POINTS, VALUES, bins=[0.0, 3.0])
    monkeypatch.setattr(empirical_variogram, "_MOST_PAIRS", 1700)
    monkeypatch.setattr(empirical_variogram, "_PAIRS_AT_ONCE", 200)
    some = variogram(POINTS, VALUES, bins=[0.0, 3.0])
    assert (every.used, some.used) == (60, 28)
    assert some.values[0] == pytest.approx(every.values[0], rel=0.3)
    assert some.values[0] != every.values[0]
    monkeypatch.setattr(empirical_variogram, "_MOST_PAIRS", 10**6)
    np.testing.assert_allclose(variogram(POINTS, VALUES, bins=[0.0, 3.0]).values, every.values)


def test_distances_on_the_globe() -> None:
    lonlat = np.array([[0.0, 0.0], [90.0, 0.0], [179.0, 0.0], [-179.0, 0.0]])
    found = variogram(lonlat, [0.0, 1.0, 2.0, 4.0], bins=[0.0, 300.0], coordinates="lonlat")
    assert found.pairs.tolist() == [1]
    assert found.lags[0] == pytest.approx(2 * np.pi / 180 * 6371)
    assert found.values[0] == pytest.approx(2.0)
    assert found.unit == "km"


def test_refused() -> None:
    with pytest.raises(ValueError, match="'classical' or 'robust'"):
        variogram(POINTS, VALUES, estimator="median")
    with pytest.raises(ValueError, match="increasing edges"):
        variogram(POINTS, VALUES, bins=[1.0, 0.5])
    with pytest.raises(ValueError, match="cutoff must be positive"):
        variogram(POINTS, VALUES, cutoff=-1.0)
    with pytest.raises(ValueError, match="all points coincide"):
        variogram(np.ones((5, 2)), VALUES[:5])
    with pytest.raises(ValueError, match="points in a plane"):
        variogram(RNG.uniform(0, 1, (9, 3)), VALUES[:9], directions=[0])
    with pytest.raises(ValueError, match="row 2"):
        variogram(POINTS, np.where(np.arange(60) == 2, np.nan, VALUES))


def test_a_note_says_what_distances_ignore_or_mix() -> None:
    pd = pytest.importorskip("pandas")
    rng = np.random.default_rng(1)
    frame = pd.DataFrame({"lon": rng.uniform(0, 9, 30), "lat": rng.uniform(0, 9, 30), "v": rng.normal(size=30)})
    assert variogram(frame, "v").note == ""
    timed = frame.assign(time=pd.date_range("2024-01-01", periods=30))
    found = variogram(timed, "v")
    assert found.note == "distances on the globe ignore time"
    assert found.note in repr(found)
    mixed = variogram(timed.rename(columns={"lon": "x", "lat": "y"}), "v")
    assert mixed.note == "distances mix days of time with the units of x, y"
    fitted = krige(timed, "v", timed, kernel=kernels.Matern(1.5, active_dims=[2]), nugget=0.5, steps=0)
    assert fitted.variogram.note == found.note
