"""L-BFGS at the bounds of hyperparameters, and when its steps end."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

import pathgp
from pathgp.kernels import Matern, Scale
from pathgp.kernels.parameters import Positive, positive
from pathgp.learning.bounds import LARGEST_SIGNAL, LEAST_NOISE, DefaultBounds
from pathgp.learning.hyperparameters import Coordinates
from pathgp.learning.loop import Fit
from pathgp.learning.optimisers import LBFGS
from pathgp.learning.policy import FitOptions
from pathgp.learning.stopping import stopping_reason
from pathgp.posterior.conditioning import Settings


class Pair(nn.Module):
    """Two positive parameters, the first of which is at most 1, and a quadratic loss in their logarithms z:
    (z - z*)^T A (z - z*) / 2.
    """

    A = torch.tensor([[1.0, 0.99], [0.99, 1.0]], dtype=torch.float64)
    optimum = torch.tensor([2.0, -1.9], dtype=torch.float64)

    def __init__(self, first: float) -> None:
        super().__init__()
        self.first, self.second = Positive(first, "first"), Positive(1.0, "second")
        self.first.bounds = (0.0, 1.0)

    def loss(self) -> Tensor:
        away = torch.stack([self.first.value, self.second.value]).log() - self.optimum
        return 0.5 * away @ self.A @ away


def test_lbfgs_moves_along_a_bound_that_it_meets_at_once() -> None:
    """Next to the bound of the first parameter the Newton step decreases the second one, but along the bound that one
    has to grow.
    """
    pair = Pair(1.0 - 1e-8)
    optimiser = LBFGS(Coordinates(pair, {}), learning_rate=1.0)
    # Conjugate changes: with them L-BFGS knows A.
    changes = torch.tensor([[1.0, 0.0], [-0.99, 1.0]], dtype=torch.float64)
    optimiser.seed([(change, Pair.A @ change) for change in changes])
    for _ in range(6):
        pair.zero_grad()
        pair.loss().backward()
        optimiser.step()
    assert math.isclose(float(pair.first.value.detach()), 1.0)
    # On the bound: z_2 = z*_2 + 0.99 z*_1.
    assert math.isclose(float(pair.second.value.detach().log()), 0.08, abs_tol=1e-6)


def test_without_a_direction_nothing_moves() -> None:
    pair = Pair(1.0)
    optimiser = LBFGS(Coordinates(pair, {}), learning_rate=1.0)
    optimiser.seed([])
    for parameter in optimiser.coordinates.parameters:
        parameter.grad = torch.zeros_like(parameter)
    before = optimiser.coordinates.position()
    optimiser.step()
    assert torch.equal(optimiser.coordinates.position(), before)


def test_four_steps_end_the_last_stage_at_the_minimum_gain() -> None:
    """Of the stages before it, and of Vecchia's likelihood, at four tenths of it."""
    n = 1200
    X = torch.rand(n, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    gp = pathgp.GP(Scale(Matern(1.5, [1.0] * 5)))
    data, settings = gp.prepare_data(X, X[:, 0]), Settings.read("auto", 1e-2, None)
    for is_field, ends in ((False, True), (True, False)):
        options = FitOptions(settings, min_gain=5e-4).resolve(n, is_grid=False, is_field=is_field)
        fit: Any = Fit(gp, data, options, torch.Generator().manual_seed(0))
        fit.optimiser.predicted_gain = 0.0
        fit.stage = len(fit.stages) - 1
        fit.history = [SimpleNamespace(gain=n * options.min_gain * 0.8 * share) for share in (0.0, 0.3, 0.5, 0.7, 1.0)]
        assert bool(stopping_reason(fit)) == ends


def test_the_least_noise_does_not_grow_with_the_signal() -> None:
    """Otherwise neither may be able to move alone where the other would have to follow."""
    for n in (200, 2000):
        X = torch.linspace(0.0, 1.0, n, dtype=torch.float64).unsqueeze(1)
        y = torch.sin(6.0 * X[:, 0])
        deviation = float(y.std(correction=0))
        gp = pathgp.GP(Scale(Matern(2.5, 0.3)), noise=0.1)
        data = gp.prepare_data(X, y)
        bounds = DefaultBounds(gp, data)
        signal = positive(gp.kernel, "signal")
        assert signal.bounds is not None
        largest = signal.bounds[1]
        assert largest <= LARGEST_SIGNAL * deviation
        signal.assign(largest)
        gp.noise = 1e-9
        bounds.project_noise(data)
        assert math.isclose(float(gp.noise.detach()), LEAST_NOISE * deviation, rel_tol=1e-6)
        # A noise with other bounds does not restrict the signal.
        fixed = pathgp.GP(Scale(Matern(2.5, 0.3)), noise=0.1).constrain("noise", fixed=True)
        DefaultBounds(fixed, data)
        assert positive(fixed.kernel, "signal").bounds == (0.0, LARGEST_SIGNAL * deviation)
