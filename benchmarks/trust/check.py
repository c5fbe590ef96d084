"""Check whether the posterior of one case of cases.py is correct, and whether there was a warning if it is not.

A case is correct if at every point

    mean   |mean - exact| <= report.error_bound + rounding of the output, or the error is within a hundredth of the
           posterior standard deviation;
    std    the standard deviation is within 25 % of the exact one, and 10 % in root mean square over the points; the
           exact one uses the same estimator and draws, with exact solves in float64, so there is no sampling error;
    truth  the standard deviation is within 25 % and six standard errors (as reported) of the true one; for normal
           samples the false-positive rate is below one in a million points.
"""

from __future__ import annotations

import math
import os
import time
import traceback
import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from benchmarks.trust.cases import Case, Draws, Truth, draw_case
from pathgp.pathwise import variance_from_paths

EVERY_POINT, ROOT_MEAN_SQUARE = 0.25, 0.10
# An error of the mean that nobody can see, in standard deviations of the posterior.
NEGLIGIBLE = 0.01
# Standard errors beyond which a difference from the true standard deviation is no accident.
_STANDARD_ERRORS = 6.0
# Standard deviations below this part of the signal are known to a few digits only, in float64 too.
_RESOLUTION = 2e-7
VERDICTS = ("right", "warned, right", "warned, wrong", "refused", "WRONG")


@dataclass(frozen=True)
class Errors:
    """How far the predictions of a posterior are from the truth.

    mean: the largest error, in units of the bound and the rounding of the output.  mean_slack: the same in units of
    these and a hundredth of the posterior's standard deviation.  in_stds: in units of the latter alone.
    bound: the stated bound, in units of the signal.
    std, std_rms: largest and root mean square relative error of the standard deviations beyond sampling.
    ratios: least and largest std / true std.  truth: the largest |log ratio|, in units of what is allowed.
    """

    mean: float
    mean_slack: float
    in_stds: float
    bound: float
    std: float
    std_rms: float
    ratios: tuple[float, float]
    truth: float

    @property
    def failures(self) -> list[str]:
        """The names of the criteria that are not met; NaN meets none."""
        met = {
            "mean": self.mean_slack <= 1.0,
            "std": self.std <= EVERY_POINT and self.std_rms <= ROOT_MEAN_SQUARE,
            "truth": self.truth <= 1.0,
        }
        return [name for name, is_met in met.items() if not is_met]


def compare(case: Case, posterior: Any, mean: Tensor, variance: Tensor) -> Errors:
    """Predictions of the library at the points of a case against the truth."""
    truth, report = case.truth, posterior.report
    eps = torch.finfo(mean.dtype).eps
    mean, std = mean.to(torch.float64), variance.to(torch.float64).sqrt()
    allowed = report.error_bound + 4.0 * eps * (truth.mean.abs() + abs(truth.level)) + truth.rounding
    resolution = _RESOLUTION * case.signal
    draws = case.draws(posterior)
    same = estimate_std(truth, draws, case.neighbours)
    error = ((std[: len(same)] - same).abs() - resolution).clamp_min(0.0) / same.clamp_min(resolution)
    standard_error = 1.0 / math.sqrt(2 * draws.noise.shape[1])
    log_ratio = ((std + resolution) / (truth.std + resolution)).log().abs()
    ratio = std / truth.std.clamp_min(resolution)
    off, spread = (mean - truth.mean).abs(), truth.std.clamp_min(resolution)
    return Errors(
        mean=float((off / allowed).max()),
        mean_slack=float((off / (allowed + NEGLIGIBLE * spread)).max()),
        in_stds=float((off / spread).max()),
        bound=float(report.error_bound / case.signal),
        std=float(error.max()),
        std_rms=float(error.square().mean().sqrt()),
        ratios=(float(ratio.min()), float(ratio.max())),
        truth=float(log_ratio.max()) / (math.log1p(EVERY_POINT) + _STANDARD_ERRORS * standard_error),
    )


def estimate_std(truth: Truth, draws: Draws, neighbours: int) -> Tensor:
    """Standard deviations from the draws of a posterior as the library estimates them, from exact weights (some,).

    See `posterior.path_variance`: the control is the posterior given the rows of largest k(x, x_i)^2 / H_ii, or the
    prior.
    """
    observed = draws.data + truth.deviation.unsqueeze(1) * draws.noise
    cross, prior = truth.cross[: len(draws.points)], truth.prior[: len(draws.points)]
    explained = cross @ torch.cholesky_solve(observed, truth.factor)
    n = len(observed)
    count = min(neighbours, n)
    if not count:
        return variance_from_paths((draws.points - explained).T, explained.T, prior).sqrt()
    H = truth.factor @ truth.factor.T
    first = torch.linspace(1.0, 1.001, n, dtype=torch.float64)
    index = (cross.square() / (H.diagonal() * first)).topk(count, 1).indices
    block, k = H[index.unsqueeze(2), index.unsqueeze(1)], cross.gather(1, index)
    b = torch.cholesky_solve(k.unsqueeze(2), torch.linalg.cholesky(block)).squeeze(2)
    near = torch.einsum("mc,mcs->ms", b, observed[index])
    known = (prior - (b * k).sum(1)).clamp_min(0.0)
    return variance_from_paths((draws.points - explained).T, (explained - near).T, known).sqrt()


def measure(number: int, rows_max: int) -> dict[str, Any]:
    """The facts of a case, what the library said, how far off it was, and the verdict."""
    case = draw_case(number, rows_max)
    row: dict[str, Any] = case.facts()
    began = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            posterior = case.condition()
            mean, variance = case.predict(posterior, case.method)
            by_default = case.predict(posterior)[1]
        except (ValueError, TypeError, NotImplementedError) as error:
            return row | {"verdict": "refused", "said": _short(error), "seconds": time.perf_counter() - began}
        except Exception:
            return row | {"verdict": "WRONG", "failures": ["crash"], "said": _short(traceback.format_exc())}
    row["seconds"] = time.perf_counter() - began
    said = [f"{w.category.__name__}: {w.message}" for w in caught if _is_ours(w)]
    errors = compare(case, posterior, mean, variance)
    failures = errors.failures + _exact_failures(case, posterior, by_default)
    if said:
        verdict = "warned, wrong" if failures else "warned, right"
    else:
        verdict = "WRONG" if failures else "right"
    return row | {
        "verdict": verdict,
        "failures": failures,
        "status": posterior.report.status.name,
        "used": posterior.report.solution.method,
        "residual": posterior.report.worst_residual,
        **vars(errors),
        "said": _short(said[0]) if said else None,
    }


def _exact_failures(case: Case, posterior: Any, variance: Tensor) -> list[str]:
    """Whether the variances of the default method are wrong, if it is exact."""
    resolution = _RESOLUTION * case.signal
    ratio = (variance.to(torch.float64).sqrt() + resolution) / (case.truth.std + resolution)
    is_right = bool((ratio.log().abs() <= math.log1p(EVERY_POINT)).all())
    return ["exact std"] if posterior.variance_method == "solve" and not is_right else []


def _is_ours(warning: warnings.WarningMessage) -> bool:
    """Whether a warning is about the user's call: a class of the package, or raised at the lines of the caller."""
    return warning.category.__module__.startswith("pathgp") or "trust" in os.path.basename(warning.filename)


def _short(said: object) -> str:
    return " ".join(str(said).split())[-240:]
