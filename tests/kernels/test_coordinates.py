"""Coordinates of inputs: where they are equal, the kernel does not tell inputs apart; where near, it hardly does."""

from __future__ import annotations

import pytest
import torch

from pathgp import kernels

KERNELS = {
    "length scales": kernels.Matern(1.5, torch.tensor([0.1, 10.0])),
    "a column": kernels.SquaredExponential(0.5, active_dims=[1]),
    "scaled": kernels.Scale(kernels.Matern(0.5, 2.0), 3.0, active_dims=[0]),
    "periodic": kernels.Periodic(0.25, 1.0),
    "linear": kernels.Linear(torch.tensor([2.0, 0.5])),
    "sum": kernels.SquaredExponential(0.2, active_dims=[0]) + kernels.Periodic(1.0, 0.5, active_dims=[1]),
    "product": kernels.Matern(2.5, 0.7, active_dims=[1]) * kernels.Linear(1.0, active_dims=[0]),
    "counts": kernels.Tanimoto(),
}


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_one_row_each_in_the_dtype_of_the_inputs(name: str, dtype: torch.dtype) -> None:
    X = torch.rand(20, 2, generator=torch.Generator().manual_seed(0)).to(dtype)
    found = KERNELS[name].coordinates(X)
    assert found.ndim == 2
    assert len(found) == 20
    assert found.dtype == dtype
    assert not found.requires_grad


@pytest.mark.parametrize("name", [name for name in KERNELS if name != "counts"])
def test_the_nearest_has_the_most_like_covariances(name: str) -> None:
    """The row of K at the nearest other input, in coordinates, is closer to a point's own than that at a random one."""
    X = torch.rand(300, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    Z = KERNELS[name].coordinates(X)
    K = KERNELS[name](X).detach()
    nearest = torch.cdist(Z, Z).fill_diagonal_(torch.inf).argmin(1)
    assert float((K - K[nearest]).norm()) < 0.5 * float((K - K.roll(1, 0)).norm())


def test_period_and_length_scale_are_what_counts() -> None:
    X = torch.tensor([[0.0], [1.0], [0.5]], dtype=torch.float64)
    same, other = (kernels.Periodic(1.0, 1.0).coordinates(X)[i] for i in (1, 2))
    torch.testing.assert_close(same, kernels.Periodic(1.0, 1.0).coordinates(X)[0])
    assert float((other - same).norm()) == pytest.approx(2.0)
    assert float(kernels.Matern(1.5, 0.1).coordinates(X)[1]) == pytest.approx(10.0)
