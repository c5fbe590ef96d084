"""Marginal likelihood and leave-one-out predictions against the dense float64 textbook."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

import pathgp
import reference
from pathgp.kernels import Linear, Matern, Scale
from pathgp.operators import KernelOperator
from pathgp.posterior import exact_covariance as exact_module
from pathgp.posterior.evidence import Evidence, log_determinant
from pathgp.posterior.lanczos import Lanczos
from pathgp.posterior.leave_one_out import from_samples
from pathgp.posterior.local_preconditioner import LocalPreconditioner, local_blocks
from posterior_cases import CASES, Case
from statistics_tools import assert_unbiased

NOISE = 0.15
KERNEL = Scale(Matern(1.5, 0.2), 1.2)


def covariance(X: Tensor, Z: Tensor) -> Tensor:
    return 1.44 * reference.matern(X, Z, 1.5, 0.2)


def data(n: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    X, y, _ = CASES[2].data(n, 4, seed)
    return X, y


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def no_factor(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with many rows."""
    monkeypatch.setattr(exact_module, "FACTOR_ROWS", 0)


def dense_leave_one_out(H: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Every row predicted from the others, by n systems of n - 1 equations."""
    means, variances = torch.empty_like(y), torch.empty_like(y)
    for i in range(len(y)):
        others = torch.arange(len(y)) != i
        weights = torch.linalg.solve(H[others][:, others], H[others, i])
        means[i], variances[i] = weights @ y[others], H[i, i] - weights @ H[others, i]
    return means, variances


@pytest.mark.parametrize("case", CASES, ids=str)
def test_evidence_is_that_of_the_textbook(case: Case) -> None:
    X, y, _ = case.data(120, 4)
    known = torch.linspace(0.0, 0.8, 120, dtype=torch.float64)
    post = pathgp.GP(case.kernel, NOISE, mean=0.3).condition(X, y, noise=known, samples=0)
    total = (NOISE**2 + known.square()).sqrt()
    expected = reference.log_marginal_likelihood(case.covariance, X, y, total, mean=0.3)
    found = post.log_marginal_likelihood()
    assert found.value == pytest.approx(float(expected), rel=1e-9)
    assert found.error == 0
    assert found.method == "Cholesky"


@pytest.mark.parametrize("factor", [True, False])
def test_the_units_are_those_of_y(factor: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not factor:
        monkeypatch.setattr(exact_module, "FACTOR_ROWS", 0)
    X, y = data(150)
    post = pathgp.GP(KERNEL, NOISE, standardise=True).condition(X, 50.0 + 7.0 * y, tol=1e-8, generator=seeded(0))
    unit, shift, scale = 7.0 * float(y.std(correction=0)), X.mean(0), X.std(0, correction=0)
    expected = reference.log_marginal_likelihood(
        lambda A, B: unit**2 * covariance((A - shift) / scale, (B - shift) / scale),
        X,
        50.0 + 7.0 * y,
        unit * NOISE,
        mean=50.0 + 7.0 * y.mean(),
    )
    found = post.log_marginal_likelihood(generator=seeded(1))
    # Student's t with 30 degrees of freedom is beyond five with probability 2e-5.
    assert abs(found.value - float(expected)) <= 5.0 * found.error + 1e-8 * abs(float(expected))
    assert (found.error == 0) == factor


@pytest.mark.statistical
@pytest.mark.parametrize(("dtype", "noise"), [(torch.float64, 0.1), (torch.float32, 0.02)])
def test_error_bars_hold(dtype: torch.dtype, noise: float) -> None:
    """(estimate - truth) / error has Student's law: its average and its spread are tested, false alarms 2e-5.

    Each probe is an average over many eigenvalues, so that its law is close to normal.
    """
    X, _ = data(300)
    H = KernelOperator(KERNEL, X.to(dtype), noise)
    truth = float(torch.linalg.slogdet(reference.system(covariance, X.to(dtype).double(), noise))[1])
    runs, probes = 30, 16
    found = [log_determinant(H, probes, seeded(seed), exact=False) for seed in range(runs)]
    z = np.array([(one.value - truth) / one.error for one in found])
    spread = math.sqrt((probes - 2) / (probes - 4))
    assert abs(z.mean()) <= stats.norm.isf(0.5e-5) * spread / math.sqrt(runs)
    uniform = stats.t.cdf(z, probes - 2)
    assert stats.kstest(uniform, "uniform").pvalue >= 1e-5
    # An error bar that holds must also be worth having: of log|H| itself it is a small part.
    assert max(one.error for one in found) <= 0.01 * abs(truth)


def test_tiny_noise_in_float32_is_owned_up_to() -> None:
    """At 1e-3 float32 knows nothing of the determinant; the error says so, or there is none to give."""
    X, _ = data(400)
    H = KernelOperator(KERNEL, X.float(), 1e-3)
    truth = float(torch.linalg.slogdet(reference.system(covariance, X.float().double(), 1e-3))[1])
    found = log_determinant(H, generator=seeded(0), exact=False)
    assert abs(found.value - truth) <= 4.0 * found.error


@pytest.mark.usefixtures("no_factor")
@pytest.mark.parametrize("noise", [0.1, 1e-3])
def test_evidence_by_quadrature_from_loose_solves_in_float32(noise: float) -> None:
    """Residuals of a tenth: what they leave of the quadratic form is found by the quadrature."""
    X, y = data(500)
    y = torch.sin(3.0 * X.sum(1)) + noise * torch.randn(500, generator=seeded(3), dtype=torch.float64)
    gp = pathgp.GP(KERNEL, noise)
    post = gp.condition(X.float(), y, solver="cg", tol=0.1, samples=0)
    truth = float(reference.log_marginal_likelihood(covariance, X.float().double(), y.float().double(), noise))
    found = post.log_marginal_likelihood(generator=seeded(0))
    assert abs(found.value - truth) <= 5.0 * found.error
    assert found.error <= 10.0


@pytest.mark.parametrize("kernel", [KERNEL, Linear(0.8, 0.5)], ids=["matern", "linear"])
def test_preconditioner(kernel: pathgp.kernels.Kernel) -> None:
    """P equals H inside every block, its determinant and the trace of P^-1 H are those of the dense matrices."""
    X, _ = data(200)
    H = KernelOperator(kernel, X, torch.linspace(0.1, 0.4, 200, dtype=torch.float64))
    dense = H.block(torch.arange(200))
    P = LocalPreconditioner(H, seeded(0))
    inverse = P.whiten_transposed(P.whiten(torch.eye(200, dtype=torch.float64)))
    matrix = torch.linalg.inv(inverse)
    for rows in P._blocks:
        torch.testing.assert_close(matrix[rows][:, rows], dense[rows][:, rows], rtol=1e-6, atol=1e-8)
    assert P.log_determinant() == pytest.approx(float(torch.linalg.slogdet(matrix)[1]), rel=1e-8)
    assert P.trace() == pytest.approx(float((inverse * dense).sum()), rel=1e-8)


def test_blocks_are_a_partition_into_neighbours() -> None:
    X, _ = data(600)
    H = KernelOperator(KERNEL, X, NOISE)
    blocks = local_blocks(H, seeded(0))
    assert torch.equal(torch.cat(blocks).sort().values, torch.arange(600))
    assert max(map(len, blocks)) <= 38
    spread = [float((X[rows] - X[rows].mean(0)).square().sum()) for rows in blocks]
    assert sum(spread) <= 0.2 * float((X - X.mean(0)).square().sum())


def test_lanczos_integrates_and_stops_where_a_space_ends() -> None:
    generator = seeded(0)
    A = torch.randn(60, 60, generator=generator, dtype=torch.float64)
    M = A @ A.T / 60 + 0.1 * torch.eye(60, dtype=torch.float64)
    values, vectors = torch.linalg.eigh(M)
    Z = torch.randn(60, 4, generator=generator, dtype=torch.float64)
    # Spaces of one and of three dimensions, and none at all.
    Z[:, 1], Z[:, 2], Z[:, 3] = vectors[:, 5], vectors[:, 10:13].sum(1), 0.0
    lanczos = Lanczos(lambda V: M @ V, Z)
    for _ in range(60):
        lanczos.step()
    for function in (torch.log, torch.reciprocal):
        expected = ((vectors.T @ Z).square() * function(values).unsqueeze(1)).sum(0)
        torch.testing.assert_close(lanczos.integrate(function), expected, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("case", [CASES[2], CASES[7], CASES[8]], ids=str)
def test_leave_one_out_leaves_one_out(case: Case) -> None:
    X, y, _ = case.data(60, 4)
    known = torch.linspace(0.0, 0.8, 60, dtype=torch.float64)
    H = reference.system(case.covariance, X, (NOISE**2 + known.square()).sqrt())
    means, variances = dense_leave_one_out(H, y - 0.3)
    found = pathgp.GP(case.kernel, NOISE, mean=0.3).condition(X, y, noise=known, samples=0).leave_one_out()
    torch.testing.assert_close(found.means, means + 0.3, rtol=1e-7, atol=1e-8)
    torch.testing.assert_close(found.variances, variances, rtol=1e-7, atol=1e-8)
    expected = torch.distributions.Normal(means + 0.3, variances.sqrt()).log_prob(y)
    torch.testing.assert_close(found.log_densities, expected, rtol=1e-6, atol=1e-7)
    assert found.mean_log_density == pytest.approx(float(expected.mean()))
    assert found.error == pytest.approx(float(expected.std()) / math.sqrt(60))


@pytest.mark.parametrize("sampled", [False, True])
def test_leave_one_out_in_the_units_of_y(sampled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if sampled:
        monkeypatch.setattr(exact_module, "FACTOR_ROWS", 0)
    X, y = data(80)

    def slope(Z: Tensor) -> Tensor:
        return 40.0 * Z[:, 0]

    def post(values: Tensor, mean: float | pathgp.models.gp.Mean) -> pathgp.Posterior:
        gp = pathgp.GP(KERNEL, NOISE, mean, standardise=True)
        return gp.condition(X, values, tol=1e-10, generator=seeded(0))

    plain, scaled = post(y, 0.0).leave_one_out(), post(5.0 + 7.0 * y + slope(X), slope).leave_one_out()
    torch.testing.assert_close(scaled.means, 5.0 + 7.0 * plain.means + slope(X))
    torch.testing.assert_close(scaled.variances, 49.0 * plain.variances)
    torch.testing.assert_close(scaled.log_densities, plain.log_densities - math.log(7.0))
    assert scaled.mean_log_density == pytest.approx(plain.mean_log_density - math.log(7.0))


@pytest.mark.statistical
@pytest.mark.parametrize("block", [1, 1024], ids=["without a known part", "with neighbours"])
def test_sampled_leave_one_out_is_unbiased(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Variances and log densities from 8 samples, averaged over 200 draws of them; false alarms one in a million."""
    monkeypatch.setattr("pathgp.posterior.local_preconditioner._LARGEST_BLOCK", block)
    n, s, generator = 48, 8, seeded(0)
    X, y = data(n)
    dense = reference.system(covariance, X, NOISE)
    root, H = torch.linalg.cholesky(dense), KernelOperator(KERNEL, X, NOISE)
    means, variances = dense_leave_one_out(dense, y)
    v = torch.linalg.solve(dense, y)
    found = []
    for _ in range(200):
        draws = root @ torch.randn(n, s, generator=generator, dtype=torch.float64)
        found.append(from_samples(H, y, v, draws, torch.cholesky_solve(draws, root), generator))
    density = torch.distributions.Normal(means, variances.sqrt()).log_prob(y)
    assert_unbiased(torch.stack([one.variances for one in found]), variances)
    assert_unbiased(torch.stack([one.log_densities for one in found]), density)


@pytest.mark.usefixtures("no_factor")
def test_leave_one_out_from_the_paths_of_a_posterior() -> None:
    X, y = data(300)
    post = pathgp.GP(KERNEL, NOISE).condition(X, y, tol=1e-6, samples=64, generator=seeded(0))
    found = post.leave_one_out()
    H = reference.system(covariance, X, NOISE)
    variances = 1.0 / torch.linalg.inv(H).diagonal()
    ratio = found.variances / variances
    # Without neighbours 18 % for every row.
    assert float((ratio - 1.0).square().mean().sqrt()) <= 0.09
    exact = y - variances * torch.linalg.solve(H, y)
    assert float((found.means - exact).abs().max()) <= 0.5 * float(variances.sqrt().max())
    assert "64 samples" in repr(found)
    with pytest.raises(ValueError, match=r"this posterior has 2: use condition\(samples=64\)"):
        pathgp.GP(KERNEL, NOISE).condition(X, y, samples=2).leave_one_out()


def test_print() -> None:
    assert repr(Evidence(-1234.5678, 0.0, "Cholesky", 18.0)) == "-1234.5678 (Cholesky; 18.0 epochs)"
    assert repr(Evidence(-1234.5678, 3.21, "by chance", 18.0)) == "-1234.6 ± 3.2 (by chance; 18.0 epochs)"
    assert repr(Evidence(-1234.5678, 45.6, "by chance", 18.0)) == "-1235 ± 46 (by chance; 18.0 epochs)"


def test_bad_input() -> None:
    X, y = data(50)
    H = KernelOperator(KERNEL, X, NOISE)
    with pytest.raises(TypeError, match="operator"):
        log_determinant(X)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="probes must be at least 4"):
        log_determinant(H, probes=3)
    with pytest.raises(ValueError, match="needs positive noise"):
        log_determinant(KernelOperator(KERNEL, X, 0.0), exact=False)
    with pytest.raises(ValueError, match="use exact=False"):
        log_determinant(KernelOperator(KERNEL, X, NOISE, pathgp.Compute(memory=30_000)), exact=True)
    with pytest.raises(ValueError, match="probes must be at least 4"):
        pathgp.GP(KERNEL, NOISE).condition(X, y, samples=0).log_marginal_likelihood(probes=0)


def test_one_row() -> None:
    x, y = torch.zeros(1, 2, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    post = pathgp.GP(KERNEL, NOISE).condition(x, y, samples=0)
    variance = 1.44 + NOISE**2
    expected = -0.5 * (1 / variance + math.log(2 * math.pi * variance))
    assert post.log_marginal_likelihood().value == pytest.approx(expected)
    assert float(post.leave_one_out().variances) == pytest.approx(variance)
    assert float(post.leave_one_out().means) == pytest.approx(0.0)


def test_jitter_is_owned_up_to() -> None:
    """Rows that repeat, without noise to speak of: the factor needs jitter, and the error bounds what it does."""
    X = torch.zeros(20, 1, dtype=torch.float64)
    found = log_determinant(KernelOperator(KERNEL, X, 1e-9), exact=True)
    assert "jitter" in found.method
    truth = 19 * math.log(1e-18) + math.log(20 * 1.44)
    assert 0 < found.value - truth <= found.error
