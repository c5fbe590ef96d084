"""Models of sparse counts: the numbers of dense inputs, and never a dense matrix of all rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import sparse

import pathgp
from pathgp import kernels
from pathgp.compute.counts import CountRows

RNG = np.random.default_rng(1)
X = RNG.poisson(0.15, (300, 40)).astype(np.float32)
X[5] = 0
y = X @ RNG.normal(size=40) + 0.1 * RNG.normal(size=300)
Xs = RNG.poisson(0.15, (70, 40)).astype(np.float32)


def model() -> pathgp.GP:
    return pathgp.GP(kernels.Scale(kernels.Tanimoto(), 2.0), 0.5, pathgp.means.Constant(), standardise=True)


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(3)


@pytest.mark.parametrize("solver", ["cg", "ap", "sdd"])
def test_numbers_of_dense_inputs(solver: str) -> None:
    options = {"solver": solver, "samples": 4, "features": 32, "compute": pathgp.Compute(backend="streamed")}
    dense = model().condition(X, y, generator=seeded(), **options)
    thin = model().condition(sparse.csr_matrix(X), y, generator=seeded(), **options)
    assert thin.report.precision == "float32"
    for other in (Xs, sparse.csr_matrix(Xs)):
        np.testing.assert_allclose(thin.mean(other), dense.mean(Xs), rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(thin.paths(other), dense.paths(Xs), rtol=1e-3, atol=1e-3)
    for method in ("solve", "neighbours", "samples"):
        found = thin.variance(sparse.csr_matrix(Xs), method=method)
        np.testing.assert_allclose(found, dense.variance(Xs, method=method), rtol=2e-3, atol=1e-3)


def test_fit_update_save(tmp_path: Path) -> None:
    thin, dense = model(), model()
    for gp, inputs in ((thin, sparse.csr_matrix(X[:250])), (dense, X[:250])):
        gp.fit(inputs, y[:250], steps=5, samples=4, features=16, generator=seeded())
    assert thin.noise.item() == pytest.approx(dense.noise.item(), rel=1e-3)
    post = thin.posterior.update(sparse.csr_matrix(X[250:]), y[250:], generator=seeded())
    expected = dense.posterior.update(X[250:], y[250:], generator=seeded())
    np.testing.assert_allclose(post.mean(Xs), expected.mean(Xs), rtol=1e-4, atol=1e-4)
    assert isinstance(post.X, CountRows)
    assert torch.equal(post.X.dense(), torch.from_numpy(X))
    post.save(tmp_path / "molecules.pathgp")
    loaded = pathgp.load(tmp_path / "molecules.pathgp")
    np.testing.assert_array_equal(loaded.mean(sparse.csr_matrix(Xs)), post.mean(sparse.csr_matrix(Xs)))
    np.testing.assert_array_equal(loaded.paths(Xs), post.paths(Xs))


def test_nothing_becomes_dense(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Fit, prediction, paths and files of 1,500 rows: no dense block of more than 40 of them."""
    rows = RNG.poisson(0.1, (1500, 64))
    values = rows @ RNG.normal(size=64)
    seen = []

    def dense(self: CountRows) -> torch.Tensor:
        seen.append(len(self))
        return original(self)

    original = CountRows.dense
    monkeypatch.setattr(CountRows, "dense", dense)
    gp, thin = model(), sparse.csr_matrix(rows)
    gp.fit(thin, values, steps=4, samples=4, features=16, generator=seeded(), dtype="auto")
    for solver in ("ap", "cg"):
        gp.condition(thin, values, solver=solver, samples=4, features=16, dtype=torch.float32, generator=seeded())
    gp.posterior.mean(thin)
    gp.posterior.variance(thin)
    gp.posterior.paths(thin)
    gp.posterior.save(tmp_path / "file")
    assert max(seen, default=0) <= 40


def test_other_kernels_take_sparse_counts() -> None:
    """A kernel that needs dense rows gets them, tile by tile."""
    gp = pathgp.GP(kernels.Matern(1.5, 2.0), 0.5)
    thin, dense = (gp.condition(inputs, y, samples=0) for inputs in (sparse.csr_matrix(X), X))
    np.testing.assert_allclose(thin.mean(Xs), dense.mean(Xs), rtol=1e-4, atol=1e-4)
