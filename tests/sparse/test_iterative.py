"""Solutions of the system of inducing points without its matrix: operator, CG and stochastic gradient descent."""

from __future__ import annotations

import pytest
import torch

import reference
import sparse_reference
from pathgp import Compute, ConvergenceWarning, InducingGP
from pathgp.kernels import Matern, Scale
from pathgp.pathwise import PriorPaths
from pathgp.solvers.run import Run
from pathgp.sparse.descent import InducingSGD
from pathgp.sparse.operator import InducingOperator, right_hand_sides
from pathgp.sparse.problem import Problem
from posterior_cases import CASES

X, Y, XS = CASES[2].data(300, 12)
NOISE = 0.5
Z = X[::20]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def covariance(A: torch.Tensor, B: torch.Tensor) -> torch.Tensor:
    return 1.2**2 * reference.matern(A, B, 1.5, 0.4)


def model(method: str = "sgpr") -> InducingGP:
    return InducingGP(Scale(Matern(1.5, 0.4), 1.2), NOISE, Z, method)


def problem(memory: int | None = 200_000) -> Problem:
    post = model().condition(X, Y, samples=0)
    return post.model.problem(post.data, Compute(memory=memory))


def system() -> torch.Tensor:
    return covariance(Z, Z) + covariance(Z, X) @ covariance(X, Z) / NOISE**2


def test_the_operator_is_its_dense_twin() -> None:
    found = problem()
    assert found.block_rows < 300
    H, dense = InducingOperator(found), system()
    V = torch.randn(15, 3, generator=seeded(), dtype=torch.float64)
    index = torch.tensor([3, 0, 11])
    scale = float(dense.max())
    assert torch.allclose(H @ V, dense @ V, atol=1e-12 * scale)
    assert torch.allclose(H.rows(index, V), dense[index] @ V, atol=1e-12 * scale)
    assert torch.allclose(H.columns(index, V[:3]), dense[:, index] @ V[:3], atol=1e-12 * scale)
    assert torch.allclose(H.block(index), dense[index][:, index], atol=1e-12 * scale)
    assert torch.allclose(H.diagonal(), dense.diagonal(), atol=1e-12 * scale)


def test_right_hand_sides_do_not_depend_on_the_budget() -> None:
    prior = PriorPaths.draw(model().kernel, 4, 16, 2, seeded())
    small, large = (right_hand_sides(problem(memory), prior, seeded(1)) for memory in (200_000, None))
    assert torch.allclose(small.whole, large.whole, rtol=1e-10)
    mean = covariance(Z, X) @ Y / NOISE**2
    assert torch.allclose(large.whole[:, 0], mean, rtol=1e-10)
    assert float(large.noise[:, 0].abs().max()) == 0.0


def test_the_gradient_of_descent_is_that_of_the_objective() -> None:
    """All rows and the exact regulariser: autograd of the objective; batches: the same on average."""
    found = problem()
    prior = PriorPaths.draw(found.kernel, 2, 16, 2, seeded())
    sides = right_hand_sides(found, prior, seeded(1))
    solver, run = InducingSGD(prior, sides.noise), Run(InducingOperator(found), sides.whole)
    u = torch.randn(15, 3, generator=seeded(2), dtype=torch.float64).requires_grad_()
    targets = torch.cat([Y.unsqueeze(1), prior(X).T], 1) / run.scale
    error = targets - covariance(X, Z) @ u
    objective = 0.5 * error.square().sum() / NOISE**2 + 0.5 * (u * (covariance(Z, Z) @ u)).sum()
    objective = objective - (u * sides.noise / run.scale).sum()
    expected = torch.autograd.grad(objective, u)[0]
    with torch.no_grad():
        whole = solver.gradient(run, u, torch.arange(300), exact=True)
        assert torch.allclose(whole, expected, rtol=1e-9, atol=1e-9)
        parts = [solver.gradient(run, u, torch.arange(i, i + 50), exact=True) for i in range(0, 300, 50)]
        assert torch.allclose(torch.stack(parts).mean(0), expected, rtol=1e-9, atol=1e-9)
        # The regulariser by random features has the right expectation: 4,000 features, standard error about 2 %.
        phi = [solver._regulariser(run, u, exact=False) for _ in range(40)]
        exact = solver._regulariser(run, u, exact=True)
        assert float((torch.stack(phi).mean(0) - exact).norm() / exact.norm()) < 0.1
        # The minimiser of the objective is the closed form.
        minimiser = torch.linalg.solve(system(), sides.whole) / run.scale
        assert float(solver.gradient(run, minimiser, torch.arange(300), exact=True).abs().max()) < 1e-9


def test_cg_finds_the_posterior_of_the_factorisation() -> None:
    post = model().condition(X, Y, solver="cg", tol=1e-4, samples=3, generator=seeded())
    mean, _ = sparse_reference.posterior("sgpr", covariance, Z, X, Y, NOISE, XS)
    assert torch.allclose(post.mean(XS), mean, atol=1e-5)
    assert post.report.solution.method == "CG"
    assert "f(X) in place of its Nyström part" in post.report.approximation
    assert "error bound" not in repr(post.report)
    for refuse in (post.log_marginal_likelihood, lambda: post.covariance(XS), lambda: post.update(X, Y)):
        with pytest.raises(ValueError, match="direct solution"):
            refuse()
    with pytest.raises(ValueError, match="come from samples"):
        post.variance(XS, method="solve")


def test_a_budget_too_small_for_factors_is_solved_by_cg() -> None:
    points = InducingGP(Scale(Matern(1.5, 0.4), 1.2), NOISE, X[:60])
    options = {"compute": Compute(memory=110_000), "samples": 0, "generator": seeded()}
    post = points.condition(X[:80], Y[:80], tol=0.1, **options)
    mean, _ = sparse_reference.posterior("sgpr", covariance, X[:60], X[:80], Y[:80], NOISE, XS)
    assert post.report.solution.method == "CG"
    assert torch.allclose(post.mean(XS), mean, atol=1e-2)


def test_descent_approaches_the_closed_form() -> None:
    """Inducing points that are far apart: a well-conditioned system."""
    points = torch.cartesian_prod(torch.tensor([0.1, 0.5, 0.9]), torch.tensor([0.1, 0.9])).to(torch.float64)
    gp = InducingGP(Scale(Matern(1.5, 0.4), 1.2), 1.0, points, "sgd")
    mean, _ = sparse_reference.posterior("sgd", covariance, points, X, Y, 1.0, XS)
    errors = []
    for epochs in (7, 100):
        with pytest.warns(ConvergenceWarning, match="InducingSGD"):
            post = gp.condition(X, Y, samples=2, tol=1e-6, max_epochs=epochs, generator=seeded())
        errors.append(float((post.mean(XS) - mean).abs().max()))
        assert post.paths(XS).shape == (2, 12)
    assert errors[0] > 0.1
    assert errors[1] < 0.01
