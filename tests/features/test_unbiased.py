"""E[phi(x) . phi(z)] = k(x, z) for every kernel with features, by t-tests with a false-alarm rate of 1e-6 each."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from pathgp import kernels
from pathgp.kernels import Kernel
from statistics_tools import assert_mean_and_covariance, assert_unbiased

PATHS = 500


def inputs(d: int, n: int = 6) -> Tensor:
    """Columns: d real ones, one of task numbers, four of counts (a row of zeros among them)."""
    generator = torch.Generator().manual_seed(d)
    real = torch.randn(n, d, generator=generator, dtype=torch.float64) / d**0.5
    tasks = torch.randint(0, 3, (n, 1), generator=generator)
    counts = torch.randint(0, 4, (n, 4), generator=generator)
    counts[1] = 0
    return torch.cat([real, tasks, counts], 1)


def stationary(d: int) -> dict[str, Kernel]:
    real = list(range(d))
    scales = torch.linspace(0.5, 1.5, d)
    return {
        "SE": kernels.SquaredExponential(scales, active_dims=real),
        "Matern 0.5": kernels.Matern(0.5, scales, active_dims=real),
        "Matern 1.5": kernels.Matern(1.5, 0.8, active_dims=real),
        "Matern 2.2": kernels.Matern(2.2, scales, active_dims=real),
        "RQ": kernels.RationalQuadratic(0.7, scales, active_dims=real),
    }


def composed(d: int) -> dict[str, Kernel]:
    k = stationary(d)
    tanimoto = kernels.Tanimoto(active_dims=[d + 1, d + 2, d + 3, d + 4])
    task = kernels.Task(3, 2, active_dims=[d])
    linear = kernels.Linear(0.5, bias=0.7, active_dims=range(d))
    periodic = kernels.Periodic(1.3, 0.9, active_dims=[0])
    return {
        "Tanimoto": tanimoto,
        "scale": kernels.Scale(k["SE"], 1.7),
        "sum": k["SE"] + kernels.Scale(k["Matern 0.5"], 0.5) + task,
        "product of stationary kernels": k["SE"] * k["Matern 1.5"] * k["RQ"],
        "with a finite map": k["Matern 1.5"] * task * linear,
        "with a periodic kernel": periodic * k["Matern 1.5"],
        "Tanimoto with a stationary kernel": tanimoto * k["SE"],
        "Tanimoto twice": tanimoto * kernels.Tanimoto(active_dims=[d + 1, d + 2]),
        "Tanimoto with a periodic kernel": tanimoto * kernels.Periodic(1.3, 1.5, active_dims=[0]),
        "a sum in a product": (kernels.Scale(k["RQ"], 1.5) + linear) * (tanimoto + task),
        "everything": tanimoto * kernels.Scale(task * k["SE"], 1.2) * linear * periodic,
    }


CASES = [(d, name) for d in (1, 2, 8) for name in stationary(d)]
CASES += [(2, name) for name in composed(2)]


@pytest.mark.statistical
@pytest.mark.parametrize(("d", "name"), CASES)
def test_unbiased(d: int, name: str) -> None:
    kernel = {**stationary(d), **composed(d)}[name]
    X = inputs(d)
    num = 1024 if name == "everything" else 128
    with torch.no_grad():
        phi = kernel.features(num, torch.Generator().manual_seed(1), paths=PATHS)
        features = phi(X)
        assert features.shape == (PATHS, len(X), phi.num)
        assert phi.num <= num
        assert_unbiased(features @ features.transpose(1, 2), kernel(X))


@pytest.mark.statistical
def test_one_chi_square_per_frequency_vector() -> None:
    """An independent Student-t per dimension is another kernel, and the test above sees it."""
    d, nu = 8, 1.5
    X = inputs(d)[:, :d]
    generator = torch.Generator().manual_seed(0)
    normal = torch.randn(PATHS, d, 64, generator=generator, dtype=torch.float64)
    with torch.no_grad():
        kernel = kernels.Matern(nu, 0.8)
        for shape in ((PATHS, 1, 64), (PATHS, d, 64)):
            mixing = kernel.mixing(torch.rand(shape, generator=generator, dtype=torch.float64))
            angle = X @ (normal * mixing / 0.8)
            features = torch.cat([angle.sin(), angle.cos()], 2) / 8.0
            estimates = features @ features.transpose(1, 2)
            if shape[1] == 1:
                assert_unbiased(estimates, kernel(X))
            else:
                with pytest.raises(AssertionError, match="standard errors"):
                    assert_unbiased(estimates, kernel(X))


@pytest.mark.parametrize("d", [1, 2])
@pytest.mark.parametrize("lengthscale", [0.4, 1.0, 5.0])
def test_periodic_features_are_exact(d: int, lengthscale: float) -> None:
    X = 3.0 * inputs(d)[:, :d]
    kernel = kernels.Periodic(torch.linspace(1.0, 2.0, d), lengthscale)
    phi = kernel.features(2000)
    torch.testing.assert_close(phi(X) @ phi(X).T, kernel(X), rtol=0, atol=1e-12)
    assert phi.num < 250 if d == 1 else phi.num <= 2000


def test_finite_features_are_exact() -> None:
    X = inputs(2)
    linear = kernels.Linear(torch.tensor([0.5, 2.0]), bias=0.3, active_dims=[0, 1])
    task = kernels.Task(3, 2, active_dims=[2])
    periodic = kernels.Periodic(1.5, 0.7, active_dims=[1])
    for kernel, num in ((linear, 3), (task, 3), (linear * task, 9), (kernels.Scale(linear, 2.0) + task, 6)):
        phi = kernel.features(100)
        assert phi.num == num
        torch.testing.assert_close(phi(X) @ phi(X).T, kernel(X), rtol=1e-13, atol=1e-13)
    mixed = linear * task * periodic + task
    phi = mixed.features(1000)
    torch.testing.assert_close(phi(X) @ phi(X).T, mixed(X), rtol=1e-12, atol=1e-12)


@pytest.mark.statistical
@pytest.mark.parametrize("name", ["Matern 1.5", "Tanimoto", "with a periodic kernel", "a sum in a product"])
def test_paths_have_the_covariance_of_the_prior(name: str) -> None:
    """With frequencies and weights of their own, paths have the exact mean and covariance."""
    kernel = {**stationary(2), **composed(2)}[name]
    X = inputs(2)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        phi = kernel.features(256, generator, paths=1000)
        weights = torch.randn(1000, phi.num, generator=generator, dtype=torch.float64)
        K = kernel(X)
        samples = phi.weighted(X, weights)
    assert_mean_and_covariance(samples, torch.zeros(len(X), dtype=torch.float64), K, gaussian=False, rtol=1e-4)


@pytest.mark.statistical
def test_hash_signs_are_independent() -> None:
    """Signs are balanced, and independent between features, for all rows of a set of counts together."""
    X = torch.randint(0, 3, (5, 10), generator=torch.Generator().manual_seed(0)).double()
    phi = kernels.Tanimoto().features(8, torch.Generator().manual_seed(3), paths=2000)
    signs = phi(X) * 8**0.5
    assert set(signs.unique().round().tolist()) == {-1.0, 1.0}
    assert_unbiased(signs, torch.zeros(5, 8))
    left, right = torch.triu_indices(8, 8, offset=1)
    between = signs[:, :, None, left] * signs[:, None, :, right]
    assert_unbiased(between, torch.zeros(5, 5, len(left)))


@pytest.mark.statistical
def test_hashes_of_single_entries() -> None:
    """One dimension: T(x, z) = min / max, also for values that are not counts."""
    X = torch.tensor([[0.01], [0.5], [0.9], [1.0], [37.0]], dtype=torch.float64)
    kernel = kernels.Tanimoto()
    features = kernel.features(64, torch.Generator().manual_seed(4), paths=2000)(X)
    assert_unbiased(features @ features.transpose(1, 2), kernel(X))
