"""The gradients of the objectives, and natural gradient steps, against dense formulas and autograd."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import reference
import sparse_reference
from pathgp import Compute, InducingGP, means
from pathgp.kernels import Kernel, Matern, Scale
from pathgp.sparse.family import whiten_rows
from pathgp.sparse.objective import evaluate
from pathgp.sparse.problem import Problem
from pathgp.sparse.statistics import accumulate
from pathgp.sparse.variational import Variational, step_on_batch
from posterior_cases import CASES
from sparse_reference import METHODS


def kernel() -> Kernel:
    return Scale(Matern(1.5, lengthscale=torch.tensor([0.3, 0.6])), 1.2)


def problem_of(method: str, n: int = 300, memory: int | None = None, **options: object) -> tuple[InducingGP, Problem]:
    """A model with learned inducing points, and its problem."""
    X, y, _ = CASES[2].data(n, 4)
    gp = InducingGP(kernel(), 0.3, X[::10] + 0.01, method, learn_inducing=True, **options)
    rows = gp.prepare_data(X, y)
    gp._choose_points(rows, gp.kernel, torch.Generator(), Compute())
    return gp, gp.problem(rows, Compute(memory=memory))


@pytest.mark.parametrize("method", ["dtc", "fitc", "pitc", "sgpr"])
def test_the_gradient_is_that_of_the_dense_formula(method: str) -> None:
    gp, problem = problem_of(method, memory=400_000, mean=means.Constant(0.4))
    assert problem.block_rows < 300
    parameters = [p for p in gp.parameters() if p.requires_grad]
    found = evaluate(problem, parameters)

    def dense(X: Tensor, Z: Tensor) -> Tensor:
        return gp.kernel.signal**2 * reference.matern(X, Z, 1.5, gp.kernel.kernel.lengthscale)

    parts = problem.blocks()
    blocks = [part for part in parts if isinstance(part, Tensor)]
    X, r, _ = problem.rows(slice(None))
    value = sparse_reference.objective(method, dense, gp.points, X, r, gp.noise, blocks)
    expected = torch.autograd.grad(value, parameters)
    assert found.value == pytest.approx(float(value.detach()), abs=1e-5)
    assert {tuple(g.shape) for g in expected} == {(30, 2), (2,), ()}
    for gradient, truth in zip(found.gradients, expected, strict=True):
        assert torch.allclose(gradient, truth, rtol=1e-5, atol=1e-5)


def test_a_full_natural_step_is_the_optimum_of_sgpr() -> None:
    _, problem = problem_of("svgp")
    root, _ = problem.root()
    B, sums = accumulate(problem, root)
    with torch.no_grad():
        X, r, noise = problem.rows(slice(None))
        V = torch.linalg.solve_triangular(root, problem.kernel(problem.Z, X), upper=False)
        white = whiten_rows(problem.method, problem.kernel, X, V, r, noise)
        q = Variational.prior(len(root), root).natural_step(white.V, white.r, 1.0, 1.0)
        assert torch.allclose(q.precision.tril(), B.tril(), rtol=1e-10)
        assert torch.allclose(q.theta, sums.c, rtol=1e-10)
        # One pass over disjoint batches, with steps of the share of the rows seen so far that a batch has.
        q, seen = Variational.prior(len(root), root), 0
        for rows in (slice(0, 100), slice(100, 170), slice(170, 300)):
            count = rows.stop - rows.start
            seen += count
            q = q.natural_step(white.V[:, rows], white.r[rows], count / 300, count / seen)
        assert torch.allclose(q.precision.tril(), B.tril(), rtol=1e-10)
        assert torch.allclose(q.theta, sums.c, rtol=1e-10)


def test_the_bound_of_a_full_batch_is_that_of_sgpr() -> None:
    """Value and gradient agree at the optimum of q(u), where the gradient in q(u) vanishes."""
    gp, problem = problem_of("svgp")
    parameters = [p for p in gp.parameters() if p.requires_grad]
    expected = evaluate(problem, parameters)
    found = step_on_batch(problem, Variational.prior(30, gp.points.detach()), slice(None), 1.0, parameters)
    assert found.value == pytest.approx(expected.value, abs=1e-6)
    for gradient, truth in zip(found.gradients, expected.gradients, strict=True):
        assert torch.allclose(gradient, truth, rtol=1e-6, atol=1e-6)
    away = step_on_batch(problem, Variational.prior(30, gp.points.detach()), slice(None), 0.5, parameters)
    assert away.value < expected.value - 0.1


def test_batches_estimate_the_gradient_without_bias() -> None:
    """At fixed q(u) the average over disjoint batches of equal size is the gradient of all rows."""
    gp, problem = problem_of("svgp")
    parameters = [p for p in gp.parameters() if p.requires_grad]
    q = step_on_batch(problem, Variational.prior(30, gp.points.detach()), slice(None), 1.0, parameters).q
    whole = step_on_batch(problem, q, slice(None), 0.0, parameters)
    batches = [step_on_batch(problem, q, slice(i, i + 60), 0.0, parameters) for i in range(0, 300, 60)]
    assert sum(batch.value for batch in batches) / 5 == pytest.approx(whole.value, abs=1e-6)
    for j, truth in enumerate(whole.gradients):
        assert torch.allclose(torch.stack([batch.gradients[j] for batch in batches]).mean(0), truth, atol=1e-6)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_learns(method: str) -> None:
    X, y, _ = CASES[2].data(200, 4)
    gp = InducingGP(Scale(Matern(1.5, 1.0)), 1.0, 30, method)
    options: dict[str, Any] = {"samples": 2, "features": 16, "solver": "cholesky"}
    start = gp.condition(X, y, generator=torch.Generator().manual_seed(0), **options)
    report = gp.fit(X, y, steps=15, generator=torch.Generator().manual_seed(0), learning_rate=0.1, **options)
    assert len(report.history) == 15
    gain = gp.posterior.log_marginal_likelihood().value - start.log_marginal_likelihood().value
    assert gain > 40.0
    assert gp.posterior.has_paths
