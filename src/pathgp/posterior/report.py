"""The report of a posterior: how it was computed, and how accurate it is."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from pathgp.posterior.convergence import warn_unless_converged
from pathgp.solvers import Solution, Status
from pathgp.solvers.solution import describe_products

# The error of the paths changes a standard deviation that is at least this many times larger by less than a tenth.
UNRESOLVED = 3.0


@dataclass(frozen=True)
class ConditionReport:
    """How one posterior was computed.

    ``error_bound`` is the certificate |mean(x) - exact mean(x)| <= error_bound for every x, in the units of y:
    sqrt(max k(x, x)) |r| / (2 sigma) with r the residual vector of the mean system, recomputed from the weights.
    For kernels whose variance is not constant it holds for x with k(x, x) up to the largest at the data. The rounding
    of predictions is in it.
    ``sample_error_bound`` is the same for every path, and so for the standard deviation of the paths.
    With a trend of ``basis`` functions both hold where the trend is no less certain than at the data.

    Both hold in the worst case. What the solver's error amounts to at the data is ``resolution``, the largest root mean
    square of a residual, in the units of y: K H^-1 r = r - Sigma H^-1 r. ``relative_resolution`` is the same in units
    of the posterior standard deviation at the data; a solve converges at 0.1.

    ``seed`` repeats the run: pass ``torch.Generator().manual_seed(report.seed)``. It is None when the caller's
    generator had been used before. ``no_paths`` says why a posterior has no paths, if it has none. ``paths`` is the
    report of the second batch of systems, which `GridPosterior.paths` solves at its first call.

    With ``condition(until="predictions")``, ``prediction_error`` is the estimated error of mean and paths at the
    ``prediction_inputs`` inputs given, in posterior standard deviations; it was asked to be at most ``prediction_tol``.
    ``prediction_note`` says how often it was checked, and by what it is bounded (see `prediction_rule`).

    ``rows`` are those of the posterior. If a fit had no time for all, ``all_rows`` is the number of rows of the data,
    and ``subset_reason`` says why.

    With inducing points ``inducing`` says how many there are and how they were chosen, and ``approximation`` what the
    sparse method approximates; the error bounds are then relative to its exact solution, and NaN after an iterative
    solve, which has none.
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
    paths: ConditionReport | None = None
    all_rows: int | None = None
    subset_reason: str = ""
    inducing: str = ""
    approximation: str = ""
    prediction_inputs: int = 0
    prediction_tol: float = math.nan
    prediction_error: float = math.nan
    prediction_note: str = ""
    basis: int = 0

    def warn_unless_converged(self, purpose: str = "mean and samples") -> None:
        """Warn if the solve missed its tolerance, and say which numbers its error makes unreliable."""
        consequence = (
            ""
            if math.isnan(self.resolution)
            else (
                f"Means and samples are off by about {self.resolution:.1g} at the data; standard deviations below "
                f"{UNRESOLVED * self.resolution:.1g} (without noise) are not reliable"
            )
        )
        warn_unless_converged(self.solution, self.tol, purpose, consequence)

    def with_note(self, note: str) -> ConditionReport:
        """The report with one more reason for the choice of the solver."""
        notes = "; ".join(filter(None, [self.solution.note, note]))
        return replace(self, solution=replace(self.solution, note=notes))

    @property
    def subset(self) -> str:
        """Which part of the rows the posterior is conditioned on, in words; empty for all."""
        if self.all_rows is None:
            return ""
        return f"conditioned on {self.rows:,} of {self.all_rows:,} rows: {self.subset_reason}"

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
        """Largest relative standard error of a standard deviation estimated from the samples.

        It depends on their number alone. Variances by neighbours are more accurate (`path_variance`).
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
        goal = "" if self.prediction_inputs else f", tol {self.tol:.0e}"
        return [
            ("data", f"{self.rows} rows, {self.columns} columns, {self.precision}, {self.device}"),
            *([("subset", self.subset)] if self.subset else []),
            *([("inducing", self.inducing)] if self.inducing else []),
            *([("approximation", self.approximation)] if self.approximation else []),
            ("kernel matrix", self.backend),
            ("products", self.products),
            ("solver", solution.solver),
            ("why", solution.note or "as asked"),
            ("status", solution.status.name),
            ("epochs", _describe_epochs(solution)),
            ("residual", f"mean {self.mean_residual:.1e}, worst {self.worst_residual:.1e}{goal}"),
            *([("predictions", self._describe_predictions())] if self.prediction_inputs else []),
            *([] if math.isnan(self.error_bound) else self._describe_errors()),
            ("samples", sampled),
            *([] if self.paths is None else [("paths", _describe_paths(self.paths))]),
            ("seconds", _format_seconds(self.seconds)),
            ("seed", "of a generator used before" if self.seed is None else str(self.seed)),
        ]

    def _describe_errors(self) -> list[tuple[str, str]]:
        where = "where the trend is no less certain than at the data" if self.basis else "anywhere"
        return [
            ("error bound", f"mean {self.error_bound:.2g}, samples {self.sample_error_bound:.2g}, {where}"),
            ("error at data", f"about {self.resolution:.2g}, {self.relative_resolution:.1g} posterior std"),
        ]

    def _describe_predictions(self) -> str:
        return (
            f"off by at most {self.prediction_error:.2g} posterior std at {self.prediction_inputs:,} inputs, asked for "
            f"{self.prediction_tol:g}: {self.prediction_note}"
        )

    def __repr__(self) -> str:
        pairs = self.summary_items()
        width = max(len(name) for name, _ in pairs)
        return "\n".join(f"{name:<{width}}  {value}" for name, value in pairs)


def _describe_paths(report: ConditionReport) -> str:
    cost = f"{report.epochs:.1f} epochs, {_format_seconds(report.seconds)} s"
    status = "" if report.solution.converged else f", {report.status.name}"
    return f"{report.samples} functions, {report.features} features each; solved at the first call: {cost}{status}"


def _describe_epochs(solution: Solution) -> str:
    if not solution.iterations:
        return f"{solution.epochs:.1f} to check the start"
    return f"{solution.epochs:.1f} in {solution.iterations} iteration{'s' if solution.iterations > 1 else ''}"


def _format_seconds(seconds: float) -> str:
    return f"{seconds:.1f}" if seconds >= 10 else f"{seconds:.2g}"
