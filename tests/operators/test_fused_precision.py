"""Fused products in medium and low precision keep to the errors that are stated."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import pathgp
from fused_cases import N, check_product, normal
from pathgp import kernels
from pathgp.operators.fused import backend

pytest.importorskip("triton", minversion="3.6")


@pytest.mark.parametrize("precision", ["medium", "low"])
def test_the_posterior_does_not_depend_on_the_precision(precision: str) -> None:
    X, Xs = normal(N, 3, 0), normal(20, 3, 1)
    y = X.sum(1).sin()
    gp = pathgp.GP(kernels.Matern(1.5, 2.0), noise=0.3)
    options = {"solver": "cg", "samples": 2, "features": 16, "tol": 1e-4}
    high, cheap = (
        gp.condition(
            X, y, generator=torch.Generator().manual_seed(0), compute=pathgp.Compute("fused", precision=p), **options
        )
        for p in ("high", precision)
    )
    assert "refinement" in cheap.report.solution.note
    assert "refinement" not in high.report.solution.note
    assert high.report.products == "high precision"
    off = float(cheap.report.products.removeprefix(f"{precision} precision, off by "))
    assert 1e-5 < off < 1e-2  # beside H d, which is smaller than |H| |d|
    assert cheap.report.worst_residual <= 1e-4
    torch.testing.assert_close(cheap.mean(Xs), high.mean(Xs), rtol=0, atol=1e-3)
    torch.testing.assert_close(cheap.paths(Xs), high.paths(Xs), rtol=0, atol=1e-3)


ROUGH: dict[str, Callable[[float], kernels.Kernel]] = {
    "SE": kernels.SquaredExponential,
    "Matern-1/2": lambda l: kernels.Matern(0.5, l),
    "Matern-3/2": lambda l: kernels.Scale(kernels.Matern(1.5, l), 1.3),
    "Matern-5/2": lambda l: kernels.Matern(2.5, l),
    "RQ": lambda l: kernels.RationalQuadratic(50.0, l),
    "sum": lambda l: kernels.Scale(kernels.SquaredExponential(l), 0.8) + kernels.Matern(1.5, 2.0 * l),
    "product": lambda l: kernels.SquaredExponential(1.5 * l) * kernels.Matern(2.5, 1.5 * l),
}


@pytest.mark.parametrize(("precision", "bound"), [("medium", 1e-3), ("low", 4e-3)])
@pytest.mark.parametrize(("d", "farthest"), [(3, 3.0), (16, 36.0)])
@pytest.mark.parametrize("name", ROUGH)
def test_cheaper_products(name: str, d: int, farthest: float, precision: str, bound: float) -> None:
    """Within the error that is stated, also where three inputs lie so many length scales from the others."""
    l = 0.5 * d**0.5
    X = normal(N, d, 0)
    X[:3] *= farthest * l / X[:3].norm(dim=1, keepdim=True)
    check_product(ROUGH[name](l), X, 3, bound, precision)


def test_inputs_are_rounded_where_the_error_allows_it() -> None:
    """Low precision: a Matern kernel falls less steeply than a squared exponential, a product more than its factors."""
    X = normal(N, 16, 0)
    farthest = X.norm(dim=1).max()

    def forms(kernel: kernels.Kernel) -> list[str]:
        frame = backend.Fused(kernel, X, 10**9, "low").engine.frame
        return [leaf.form for leaf in frame.structure.leaves]

    gauss, matern = (lambda l: kernels.SquaredExponential(float(l))), (lambda l: kernels.Matern(1.5, float(l)))
    assert forms(gauss(farthest / 4.0)) == forms(matern(farthest / 12.0)) == ["coarse"]
    assert forms(gauss(farthest / 6.0)) == ["split"]
    assert forms(matern(farthest / 12.0) * matern(farthest / 4.0)) == ["split", "coarse"]
    assert forms(matern(farthest / 16.0)) == ["triple"]
