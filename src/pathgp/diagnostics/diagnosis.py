"""A report on an approximate posterior: where and in which directions it differs from the exact one, in words."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pathgp.compute.inputs import Array
from pathgp.diagnostics.exact import ExactSolution
from pathgp.diagnostics.regions import REGIONS, Regions
from pathgp.diagnostics.spectral import SpectralBasis
from pathgp.posterior import Posterior

# A posterior is accurate in a region if this share of its inputs ...
_SHARE = 0.9
# ... have a Wasserstein-2 distance below this part of the standard deviation: the goal of a solve, too.
_ACCURATE = 0.1


@dataclass(frozen=True, eq=False)
class Diagnosis:
    """How an approximate posterior differs from the exact one; `diagnose` computes it, and its repr is a table.

    solver: what computed the posterior, and how it ended.
    regions: of the m inputs.
    wasserstein: distance (m,) between the marginals at the inputs, in the units of y.
    std, observation_std: exact standard deviations (m,) of f and of a new observation.
    eigenvalues: of K (r,), descending.
    mean_error, path_error: norms (r,) of the error along each spectral direction, in the space of the kernel; for the
        paths the root mean square over all of them, NaN without paths.
    mean_size, path_size: the same of the exact solution.
    """

    solver: str
    regions: Regions
    wasserstein: Tensor
    std: Tensor
    observation_std: Tensor
    eigenvalues: Tensor
    mean_error: Tensor
    path_error: Tensor
    mean_size: Tensor
    path_size: Tensor

    @property
    def summary(self) -> str:
        """What the numbers say, in a sentence or two."""
        inside, edge = self._quantile(0, self.std), self._quantile(1, self.std)
        if inside <= _ACCURATE and edge <= _ACCURATE:
            return "Converged: close to the exact posterior at these inputs."
        if inside <= _ACCURATE:
            return "Converged where there are data; differences at the edge. More epochs would remove them."
        remedy = "Use more epochs, a smaller tol or another solver."
        if self._quantile(0, self.observation_std) > _ACCURATE:
            return f"Not converged, not even where there are data. {remedy}"
        ends = "; larger differences at the edge" if self._quantile(1, self.observation_std) > _ACCURATE else ""
        return (
            "Predictions of observations are accurate where there are data, but mean and paths differ from those of "
            f"the exact posterior by more than a tenth of its standard deviation{ends}. {remedy}"
        )

    def _quantile(self, region: int, unit: Tensor) -> float:
        """The distance, in a unit (m,), that most inputs of a region do not exceed; 0 for an empty region."""
        inside = self.regions.labels == region
        ratios = self.wasserstein[inside] / unit[inside]
        return float(ratios.quantile(_SHARE)) if len(ratios) else 0.0

    def table(self) -> list[list[str]]:
        """The numbers of the repr, row by row: inputs by region, then directions."""
        rows = [["inputs", "number", "distance, median", "largest", f"{_SHARE:.0%} below, in std", "in std of y"]]
        for number, name in enumerate(REGIONS):
            distances = self.wasserstein[self.regions.labels == number]
            if not len(distances):
                rows.append([name, "0", "", "", "", ""])
                continue
            parts = [float(distances.median()), float(distances.max())]
            parts += [self._quantile(number, unit) for unit in (self.std, self.observation_std)]
            rows.append([name, f"{len(distances):,}", *(f"{part:.2g}" for part in parts)])
        rows.append(["directions", "number", "eigenvalues from", "to", "error of the mean", "of the paths"])
        for name, part in (("leading", slice(self.regions.leading)), ("other", slice(self.regions.leading, None))):
            values = self.eigenvalues[part]
            if not len(values):
                rows.append([name, "0", "", "", "", ""])
                continue
            errors = [_relative(self.mean_error[part], self.mean_size[part])]
            errors += [_relative(self.path_error[part], self.path_size[part])]
            bounds = [f"{float(values[0]):.2g}", f"{float(values[-1]):.2g}"]
            rows.append([name, f"{len(values):,}", *bounds, *errors])
        return rows

    def __repr__(self) -> str:
        rows = self.table()
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        lines = [
            "  ".join([row[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True))])
            for row in rows
        ]
        return "\n".join([self.solver, *(line.rstrip() for line in lines), self.summary])


def diagnose(posterior: Posterior, Xs: Array, share: float = 0.99) -> Diagnosis:
    """Compare a posterior with the exact one, at inputs Xs (m, d) and along the spectral basis functions.

    The exact posterior has the same prior draws and the same noise, so that all differences are due to the solver and
    to rounding. ``share``: what counts as leading, see `SpectralBasis.count_leading`.

    Time O(n^3 + m n^2), memory O(n^2). ValueError above 10,000 rows: condition on a subset instead.
    """
    exact = ExactSolution.of(posterior)
    basis = SpectralBasis.of(posterior)
    errors, sizes = basis.coefficients(exact.weight_errors).abs(), basis.coefficients(exact.weights).abs()
    std = torch.as_tensor(exact.std(Xs)).to(torch.float64)
    report = posterior.report
    ending = f"{report.solution.method}, {report.epochs:.1f} epochs, {report.status.name}"
    return Diagnosis(
        solver=f"{ending}, relative residual {report.worst_residual:.1e}, {report.rows:,} rows",
        regions=basis.regions(Xs, share),
        wasserstein=torch.as_tensor(exact.wasserstein(Xs)).to(torch.float64),
        std=std,
        observation_std=(std.square() + posterior.noise_std**2).sqrt(),
        eigenvalues=basis.values,
        mean_error=errors[:, 0],
        path_error=errors[:, 1:].square().mean(1).sqrt(),
        mean_size=sizes[:, 0],
        path_size=sizes[:, 1:].square().mean(1).sqrt(),
    )


def _relative(errors: Tensor, sizes: Tensor) -> str:
    """Norm of the errors relative to that of the exact solution; empty without paths."""
    ratio = float(errors.norm() / sizes.norm())
    return "" if ratio != ratio else f"{100 * ratio:.3g} %"
