"""Scattered points on a generated grid: what is averaged, what is moved, and what is said about it."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import pathgp
from pathgp import kernels
from pathgp.data.snap import snap


def scattered(m: int = 300, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    points = rng.uniform(size=(m, 2)) * [1.0, 10.0]
    return points, np.sin(4 * points[:, 0]) * np.cos(points[:, 1]) + 1000.0 + 0.1 * rng.normal(size=m)


def test_a_shuffled_grid_comes_back() -> None:
    rng = np.random.default_rng(0)
    a, b = np.linspace(-1, 2, 7), np.linspace(5, 6, 11)
    Y = rng.normal(size=(7, 11))
    Y[rng.random(Y.shape) < 0.4] = np.nan
    Y[0, 0] = Y[-1, -1] = 1.0
    cells = rng.permutation(np.argwhere(~np.isnan(Y)))
    i, j = cells.T
    for sizes in ([7, 11], [a, b], [None, 11]):
        found = snap(np.stack([a[i], b[j]], 1), Y[i, j], sizes)
        np.testing.assert_allclose(found.Y, Y)
        np.testing.assert_allclose(found.factors[0], a)
        np.testing.assert_allclose(found.factors[1], b)
        assert max(found.largest) < 1e-9
        assert found.merged == 0
        assert found.empty == int(np.isnan(Y).sum())
        assert found.noise is None
        assert math.isnan(found.scatter)


def test_cells_hold_means_counts_and_noise() -> None:
    points, values = scattered()
    found = snap(points, values, [6, 8])
    near = [np.abs(points[:, i : i + 1] - found.factors[i]).argmin(1) for i in range(2)]
    np.testing.assert_allclose(found.moved, np.stack([found.factors[i][near[i]] for i in range(2)], 1))
    squares, spare = 0.0, 0
    for i in range(6):
        for j in range(8):
            inside = values[(near[0] == i) & (near[1] == j)]
            assert found.counts[i, j] == len(inside)
            if len(inside):
                assert found.Y[i, j] == pytest.approx(inside.mean(), rel=1e-12)
                squares, spare = squares + ((inside - inside.mean()) ** 2).sum(), spare + len(inside) - 1
    assert found.merged == spare
    assert found.scatter == pytest.approx(math.sqrt(squares / spare))
    occupied = found.counts > 0
    np.testing.assert_allclose(found.noise[occupied], found.scatter / np.sqrt(found.counts[occupied]))
    np.testing.assert_array_equal(np.isnan(found.noise), np.isnan(found.Y))
    assert all(0 < rms < largest <= 0.5 for rms, largest in zip(found.rms, found.largest, strict=True))
    assert f"{found.empty} cells" in repr(found)


def test_known_noise_weighs_the_values() -> None:
    points = np.array([[0.0, 0.0], [0.1, 0.0], [1.0, 1.0]])
    found = snap(points, np.array([1.0, 4.0, 2.0]), [2, 2], noise=np.array([0.1, 0.2, 0.3]))
    assert found.Y[0, 0] == pytest.approx((1.0 / 0.01 + 4.0 / 0.04) / (1 / 0.01 + 1 / 0.04))
    assert found.noise[0, 0] == pytest.approx((1 / 0.01 + 1 / 0.04) ** -0.5)
    assert found.noise[1, 1] == pytest.approx(0.3)
    assert snap(points, np.ones(3), [2, 2], noise=0.2).noise[0, 0] == pytest.approx(0.2 / math.sqrt(2))


def test_error_is_that_of_the_prior() -> None:
    points, values = scattered(150)
    found = snap(points, values, [9, 12])
    first, second = kernels.Scale(kernels.Matern(nu=1.5, lengthscale=0.5), signal=2.0), kernels.SquaredExponential(3.0)
    X, Z = torch.tensor(points), torch.tensor(found.moved)
    with torch.no_grad():
        whole = torch.ones(150, 150, dtype=torch.float64)
        for i, k in enumerate((first, second)):
            whole = whole * k(X[:, i : i + 1], Z[:, i : i + 1])
    expected = (8.0 - 2.0 * whole.diagonal()).sqrt()
    np.testing.assert_allclose(found.error([first, second]), expected.numpy(), rtol=1e-6)


def test_error_falls_with_the_spacing() -> None:
    points, values = scattered(2000)
    kernel = [kernels.SquaredExponential(0.3), kernels.SquaredExponential(3.0)]
    errors = [np.sqrt(np.mean(snap(points, values, [p, p]).error(kernel) ** 2)) for p in (11, 21, 41)]
    # A smooth function moves by its slope times the displacement: half the spacing, half the error.
    assert errors[0] / errors[1] == pytest.approx(2.0, rel=0.1)
    assert errors[1] / errors[2] == pytest.approx(2.0, rel=0.1)


def test_the_posterior_is_close_to_that_of_the_points() -> None:
    points, values = scattered(300)
    found = snap(points, values, [40, 40], noise=0.1)
    k1, k2 = kernels.SquaredExponential(0.4), kernels.SquaredExponential(1.5)
    grid = pathgp.LatentKroneckerGP([k1, k2], noise=1e-3, mean=1000.0)
    on_grid = grid.condition(found.factors, found.Y, noise=found.noise, tol=1e-6)
    both = kernels.SquaredExponential([0.4, 1.5])
    exact = pathgp.GP(both, noise=0.1, mean=1000.0).condition(points, values, tol=1e-6)
    new = np.random.default_rng(1).uniform(0.1, 0.9, size=(50, 2)) * [1.0, 10.0]
    difference = on_grid.at(new).mean - exact.mean(new)
    size = np.sqrt(np.mean(found.error([k1, k2]) ** 2))
    assert np.sqrt(np.mean(difference**2)) < size
    assert size < 0.1


def test_tensors_in_tensors_out() -> None:
    points, values = scattered(50)
    X, y = (torch.tensor(array, dtype=torch.float32) for array in (points, values))
    found = snap(X, y, [4, [1.0, 4.0, 9.0]])
    assert found.Y.dtype == torch.float32
    assert found.Y.shape == (4, 3)
    assert found.error([kernels.Matern(nu=0.5), kernels.Matern(nu=0.5)]).shape == (50,)


def test_one_cell_takes_everything() -> None:
    points, values = scattered(20)
    found = snap(points, values, [1, 1])
    assert found.Y[0, 0] == pytest.approx(values.mean())
    assert found.largest == (0.5, 0.5)


def test_too_sparse_is_said() -> None:
    points, values = scattered(30)
    assert "costs less" in repr(snap(points, values, [50, 50]))
    assert "costs less" not in repr(snap(points, values, [3, 3]))


@pytest.mark.parametrize(
    ("points", "values", "sizes", "noise", "message"),
    [
        ([[0.0], [1.0]], [1.0, 2.0], [[0.0, 0.5]], None, r"points\[1, 0\] = 1 lies more than half a spacing outside"),
        ([[0.0], [1.0]], [1.0, 2.0], [2, 2], None, "one entry per column"),
        ([[0.0], [1.0]], [1.0, np.nan], [2], None, "values"),
        ([[0.0], [np.inf]], [1.0, 2.0], [2], None, "points"),
        ([[0.0], [1.0]], [1.0, 2.0], [0], None, "at least 1"),
        ([[0.0], [1.0]], [1.0, 2.0], [[1.0, 0.0]], None, "increasing"),
        ([[0.0], [1.0]], [1.0, 2.0], [2], 0.0, "positive"),
    ],
)
def test_bad_input_is_refused(points: list, values: list, sizes: list, noise: float | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        snap(np.array(points), np.array(values), sizes, noise)


def test_kernels_must_fit() -> None:
    points, values = scattered(20)
    with pytest.raises(ValueError, match="1 kernels"):
        snap(points, values, [3, 3]).error([kernels.Matern(nu=0.5)])
