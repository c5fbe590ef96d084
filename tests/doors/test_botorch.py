"""Posteriors as BoTorch models."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Size, Tensor

import pathgp
from pathgp import kernels, solvers

pytest.importorskip("botorch", reason="the door to BoTorch needs BoTorch")

from botorch.acquisition import LogExpectedImprovement
from botorch.acquisition.knowledge_gradient import qKnowledgeGradient
from botorch.acquisition.logei import qLogExpectedImprovement
from botorch.acquisition.monte_carlo import qExpectedImprovement, qUpperConfidenceBound
from botorch.acquisition.objective import ScalarizedPosteriorTransform
from botorch.acquisition.thompson_sampling import PathwiseThompsonSampling
from botorch.generation.sampling import MaxPosteriorSampling
from botorch.models import SingleTaskGP
from botorch.optim import optimize_acqf
from botorch.sampling.get_sampler import get_sampler
from botorch.sampling.normal import SobolQMCNormalSampler
from botorch.sampling.pathwise import draw_matheron_paths

from pathgp.botorch import PathPosterior, PathwiseModel, iterative_update

pytestmark = pytest.mark.filterwarnings("ignore")
BOUNDS = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)


def peak(X: Tensor) -> Tensor:
    """Largest, one, at (0.6, 0.3)."""
    return (-8 * (X - torch.tensor([0.6, 0.3], dtype=X.dtype)).square().sum(-1)).exp()


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture(scope="module")
def posterior() -> pathgp.Posterior:
    X = torch.rand(25, 2, generator=seeded(), dtype=torch.float64)
    gp = pathgp.GP(kernels.Scale(kernels.Matern(2.5, 0.4), 0.7), noise=0.01, mean=0.2)
    return gp.condition(X, peak(X), samples=64, tol=1e-6, generator=seeded())


@pytest.mark.parametrize("batch", [(), (3,), (2, 3)])
def test_the_posterior_is_its_paths(posterior: pathgp.Posterior, batch: tuple[int, ...]) -> None:
    model = PathwiseModel(posterior)
    X = torch.rand(*batch, 4, 2, generator=seeded(1), dtype=torch.float64).requires_grad_()
    found = model.posterior(X)
    assert (model.num_outputs, model.batch_shape) == (1, Size())
    rows = X.detach().reshape(-1, 2)
    expected = posterior.paths(rows).view(64, *batch, 4)
    torch.testing.assert_close(found.values[..., 0].movedim(-2, 0), expected)
    torch.testing.assert_close(found.mean[..., 0], posterior.mean(rows).view(*batch, 4))
    torch.testing.assert_close(found.variance[..., 0], posterior.variance(rows).view(*batch, 4))
    assert found.rsample(Size([5])).shape == (5, *batch, 4, 1)
    samples = get_sampler(found, Size([512]))(found)
    torch.testing.assert_close(samples[..., 0], expected)
    assert get_sampler(found, Size([16]))(found).shape == (16, *batch, 4, 1)
    (gradient,) = torch.autograd.grad(samples.sum(), X)
    assert gradient.abs().sum() > 0
    # One function everywhere: a path drawn at random is a row of the paths, at all inputs the same one.
    drawn = found.rsample(Size([1]))[0, ..., 0].detach().reshape(-1)
    assert (expected.reshape(64, -1) - drawn).abs().sum(1).min() < 1e-10


def test_noise_transforms_and_outputs(posterior: pathgp.Posterior) -> None:
    X = torch.rand(200, 2, generator=seeded(2), dtype=torch.float64)
    one, both = PathwiseModel(posterior), PathwiseModel([posterior, posterior])
    noisy = one.posterior(X, observation_noise=True).values - one.posterior(X).values
    assert float(noisy.std()) == pytest.approx(0.01, rel=0.05)
    assert both.posterior(X).values.shape == (64, 200, 2)
    assert both.posterior(X, output_indices=[1]).values.shape == (64, 200, 1)
    with pytest.raises(ValueError, match="output_indices is empty"):
        both.posterior(X, output_indices=[])
    second = PathwiseModel([both.posteriors[0], posterior.update(X[:1], X[:1, 0])]).subset_output([1])
    assert second.num_outputs == 1
    assert second.posteriors[0].report.rows == 26
    transform = ScalarizedPosteriorTransform(torch.tensor([1.0, -2.0], dtype=torch.float64), 3.0)
    changed = both.posterior(X, posterior_transform=transform)
    assert isinstance(changed, PathPosterior)
    torch.testing.assert_close(changed.values, 3.0 - one.posterior(X).values)
    torch.testing.assert_close(changed.mean, changed.values.mean(-3))


@pytest.mark.parametrize("noise", [False, True])
def test_a_scalarised_output_has_the_moments_of_the_posterior(posterior: pathgp.Posterior, noise: bool) -> None:
    X = torch.rand(3, 4, 2, generator=seeded(2), dtype=torch.float64)
    transform = ScalarizedPosteriorTransform(torch.tensor([-2.0], dtype=torch.float64), 3.0)
    model = PathwiseModel(posterior)
    plain = model.posterior(X, observation_noise=noise)
    changed = model.posterior(X, observation_noise=noise, posterior_transform=transform)
    torch.testing.assert_close(changed.mean, 3.0 - 2.0 * plain.mean)
    torch.testing.assert_close(changed.variance, 4.0 * plain.variance)


def acquisitions(model: PathwiseModel) -> list[Any]:
    return [
        qExpectedImprovement(model, 0.5),
        qLogExpectedImprovement(model, 0.5),
        qUpperConfidenceBound(model, 0.1),
        PathwiseThompsonSampling(model),
    ]


@pytest.mark.parametrize("which", range(4))
def test_acquisition_functions_are_optimised(posterior: pathgp.Posterior, which: int) -> None:
    torch.manual_seed(0)
    function = acquisitions(PathwiseModel(posterior))[which]
    candidates, value = optimize_acqf(function, BOUNDS, q=2, num_restarts=4, raw_samples=32)
    assert candidates.shape == (2, 2)
    assert (candidates - torch.tensor([0.6, 0.3])).norm(dim=1).min() < 0.2
    torch.testing.assert_close(function(candidates)[0], value)
    torch.testing.assert_close(function(candidates), function(candidates), rtol=0, atol=0)


def test_analytic_acquisition(posterior: pathgp.Posterior) -> None:
    """From the best of a grid: corners far from the data are local maxima."""
    function = LogExpectedImprovement(PathwiseModel(posterior), 0.5)
    grid = torch.cartesian_prod(*2 * [torch.linspace(0.0, 1.0, 8, dtype=torch.float64)])
    values = function(grid.unsqueeze(1))
    start = grid[values.argmax()].view(1, 1, 2)
    candidate, value = optimize_acqf(function, BOUNDS, q=1, num_restarts=1, batch_initial_conditions=start)
    assert value > values.max() + 1e-3
    assert (candidate - torch.tensor([0.6, 0.3])).norm() < 0.05


def test_thompson_sampling_over_candidates(posterior: pathgp.Posterior) -> None:
    torch.manual_seed(0)
    X = torch.rand(500, 2, dtype=torch.float64)
    chosen = MaxPosteriorSampling(PathwiseModel(posterior), replacement=True)(X, num_samples=8)
    assert chosen.shape == (8, 2)
    assert (chosen - torch.tensor([0.6, 0.3])).norm(dim=1).median() < 0.2


def test_matheron_paths_are_paths_of_the_posterior(posterior: pathgp.Posterior) -> None:
    torch.manual_seed(0)
    paths = draw_matheron_paths(PathwiseModel(posterior), sample_shape=Size([3]))
    X = torch.rand(5, 2, generator=seeded(3), dtype=torch.float64)
    everywhere = paths(X)
    assert everywhere.shape == (3, 5)
    expected = posterior.paths(X)
    assert all((expected - row).abs().sum(1).min() < 1e-10 for row in everywhere)
    # Thompson sampling gives each path inputs of its own.
    own = torch.rand(7, 3, 2, 2, generator=seeded(4), dtype=torch.float64)
    values = paths(own)
    assert values.shape == (7, 3, 2)
    for i in range(3):
        torch.testing.assert_close(values[:, i], paths(own[:, i].reshape(-1, 2))[i].view(7, 2))
    with pytest.raises(ValueError, match="65 paths asked for, the posterior has 64"):
        draw_matheron_paths(PathwiseModel(posterior), sample_shape=Size([65]))


def test_new_observations(posterior: pathgp.Posterior) -> None:
    X = torch.rand(6, 2, generator=seeded(5), dtype=torch.float64)
    model = PathwiseModel(posterior).condition_on_observations(X, peak(X).unsqueeze(1))
    assert isinstance(model, PathwiseModel)
    assert float((model.posterior(X).mean[:, 0] - peak(X)).abs().max()) < 0.05
    with pytest.raises(ValueError, match="without batches"):
        model.condition_on_observations(X.unsqueeze(0), peak(X).view(1, 6, 1))


def test_new_observations_with_known_noise(posterior: pathgp.Posterior) -> None:
    X = torch.rand(6, 2, generator=seeded(5), dtype=torch.float64)
    Y, variances = peak(X).unsqueeze(1), torch.linspace(0.01, 0.2, 6, dtype=torch.float64).unsqueeze(1)
    model = PathwiseModel(posterior).condition_on_observations(X, Y, noise=variances)
    expected = posterior.update(X, Y[:, 0], noise=variances[:, 0].sqrt())
    torch.testing.assert_close(model.posteriors[0].mean(X), expected.mean(X), rtol=0, atol=1e-5)
    torch.testing.assert_close(model.posteriors[0].variance(X), expected.variance(X), rtol=0, atol=1e-5)
    with pytest.raises(ValueError, match=r"noise holds variances of the shape of Y, \(6, 1\), got \(6,\)"):
        model.condition_on_observations(X, Y, noise=variances[:, 0])


def test_what_paths_cannot_do_is_said(posterior: pathgp.Posterior) -> None:
    model = PathwiseModel(posterior)
    with pytest.raises(NotImplementedError, match=r"has no fantasies.*: use qLogExpectedImprovement"):
        qKnowledgeGradient(model, num_fantasies=2)(torch.rand(1, 3, 2, dtype=torch.float64))
    function = qLogExpectedImprovement(model, 0.5, sampler=SobolQMCNormalSampler(Size([16])))
    with pytest.raises(NotImplementedError, match=r"leave out sampler=, or use pathgp\.botorch\.PathSampler"):
        function(torch.rand(1, 2, 2, dtype=torch.float64))


def test_what_is_no_model_is_refused(posterior: pathgp.Posterior) -> None:
    X = torch.rand(5, 2, generator=seeded(), dtype=torch.float64)
    gp = pathgp.GP(kernels.Matern(1.5), noise=0.1)
    with pytest.raises(ValueError, match="has no paths"):
        PathwiseModel(gp.condition(X, X[:, 0], samples=0))
    with pytest.raises(ValueError, match=r"\[3, 64\] paths"):
        PathwiseModel([posterior, gp.condition(X, X[:, 0], samples=3)])
    for wrong, kind in ((gp, "GP"), ([gp], "GP"), ([], "an empty list")):
        with pytest.raises(TypeError, match=f"takes a Posterior, such as gp.posterior after gp.fit.* got {kind}"):
            PathwiseModel(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("solver", ["cg", solvers.AP(block_size=10)])
def test_their_paths_with_our_solver(solver: Any) -> None:
    """The paths of BoTorch's model have its posterior mean, and pass near the data."""
    X = torch.rand(40, 2, generator=seeded(6), dtype=torch.float64)
    model = SingleTaskGP(X, peak(X).unsqueeze(1) + 3.0)
    model.likelihood.noise = 1e-3
    model.eval()
    torch.manual_seed(0)
    update = iterative_update(solver, tol=1e-6, generator=seeded())
    paths = draw_matheron_paths(model, sample_shape=Size([256]), update_strategy=update)
    Xs = torch.rand(10, 2, generator=seeded(7), dtype=torch.float64)
    values, expected = paths(Xs), model.posterior(Xs)
    error = (values.mean(0) - expected.mean[:, 0]).abs() / (expected.variance[:, 0] / 256).sqrt()
    # Six standard errors of ten means.
    assert float(error.detach().max()) < 6
    ratio = values.var(0) / expected.variance[:, 0]
    assert 0.5 < float(ratio.detach().median()) < 2
