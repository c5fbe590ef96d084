"""What a user is told about a result: how it was obtained and how far it can be trusted."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from pathgp.solvers import Solution, Status
from pathgp.solvers.solution import describe_products

# A standard deviation is off by less than a tenth of itself where it is this many times the error of the paths.
UNRESOLVED = 3.0


class ConvergenceWarning(UserWarning):
    """A solve ended above its tolerance; the message says what to do."""


@dataclass(frozen=True)
class ConditionReport:
    """The facts of one `GP.condition`.

    ``error_bound`` is the certificate |mean(x) - exact mean(x)| <= error_bound for every x, in the units of y:
    sqrt(max k(x, x)) |r| / (2 sigma) with r the residual vector of the mean system, recomputed from the weights.
    For kernels whose variance is not constant it holds for x with k(x, x) up to the largest at the data. The rounding
    of predictions is in it.
    ``sample_error_bound`` is the same for every path, and so for the standard deviation of the paths.

    Both hold in the worst case. What the solver's error amounts to at the data is ``resolution``, the largest root mean
    square of a residual, in the units of y: K H^-1 r = r - Sigma H^-1 r. ``relative_resolution`` is the same in units
    of the posterior standard deviation at the data; a solve converges at 0.1.

    ``seed`` repeats the run: give ``torch.Generator().manual_seed(report.seed)``. It is None when the caller's
    generator had been used before. ``no_paths`` says why the kernel has no paths, where that is so.
    """

    rows: int
    columns: int
    samples: int
    features: int
    backend: str
    precision: str
    device: str
    tol: float
    solution: Solution
    error_bound: float
    seconds: float
    seed: int | None
    no_paths: str = ""
    sample_error_bound: float = math.nan
    resolution: float = math.nan
    relative_resolution: float = math.nan

    @property
    def distrusted(self) -> str:
        """Which numbers the solver's error makes unreliable."""
        if not math.isfinite(self.resolution):
            return ""
        return (
            f"Means and samples are off by about {self.resolution:.1g} at the data; standard deviations below "
            f"{UNRESOLVED * self.resolution:.1g} (without noise) are not reliable"
        )

    def with_note(self, note: str) -> ConditionReport:
        """The report with one more reason."""
        notes = "; ".join(filter(None, [self.solution.note, note]))
        return replace(self, solution=replace(self.solution, note=notes))

    def in_units(self, scale: float, rounding: float = 0.0) -> ConditionReport:
        """The report of a model in whose units y is divided by ``scale``, in the units of y.

        ``rounding``: of results to the dtype of the data, in the units of y.
        """
        return replace(
            self,
            error_bound=self.error_bound * scale + rounding,
            sample_error_bound=self.sample_error_bound * scale + rounding,
            resolution=self.resolution * scale,
        )

    @property
    def status(self) -> Status:
        return self.solution.status

    @property
    def epochs(self) -> float:
        """Cost of the solve in products with H, checks included."""
        return self.solution.epochs

    @property
    def products(self) -> str:
        """The precision of the products of the solver's iterations, and the measured error of inaccurate ones."""
        solution = self.solution
        return describe_products(solution.precision, solution.product_error, solution.precision_note)

    @property
    def mean_residual(self) -> float:
        """Relative residual of the mean system."""
        return float(self.solution.residual[0])

    @property
    def worst_residual(self) -> float:
        """The largest relative residual of all systems, mean and samples."""
        return float(self.solution.residual.max())

    @property
    def std_error(self) -> float:
        """Largest relative standard error of a standard deviation estimated from the samples, by their number alone.

        Where the observations around an input tell most about it the error is a fraction of this (`path_variance`).
        """
        return 1.0 / math.sqrt(2 * self.samples) if self.samples else math.inf

    def summary_items(self) -> list[tuple[str, str]]:
        """The report as (name, value) pairs, in the order in which it is printed."""
        if self.samples:
            scatter = f"standard error of a std {100 * self.std_error:.0f} %"
            sampled = f"{self.samples} samples on the grid; {scatter}"
            if self.features:
                sampled = f"{self.samples} paths, {self.features} features each; {scatter} at most"
        else:
            sampled = f"no paths: {self.no_paths}" if self.no_paths else "none: variances come from solves"
        solution = self.solution
        return [
            ("data", f"{self.rows} rows, {self.columns} columns, {self.precision}, {self.device}"),
            ("kernel matrix", self.backend),
            ("products", self.products),
            ("solver", solution.solver),
            ("why", solution.note or "as asked"),
            ("status", solution.status.name),
            ("epochs", f"{solution.epochs:.1f} in {solution.iterations} iterations"),
            (
                "residual",
                f"mean {self.mean_residual:.1e}, worst {self.worst_residual:.1e}, tol {self.tol:.0e}",
            ),
            ("error bound", f"mean {self.error_bound:.2g}, samples {self.sample_error_bound:.2g}, anywhere"),
            ("error at data", f"about {self.resolution:.2g}, {self.relative_resolution:.1g} posterior std"),
            ("samples", sampled),
            ("seconds", f"{self.seconds:.1f}" if self.seconds >= 10 else f"{self.seconds:.2g}"),
            ("seed", "of a generator used before" if self.seed is None else str(self.seed)),
        ]

    def __repr__(self) -> str:
        pairs = self.summary_items()
        width = max(len(name) for name, _ in pairs)
        return "\n".join(f"{name:<{width}}  {value}" for name, value in pairs)
