"""The marginal likelihood as a number with an error bar, for reports and the comparison of models.

    log p(y) = -1/2 (y - mu)^T H^-1 (y - mu) - 1/2 log|H| - n/2 log 2 pi

With a Cholesky factor where that is affordable, otherwise by stochastic Lanczos quadrature: with P = S S^T close to H,

    log|H| = log|P| + tr log M,    M = S^-1 H S^-T,    tr log M ~ mean_j z_j^T log(M) z_j,    z_j of random signs.

Lanczos turns every term into a Gauss quadrature of the logarithm over the eigenvalues of M. What makes the error small:

- z^T M z comes for free and has the known mean tr M. With c from a regression over the probes, log(M) - c (M - I) is
  left to chance, and near the identity that is of second order.
- P is of low rank plus local blocks (`LocalPreconditioner`). On five UCI sets of 3,000 rows the standard deviation of
  one probe is 29 to 107 for P of rank 200, 11 to 91 with the control, and 9 to 24 with blocks of 94 rows as well.
- Random signs: Gaussian probes have 1.5 to 4 times the standard deviation for P of rank 200.

The error bar holds what chance, truncated Lanczos runs, the solve and rounding do to the value. With r = y - H v by
float64 products, v approximate, the quadratic form is y^T v + v^T r + r^T H^-1 r whatever the solve has left. Errors of
products are measured for float32, by float64 products with a few rows.

Ubaru, Chen and Saad (2017); Gardner et al. (2018).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from pathgp.compute.inputs import whole_number
from pathgp.compute.random import as_generator, permutation
from pathgp.kernels import Kernel
from pathgp.operators import Operator
from pathgp.posterior.conditioning import Settings, System
from pathgp.posterior.local_preconditioner import LocalPreconditioner
from pathgp.solvers.base import column_norms
from pathgp.solvers.cholesky import factorise

# Up to here the factorisation, n^3 / 3 operations, takes seconds on two cores, as long as quadrature does.
_EXACT_ROWS = 10_000
_MAX_ITERATIONS = 500
# Lanczos stops when a quarter of its iterations has changed the result by less than this part of its standard error.
_SMALL_PART = 0.05
# Nats up to which rounding in float32 products is borne, or up to the other errors; above, products are in float64.
_ROUNDING = 0.1
# Error bars below this, in nats, are zero: the value is exact for any purpose.
_EXACT = 1e-6
# Rows and columns on which products are compared.
_COMPARED_ROWS, _COMPARED_COLUMNS = 256, 4


@dataclass(frozen=True)
class Estimate:
    """A number in nats and its standard error, zero where it is below a millionth.

    method: how it was obtained, in words.  epochs: its cost in products of H with the probes, beyond earlier solves.
    """

    value: float
    error: float
    method: str
    epochs: float

    def __repr__(self) -> str:
        # As many digits as the error leaves meaning to, and one more.
        digits = 4 if self.error == 0 else max(0, 1 - math.floor(math.log10(self.error)))
        bar = "" if self.error == 0 else f" ± {self.error:.{digits}f}"
        return f"{self.value:.{digits}f}{bar} ({self.method}; {self.epochs:.1f} epochs)"


class Evidence(Estimate):
    """log p(y | X) in nats, a density in the units of y, with its standard error.

    Differences of models on the same data are logarithms of Bayes factors. By quadrature with q probes,
    (value - truth) / error follows Student's t with q - 2 degrees of freedom.
    """


def log_determinant(
    H: Operator, probes: int = 32, generator: torch.Generator | None = None, exact: bool | None = None
) -> Estimate:
    """log|H|: by a float64 Cholesky factor, or by stochastic Lanczos quadrature with an error bar.

    The factor takes time n^3 / 3 and 16 n^2 bytes, quadrature some 10 to 30 products of H with ``probes`` columns, one
    with the columns of the preconditioner and memory for their numbers.

    Args:
        H: the matrix; quadrature needs positive noise.
        probes: vectors of random signs, at least 4; the error falls with their square root.
        generator: source of probes and preconditioner; None draws a fresh seed.
        exact: True for the factor, False for quadrature; by default the factor up to 10,000 rows, if memory allows.
    """
    if not isinstance(H, Operator):
        raise TypeError(f"H must be a pathgp operator, got {type(H).__name__}")
    n, probes = H.shape[0], whole_number(probes, "probes", 4)
    fits = 16 * n**2 <= H.memory
    if exact and not fits:
        raise ValueError(
            f"a factor needs {16e-9 * n**2:.2g} GB, the operator's budget is {H.memory / 1e9:.2g} GB: "
            "use exact=False, or raise memory="
        )
    if exact or (exact is None and fits and n <= _EXACT_ROWS):
        factor, jitter = factorise(H.block(torch.arange(n, device=H.device)).to(torch.float64))
        return _from_factor(factor, jitter, H.noise, probes, float(H.diagonal().max()), H.dtype)
    return _quadrature(H, None, probes, H.sync_generator(as_generator(generator)), _product_error(H))[0]


def log_marginal_likelihood(
    kernel: Kernel,
    system: System,
    weights: Tensor,
    settings: Settings,
    factor: Tensor | None,
    probes: int,
    generator: torch.Generator | None,
) -> Evidence:
    """log N(y | 0, H) in the model's units, from the weights v ~ H^-1 y (n,) of a solve or from a factor of H.

    With r = y - H v the quadratic form is y^T v + v^T r + r^T H^-1 r. The last term, second order in the error of the
    solve, is one more column of the quadrature. float32 products are used where they suffice, except for r.
    """
    probes, generator = whole_number(probes, "probes", 4), settings.compute.sync_generator(generator)
    n, y = len(system.X), system.targets[:, 0].to(torch.float64)
    with torch.no_grad():
        if factor is not None:
            last = kernel.diag(system.X[-1:].to(torch.float64)) + system.deviation.expand(n)[-1:].square()
            variance = float(last)
            # The factor's last row tells whether jitter was added.
            jitter = float(factor[-1].square().sum()) - variance
            jitter = jitter if jitter > 1e-10 * variance else 0.0
            largest, noise = float(kernel.diag(system.X).max()), system.deviation.square()
            return _density_from_factor(factor, jitter, noise, y, probes, largest, torch.float64)
        X = system.X.to(torch.float64)
        if X.dtype != system.X.dtype:
            H = settings.operator(kernel, system.X, system.deviation)
            exact = settings.with_backend("streamed").operator(kernel, X, system.deviation)
            found = _in_low_precision(H, exact, y, weights, probes, generator)
            if found is not None:
                return found
        backend = settings.compute.backend if X.dtype == system.X.dtype else "auto"
        H = settings.with_backend(backend).operator(kernel, X, system.deviation)
        return _by_quadrature(H, H, y, weights, probes, generator, _product_error(H))[0]


def log_density(H: Operator, y: Tensor, weights: Tensor, probes: int, generator: torch.Generator | None) -> Evidence:
    """log N(y | 0, H) for y (n,), weights ~ H^-1 y and H in float64.

    By a factor under the rule of `log_determinant`, or by quadrature as above.
    """
    probes, n, y = whole_number(probes, "probes", 4), len(y), y.to(torch.float64)
    with torch.no_grad():
        if n > _EXACT_ROWS or 16 * n**2 > H.memory:
            return _by_quadrature(H, H, y, weights, probes, as_generator(generator), _product_error(H))[0]
        factor, jitter = factorise(H.block(torch.arange(n, device=H.device)).to(torch.float64))
        return _density_from_factor(factor, jitter, H.noise, y, probes, float(H.diagonal().max()), H.dtype)


def _in_low_precision(
    H: Operator, exact: Operator, y: Tensor, weights: Tensor, probes: int, generator: torch.Generator
) -> Evidence | None:
    """By products with H in float32 and a few with ``exact``; None where rounding would be most of the error."""
    u = _compare_products(H, exact, generator)
    if u * float((1.0 / H.noise).expand(len(y)).sum()) > 1.0:
        return None
    try:
        found, rounding = _by_quadrature(H, exact, y, weights, probes, generator, u)
    except ValueError:
        return None
    other = math.sqrt(max(0.0, found.error**2 - rounding**2))
    return found if rounding <= max(_ROUNDING, other) else None


def _by_quadrature(
    H: Operator, exact: Operator, y: Tensor, weights: Tensor, probes: int, generator: torch.Generator, u: float
) -> tuple[Evidence, float]:
    """The value and the part of its error that is due to rounding.

    ``exact``: H with float64 products, for the residual.  ``u``: the error of products with H.
    """
    v = weights.to(torch.float64)
    r = y - (exact @ v.unsqueeze(1))[:, 0]
    if not float(column_norms(r)) < float(column_norms(y)):
        # The solve has gone astray, and zero is a better start.
        v, r = torch.zeros_like(y), y
    quadratic = float((v * (y + r)).sum())
    found, rest, missing = _quadrature(H, r.unsqueeze(1), probes, generator, u)
    noise = H.noise.to(torch.float64).expand(len(y))
    # v^T E v for errors E of the float64 entries, and w^T E w with w = H^-1 r, where |w|^2 <= r^T H^-1 r / noise.
    products = math.sqrt(2.0) * (_product_error(exact) * float(v.square().sum()) + u * rest / float(noise.min()))
    rounding = math.hypot(_rounding(u, noise, probes, H.dtype), products)
    value = -0.5 * (quadratic + rest + found.value + len(y) * math.log(2 * math.pi))
    error = 0.5 * math.hypot(found.error, missing, products)
    return Evidence(value, _significant(error), found.method, found.epochs + exact.cost()), 0.5 * rounding


def _density_from_factor(
    factor: Tensor, jitter: float, noise: Tensor, y: Tensor, probes: int, largest: float, dtype: torch.dtype
) -> Evidence:
    """log N(y | 0, H) from a factor of H; ``largest`` and ``dtype`` as in `_from_factor`."""
    found = _from_factor(factor, jitter, noise, probes, largest, dtype)
    half = torch.linalg.solve_triangular(factor, y.unsqueeze(1), upper=False)
    v = torch.linalg.solve_triangular(factor.T, half, upper=True)
    value = -0.5 * (float(half.square().sum()) + found.value + len(y) * math.log(2 * math.pi))
    # Errors of the entries, and jitter, change y^T H^-1 y by v^T E v.
    change = (math.sqrt(2.0) * _entry_error(largest, dtype) + jitter) * float(v.square().sum())
    return Evidence(value, _significant(0.5 * math.hypot(found.error, change)), found.method, found.epochs)


def _from_factor(
    factor: Tensor, jitter: float, noise: Tensor, probes: int, largest: float, dtype: torch.dtype
) -> Estimate:
    """log|H| from a factor; ``largest``: the largest entry of K, which was evaluated in ``dtype``."""
    n, u = len(factor), _entry_error(largest, dtype)
    # Jitter raises every eigenvalue, of which none is below the noise.
    error = float(torch.log1p(jitter / noise).expand(n).sum()) if jitter else 0.0
    error = math.hypot(error, _rounding(u, noise.to(torch.float64).expand(n), max(1, n // 2), dtype))
    method = "Cholesky" + (f", jitter {jitter:.0e} on the diagonal" if jitter else "")
    value = float(2.0 * factor.diagonal().log().sum())
    return Estimate(value, _significant(error), method, 1.0 + n / (6.0 * probes))


def _significant(error: float) -> float:
    return error if error > _EXACT else 0.0


def _quadrature(
    H: Operator, R: Tensor | None, probes: int, generator: torch.Generator, u: float
) -> tuple[Estimate, float, float]:
    """log|H|, and r^T H^-1 r for one column R with a bound on what is missing from it; ``u`` as above."""
    if not bool((H.noise > 0).all()):
        raise ValueError("quadrature needs positive noise: without it H may be singular; use exact=True for small n")
    n = H.shape[0]
    with torch.no_grad():
        P = LocalPreconditioner(H, generator)
        signs = 2.0 * torch.randint(2, (n, probes), generator=generator, device=generator.device) - 1.0
        Z = signs.to(H.device, torch.float64)
        start = Z if R is None else torch.cat([Z, P.whiten(R)], 1)
        lanczos = Lanczos(lambda V: P.whiten(H @ P.whiten_transposed(V).to(H.dtype)), start)
        trace = P.trace()
        values: dict[int, float] = {}
        for k in range(1, min(3 * n, _MAX_ITERATIONS) + 1):
            lanczos.step()
            if k < 4 or k % max(1, k // 8):
                continue
            logs = lanczos.integrate(torch.log)[:probes]
            control = n * lanczos.alphas[0][:probes] - trace
            mean, error = _controlled(logs, control)
            rest = 0.0 if R is None else float(lanczos.integrate(torch.reciprocal)[-1])
            missing = 0.0 if R is None else float(lanczos.remainder()[-1])
            values[k] = mean
            change = abs(mean - values[max((j for j in values if j <= 3 * k // 4), default=k)])
            small = _SMALL_PART * error + 1e-9 * n
            if len(values) > 2 and change <= small and missing <= small + 1e-12 * rest:
                break
    rounding = _rounding(u, H.noise.to(torch.float64).expand(n), probes, H.dtype)
    method = (
        f"Lanczos quadrature, {probes} probes, {k} iterations, rank {P.rank} and blocks of up to {P.largest_block} rows"
    )
    # A product with more columns than there are probes costs more than the others.
    epochs = P.epochs + k + H.cost() * max(1.0, P.rank / probes)
    total = math.hypot(error, change, rounding)
    return Estimate(P.log_determinant() + mean, total, method, epochs), rest, missing


class Lanczos:
    """Tridiagonal matrices T of Krylov spaces, one for every column of Z, by one product per step for all.

    Without re-orthogonalisation, in the memory of three blocks (n, s): lost orthogonality repeats Ritz values and
    shares their weight out among the copies. Integrals over the spectrum do not notice; they converge a little later
    (Greenbaum 1989; Chen, Trogdon and Ubaru 2021).
    """

    def __init__(self, product: Callable[[Tensor], Tensor], Z: Tensor) -> None:
        self._product = product
        norms = column_norms(Z)
        self._mass = norms.square()
        self._alive = norms > 0
        self._v = Z / torch.where(self._alive, norms, 1.0)
        self._before = torch.zeros_like(Z)
        self.alphas: list[Tensor] = []
        self._betas: list[Tensor] = [torch.zeros_like(norms)]
        self._spectrum: tuple[Tensor, Tensor] | None = None

    def step(self) -> None:
        w = self._product(self._v) - self._betas[-1] * self._before
        # A column whose space is exhausted goes on as an eigenvalue of one, without weight.
        alpha = torch.where(self._alive, (self._v * w).sum(0), 1.0)
        w -= alpha * self._v
        beta = column_norms(w)
        self._alive = self._alive & (beta > 1e-12 * alpha.abs())
        beta = torch.where(self._alive, beta, 0.0)
        self.alphas.append(alpha)
        self._betas.append(beta)
        self._before, self._v = self._v, torch.where(self._alive, w / beta, 0.0)
        self._spectrum = None

    def integrate(self, function: Callable[[Tensor], Tensor]) -> Tensor:
        """z^T f(M) z for every column: |z|^2 sum_i U_1i^2 f(theta_i) with T = U theta U^T."""
        theta, U = self._decompose()
        return self._mass * (U[:, 0].square() * function(theta)).sum(1).to(self._mass)

    def remainder(self) -> Tensor:
        """A bound on what is missing from z^T M^-1 z, for every column.

        It is e^T M^-1 e for the residual e of the k-th conjugate gradient iterate, |e| = |z| beta_k |(T^-1)_k1|. The
        least eigenvalue of M is taken to be that of all T.
        """
        theta, U = self._decompose()
        last = (U[:, -1] * U[:, 0] / theta).sum(1).to(self._mass)
        return self._mass * (self._betas[-1] * last).square() / float(theta.min())

    def _decompose(self) -> tuple[Tensor, Tensor]:
        """theta (s, k) and U (s, k, k)."""
        if self._spectrum is not None:
            return self._spectrum
        # On the CPU: many small matrices, for which a GPU only waits.
        T = torch.diag_embed(torch.stack(self.alphas, 1)).cpu()
        if len(self.alphas) > 1:
            off = torch.diag_embed(torch.stack(self._betas[1:-1], 1).cpu(), 1)
            T = T + off + off.mT
        theta, U = torch.linalg.eigh(T)
        if not float(theta.min()) > 0:
            raise ValueError("H is not positive definite in this precision: use float64 inputs, or raise the noise")
        self._spectrum = theta, U
        return theta, U


def _controlled(values: Tensor, control: Tensor) -> tuple[float, float]:
    """Mean of values given that controls have mean zero, by linear regression, and its standard error."""
    s = len(values)
    spread = float((control - control.mean()).square().sum())
    slope, leverage = 0.0, 0.0
    if spread > 0:
        slope = float(((control - control.mean()) * values).sum()) / spread
        leverage = float(control.mean().square()) / spread
    rest = values - slope * control
    variance = float((rest - rest.mean()).square().sum()) / (s - 2)
    return float(rest.mean()), math.sqrt(variance * (1.0 / s + leverage))


def _rounding(u: float, noise: Tensor, probes: int, dtype: torch.dtype) -> float:
    """What errors of products, |H~ z - H z| = u |z| for random z, do to log|H| by quadrature at most, in nats.

    Each probe z^T log(H) z changes by u tr(H^-1) at random, and all of them by -1/2 u^2 ((tr H^-1)^2 + |H^-1|_F^2);
    H^-1 is at most Sigma^-1. For n / 2 probes the first part is sqrt(2) u |H^-1|_F: independent errors of the entries.
    The noise itself is rounded, too, all of it alike.
    """
    inverse = 1.0 / noise
    trace, frobenius = float(inverse.sum()), float(inverse.square().sum())
    alike = 0.5 * len(noise) * torch.finfo(dtype).eps
    return u * trace / math.sqrt(probes) + 0.5 * u**2 * (trace**2 + frobenius) + alike


def _entry_error(largest: float, dtype: torch.dtype) -> float:
    """The standard deviation of rounding errors in the entries of a kernel matrix; at most 0.35 eps as measured."""
    return 0.35 * torch.finfo(dtype).eps * largest


def _product_error(H: Operator) -> float:
    """|H~ z - H z| / |z| for random z, by experience: 1 to 4 eps max k for 500 rows, and growing with their root."""
    return 0.2 * math.sqrt(H.shape[0]) * torch.finfo(H.dtype).eps * float((H.diagonal() - H.noise).max())


def _compare_products(H: Operator, exact: Operator, generator: torch.Generator) -> float:
    """|H~ z - H z| / |z| for random z, measured at some rows."""
    n = H.shape[0]
    signs = 2.0 * torch.randint(2, (n, _COMPARED_COLUMNS), generator=generator, device=generator.device) - 1.0
    V = signs.to(H.device, H.dtype)
    rows = permutation(n, generator, H.device)[:_COMPARED_ROWS].sort().values
    apart = (H @ V)[rows].to(torch.float64) - exact.rows(rows, V.to(torch.float64))
    return math.sqrt(float(apart.square().mean()) / n)
