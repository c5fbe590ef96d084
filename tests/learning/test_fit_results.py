"""The posterior and the report that GP.fit leaves."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import pathgp
import reference
from fit_cases import XS, X, Y, gp_noise, likelihood, model, optimum, seeded
from learning_cases import SCALED_MATERN
from pathgp import kernels
from pathgp.kernels import Kernel
from pathgp.kernels.parameters import Positive
from pathgp.operators import KernelOperator
from plain_fits import plain_fit

# The posterior it leaves


def test_prediction_after_a_fit_needs_no_product(monkeypatch: pytest.MonkeyPatch) -> None:
    gp = model()
    plain_fit(gp, X, Y, steps=10, samples=64, generator=seeded(13))

    def forbidden(*args: object) -> None:
        raise AssertionError("a product with H")

    for name in ("__init__", "__matmul__", "rows", "columns", "block", "bilinear"):
        monkeypatch.setattr(KernelOperator, name, forbidden)
    assert gp.posterior.mean(XS).shape == (12,)
    assert gp.posterior.paths(XS).shape == (64, 12)


def test_the_report_has_the_log_likelihood_of_the_step_that_was_kept() -> None:
    """With long steps the last one is not the best one."""
    gp = model()
    report = plain_fit(gp, X, Y, steps=6, estimator="exact", optimiser="adam", learning_rate=1.0, min_gain=0.0)
    known = [step.log_likelihood for step in report.history]
    assert known[-1] < max(known) - 1.0
    assert report.kept is not None
    assert report.kept.log_likelihood == max(known) == pytest.approx(gp.posterior.log_marginal_likelihood().value)
    assert dict(report.summary_items())["log likelihood"] == f"{known[0]:.1f} to {max(known):.1f}"


@pytest.mark.parametrize("estimator", ["pathwise", "standard", "exact"])
@pytest.mark.parametrize("solver", ["ap", "cg", "cholesky"])
def test_the_posterior_is_that_of_the_final_hyperparameters(estimator: str, solver: str) -> None:
    gp = model()
    report = plain_fit(
        gp, X, Y, steps=12, estimator=estimator, solver=solver, samples=8, tol=1e-3, generator=seeded(14)
    )
    post, exact = gp.posterior, gp.condition(X, Y, solver="cholesky", samples=0)
    assert torch.equal(post.model.noise, gp.noise)
    assert report.condition is post.report
    assert post.report.worst_residual <= 1e-3
    assert float((post.mean(XS) - exact.mean(XS)).abs().max()) <= post.report.error_bound + 1e-12
    # The samples: H alpha = f(X) + eps for the prior draws at the final hyperparameters.
    H = reference.system(SCALED_MATERN.covariance(gp.hyperparameters()), X, gp.noise.detach())
    targets = post.prior(X).T + gp.noise.detach() * post.system.noise_draws
    alpha = post.weights[:, 1:]
    error = torch.linalg.vector_norm(H @ alpha - targets, dim=0) / torch.linalg.vector_norm(targets, dim=0)
    assert post.num_samples == 8
    assert float(error.max()) <= 1.01e-3


def test_cold_starts_leave_a_posterior_too() -> None:
    gp = model()
    plain_fit(gp, X, Y, steps=6, warm_start=False, samples=8, tol=1e-4, generator=seeded(15))
    exact = gp.condition(X, Y, solver="cholesky", samples=0)
    assert float((gp.posterior.mean(XS) - exact.mean(XS)).abs().max()) <= gp.posterior.report.error_bound
    assert gp.posterior.num_samples == 8


class Brownian(Kernel):
    """scale^2 min(x, z): a kernel of a user, who knows no features of it."""

    def __init__(self) -> None:
        super().__init__()
        self._scale = Positive(1.0, "scale")

    def features(self, *args: object, **options: object) -> Any:
        raise NotImplementedError("Brownian motion has no features here")

    def _matrix(self, A: Tensor, B: Tensor) -> Tensor:
        return self._scale.value.square() * torch.minimum(A, B.T)

    def _diagonal(self, A: Tensor) -> Tensor:
        return self._scale.value.square() * A[:, 0]


@pytest.mark.parametrize("optimiser", ["adam", "lbfgs"])
def test_a_kernel_without_features_learns_by_the_standard_estimator(optimiser: str) -> None:
    A = torch.linspace(0.05, 2.0, 60, dtype=torch.float64).unsqueeze(1)
    y = 3.0 * torch.randn(60, generator=seeded(16), dtype=torch.float64).cumsum(0) * 0.05**0.5
    gp = pathgp.GP(Brownian(), 0.3)
    expected = optimum(
        lambda t: reference.log_marginal_likelihood(
            lambda P, Q: t["scale"].square() * torch.minimum(P, Q.T), A, y, t["noise"]
        ),
        gp.hyperparameters(),
    )
    report = plain_fit(gp, A, y, optimiser=optimiser, samples=64, generator=seeded(17), solver="cholesky")
    assert report.note == "standard estimator, without paths: Brownian motion has no features here"
    assert report.estimator == "standard, 64 probes, warm starts"
    assert report.note in repr(report)
    assert gp.hyperparameters()["scale"].item() == pytest.approx(expected["scale"].item(), rel=0.2)
    assert gp.posterior.num_samples == 0
    exact = gp.condition(A, y, solver="cholesky")
    assert torch.allclose(gp.posterior.mean(A), exact.mean(A), atol=1e-2)
    with pytest.raises(NotImplementedError, match="Brownian motion has no features here"):
        gp.posterior.paths(A)


def test_copies_of_a_fitted_model() -> None:
    gp = model(mean=pathgp.means.Constant())
    plain_fit(gp, X, Y, steps=5, samples=4, features=16, generator=seeded(18))
    for duplicate in (copy.deepcopy(gp), pickle.loads(pickle.dumps(gp))):
        assert torch.equal(duplicate.posterior.mean(XS), gp.posterior.mean(XS))
        assert torch.equal(duplicate.posterior.paths(XS), gp.posterior.paths(XS))
        plain_fit(duplicate, X, Y, steps=2, samples=4, features=16, generator=seeded(19))
        assert not torch.equal(duplicate.noise, gp.noise)


def test_nothing_drags_an_old_posterior_along() -> None:
    gp = model()
    plain_fit(gp, X, Y, steps=3, samples=4, features=16)
    assert gp.posterior.model._posterior is None
    assert gp.condition(X, Y, samples=0).model._posterior is None
    assert gp.working_copy(torch.device("cpu"))._posterior is None
    first = gp.posterior
    plain_fit(gp, X, Y, steps=3, samples=4, features=16)
    assert gp.posterior is not first
    assert gp.posterior.model._posterior is None
    assert all(p.requires_grad for p in gp.parameters())
    assert not any(p.requires_grad for p in gp.posterior.model.parameters())


def test_there_is_no_posterior_before_a_fit() -> None:
    with pytest.raises(RuntimeError, match=r"there is no posterior yet: call fit"):
        _ = model().posterior


def test_a_fit_of_no_steps_conditions() -> None:
    gp = model()
    report = plain_fit(gp, X, Y, steps=0, samples=4, features=16)
    assert report.history == []
    assert gp.posterior.num_samples == 4
    assert gp.noise.item() == gp_noise(0.5)
    assert "0 steps: hyperparameters as given" in repr(report)
    report = plain_fit(gp, X, Y, steps=0, samples=4, features=16, initialise="data")
    assert gp.noise.item() != gp_noise(0.5)
    assert "0 steps: hyperparameters by initialise='data'" in repr(report)


# The report


def test_report() -> None:
    gp, seen = model(), []
    generator = seeded(20)
    report = plain_fit(
        gp, X, Y, steps=7, samples=4, features=16, solver="cg", generator=generator, callback=seen.append
    )
    assert seen == report.history
    assert [step.step for step in seen] == list(range(7))
    assert report.seed == 20
    assert report.stopped == "all steps done"
    assert all(step.status == "CONVERGED" and step.probe_residual <= 1e-2 and step.epochs > 0 for step in seen)
    assert report.epochs == pytest.approx(sum(step.epochs for step in seen) + report.condition.epochs)
    assert 0.0 < report.solver_seconds <= report.seconds
    text = repr(report)
    for words in ("80 rows, 2 columns", "pathwise, 4 probes, warm starts", "adam at rate 0.1, 7 steps", "lengthscale"):
        assert words in text
    assert "since the first step, estimated" in text
    repeated = plain_fit(model(), X, Y, steps=7, samples=4, features=16, solver="cg", generator=seeded(20))
    assert [step.values for step in repeated.history] == [step.values for step in seen]


def test_report_of_an_exact_fit() -> None:
    gp = model()
    report = plain_fit(gp, X, Y, steps=6, estimator="exact", samples=1)
    for step in report.history:
        theta = {name: torch.tensor(numbers, dtype=torch.float64) for name, numbers in step.values.items()}
        assert step.log_likelihood == pytest.approx(float(likelihood(theta)), abs=1e-8)
        assert step.gain == pytest.approx(step.log_likelihood - report.history[0].log_likelihood, abs=1e-8)
    assert report.epochs == report.condition.epochs
    assert f"{report.history[0].log_likelihood:.1f} to {report.history[-1].log_likelihood:.1f}" in repr(report)


def test_report_of_an_exact_fit_in_stages(tmp_path: Path) -> None:
    """The first steps use 1,000 of 1,200 rows: the log likelihood of all rows is known at the last steps only."""
    inputs = torch.rand(1200, 20, generator=seeded(1), dtype=torch.float64)
    gp = pathgp.GP(kernels.Scale(kernels.Matern(2.5, lengthscale=[1.0] * 20)), noise=1.0)
    report = gp.fit(inputs, inputs[:, 0], steps=6, samples=4, features=16, generator=seeded(2))
    known = [step.log_likelihood for step in report.history]
    assert [value is None for value in known] == [True, True, True, False, False, False]
    assert not report.gain_is_exact
    words = f"{known[3]:.1f} to {known[5]:.1f} in 3 of 6 steps, those on all rows"
    assert words in repr(report)
    assert f"{known[3]:.1f} in 1 of 4 steps, those on all rows" in repr(replace(report, history=report.history[:4]))
    gp.posterior.to_html(tmp_path / "page.html", fit=report)
    page = (tmp_path / "page.html").read_text()
    assert words in page
    assert "estimated where steps use a subset of the rows" in page


def test_report_as_a_frame() -> None:
    pytest.importorskip("pandas")
    report = plain_fit(model(), X, Y, steps=4, estimator="exact", samples=1)
    frame = report.to_frame()
    assert frame.shape[0] == 4
    assert frame.index.name == "step"
    assert {"noise", "signal", "lengthscale[0]", "lengthscale[1]", "gain", "epochs", "seconds"} <= set(frame.columns)
    assert frame["noise"].tolist() == [step.values["noise"][0] for step in report.history]


def test_the_gain_is_close_to_the_change_of_the_likelihood() -> None:
    report = plain_fit(model(), X, Y, steps=60, samples=256, features=128, tol=1e-6, min_gain=0.0, generator=seeded(21))
    values = []
    for step in (report.history[0], report.history[-1]):
        theta = {name: torch.tensor(numbers, dtype=torch.float64) for name, numbers in step.values.items()}
        values.append(float(likelihood(theta)))
    change = values[1] - values[0]
    assert change > 10.0
    assert report.history[-1].gain == pytest.approx(change, rel=0.05)


def test_progress(capsys: pytest.CaptureFixture[str]) -> None:
    gp = model()
    plain_fit(gp, X, Y, steps=3, samples=2, features=16, progress=True)
    shown = capsys.readouterr().err
    assert "80 rows: up to 3 steps on 80 rows, last solve on all rows: about 1 s" in shown
    assert "about 1 s left, step 3 on 80 rows, residual" in shown
    assert "fit 100%" in shown
    plain_fit(gp, X, Y, steps=3, samples=2, features=16)
    assert capsys.readouterr().err == ""
