"""`InducingGP` as its users meet it: verbs, units, files, pages, updates, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import pathgp
import reference
import sparse_reference
from pathgp import Checkpoint, Compute, InducingGP, means
from pathgp.kernels import Kernel, Matern, Scale, Tanimoto
from posterior_cases import CASES

NOISE = 0.2
X, Y, XS = CASES[2].data(150, 12)
DIRECT = ("sor", "dtc", "fitc", "pitc", "sgpr", "svgp")


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def kernel() -> Scale:
    return Scale(Matern(1.5, lengthscale=torch.tensor([0.3, 0.6])), 1.2)


def covariance(A: Tensor, B: Tensor) -> Tensor:
    return 1.2**2 * reference.matern(A, B, 1.5, torch.tensor([0.3, 0.6]))


class Featureless(Kernel):
    """A kernel without random features: 1 + x . z."""

    def _matrix(self, A: Tensor, B: Tensor) -> Tensor:
        return 1.0 + A @ B.T

    def _diagonal(self, A: Tensor) -> Tensor:
        return 1.0 + A.square().sum(1)


@pytest.mark.parametrize("method", DIRECT)
def test_save_and_load(method: str, tmp_path: Path) -> None:
    gp = InducingGP(kernel(), NOISE, 30, method, mean=0.5, standardise=True)
    post = gp.condition(X, Y, samples=5, features=32, generator=seeded())
    post.save(tmp_path / "post")
    found = pathgp.load(tmp_path / "post")
    assert isinstance(found, pathgp.InducingPosterior)
    for name in ("mean", "variance", "paths", "covariance"):
        assert torch.equal(getattr(found, name)(XS), getattr(post, name)(XS)), name
    assert found.log_marginal_likelihood() == post.log_marginal_likelihood()
    assert torch.equal(found.X, X)
    assert torch.equal(found.Z, post.Z)
    assert repr(found.report) == repr(post.report)
    a, b = (p.update(XS, XS[:, 0], generator=seeded()).mean(XS) for p in (post, found))
    assert torch.equal(a, b)
    post.save(tmp_path / "small", data=False)
    small = pathgp.load(tmp_path / "small")
    assert torch.equal(small.paths(XS), post.paths(XS))
    with pytest.raises(ValueError, match="not saved"):
        _ = small.X


@pytest.mark.parametrize("method", DIRECT)
def test_an_update_is_the_posterior_of_all_rows(method: str) -> None:
    """For PITC the new rows are a block of their own."""
    noise = torch.linspace(0.05, 0.3, 150, dtype=torch.float64)
    gp = InducingGP(kernel(), NOISE, X[::6], method)
    post = gp.condition(X[:100], Y[:100], noise[:100], samples=4, features=16, generator=seeded())
    grown = post.update(X[100:], Y[100:], noise[100:], generator=seeded())
    blocks = [torch.arange(100), torch.arange(100, 150)]
    total = (NOISE**2 + noise.square()).sqrt()
    mean, expected = sparse_reference.posterior(method, covariance, X[::6], X, Y, total, XS, blocks)
    assert torch.allclose(grown.mean(XS), mean, rtol=0, atol=1e-7)
    assert torch.allclose(grown.covariance(XS), expected, rtol=0, atol=1e-7)
    assert grown.report.rows == 150
    assert torch.equal(grown.X, X)
    assert grown.paths(XS).shape == (4, 12)


def test_numpy_in_numpy_out_and_float32() -> None:
    arrays = [part.numpy().astype(np.float32) for part in (X, Y, XS)]
    post = InducingGP(kernel(), NOISE, 40).condition(arrays[0], arrays[1], generator=seeded())
    reference_post = InducingGP(kernel(), NOISE, 40).condition(X, Y, generator=seeded())
    for name in ("mean", "variance", "paths"):
        values = getattr(post, name)(arrays[2])
        assert isinstance(values, np.ndarray)
        assert values.dtype == np.float32
        assert np.allclose(values, getattr(reference_post, name)(XS).numpy(), atol=1e-4)


def test_rows_from_a_file(tmp_path: Path) -> None:
    """A memmap gives the same posterior, and is not copied."""
    path = tmp_path / "X.npy"
    np.save(path, X.numpy())
    mapped = np.load(path, mmap_mode="r")
    assert isinstance(mapped, np.memmap)
    gp = InducingGP(kernel(), NOISE, 40, standardise=True)
    post = gp.condition(mapped, Y.numpy(), generator=seeded())
    expected = gp.condition(X, Y, generator=seeded())
    assert np.allclose(post.mean(XS.numpy()), expected.mean(XS).numpy(), rtol=0, atol=1e-12)
    assert post.X.data_ptr() == mapped.ctypes.data
    report = gp.fit(mapped, Y.numpy(), steps=3, samples=2, generator=seeded())
    assert len(report.history) == 3
    with pytest.raises(TypeError, match="memmap of dtype int64"):
        gp.condition(np.memmap(tmp_path / "i", np.int64, "w+", shape=(150, 2)), Y.numpy())
    bad = np.memmap(tmp_path / "bad", np.float64, "w+", shape=(150, 2))
    bad[70, 1] = np.nan
    with pytest.raises(ValueError, match="row 70, column 1"):
        gp.condition(bad, Y.numpy())


def test_the_page(tmp_path: Path) -> None:
    gp = InducingGP(kernel(), NOISE, 30, standardise=True)
    report = gp.fit(X, Y, steps=4, samples=8, generator=seeded())
    gp.posterior.to_html(tmp_path / "page.html", XS, XS[:, 0], fit=report)
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "Nyström" in page
    assert "30 points" in page
    gp.posterior.to_html(tmp_path / "page.html")
    assert "leave_one_out is not available" in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_a_fit_changes_the_model_only_at_its_end_and_keeps_learned_points() -> None:
    gp = InducingGP(kernel(), NOISE, 12, learn_inducing=True)
    before = {name: value.clone() for name, value in gp.state_dict().items()}

    fixed = InducingGP(kernel(), NOISE, 12)
    fixed.fit(X, Y, steps=2, samples=2, generator=seeded())
    assert len(fixed.posterior.Z) == 12
    assert "points" not in fixed.hyperparameters()
    assert fixed.condition(XS, XS[:, 0], samples=0, generator=seeded()).Z.shape == (12, 2)
    report = gp.fit(X, Y, steps=6, samples=2, generator=seeded())
    learned = gp.posterior.Z
    assert report.history[-1].log_likelihood > report.history[0].log_likelihood
    assert dict(report.summary_items())["log likelihood"].endswith(", by the objective of the sparse method")
    assert not (learned[:, None] == X).all(2).any()
    assert torch.equal(gp.condition(X, Y, samples=0).Z, learned)
    assert before["points"].numel() == 0


def test_the_gradient_of_learned_points_improves_the_bound() -> None:
    values = []
    for learn in (False, True):
        gp = InducingGP(kernel(), NOISE, 8, learn_inducing=learn)
        gp.fit(X, Y, steps=40, samples=1, generator=seeded())
        values.append(gp.posterior.log_marginal_likelihood().value)
    assert values[1] > values[0] + 5.0


@pytest.mark.parametrize("method", ["sgpr", "svgp"])
def test_a_fit_resumes_bit_for_bit(method: str, tmp_path: Path) -> None:
    def fresh() -> InducingGP:
        return InducingGP(kernel(), NOISE, 15, method, mean=means.Constant(0.1))

    options: dict[str, Any] = {"steps": 6, "samples": 2, "features": 16}
    whole = fresh()
    whole.fit(X, Y, generator=seeded(), **options)

    def interrupt(step: Any) -> None:
        if step.step == 2:
            raise KeyboardInterrupt

    parts, file = fresh(), Checkpoint(tmp_path / "fit", steps=1)
    with pytest.raises(KeyboardInterrupt):
        parts.fit(X, Y, generator=seeded(), callback=interrupt, checkpoint=file, **options)
    parts = fresh()
    parts.fit(X, Y, generator=seeded(), checkpoint=file, **options)
    for name, value in whole.hyperparameters().items():
        assert torch.equal(value, parts.hyperparameters()[name]), name
    assert torch.equal(whole.posterior.mean(XS), parts.posterior.mean(XS))


OTHER_POINTS: dict[str, dict[str, Any]] = {
    "points": {"inducing": X[1:9]},
    "number": {"inducing": 8},
    "learned": {"learn_inducing": True},
}


@pytest.mark.parametrize("options", OTHER_POINTS.values(), ids=OTHER_POINTS)
def test_a_checkpoint_of_other_inducing_points_is_refused(options: dict[str, Any], tmp_path: Path) -> None:
    file, settings = tmp_path / "fit", {"steps": 2, "samples": 1}
    InducingGP(kernel(), NOISE, X[:8]).fit(X, Y, checkpoint=file, **settings)
    with pytest.raises(ValueError, match="belongs to another fit"):
        InducingGP(kernel(), NOISE, **{"inducing": X[:8], **options}).fit(X, Y, checkpoint=file, **settings)
    InducingGP(kernel(), NOISE, X[:8]).fit(X, Y, checkpoint=file, **settings)


def test_a_checkpoint_of_points_chosen_by_another_rule_is_refused(tmp_path: Path) -> None:
    file, settings = tmp_path / "fit", {"steps": 2, "samples": 1}
    InducingGP(kernel(), NOISE, 8, choice="pivots").fit(X, Y, checkpoint=file, **settings)
    with pytest.raises(ValueError, match="its choice of inducing points is 8 by pivots, here it is 8 by kmeans"):
        InducingGP(kernel(), NOISE, 8, choice="kmeans").fit(X, Y, checkpoint=file, **settings)


def test_repeated_inducing_points_give_the_right_answer() -> None:
    Z = torch.cat([X[:20], X[:10], X[:10]])
    once = InducingGP(kernel(), NOISE, X[:20]).condition(X, Y, samples=0)
    often = InducingGP(kernel(), NOISE, Z).condition(X, Y, samples=0)
    assert torch.allclose(often.mean(XS), once.mean(XS), rtol=0, atol=1e-6)
    assert torch.allclose(often.covariance(XS), once.covariance(XS), rtol=0, atol=1e-6)


def test_points_far_away_leave_the_prior() -> None:
    post = InducingGP(kernel(), NOISE, X[:5] + 1e6).condition(X, Y, generator=seeded())
    assert torch.allclose(post.mean(XS), torch.zeros(12, dtype=torch.float64), atol=1e-12)
    assert torch.allclose(post.variance(XS), torch.full((12,), 1.44, dtype=torch.float64))
    low_rank = InducingGP(kernel(), NOISE, X[:5] + 1e6, "sor").condition(X, Y, generator=seeded())
    assert float(low_rank.variance(XS).max()) < 1e-12


def test_more_points_than_rows() -> None:
    exact = pathgp.GP(kernel(), NOISE).condition(X, Y, solver="cholesky", samples=0)
    post = InducingGP(kernel(), NOISE, 1000).condition(X, Y, samples=0, generator=seeded())
    assert torch.allclose(post.mean(XS), exact.mean(XS), atol=1e-6)
    assert "all 150 rows" in post.report.inducing


def test_kernels_without_features() -> None:
    post = InducingGP(Featureless(), NOISE, X[:20]).condition(X, Y, generator=seeded())
    assert not post.has_paths
    assert "no random features" in post.report.no_paths
    assert post.sample(XS, 3, seeded()).shape == (3, 12)
    with pytest.raises(NotImplementedError, match="no random features"):
        post.paths(XS)
    # The paths of SoR are sums over the inducing points, and need no features.
    assert InducingGP(Featureless(), NOISE, X[:20], "sor").condition(X, Y, samples=3).paths(XS).shape == (3, 12)


def test_counts_have_hashed_features() -> None:
    counts = torch.poisson(torch.ones(60, 6, dtype=torch.float64), generator=seeded())
    post = InducingGP(Tanimoto(), NOISE, 20).condition(counts, counts.sum(1), samples=3, generator=seeded())
    assert post.paths(counts[:5]).shape == (3, 5)


REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "zero noise": ({"noise": 0.0}, {}, "noise must be positive"),
    "no points": ({"inducing": 0}, {}, "inducing must be at least 1"),
    "no rows of points": ({"inducing": X[:0]}, {}, "inducing has no rows"),
    "points with NaN": ({"inducing": X[:3] * torch.nan}, {}, "inducing contains nan"),
    "points of another width": ({"inducing": X[:3, :1]}, {}, "inducing has 1 columns, X has 2"),
    "an unknown method": ({"method": "vfe"}, {}, "method must be one of 'sor'"),
    "an unknown choice": ({"choice": "grid"}, {}, "choice must be one of 'pivots'"),
    "float32": ({}, {"dtype": torch.float32}, "computed in float64"),
    "another solver": ({}, {"solver": "ap"}, "solved by 'cholesky', 'cg' or 'sgd'"),
    "a backend": ({}, {"compute": Compute("streamed")}, r"leave Compute\(backend=...\) out"),
    "a small budget": ({"inducing": 100}, {"solver": "cholesky", "compute": Compute(memory=300_000)}, "need"),
    "FITC by CG": ({"method": "fitc"}, {"solver": "cg"}, "fitc needs factors"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name: str) -> None:
    of_model, of_condition, message = REFUSED[name]
    with pytest.raises((ValueError, TypeError), match=message):
        InducingGP(**{"kernel": kernel(), "inducing": 20, **of_model}).condition(X, Y, **of_condition)


def test_what_a_fit_and_a_posterior_refuse() -> None:
    with pytest.raises(ValueError, match="initialise='best' is for GP"):
        InducingGP(kernel()).fit(X, Y, initialise="best")
    with pytest.raises(ValueError, match="leave estimator and stages out"):
        InducingGP(kernel()).fit(X, Y, estimator="pathwise")
    with pytest.raises(ValueError, match="lbfgs cannot use"):
        InducingGP(kernel(), method="svgp").fit(X, Y, optimiser="lbfgs")
    with pytest.raises(ValueError, match="names or counts"):
        InducingGP(Tanimoto(), inducing=5, learn_inducing=True).fit(X, Y)
    post = InducingGP(kernel(), NOISE, 20).condition(X, Y, samples=2, generator=seeded())
    with pytest.raises(ValueError, match="leave method='samples' out"):
        post.variance(XS, method="samples")
    with pytest.raises(ValueError, match="leave_one_out is not available"):
        post.leave_one_out()


def test_noise_almost_zero() -> None:
    """The data are interpolated as far as the inducing points allow; nothing overflows."""
    post = InducingGP(kernel(), 1e-6, 150).condition(X, X[:, 0], samples=2, generator=seeded())
    assert float((post.mean(X) - X[:, 0]).abs().max()) < 1e-3
    assert bool(torch.isfinite(post.paths(XS)).all())


@pytest.mark.parametrize("method", DIRECT)
def test_paths_at_their_own_points(method: str) -> None:
    post = InducingGP(kernel(), NOISE, inducing=12, method=method).condition(
        X, Y, samples=4, features=32, generator=seeded()
    )
    points = XS.view(4, 3, 2)
    expected = torch.stack([post.paths(points[j])[j] for j in range(4)])
    torch.testing.assert_close(post.paths_at(points), expected, rtol=1e-9, atol=1e-9)


def test_the_rule_of_predictions_is_refused() -> None:
    with pytest.raises(ValueError, match="until='predictions' is for GP"):
        InducingGP(kernel(), NOISE, inducing=12).condition(X, Y, until="predictions", at=XS)
