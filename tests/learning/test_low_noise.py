"""Fits of functions without noise agree for all generators up to 2,000 rows."""

from __future__ import annotations

import torch

import pathgp
from fit_cases import seeded
from pathgp.kernels import Matern, Scale
from pathgp.operators import KernelOperator


def test_generators_agree_on_a_function_without_noise() -> None:
    """With estimated gradients two fits of 1,001 rows had test log-likelihoods that differed by 0.2 nats per row."""
    X = torch.rand(1201, 10, generator=seeded(0), dtype=torch.float64)
    y = 10.0 * (torch.pi * X[:, 0] * X[:, 1]).sin() + 20.0 * (X[:, 2] - 0.5).square() + 10.0 * X[:, 3] + 5.0 * X[:, 4]
    found = []
    for seed in range(2):
        gp = pathgp.GP(Scale(Matern(2.5, torch.ones(10)), 1.0), noise=0.1, standardise=True)
        gp.fit(X[:1001], y[:1001], samples=8, features=64, generator=seeded(seed))
        mean, std = gp.posterior.mean(X[1001:]), gp.posterior.variance(X[1001:], noise=True).sqrt()
        found.append(float(torch.distributions.Normal(mean, std).log_prob(y[1001:]).mean()))
    assert abs(found[0] - found[1]) < 0.02


def test_a_sum_with_weights_equals_the_bilinear_form_of_their_columns() -> None:
    X, W = torch.rand(30, 2, dtype=torch.float64), torch.rand(30, 30, dtype=torch.float64)
    W = W + W.T
    H = KernelOperator(Scale(Matern(1.5, torch.ones(2)), 1.0), X, noise=0.3)
    identity = torch.eye(30, dtype=torch.float64)
    parameters = list(H.kernel.parameters())
    forms = (H.contract(W), H.bilinear(W, identity, symmetric=True))
    gradients = [torch.autograd.grad(form, parameters) for form in forms]
    torch.testing.assert_close(*forms)
    torch.testing.assert_close(*gradients)
