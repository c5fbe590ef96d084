"""The report of a fit: every step, why it ended, and the posterior."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

from pathgp.compute.optional import import_optional
from pathgp.posterior.report import ConditionReport
from pathgp.solvers.solution import Solution, describe_products

# ``Step.method`` of steps by Vecchia's likelihood.
VECCHIA = "Vecchia"


@dataclass(frozen=True)
class Step:
    """One step of the outer loop: hyperparameters, cost and accuracy of its solve.

    rows: number of rows of the data that it used.
    gain: log marginal likelihood (plus log prior) in nats above that of the first step. Known for the exact estimator;
        otherwise the gradient estimates integrated along the way, by the trapezoidal rule.
    log_likelihood: the value itself, if known; see also ``FitReport.approximation``.
    values: every hyperparameter, flattened, by name.
    residual, probe_residual: relative residual of the mean system, and the average over the others.
    seconds: of the whole step; solver_seconds of the solve alone.
    method, precision, product_error, precision_note: as in `Solution`; without a solve the method is empty for an exact
        gradient, and "Vecchia" for Vecchia's likelihood.
    """

    step: int
    rows: int
    gain: float
    log_likelihood: float | None
    values: dict[str, list[float]]
    residual: float
    probe_residual: float
    epochs: float
    solver: str
    status: str
    solver_seconds: float
    seconds: float
    method: str = ""
    precision: str = ""
    product_error: float | None = None
    precision_note: str = ""

    @classmethod
    def of(cls, solution: Solution | None, **facts: Any) -> Step:
        """A step with the facts of its solve; None for a step without one: exact, or by Vecchia's likelihood."""
        if solution is None:
            return cls(**facts, residual=math.nan, probe_residual=math.nan, epochs=0.0, solver="", status="")
        names = ("epochs", "solver", "method", "precision", "product_error", "precision_note")
        facts |= {name: getattr(solution, name) for name in names} | {"status": solution.status.name}
        residual = solution.residual
        return cls(**facts, residual=float(residual[0]), probe_residual=float(residual[1:].mean()))


@dataclass(frozen=True)
class FitReport:
    """The facts of one `GP.fit`; prints as a small table, `to_frame` gives a row per step.

    ``history``: a list of `Step`.  ``values``: the hyperparameters it ended with.  ``stopped``: why it ended.
    ``condition``: the report of the last solve, which gives the posterior.  ``note``: what it chose by itself.
    ``approximation``: what approximates the log likelihoods of the steps; empty if nothing does.
    ``warning``: why its predictions may be poor, and what to do; empty if there is no reason.
    ``time_limit``: the limit in seconds, if there was one.  ``predicted_seconds``: what the fit predicted at its start,
    or when it was resumed.
    """

    rows: int
    columns: int
    estimator: str
    optimiser: str
    history: list[Step]
    values: dict[str, list[float]]
    stopped: str
    seconds: float
    seed: int | None
    note: str
    condition: ConditionReport
    time_limit: float | None = None
    predicted_seconds: float = math.nan
    warning: str = ""
    approximation: str = ""

    @property
    def epochs(self) -> float:
        """Cost of all solves in products with H, the last one included."""
        return sum(step.epochs for step in self.history) + self.condition.epochs

    @property
    def solver_seconds(self) -> float:
        """Time in the solver, the last solve included."""
        return sum(step.solver_seconds for step in self.history) + self.condition.seconds

    @property
    def products(self) -> str:
        """The precision of the products in all solves, the last one included; the latest solve with each in words."""
        solves: list[Step | Solution] = [step for step in self.history if step.precision]
        solves.append(self.condition.solution)
        latest = {s.precision: describe_products(s.precision, s.product_error, s.precision_note) for s in solves}
        if len(latest) == 1:
            return latest[solves[-1].precision]
        counts = Counter(solve.precision for solve in solves)
        return "; ".join(f"{latest[level]} ({count} of {len(solves)} solves)" for level, count in counts.items())

    @property
    def gain_is_exact(self) -> bool:
        """Whether the log likelihood of all rows, or its approximation, is known at every step; otherwise its gain is
        estimated.
        """
        return all(step.log_likelihood is not None for step in self.history)

    @property
    def kept(self) -> Step | None:
        """The last step that was taken at the hyperparameters the fit ended with; None if they follow the last step."""
        return next((step for step in reversed(self.history) if step.values == self.values), None)

    @property
    def stages(self) -> str:
        """The steps taken on each number of rows, in words."""
        groups = itertools.groupby(self.history, key=lambda step: (step.rows, bool(step.solver)))
        counts = [(rows, sum(1 for _ in steps)) for (rows, _), steps in groups]
        return ", ".join(f"{count} {'step' if count == 1 else 'steps'} on {rows:,} rows" for rows, count in counts)

    def to_frame(self) -> Any:
        """A pandas data frame with a row per step and a column per number; length scales are numbered."""
        pd = import_optional("pandas", "to_frame", "xarray")
        steps = [_flat(step) for step in self.history]
        return pd.DataFrame(steps, columns=None if steps else ["step"]).set_index("step")

    def summary_items(self) -> list[tuple[str, str]]:
        """The report as (name, value) pairs, in the order in which it is printed."""
        steps = self.history
        solvers = sorted({step.method for step in steps if step.solver})
        short = sum(step.status not in ("CONVERGED", "") for step in steps)
        per_step = sum(step.epochs for step in steps) / max(1, sum(bool(step.solver) for step in steps))
        lines = [
            ("data", f"{self.rows} rows, {self.columns} columns"),
            ("estimator", self.estimator),
            ("optimiser", f"{self.optimiser}, {len(steps)} steps: {self.stopped}"),
        ]
        if len({step.rows for step in steps}) > 1:
            lines.append(("stages", self.stages))
        source = f", {self.approximation}" if self.approximation else ""
        # Steps on a subset of the rows have none.
        known = [step.log_likelihood for step in steps if step.log_likelihood is not None]
        kept = self.kept
        if known:
            if kept is not None and kept.log_likelihood is not None:
                known[-1] = kept.log_likelihood
            first = "" if len(known) == 1 else f"{known[0]:.1f} to "
            rows = "" if len(known) == len(steps) else f" in {len(known)} of {len(steps)} steps, those on all rows"
            lines.append(("log likelihood", f"{first}{known[-1]:.1f}{rows}{source}"))
        elif steps:
            gain = (kept or steps[-1]).gain
            lines.append(("log likelihood", f"{gain:+.1f} since the first step, estimated{source}"))
        if solvers:
            missed = f", {short} of {len(steps)} steps ended above tol" if short else ""
            lines.append(("solves", f"{', '.join(solvers)}; {per_step:.1f} epochs a step{missed}"))
            lines.append(("residual", f"mean {steps[-1].residual:.1e}, probes {steps[-1].probe_residual:.1e} at last"))
        lines.append(("products", self.products))
        lines += [(name, _numbers(numbers)) for name, numbers in self.values.items()]
        share = f", {100 * self.solver_seconds / max(self.seconds, 1e-9):.0f} % in the solver" if solvers else ""
        limit = "" if self.time_limit is None else f", time limit {self.time_limit:.3g}"
        lines.append(("seconds", f"{self.seconds:.3g}{share}{limit}"))
        posterior = f"{self.condition.status.name}, worst residual {self.condition.worst_residual:.1e}"
        lines.append(("posterior", "; ".join(filter(None, [posterior, self.condition.subset]))))
        if self.note:
            lines.append(("note", self.note))
        if self.warning:
            lines.append(("warning", self.warning))
        lines.append(("seed", "of a generator used before" if self.seed is None else str(self.seed)))
        return lines

    def __repr__(self) -> str:
        pairs = self.summary_items()
        width = max(len(name) for name, _ in pairs)
        return "\n".join(f"{name:<{width}}  {value}" for name, value in pairs)


def _flat(step: Step) -> dict[str, Any]:
    row = asdict(step)
    for name, numbers in row.pop("values").items():
        if len(numbers) == 1:
            row[name] = numbers[0]
        else:
            row.update({f"{name}[{i}]": number for i, number in enumerate(numbers)})
    return row


def _numbers(numbers: list[float]) -> str:
    shown = [f"{value:.3g}" for value in numbers]
    if len(shown) > 8:
        shown = [*shown[:6], "...", shown[-1]]
    return ", ".join(shown)
