"""Paths are functions; predictions can be differentiated, split, repeated, copied and stored."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

import pathgp
from pathgp.kernels import Matern
from pathgp.posterior import exact_covariance as exact_module
from pathgp.posterior import table as posterior_module
from pathgp.posterior.table import Posterior
from posterior_cases import CASES, Case

METHODS = ["mean", "paths", "variance", "covariance"]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def conditioned(case: Case, n: int = 40, samples: int = 6, **options: object) -> tuple[Posterior, Tensor]:
    X, y, Xs = case.data(n, 8)
    options = {"samples": samples, "features": 256, "generator": seeded()} | options
    return pathgp.GP(case.kernel, 0.2, mean=1.0).condition(X, y, **options), Xs


def solved(post: Posterior) -> Callable[[Tensor], Tensor]:
    return lambda Z: post.variance(Z, method="solve")


differentiable = pytest.mark.parametrize(
    "case", [c for c in CASES if c.name not in ("tanimoto", "task * matern")], ids=str
)


@differentiable
def test_gradients_against_finite_differences(case: Case) -> None:
    post, Xs = conditioned(case)
    # Away from the training inputs, where Matern-1/2 has a kink.
    Xs = Xs[-3:].clone().requires_grad_()
    for function in (post.mean, post.paths, post.variance, solved(post), post.covariance):
        # Paths of rough kernels hold frequencies of 1e5 and more: the difference must be short beside their period.
        eps, atol = (1e-9, 1e-4) if function == post.paths or function == post.variance else (1e-6, 1e-6)
        assert gradcheck(function, (Xs,), eps=eps, atol=atol)


@pytest.mark.parametrize("memory", [None, 100_000])
def test_gradients_of_exact_variances_without_a_factor(memory: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """By solves, and for covariances in parts, whose weights are constants of autograd: the gradient is still right."""
    post, Xs = conditioned(CASES[3], samples=0)
    expected = torch.autograd.functional.jacobian(post.covariance, Xs[-3:])
    monkeypatch.setattr(exact_module, "FACTOR_ROWS", 0)
    monkeypatch.setattr(exact_module, "_NUMBERS_PER_SOLVE", 8 if memory is None else 40)
    other, _ = conditioned(CASES[3], samples=0, compute=pathgp.Compute(memory=memory))
    assert other.has_factor is False
    assert (other._exact._columns_at_once < 3) is (memory is not None)
    found = torch.autograd.functional.jacobian(other.covariance, Xs[-3:])
    assert float((found - expected).abs().max()) <= 1e-5
    assert gradcheck(solved(other), (Xs[-3:].clone().requires_grad_(),), atol=1e-5)


def test_second_derivatives_of_mean_and_paths() -> None:
    post, Xs = conditioned(CASES[3])
    Xs = Xs[-2:].clone().requires_grad_()
    assert gradgradcheck(post.mean, (Xs,), atol=1e-5)
    assert gradgradcheck(post.paths, (Xs,), atol=1e-5)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_same_values_however_the_inputs_are_split(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    post, Xs = conditioned(case)
    for name in ("mean", "paths", "variance"):
        predict = getattr(post, name)
        whole = predict(Xs)
        parts = torch.cat([predict(Xs[:1]), predict(Xs[1:4]), predict(Xs[4:])], -1)
        assert float((whole - parts).abs().max()) <= 1e-12, name
        backwards = predict(Xs.flip(0)).flip(-1)
        assert float((whole - backwards).abs().max()) <= 1e-12, name
    whole = post.paths(Xs)
    monkeypatch.setattr(posterior_module, "_ROWS_AT_ONCE", 3)
    assert float((whole - post.paths(Xs)).abs().max()) <= 1e-12
    assert float((whole - post.paths(Xs.clone().requires_grad_()).detach()).abs().max()) <= 1e-12


@pytest.mark.parametrize("name", METHODS)
def test_results_come_back_in_kind(name: str) -> None:
    post, Xs = conditioned(CASES[2])
    assert isinstance(getattr(post, name)(Xs), Tensor)
    assert isinstance(getattr(post, name)(Xs.numpy()), np.ndarray)
    assert np.array_equal(getattr(post, name)(Xs.numpy().tolist()), getattr(post, name)(Xs).numpy())


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
def test_the_dtype_is_that_of_the_training_inputs(kind: torch.dtype) -> None:
    X, y, Xs = CASES[2].data(30, 5)
    post = pathgp.GP(CASES[2].kernel, 0.2).condition(X.to(kind), y, samples=3)
    for given in (Xs.float(), Xs.double()):
        for name in [*METHODS, "sample"]:
            assert getattr(post, name)(given).dtype == kind, name
        assert post.variance(given, method="solve").dtype == kind


def test_shapes_and_empty_inputs() -> None:
    post, Xs = conditioned(CASES[2], samples=5)
    for m in (0, 1, 8):
        Z = Xs[:m]
        assert post.mean(Z).shape == (m,)
        assert post.paths(Z).shape == (5, m)
        assert post.variance(Z).shape == post.variance(Z, True, "solve").shape == (m,)
        assert post.covariance(Z).shape == (m, m)
        assert post.sample(Z, 3).shape == (3, m)
    assert post.num_samples == 5


def test_the_same_seed_gives_the_same_posterior() -> None:
    for solver in ("cholesky", "cg", "ap", "sdd"):
        first, Xs = conditioned(CASES[2], solver=solver)
        again, _ = conditioned(CASES[2], solver=solver)
        for name in METHODS:
            assert torch.equal(getattr(first, name)(Xs), getattr(again, name)(Xs)), (solver, name)
    assert torch.equal(first.sample(Xs, 4, seeded(1)), first.sample(Xs, 4, seeded(1)))
    assert not torch.equal(first.sample(Xs, 4, seeded(1)), first.sample(Xs, 4, seeded(2)))
    X_new, y_new = Xs, torch.zeros(len(Xs), dtype=torch.float64)
    updates = [first.update(X_new, y_new, generator=seeded(3)).paths(Xs) for _ in range(2)]
    assert torch.equal(*updates)


def test_the_seed_in_the_report_repeats_the_run() -> None:
    X, y, Xs = CASES[2].data(40, 8)
    gp = pathgp.GP(CASES[2].kernel, 0.2)
    post = gp.condition(X, y, samples=4)
    assert post.report.seed is not None
    again = gp.condition(X, y, samples=4, generator=seeded(post.report.seed))
    assert torch.equal(post.paths(Xs), again.paths(Xs))
    grown = post.update(Xs, y[:8])
    assert grown.report.seed is not None
    assert torch.equal(grown.paths(Xs), post.update(Xs, y[:8], generator=seeded(grown.report.seed)).paths(Xs))
    # The seed of a generator that has been used before repeats nothing, and is not claimed to.
    used = seeded(1)
    torch.rand(3, generator=used)
    report = gp.condition(X, y, samples=4, generator=used).report
    assert report.seed is None
    assert "used before" in repr(report)


def test_no_global_randomness_is_used_or_changed() -> None:
    state = torch.get_rng_state()
    post, Xs = conditioned(CASES[2], solver="ap", generator=None)
    post.sample(Xs, 3)
    post.update(Xs, torch.zeros(len(Xs), dtype=torch.float64))
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda post: pickle.loads(pickle.dumps(post))])
def test_copies_and_pickles(duplicate: Callable[[Posterior], Posterior]) -> None:
    for case in CASES:
        post, Xs = conditioned(case, n=20)
        post.variance(Xs, method="solve")
        other = duplicate(post)
        for name in METHODS:
            assert torch.equal(getattr(post, name)(Xs), getattr(other, name)(Xs)), (case.name, name)
        assert repr(other) == repr(post)
        new = torch.zeros(len(Xs), dtype=torch.float64)
        updates = [p.update(Xs, new, generator=seeded(2)).paths(Xs) for p in (post, other)]
        assert float((updates[0] - updates[1]).abs().max()) <= 1e-12
    # What can be had again, such as the Cholesky factor, is not stored.
    assert "_exact" in vars(post)
    assert "_exact" not in post.__getstate__()


def test_writing_into_the_data_afterwards_changes_nothing() -> None:
    X, y, Xs = CASES[2].data(40, 8)
    gp = pathgp.GP(CASES[2].kernel, 0.2)
    post = gp.condition(X, y, samples=4)
    new_X, new_y = Xs.clone(), torch.zeros(8, dtype=torch.float64)
    grown = post.update(new_X, new_y)
    before = [post.mean(Xs), post.paths(Xs), grown.mean(Xs)]
    for array in (X, y, new_X, new_y):
        array.zero_()
    assert all(map(torch.equal, before, [post.mean(Xs), post.paths(Xs), grown.mean(Xs)]))


def test_writing_into_the_targets_of_inducing_points_changes_nothing() -> None:
    X, y, _ = CASES[2].data(40, 8)
    post = pathgp.InducingGP(CASES[2].kernel, 0.2, inducing=8).condition(X, y, samples=0)
    before = y.clone()
    y.zero_()
    assert torch.equal(post.training_targets(), before)


def test_updates() -> None:
    X, y, Xs = CASES[2].data(60, 8)
    gp = pathgp.GP(CASES[2].kernel, 0.2)
    post = gp.condition(X[:40], y[:40], samples=4, generator=seeded())
    before = post.paths(Xs)
    grown = post.update(X[40:], y[40:])
    whole = gp.condition(X, y, samples=0)
    assert float((grown.mean(Xs) - whole.mean(Xs)).abs().max()) <= 1e-8
    assert float((grown.variance(Xs, method="solve") - whole.variance(Xs)).abs().max()) <= 1e-8
    # A new object: the old one is as it was.
    assert torch.equal(post.paths(Xs), before)
    assert (post.report.rows, grown.report.rows) == (40, 60)
    assert grown.report.features == post.report.features
    # Nothing new changes nothing, and costs only a check.
    same = post.update(X[:0], y[:0])
    assert torch.equal(same.paths(Xs), before)
    assert same.report.epochs <= 1.0
    assert float((post.update(X[40:].numpy(), y[40:].numpy()).mean(Xs) - whole.mean(Xs)).abs().max()) <= 1e-8


def test_an_update_starts_from_the_old_solution() -> None:
    X, y, _ = CASES[0].data(400, 1)
    gp = pathgp.GP(Matern(1.5, 0.3), 0.1)
    options = {"solver": "cg", "tol": 1e-6, "samples": 4}
    post = gp.condition(X[:399], y[:399], generator=seeded(), **options)
    warm = post.update(X[399:], y[399:], generator=seeded())
    cold = gp.condition(X, y, generator=seeded(), **options)
    assert warm.report.epochs < cold.report.epochs


def test_without_samples_everything_but_paths_works() -> None:
    post, Xs = conditioned(CASES[2], samples=0)
    assert post.num_samples == 0
    assert torch.equal(post.variance(Xs), post.variance(Xs, method="solve"))
    assert post.sample(Xs, 3).shape == (3, 8)
    assert post.update(Xs, torch.zeros(8, dtype=torch.float64)).mean(Xs).shape == (8,)
    for ask in (lambda: post.paths(Xs), lambda: post.variance(Xs, method="samples")):
        with pytest.raises(ValueError, match=r"samples=0.*condition\(samples=64\)"):
            ask()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_gpu_gives_the_same_numbers(case: Case) -> None:
    """With the same CPU generator: the draws do not depend on the device."""
    X, y, Xs = case.data(60, 8)
    posts = [
        pathgp.GP(case.kernel, 0.2).condition(X.to(device), y.to(device), samples=4, features=256, generator=seeded())
        for device in ("cpu", "cuda")
    ]
    for name in METHODS:
        ours, theirs = getattr(posts[0], name)(Xs), getattr(posts[1], name)(Xs.cuda())
        assert theirs.device.type == "cuda"
        assert float((ours - theirs.cpu()).abs().max()) <= 1e-8, name
    grown = [post.update(Xs.numpy(), y[:8].numpy(), generator=seeded(1)).mean(Xs.numpy()) for post in posts]
    assert np.allclose(grown[0], grown[1], rtol=0, atol=1e-8)
