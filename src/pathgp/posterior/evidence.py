"""The marginal likelihood as a number with an error bar, for reports and the comparison of models.

    log p(y) = -1/2 (y - mu)^T H^-1 (y - mu) - 1/2 log|H| - n/2 log 2 pi

With a Cholesky factor where that is affordable, otherwise by stochastic Lanczos quadrature: with P = S S^T close to H,

    log|H| = log|P| + tr log M,    M = S^-1 H S^-T,    tr log M ~ mean_j z_j^T log(M) z_j,    z_j of random signs.

`Lanczos` evaluates every term as a Gauss quadrature of the logarithm over the eigenvalues of M. Three things reduce the
error:

- z^T M z needs no further product and has the known mean tr M. With c from a regression over the probes only
  log(M) - c (M - I) is estimated, which near the identity is of second order.
- P is of low rank plus local blocks (`LocalPreconditioner`). On five UCI sets of 3,000 rows the standard deviation of
  one probe is 29 to 107 for P of rank 200, 11 to 91 with the control, and 9 to 24 with blocks of 94 rows as well.
- Random signs: Gaussian probes have 1.5 to 4 times the standard deviation for P of rank 200.

The error bar includes the random probes, truncated Lanczos runs, the solve and rounding. With r = y - H v by float64
products, v approximate, the quadratic form is y^T v + v^T r + r^T H^-1 r, however accurate the solve was. Errors of
float32 products are measured by float64 products with a few rows.

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
from pathgp.operators import Operator
from pathgp.posterior.exact_covariance import FACTOR_ROWS
from pathgp.posterior.lanczos import Lanczos, controlled_mean
from pathgp.posterior.local_preconditioner import LocalPreconditioner
from pathgp.solvers.cholesky import factorise
from pathgp.solvers.run import column_norms

_MAX_ITERATIONS = 500
# Lanczos stops when the last quarter of its iterations changed the result by less than this part of its standard error.
_SMALL_PART = 0.05
# Rounding errors of float32 products are accepted up to this number of nats, or up to the other errors.
_ROUNDING = 0.1
# Error bars below this number of nats are reported as zero.
_EXACT = 1e-6
# Rows and columns on which float32 and float64 products are compared.
_COMPARED_ROWS, _COMPARED_COLUMNS = 256, 4


@dataclass(frozen=True)
class Estimate:
    """A number in nats and its standard error, zero where it is below a millionth.

    method: how it was computed.  epochs: its cost in products of H with the probes, beyond earlier solves.
    """

    value: float
    error: float
    method: str
    epochs: float

    def __repr__(self) -> str:
        # The significant digits, and one more.
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

    The factor takes time n^3 / 3 and 16 n^2 bytes; quadrature takes 10 to 30 products of H with ``probes`` columns and
    one with the columns of the preconditioner, and the memory of these columns.

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
    if exact or (exact is None and fits and n <= FACTOR_ROWS):
        factor, jitter = factorise(H.block(torch.arange(n, device=H.device)).to(torch.float64))
        return _from_factor(factor, jitter, H.noise, probes, H.dtype)
    return _quadrature(H, None, probes, H.sync_generator(as_generator(generator)), _product_error(H))[0]


def log_marginal_likelihood(
    y: Tensor,
    weights: Tensor,
    noise: Tensor,
    factor: tuple[Tensor, float] | None,
    operator: Callable[..., Operator],
    probes: int,
    generator: torch.Generator,
) -> Evidence:
    """log N(y | 0, H) for y (n,), in the model's units, from a factor of H or by quadrature.

    With r = y - H v the quadratic form is y^T v + v^T r + r^T H^-1 r. The last term, second order in the error of the
    solve, is one more column of the quadrature. float32 products are used if they suffice, except for r.

    weights: v ~ H^-1 y (n,), of a solve.  noise: variance of the noise, a scalar or (n,).  factor: a float64 Cholesky
    factor of H and its jitter, or None.  operator: constructs H, ``operator(dtype, backend)`` in another dtype.
    """
    probes, y = whole_number(probes, "probes", 4), y.to(torch.float64)
    with torch.no_grad():
        if factor is not None:
            return _density_from_factor(*factor, noise, y, probes)
        H = operator()
        # Rounding errors of Kronecker factors are not independent, as the error model of float32 products assumes.
        if H.dtype != torch.float64 and H.backend != "kronecker":
            found = _in_low_precision(H, operator(torch.float64, "streamed"), y, weights, probes, generator)
            if found is not None:
                return found
        H = H if H.dtype == torch.float64 else operator(torch.float64, "auto")
        return _by_quadrature(H, H, y, weights, probes, generator, _product_error(H))[0]


def _in_low_precision(
    H: Operator, exact: Operator, y: Tensor, weights: Tensor, probes: int, generator: torch.Generator
) -> Evidence | None:
    """By products with H in float32 and a few with ``exact``; None if rounding would dominate the error."""
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
    """The value, and the part of its error that is due to rounding.

    ``exact``: H with float64 products, for the residual.  ``u``: relative error of products with H.
    """
    v = weights.to(torch.float64)
    r = y - (exact @ v.unsqueeze(1))[:, 0]
    if not float(column_norms(r)) < float(column_norms(y)):
        # The solution is worse than zero.
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


def _density_from_factor(factor: Tensor, jitter: float, noise: Tensor, y: Tensor, probes: int) -> Evidence:
    """log N(y | 0, H) from a factor of H, K evaluated in float64."""
    found = _from_factor(factor, jitter, noise, probes, torch.float64)
    half = torch.linalg.solve_triangular(factor, y.unsqueeze(1), upper=False)
    v = torch.linalg.solve_triangular(factor.T, half, upper=True)
    value = -0.5 * (float(half.square().sum()) + found.value + len(y) * math.log(2 * math.pi))
    # Errors of the entries, and jitter, change y^T H^-1 y by v^T E v.
    change = (math.sqrt(2.0) * _entry_error(factor, noise, torch.float64) + jitter) * float(v.square().sum())
    return Evidence(value, _significant(0.5 * math.hypot(found.error, change)), found.method, found.epochs)


def _from_factor(factor: Tensor, jitter: float, noise: Tensor, probes: int, dtype: torch.dtype) -> Estimate:
    """log|H| from a factor, K evaluated in ``dtype``."""
    n, u = len(factor), _entry_error(factor, noise, dtype)
    # Jitter increases every eigenvalue; none is below the noise.
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
    """log|H|; and r^T H^-1 r for one column R, with a bound on its truncation error; ``u`` as in `_by_quadrature`."""
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
            mean, error = controlled_mean(logs, control)
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
    # A product with more columns than probes costs more.
    epochs = P.epochs + k + H.cost() * max(1.0, P.rank / probes)
    total = math.hypot(error, change, rounding)
    return Estimate(P.log_determinant() + mean, total, method, epochs), rest, missing


def _rounding(u: float, noise: Tensor, probes: int, dtype: torch.dtype) -> float:
    """Bound in nats on the change of log|H| by quadrature due to errors of products, |H~ z - H z| = u |z| for random z.

    Each probe z^T log(H) z changes by u tr(H^-1) at random, and all of them by -1/2 u^2 ((tr H^-1)^2 + |H^-1|_F^2);
    H^-1 is at most Sigma^-1. For n / 2 probes the first part is sqrt(2) u |H^-1|_F: independent errors of the entries.
    Rounding of the noise shifts all eigenvalues by the same factor.
    """
    inverse = 1.0 / noise
    trace, frobenius = float(inverse.sum()), float(inverse.square().sum())
    shift = 0.5 * len(noise) * torch.finfo(dtype).eps
    return u * trace / math.sqrt(probes) + 0.5 * u**2 * (trace**2 + frobenius) + shift


def _entry_error(factor: Tensor, noise: Tensor, dtype: torch.dtype) -> float:
    """Standard deviation of rounding errors in the entries of K: measured, at most 0.35 eps of the largest."""
    return 0.35 * torch.finfo(dtype).eps * float((torch.linalg.vector_norm(factor, dim=1).square() - noise).max())


def _product_error(H: Operator) -> float:
    """|H~ z - H z| / |z| for random z: measured, 1 to 4 eps max k for 500 rows, and growing with their square root."""
    return 0.2 * math.sqrt(H.shape[0]) * torch.finfo(H.dtype).eps * float((H.diagonal() - H.noise).max())


def _compare_products(H: Operator, exact: Operator, generator: torch.Generator) -> float:
    """|H~ z - H z| / |z| for random z, measured at 256 rows."""
    n = H.shape[0]
    signs = 2.0 * torch.randint(2, (n, _COMPARED_COLUMNS), generator=generator, device=generator.device) - 1.0
    V = signs.to(H.device, H.dtype)
    rows = permutation(n, generator, H.device)[:_COMPARED_ROWS].sort().values
    difference = (H @ V)[rows].to(torch.float64) - exact.rows(rows, V.to(torch.float64))
    return math.sqrt(float(difference.square().mean()) / n)
