"""The baselines of GPyTorch: each predicts well on an easy function, keeps what it must keep, and reports failures."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from benchmarks.peers import baselines
from benchmarks.peers.baselines import Baseline, earlier_neighbours, run_baseline

gpytorch = pytest.importorskip("gpytorch")

pytestmark = pytest.mark.filterwarnings("ignore")


def kernel() -> Any:
    return gpytorch.kernels.ScaleKernel(gpytorch.kernels.MaternKernel(nu=1.5))


def easy(rows: int = 120) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(rows, 1, generator=generator, dtype=torch.float64)
    y = torch.sin(6.0 * X[:, 0]) + 0.1 * torch.randn(rows, generator=generator, dtype=torch.float64)
    new = torch.linspace(0.1, 0.9, 30, dtype=torch.float64).unsqueeze(1)
    return X, y, new, torch.sin(6.0 * new[:, 0])


@pytest.mark.parametrize(
    ("baseline", "steps"),
    [
        (Baseline("svgp", 20, batch=60, rate=0.1), 60),
        (Baseline("vnngp", 8, batch=120, rate=0.1), 200),
        (Baseline("ski", 40, rate=0.1), 20),
    ],
)
def test_predictions(baseline: Baseline, steps: int) -> None:
    """Mean and variance of new observations: far better than the mean of the data, and most truths in the band."""
    if baseline.method == "vnngp":
        pytest.importorskip("sklearn")
    X, y, new, truth = easy()
    row, predictions = run_baseline(baseline, kernel, X, y, [new, new[:5]], steps=steps)
    assert "failed" not in row
    assert row["method"] == baseline.name
    assert row["sparse_steps"] == steps
    (mean, variance), (few, _) = predictions
    assert torch.allclose(few, mean[:5], atol=1e-3)
    error = mean - truth
    assert float(error.square().mean().sqrt()) < 0.25 * float(truth.std())
    assert float((error.abs() < 2.0 * variance.sqrt()).double().mean()) > 0.85


def test_earlier_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    """The neighbours are those that GPyTorch's own search finds."""
    pytest.importorskip("sklearn")
    monkeypatch.setattr(baselines, "NEIGHBOUR_ROWS", 7)
    X = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
    theirs = gpytorch.utils.nearest_neighbors.NNUtil(5, dim=3, preferred_nnlib="sklearn").build_sequential_nn_idx(X)
    assert torch.equal(earlier_neighbours(X, 5), theirs)


def test_kept_hyperparameters() -> None:
    """Without learning the result is the GP with this kernel and noise, here with an inducing point at every row."""
    X, y, new, _ = easy(40)

    def known() -> Any:
        found = kernel()
        found.base_kernel.lengthscale, found.outputscale = 0.3, 1.5
        return found

    baseline = Baseline("svgp", 40, batch=400, rate=0.05, noise=0.2, learn=False)
    _, [(mean, variance)] = run_baseline(baseline, known, X, y, [new], steps=300)
    gram = known().double()
    with torch.no_grad():
        H = gram(X).to_dense() + 0.04 * torch.eye(40, dtype=X.dtype)
        cross = gram(new, X).to_dense()
        exact = cross @ torch.linalg.solve(H, y)
        spread = 1.5 + 0.04 - (cross * torch.linalg.solve(H, cross.T).T).sum(1)
    assert float((mean - exact).abs().max()) < 0.05
    assert float((variance / spread - 1.0).abs().max()) < 0.2


def test_bad_input_and_failures() -> None:
    with pytest.raises(ValueError, match="no baseline is called 'cagp': choose from svgp, vnngp, ski"):
        Baseline("cagp", 10)
    X, y, new, _ = easy(20)
    with pytest.raises(ValueError, match="give seconds or steps"):
        run_baseline(Baseline("svgp", 5), kernel, X, y, [new])
    wide = X.expand(20, 5).contiguous()
    row, predictions = run_baseline(Baseline("ski", 10), kernel, wide, y, [new], steps=1)
    assert "up to 4 inputs, got 5" in row["failed"]
    assert predictions == []


def test_a_time_limit_ends_the_training() -> None:
    X, y, new, _ = easy(20)
    row, predictions = run_baseline(Baseline("svgp", 5, batch=20), kernel, X, y, [new], seconds=0.05)
    assert row["sparse_steps"] >= 1
    assert math.isfinite(float(predictions[0][0].sum()))
