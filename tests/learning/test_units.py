"""Fits do not depend on the units of the data, and say what they cannot learn."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch

import pathgp
from pathgp import kernels, means

SIDES = [torch.rand(12, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64), torch.arange(8.0).double()]


def table(n: int = 120) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(n, 2, generator=generator, dtype=torch.float64)
    noise = torch.randn(n, generator=generator, dtype=torch.float64)
    return X, torch.sin(6 * X[:, 0]) + X[:, 1].square() + 0.1 * noise


def model(**options: object) -> pathgp.GP:
    kernel = kernels.Scale(kernels.Matern(2.5, lengthscale=[1.0, 1.0]), signal=1.0)
    return pathgp.GP(kernel, noise=1.0, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(("of_x", "of_y"), [(1e5, 1e4), (1e6, 1e8), (1e-4, 1e-5)])
def test_fit_in_other_units(of_x: float, of_y: float) -> None:
    """In large units the first steps once left the hyperparameters at their initial values."""
    X, y = table()
    gp, scaled = model(), model()
    gp.fit(X, y)
    scaled.fit(of_x * X, of_y * y)
    assert float(scaled.noise.detach()) == pytest.approx(of_y * float(gp.noise.detach()), rel=0.01)
    lengths = [m.kernel.kernel.lengthscale.detach() for m in (gp, scaled)]
    torch.testing.assert_close(lengths[1], of_x * lengths[0], rtol=0.02, atol=0.0)


@pytest.mark.parametrize(("of_x", "of_y"), [(1e5, 1e4), (1e-4, 1e-5)])
def test_fit_of_a_grid_or_with_inducing_points_in_other_units(of_x: float, of_y: float) -> None:
    X, y = table()
    sides = [SIDES[0], SIDES[1] / 8.0]
    Y = torch.sin(6 * SIDES[0][:, :1]) + sides[1].square() + 0.1 * y[:96].view(12, 8)

    def fit(of_x: float, of_y: float) -> list[torch.Tensor]:
        kernel = kernels.Scale(kernels.Matern(2.5, lengthscale=[1.0, 1.0]), signal=1.0)
        generators = [torch.Generator().manual_seed(0) for _ in range(2)]
        inducing = pathgp.InducingGP(kernel, 1.0, inducing=20)
        inducing.fit(of_x * X, of_y * y, samples=2, generator=generators[0])
        grid = pathgp.LatentKroneckerGP([kernel, kernels.Matern(2.5)], 1.0)
        grid.fit([of_x * F for F in sides], of_y * Y, samples=2, generator=generators[1])
        scales = [inducing.kernel.kernel.lengthscale, grid.kernels[0].kernel.lengthscale, grid.kernels[1].lengthscale]
        return [inducing.noise.detach() / of_y, grid.noise.detach() / of_y, *(s.detach() / of_x for s in scales)]

    for scaled, plain in zip(fit(of_x, of_y), fit(1.0, 1.0), strict=True):
        torch.testing.assert_close(scaled, plain, rtol=0.02, atol=0.0)


@pytest.mark.parametrize("kind", ["table", "grid", "inducing"])
def test_mean_far_from_the_targets_warns(kind: str) -> None:
    X, y = table(40)
    kernel = kernels.Scale(kernels.Matern(2.5, lengthscale=[1.0, 1.0]), signal=1.0)

    def fit(level: float, **options: object) -> None:
        if kind == "grid":
            grid = pathgp.LatentKroneckerGP([kernel, kernels.SquaredExponential(1.0)], 0.3, **options)  # type: ignore[arg-type]
            grid.fit(SIDES, level + torch.sin(SIDES[0][:, :1] + SIDES[1]), steps=1)
        elif kind == "inducing":
            pathgp.InducingGP(kernel, 0.3, inducing=10, **options).fit(X, y + level, steps=1)  # type: ignore[arg-type]
        else:
            pathgp.GP(kernel, 0.3, **options).fit(X, y + level)  # type: ignore[arg-type]

    with pytest.warns(UserWarning, match=r"average of 1e\+04 .* set mean=pathgp\.means\.Constant\(\) or standardise"):
        fit(1e4)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        warnings.simplefilter("ignore", pathgp.ConvergenceWarning)
        fit(10.0)
        fit(1e4, mean=means.Constant())
        fit(1e4, mean=1e4)
        fit(1e4, standardise=True)


def test_gain_of_a_second_start_counts_from_the_first_step() -> None:
    """Fits of more than 2,000 rows start from little and from large noise, with exact gradients on 1,000 rows."""
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(2100, 8, generator=generator, dtype=torch.float64)
    y = torch.sin(6 * X[:, 0]) + 0.1 * torch.randn(2100, generator=generator, dtype=torch.float64)
    gp = pathgp.GP(kernels.Scale(kernels.Matern(2.5, lengthscale=[1.0] * 8), signal=1.0), noise=1.0)
    report = gp.fit(X, y, steps=20, generator=generator)
    noises = np.array([step.values["noise"][0] for step in report.history])
    second = int(np.argmax(np.abs(np.diff(np.log(noises))))) + 1
    # Zero would be the gain of a first step.
    assert abs(report.history[second].gain) > 1.0


def test_frame_of_a_fit_without_steps() -> None:
    pytest.importorskip("pandas")
    frame = model().fit(*table(30), steps=0).to_frame()
    assert len(frame) == 0
    assert frame.index.name == "step"
