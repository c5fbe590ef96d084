"""A loaded posterior gives the same answers to the last bit; without its data it says what it cannot do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import pathgp
from grid_cases import Grid
from pathgp import GP, Compute, LatentKroneckerGP, means, solvers
from pathgp import kernels as K
from pathgp.kernels.parameters import Positive
from plain_fits import plain_fit
from posterior_cases import CASES, Case
from saving_cases import BUDGET, again, assert_same, assert_same_posterior, grid_posterior, seeded, small, uniform
from subprocesses import Forks


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_kernel(case: Case, dtype: torch.dtype, tmp_path: Path) -> None:
    X, y, Xs = (part.to(dtype) for part in case.data(40, 12))
    posterior = GP(case.kernel, noise=0.3).condition(X, y, samples=6, tol=1e-3, generator=seeded())
    assert_same_posterior(again(posterior, tmp_path / "post"), posterior, Xs, Xs[:, 0])


OPTIONS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "standardise": ({"standardise": True}, {}),
    "a mean": ({"mean": 0.7, "standardise": True}, {}),
    "a learned mean": ({"mean": means.Constant(0.3), "standardise": True}, {}),
    "noise per row": ({}, {"noise": np.linspace(0.1, 0.4, 40)}),
    "no samples": ({}, {"samples": 0}),
    "a used generator": ({}, {"generator": seeded(), "samples": 3}),
    "a solver": ({}, {"solver": solvers.CG(solvers.PivotedCholesky(7)), "max_epochs": 50.0}),
    "a solver with a numpy number": ({}, {"solver": solvers.AP(block_size=np.int64(11))}),
    "streamed": ({}, {"compute": Compute("streamed", memory=10_000_000)}),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_every_option(name: str, tmp_path: Path) -> None:
    of_model, of_condition = OPTIONS[name]
    X = 3.0 * uniform(40).numpy() - 1.0
    posterior = GP(K.Scale(K.Matern(2.5, 0.6), 1.4) + K.Linear(0.5, 0.3), noise=0.2, **of_model).condition(
        X, 5.0 + X.sum(1), **{**BUDGET, "generator": seeded(), **of_condition}
    )
    found = again(posterior, tmp_path / "post")
    assert_same_posterior(found, posterior, X[:7] + 0.1, X[:7, 0])
    assert isinstance(found.mean(X), np.ndarray)
    assert found.settings == posterior.settings


def test_an_updated_posterior_and_one_of_a_fit(tmp_path: Path) -> None:
    X = uniform(30)
    gp = GP(K.Scale(K.Periodic(0.9, 1.1, active_dims=[0]) * K.SquaredExponential(0.5)), noise=0.2)
    gp.constrain("period", fixed=True).constrain("signal", bounds=(0.1, 5.0))
    gp.constrain("1.lengthscale", prior=pathgp.LogNormal(0.5, 2.0))
    plain_fit(gp, X, X.sum(1).cos(), steps=4, samples=4, features=128, generator=seeded())
    found = again(gp.posterior, tmp_path / "post")
    assert_same_posterior(found, gp.posterior, uniform(8, seed=2), uniform(8)[:, 1])
    for (name, a), b in zip(found.model.named_modules(), gp.posterior.model.modules(), strict=True):
        if isinstance(a, Positive):
            assert isinstance(b, Positive), name
            assert (a.bounds, a.prior) == (b.bounds, b.prior)
            assert torch.equal(a.raw, b.raw)
    longer = gp.posterior.update(uniform(9, seed=4), uniform(9)[:, 0], generator=seeded())
    assert_same_posterior(again(longer, tmp_path / "post"), longer, uniform(8, seed=2), uniform(8)[:, 1])


def test_what_may_be_learned_is_kept(tmp_path: Path) -> None:
    posterior = small()
    posterior.model.constrain("signal", fixed=False)
    found = again(posterior, tmp_path / "post").model
    assert [name for name, p in found.named_parameters() if p.requires_grad] == ["kernel._signal.raw"]


def test_a_kernel_that_occurs_twice_stays_one(tmp_path: Path) -> None:
    k, X = K.Matern(1.5, 0.4), uniform(20)
    posterior = GP(k + k * K.Linear(0.7)).condition(X, X[:, 0], **BUDGET)
    found = again(posterior, tmp_path / "post").model
    assert list(found.hyperparameters()) == list(posterior.model.hyperparameters())
    assert found.kernel.parts[0] is found.kernel.parts[1].parts[0]


def test_components_and_gradients(tmp_path: Path) -> None:
    X = uniform(25)
    posterior = GP(K.Matern(1.5, 0.4) + K.Linear(0.7)).condition(X, X[:, 0], **BUDGET)
    found = again(posterior, tmp_path / "post")
    for name, component in posterior.components().items():
        assert_same(found.components()[name].paths(X), component.paths(X))
    gradients = []
    for post in (found, posterior):
        Xs = uniform(5, seed=3).requires_grad_()
        gradients.append(torch.autograd.grad(post.paths(Xs).sum(), Xs)[0])
    assert_same(*gradients)


GRID_OPTIONS: list[dict[str, Any]] = [
    {},
    {"standardise": True, "mean": means.Constant(0.1)},
    {"mean": 0.5, "noise": torch.tensor([0.2])},
]


@pytest.mark.parametrize("options", GRID_OPTIONS)
@pytest.mark.parametrize("k", [1, 2, 3])
def test_grids(k: int, options: dict[str, Any], tmp_path: Path) -> None:
    grid, posterior = Grid(k, 0.3), grid_posterior(k, **options)
    found = again(posterior, tmp_path / "post")
    assert repr(found) == repr(posterior)
    assert repr(found.model) == repr(posterior.model)
    for inputs in ([None] * k, grid.mixed):
        for ask in ("mean", "variance", "covariance", "paths"):
            assert_same(getattr(found, ask)(*inputs), getattr(posterior, ask)(*inputs))
        assert_same(found.sample(*inputs, generator=seeded()), posterior.sample(*inputs, generator=seeded()))
    assert found.log_marginal_likelihood() == posterior.log_marginal_likelihood()
    full = grid.Y.nan_to_num(0.3)
    noise = torch.tensor([0.2]) if "noise" in options else None
    updated, longer = (post.update(full, noise, generator=seeded(2)) for post in (found, posterior))
    assert_same(updated.variance(), longer.variance())


def test_a_fitted_grid_in_numpy_and_float32(tmp_path: Path) -> None:
    Y = uniform(8, 5).numpy().astype(np.float32)
    Y[2, 3] = Y[7, 0] = np.nan
    gp = LatentKroneckerGP([K.Scale(K.Matern(1.5, 3.0)), K.Task(5)], standardise=True)
    plain_fit(gp, [None, None], Y, steps=3, samples=4, features=64, generator=seeded())
    found = again(gp.posterior, tmp_path / "post")
    assert found.mean().dtype == np.float32
    assert_same(found.mean(), gp.posterior.mean())
    assert_same(found.variance(np.arange(9.5), None), gp.posterior.variance(np.arange(9.5), None))


def test_without_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    X, Xs = uniform(200), uniform(7, seed=5)
    posterior = GP(K.Matern(1.5, 0.4)).condition(X, X[:, 0], samples=64, features=16, generator=seeded())
    posterior.save(tmp_path / "with")
    found = again(posterior, tmp_path / "without", data=False)
    assert (tmp_path / "without").stat().st_size < 0.6 * (tmp_path / "with").stat().st_size
    for ask in ("mean", "paths", "covariance"):
        assert_same(getattr(found, ask)(Xs), getattr(posterior, ask)(Xs))
    assert_same(found.variance(Xs), posterior.variance(Xs, method="solve"))
    monkeypatch.setattr("pathgp.posterior.base.EXACT_ROWS", 100)
    assert_same(found.variance(Xs), posterior.variance(Xs, method="samples"))
    lost: list[Callable[[], Any]] = [
        lambda: found.update(Xs, Xs[:, 0]),
        found.leave_one_out,
        found.log_marginal_likelihood,
        lambda: found.variance(Xs, method="neighbours"),
    ]
    for ask_for in lost:
        with pytest.raises(ValueError, match=r"save\(data=True\)"):
            ask_for()
    assert_same(again(found, tmp_path / "once more").mean(Xs), posterior.mean(Xs))


def test_a_grid_without_data(tmp_path: Path) -> None:
    posterior = grid_posterior()
    found = again(posterior, tmp_path / "post", data=False)
    assert_same(found.mean(), posterior.mean())
    for ask in ("variance", "covariance"):
        assert_same(getattr(found, ask)(*Grid(2).new), getattr(posterior, ask)(*Grid(2).new))
    assert bool(found.data.y.isnan().all())
    for ask_for in (found.paths, found.log_marginal_likelihood, lambda: found.update(Grid(2).Y)):
        with pytest.raises(ValueError, match=r"save\(data=True\)"):
            ask_for()


PROGRAM = """
import sys, numpy as np, torch, pathgp
table, grid, inputs, out = sys.argv[1:]
X = np.load(inputs)
post = pathgp.load(table)
longer = post.update(X, X[:, 0], generator=torch.Generator().manual_seed(4))
lk = pathgp.load(grid)
np.savez(out, post.mean(X), post.variance(X), post.paths(X), post.covariance(X), longer.paths(X), lk.mean(), lk.paths())
"""


def test_a_fresh_process(forks: Forks, tmp_path: Path) -> None:
    X = uniform(300).numpy().astype(np.float32)
    gp = GP(K.Scale(K.Matern(1.5, 0.4), 1.3) + K.RationalQuadratic(0.8, 0.5), noise=0.2, standardise=True)
    posterior, lk = gp.condition(X, X.sum(1), samples=16, solver="ap"), grid_posterior()
    X = X[:40] + np.float32(0.01)
    names = [str(tmp_path / name) for name in ("table", "grid", "inputs.npy", "out.npz")]
    posterior.save(names[0])
    lk.save(names[1])
    np.save(names[2], X)
    assert forks.run(PROGRAM, names) == [0]
    longer = posterior.update(X, X[:, 0], generator=seeded(4))
    asked = [posterior.mean(X), posterior.variance(X), posterior.paths(X), posterior.covariance(X), longer.paths(X)]
    with np.load(names[3]) as found:
        for result, expected in zip(found.values(), [*asked, lk.mean().numpy(), lk.paths().numpy()], strict=True):
            assert_same(result, expected)
