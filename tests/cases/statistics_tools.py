"""Statistical tests of samples, with a false-alarm rate that is stated and holds.

A random test that fails now and then is worse than none. The tests here therefore use the exact distribution
of each statistic where there is one, and ``alpha`` is the probability that right samples are refused: one in
a million unless told otherwise. A fixed seed makes a test repeatable; the rate says how likely it was to fail
for the first seed tried, and so how much a failure means.

Samples are the rows of an (s, m) matrix with a known mean and covariance. They are whitened by the r
eigenvectors U of the covariance with eigenvalues above rtol lambda_max: Z = (samples - mean) U lambda^-1/2.
If they are right, the entries of Z are independent standard normals, and then exactly, for every s:

    mean               s |mean of the rows of Z|^2                    chi-square, r degrees of freedom
    total variance     sum of all squares of Z                        chi-square, s r
    variances          sum of squares of a column of Z                chi-square, s         (each column)
    point variances    the same for a column of the raw samples       chi-square, s         (each column)
    correlations       squared correlation of two columns of Z        Beta(1/2, (s - 1)/2)  (each pair)
    all correlations   squares above the diagonal of R, Z = Q R       chi-square, one each  (Bartlett)
    null directions    sum of squares along another eigenvector       at most rtol lambda_max chi-square, s

"Each" is Bonferroni-corrected, alpha is divided evenly among the lines, and tests of a chi-square are
two-sided except for the mean and the null directions.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from scipy import stats


def assert_mean_and_covariance(
    samples: torch.Tensor,
    mean: torch.Tensor,
    covariance: torch.Tensor,
    alpha: float = 1e-6,
    *,
    gaussian: bool = True,
    rtol: float = 1e-6,
) -> None:
    """Refuse samples (s, m) whose mean (m,) or covariance (m, m) is not the stated one.

    The rows must be independent. Right Gaussian samples are refused with probability at most ``alpha``.

    ``gaussian=False`` is for samples with the right moments and heavier tails, such as functions made of
    random features, each with frequencies of its own (with 512 of them the tails are still seen). The
    variance of every product of two columns is then taken from the samples themselves, and never below
    the Gaussian value. ``alpha`` holds approximately, for some hundreds of samples and a few dozen
    frequencies or more.

    ``rtol`` is the part of the covariance that is too small to test: directions with variance below rtol
    times the largest must be that small in the samples too. Raise it where samples are rounded, or solved
    to a tolerance, or where tails are very heavy in directions of little variance.
    """
    p_values = moment_p_values(samples, mean, covariance, gaussian=gaussian, rtol=rtol)
    smallest = min(p_values.values())
    if not smallest >= alpha / len(p_values):
        table = "\n".join(f"  {name:<18} p = {p:.3g}" for name, p in p_values.items())
        s, m = samples.shape
        raise AssertionError(
            f"{s} samples of {m} values do not have the stated mean and covariance: the smallest of "
            f"{len(p_values)} p-values is {smallest:.3g}, below alpha / {len(p_values)} = "
            f"{alpha / len(p_values):.3g}\n{table}"
        )


def moment_p_values(
    samples: torch.Tensor,
    mean: torch.Tensor,
    covariance: torch.Tensor,
    *,
    gaussian: bool = True,
    rtol: float = 1e-6,
) -> dict[str, float]:
    """The p-values behind ``assert_mean_and_covariance``, by name."""
    values, mean, covariance = (_as_numpy(a) for a in (samples, mean, covariance))
    s, m = values.shape
    if mean.shape != (m,) or covariance.shape != (m, m):
        raise ValueError(f"samples of {m} values need a mean ({m},) and a covariance ({m}, {m})")
    if s < 2:
        raise ValueError("at least two samples are needed")
    if not all(np.isfinite(a).all() for a in (values, mean, covariance)):
        raise AssertionError("samples, mean or covariance are not finite")
    eigenvalues, U = np.linalg.eigh((covariance + covariance.T) / 2)
    small = max(rtol * eigenvalues[-1], np.finfo(np.float64).tiny)
    kept = eigenvalues > small
    if not kept.any():
        raise ValueError("the covariance is zero or not positive semi-definite")
    deviations = values - mean
    rotated = deviations @ U
    Z = rotated[:, kept] / np.sqrt(eigenvalues[kept])
    points = covariance.diagonal() > small
    raw = deviations[:, points] / np.sqrt(covariance.diagonal()[points])
    r = Z.shape[1]

    p = {
        "mean": float(stats.chi2.sf(s * np.square(Z.mean(0)).sum(), r)),
        "total variance": _variances_p_value(np.square(Z).sum(1, keepdims=True) / r, s * r, gaussian),
        "variances": _variances_p_value(np.square(Z), s, gaussian),
        "point variances": _variances_p_value(np.square(raw), s, gaussian),
    }
    if r > 1:
        p["correlations"] = _correlations_p_value(Z, gaussian)
        if gaussian:
            above = np.linalg.qr(Z, mode="r")[np.triu_indices(min(s, r), k=1, m=r)]
            p["all correlations"] = float(_chi2_p_value(np.square(above).sum(), above.size))
    if not kept.all():
        null = np.square(rotated[:, ~kept]) / small
        p["null directions"] = _variances_p_value(null, s, gaussian, at_most=True)
    return p


def assert_unbiased(estimates: torch.Tensor, expected: torch.Tensor, alpha: float = 1e-6) -> None:
    """Refuse independent estimates (s, ...) whose average is not ``expected``: a t-test of each entry.

    The false-alarm rate is at most ``alpha`` for all entries together if the estimates are Gaussian, and
    approximately so for many estimates of any law. Average strongly skewed estimates in groups first.
    """
    values, target = _as_numpy(estimates), _as_numpy(torch.as_tensor(expected))
    values, target = values.reshape(values.shape[0], -1), target.reshape(-1)
    if values.shape[1] != target.size:
        raise ValueError(f"estimates of {values.shape[1]} numbers, but {target.size} are expected")
    s = values.shape[0]
    if not np.isfinite(values).all():
        raise AssertionError("estimates are not finite")
    error = values.mean(0) - target
    standard = values.std(0, ddof=1) / math.sqrt(s)
    # Estimates without spread must be right up to rounding.
    standard = np.maximum(standard, 1e-12 * np.maximum(np.abs(target), 1e-300))
    t = error / standard
    p = _bonferroni(2 * stats.t.sf(np.abs(t), s - 1))
    if not p >= alpha:
        worst = int(np.abs(t).argmax())
        raise AssertionError(
            f"the average of {s} estimates is {values.mean(0)[worst]:.6g} at entry {worst}, expected "
            f"{target[worst]:.6g}: {t[worst]:.2f} standard errors, p = {p:.3g} for all {target.size} entries"
        )


def _variances_p_value(squares: np.ndarray, degrees: int, gaussian: bool, at_most: bool = False) -> float:
    """Test that the columns of ``squares`` (s, r) have expectation one: chi-square / degrees if Gaussian.

    Otherwise the degrees of freedom are those that give a scaled chi-square the measured variance
    (Satterthwaite), and at most the Gaussian ones.
    """
    average = squares.mean(0)
    nu = np.full_like(average, degrees)
    if not gaussian:
        spread = np.maximum(squares.var(0), np.finfo(np.float64).tiny)
        nu = np.minimum(nu, 2 * len(squares) * average**2 / spread)
    if at_most:
        return _bonferroni(stats.chi2.sf(nu * average, nu))
    return _bonferroni(_chi2_p_value(nu * average, nu))


def _correlations_p_value(Z: np.ndarray, gaussian: bool) -> float:
    """All pairs of columns, Bonferroni-corrected."""
    s, r = Z.shape
    pairs = np.triu_indices(r, k=1)
    products = (Z.T @ Z)[pairs]
    if gaussian:
        norms = np.square(Z).sum(0)
        squared = products**2 / (norms[pairs[0]] * norms[pairs[1]])
        return _bonferroni(stats.beta.sf(squared, 0.5, (s - 1) / 2))
    # Self-normalised sums of symmetric terms have Gaussian tails or lighter (Efron, 1969).
    spread = np.maximum((np.square(Z).T @ np.square(Z))[pairs], s)
    return _bonferroni(2 * stats.norm.sf(np.abs(products) / np.sqrt(spread)))


def _chi2_p_value(value: np.ndarray, degrees: np.ndarray) -> np.ndarray:
    """Two-sided."""
    return 2 * np.minimum(stats.chi2.cdf(value, degrees), stats.chi2.sf(value, degrees))


def _bonferroni(p_values: np.ndarray) -> float:
    return float(min(1.0, np.size(p_values) * np.min(p_values)))


def _as_numpy(a: torch.Tensor) -> np.ndarray:
    return torch.as_tensor(a).detach().to("cpu", torch.float64).numpy()
