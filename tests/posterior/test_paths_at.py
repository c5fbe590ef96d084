"""Every path at its own points: equal to the diagonal of all paths, differentiable, in tiles."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import pathgp
from pathgp import kernels
from pathgp.operators import own_product
from posterior_cases import CASES, Case

S, Q = 5, 4


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def own(values: Tensor, s: int = S) -> Tensor:
    """The diagonal (s, q) of the values (s, s q) of all paths at the points of all."""
    return values.unflatten(1, (s, -1)).diagonal(dim1=0, dim2=1).T


def posterior(case: Case, standardise: bool = False, **options: object) -> tuple[pathgp.Posterior, Tensor]:
    """A posterior with S paths and Q points for each."""
    X, y, Xs = case.data(40, S * Q)
    gp = pathgp.GP(case.kernel, 0.3, standardise=standardise)
    post = gp.condition(X, y, samples=S, features=64, generator=seeded(), tol=1e-6, **options)
    return post, Xs.unflatten(0, (S, Q))


@pytest.fixture(scope="module")
def smooth() -> tuple[pathgp.Posterior, Tensor]:
    generator = seeded(1)
    X = torch.rand(30, 2, generator=generator, dtype=torch.float64)
    gp = pathgp.GP(kernels.Matern(2.5, torch.tensor([0.4, 0.9])), 0.1, mean=lambda A: A[:, 0] ** 2, standardise=True)
    post = gp.condition(X, torch.sin(5 * X[:, 0]), samples=S, features=64, generator=generator, tol=1e-8)
    return post, torch.rand(S, Q, 2, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_diagonal_of_all_paths(case: Case) -> None:
    post, Xs = posterior(case, compute=pathgp.Compute(memory=20_000))
    torch.testing.assert_close(post.paths_at(Xs), own(post.paths(Xs.flatten(0, 1))), rtol=1e-10, atol=1e-10)


def test_units_kinds_and_single_precision(smooth: tuple[pathgp.Posterior, Tensor]) -> None:
    post, Xs = smooth
    expected = own(post.paths(Xs.flatten(0, 1)))
    torch.testing.assert_close(post.paths_at(Xs), expected, rtol=1e-12, atol=1e-12)
    found = post.paths_at(Xs.numpy())
    assert isinstance(found, np.ndarray)
    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-12)
    assert post.paths_at(Xs[:, :0]).shape == (S, 0)
    X = post.X.float()
    rounded = pathgp.GP(kernels.Matern(1.5, 0.4), 0.1).condition(X, X.sum(1), samples=S, generator=seeded())
    pair = rounded.paths_at(Xs.float()), own(rounded.paths(Xs.float().flatten(0, 1)))
    assert pair[0].dtype == torch.float32
    torch.testing.assert_close(*pair, rtol=1e-4, atol=1e-4)


def test_chosen_paths(smooth: tuple[pathgp.Posterior, Tensor]) -> None:
    post, Xs = smooth
    which = [3, 0, 3]
    found = post.paths_at(Xs[:3], which)
    expected = torch.stack([post.paths(Xs[i])[j] for i, j in enumerate(which)])
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(post.paths_at(Xs[:3], torch.tensor(which)), found, rtol=0, atol=0)


@pytest.mark.parametrize(
    "kernel",
    [
        kernels.Scale(kernels.SquaredExponential(0.5), 1.3),
        kernels.Matern(2.5, torch.tensor([0.3, 0.8])),
        kernels.Periodic(0.8, 0.9) + kernels.Linear(0.7),
        kernels.Linear(0.5, active_dims=[0]) * kernels.Matern(2.5, 0.6, active_dims=[1]),
    ],
    ids=["squared exponential", "matern", "exact features", "columns"],
)
def test_gradients(kernel: kernels.Kernel) -> None:
    generator = seeded(2)
    X = torch.rand(12, 2, generator=generator, dtype=torch.float64)
    post = pathgp.GP(kernel, 0.2, standardise=True).condition(
        X, X.sum(1), samples=3, features=64, generator=generator, compute=pathgp.Compute(memory=4000)
    )
    Xs = torch.rand(3, 2, 2, generator=generator, dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(post.paths_at, (Xs,))
    assert torch.autograd.gradgradcheck(post.paths_at, (Xs,))


def test_one_pass_over_the_entries() -> None:
    """Values and gradients evaluate s q n entries of K, not s^2 q n and not once more for the gradient."""

    class Counted(kernels.Matern):
        entries = 0

        def forward(self, X: Tensor, Z: Tensor | None = None) -> Tensor:
            Counted.entries += len(X) * len(X if Z is None else Z)
            return super().forward(X, Z)

    kernel, generator = Counted(1.5, 0.4), seeded(3)
    X = torch.rand(6, 5, 2, generator=generator, dtype=torch.float64).requires_grad_()
    Z, V = (torch.rand(50, k, generator=generator, dtype=torch.float64) for k in (2, 6))
    for memory in (1000, 10**8):
        Counted.entries = 0
        own_product(kernel, X, Z, V, memory).sum().backward()
        assert Counted.entries == 6 * 5 * 50


def test_saved_and_updated(smooth: tuple[pathgp.Posterior, Tensor], tmp_path: Path) -> None:
    post, Xs = smooth
    generator = seeded(4)
    kernel = kernels.Matern(1.5, 0.4)
    X = torch.rand(25, 2, generator=generator, dtype=torch.float64)
    post = pathgp.GP(kernel, 0.1).condition(X[:20], X[:20].sum(1), samples=S, features=64, generator=generator)
    post.save(tmp_path / "post.pathgp")
    loaded = pathgp.load(tmp_path / "post.pathgp")
    torch.testing.assert_close(loaded.paths_at(Xs), post.paths_at(Xs), rtol=0, atol=0)
    grown = loaded.update(X[20:], X[20:].sum(1), generator=generator)
    torch.testing.assert_close(grown.paths_at(Xs), own(grown.paths(Xs.flatten(0, 1))), rtol=1e-11, atol=1e-11)
    assert (grown.paths_at(Xs) - post.paths_at(Xs)).abs().max() > 1e-3


def test_wrong_inputs(smooth: tuple[pathgp.Posterior, Tensor]) -> None:
    post, Xs = smooth
    with pytest.raises(ValueError, match=r"must have shape \(5, q, 2\).*got \(4, 4, 2\)"):
        post.paths_at(Xs[:4])
    with pytest.raises(ValueError, match=r"one point for every path is Xs\[:, None, :\]"):
        post.paths_at(Xs[:, 0])
    with pytest.raises(ValueError, match=r"all paths at the same points are paths\(Xs\)"):
        post.paths_at(Xs.flatten(0, 1))
    with pytest.raises(ValueError, match=r"got \(5, 4, 1\)"):
        post.paths_at(Xs[:, :, :1])
    bad = Xs.clone()
    bad[2, 1, 0] = torch.nan
    with pytest.raises(ValueError, match="nan at path 2, point 1, column 0"):
        post.paths_at(bad)
    with pytest.raises(ValueError, match="from 0 to 4, got 1 to 5"):
        post.paths_at(Xs[:2], [1, 5])
    with pytest.raises(TypeError, match="whole numbers"):
        post.paths_at(Xs[:2], [0.5, 1.0])
    without = pathgp.GP(kernels.Matern(1.5, 0.4), 0.1).condition(Xs[0], Xs[0, :, 0], samples=0)
    with pytest.raises(ValueError, match="no paths"):
        without.paths_at(Xs)


def test_grids_give_advice() -> None:
    gp = pathgp.LatentKroneckerGP([kernels.Matern(1.5), kernels.Matern(1.5)], 0.1)
    post = gp.condition([None, None], torch.rand(4, 3, generator=seeded(), dtype=torch.float64), samples=2)
    with pytest.raises(NotImplementedError, match="active_dims"):
        post.paths_at(torch.zeros(2, 1, 2))
