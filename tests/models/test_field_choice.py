"""The choice among kernels of a field: the roughness of the data decides."""

from __future__ import annotations

import pytest
import torch

import pathgp
from pathgp import kernels
from pathgp.models.field_choice import choose_model, choose_rows

SMOOTHNESS = (0.5, 2.5)


@pytest.mark.parametrize("nu", SMOOTHNESS)
def test_the_kernel_of_the_draw_is_chosen(nu: float) -> None:
    """The log likelihoods differ by ten nats or more."""
    generator = torch.Generator().manual_seed(1)
    X = 4.0 * torch.rand(120, 2, generator=generator, dtype=torch.float64)
    factor = torch.linalg.cholesky(kernels.Matern(nu, 2.0)(X).detach() + 1e-4 * torch.eye(120, dtype=torch.float64))
    y = factor @ torch.randn(120, generator=generator, dtype=torch.float64) + 7.0
    candidates = [_candidate(n) for n in SMOOTHNESS]
    best, likelihoods = choose_model(candidates, X, y, None, generator)
    assert best.kernel.kernel.nu == nu
    assert abs(likelihoods[0] - likelihoods[1]) > 10
    # The candidates stay as they were, the copy has learned.
    assert candidates[0].kernel.kernel.lengthscale.item() == pytest.approx(1.0)
    assert best.kernel.kernel.lengthscale.item() != pytest.approx(1.0)


def _candidate(nu: float) -> pathgp.GP:
    gp = pathgp.GP(kernels.Scale(kernels.Matern(nu)), noise=0.01, mean=pathgp.means.Trend("constant"))
    return gp.constrain("noise", fixed=True)


def test_rows() -> None:
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(5000, 2, generator=generator)
    assert len(choose_rows(X[:600], generator)) == 600
    rows = choose_rows(X, generator)
    assert 560 <= len(rows) <= 600
    # Most rows have close neighbours among them: random rows would be 1 / sqrt(600) apart.
    distances = torch.cdist(X[rows], X[rows]).fill_diagonal_(9.0).amin(1)
    assert float(distances.median()) < 0.5 * 600**-0.5
