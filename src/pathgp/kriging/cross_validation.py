"""Cross-validation of a field: every value predicted from all others, and scores of these predictions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pathgp import metrics
from pathgp.posterior.table import Posterior

Vector = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class CrossValidation:
    """Leave-one-out predictions of the observed values, noise included; prints as a small table.

    mean, std: of the prediction of every value (n,).  errors: value minus prediction (n,).
    standardised: errors / std (n,); a right model gives them mean 0 and standard deviation 1.
    method: how the variances were computed.
    """

    values: Vector
    mean: Vector
    std: Vector
    method: str

    @property
    def errors(self) -> Vector:
        return self.values - self.mean

    @property
    def standardised(self) -> Vector:
        return self.errors / self.std

    @property
    def rmse(self) -> float:
        """Root mean square error."""
        return metrics.rmse(self.values, self.mean)

    @property
    def crps(self) -> float:
        """Mean continuous ranked probability score, see `metrics.crps`."""
        return metrics.crps(self.values, self.mean, self.std**2)

    @property
    def coverage(self) -> float:
        """Share of the values inside their 95 % intervals."""
        return metrics.coverage(self.values, self.mean, self.std**2)

    def summary_items(self) -> list[tuple[str, str]]:
        """The scores as (name, value) pairs."""
        spread = float(self.values.std())
        share = f", {100 * self.rmse / spread:.3g} % of the std of the values" if spread else ""
        return [
            ("rows", f"{len(self.values):,}, each predicted from all others"),
            ("RMSE", f"{self.rmse:.4g}{share}"),
            ("CRPS", f"{self.crps:.4g}"),
            ("95 % coverage", f"{100 * self.coverage:.1f} %"),
            (
                "standardised",
                f"mean {self.standardised.mean():.3f}, std {self.standardised.std():.3f} (0 and 1 expected)",
            ),
            ("variances", self.method),
        ]

    def __repr__(self) -> str:
        return "\n".join(f"{name:<13}  {value}" for name, value in self.summary_items())


def cross_validate(post: Posterior) -> CrossValidation:
    """Leave-one-out predictions of the observed values of a posterior of rows, from `Posterior.leave_one_out`."""
    loo = post.leave_one_out()
    values, mean, variance = (part.cpu().numpy() for part in (post.training_targets(), loo.means, loo.variances))
    return CrossValidation(values, mean, np.sqrt(variance), loo.method)
