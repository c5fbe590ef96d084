"""Solve the systems of a posterior: settings, one request, weights and report."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from pathgp.compute.inputs import real_number
from pathgp.compute.memory import given_bytes
from pathgp.compute.settings import Compute
from pathgp.data.standardise import Standardisation
from pathgp.kernels import Kernel
from pathgp.operators import KernelOperator, Operator
from pathgp.posterior.prediction_rule import PredictionGoal, PredictionRule
from pathgp.posterior.report import ConditionReport
from pathgp.posterior.system import System
from pathgp.solvers import Solution, Solver, Status, as_solver
from pathgp.solvers.run import column_norms
from pathgp.solvers.solution import AllowedResidual, Callback, NumericalFailure

# Largest error of the solver at the data, in posterior standard deviations. At a tenth the standard deviations of paths
# were within 3 % of those of exact solves, and means within 0.21 standard deviations.
ACCURACY = 0.1
# The largest relative residual at which predictions are checked, if they decide when to stop.
_LOOSEST = 0.5
# Rounding errors of sums K(x, X) v are at most this factor times eps |v| max k(x, x).
_ROUNDING = 4.0
# Required ratio of the noise variance to the rounding error of products. The limit in float32 is optimistic: systems
# that turn out harder are solved in float64. In float64 it is the largest ratio that smooth kernels needed.
RESOLVED = {torch.float32: 20.0, torch.float64: 250.0}


@dataclass(frozen=True)
class Settings:
    """How to solve: kept with the posterior, so that an update repeats it."""

    solver: Solver
    tol: float
    max_epochs: float | None
    compute: Compute

    @classmethod
    def read(
        cls, solver: str | Solver, tol: float, max_epochs: float | None, compute: Compute | None = None
    ) -> Settings:
        """Check the options of a user."""
        compute = Compute.read(compute)
        given_bytes(compute.memory)
        max_epochs = None if max_epochs is None else real_number(max_epochs, "max_epochs")
        options = {"backend": compute.backend, "memory": compute.memory, "precision": compute.precision}
        compute.require_equal(solver=solver, tol=tol, max_epochs=max_epochs, **options)
        return cls(as_solver(solver), real_number(tol, "tol"), max_epochs, compute)

    def operator(self, kernel: Kernel, X: Tensor, deviation: Tensor, reuse: Operator | None = None) -> Operator:
        """H for a kernel, inputs and the standard deviation of the noise; ``reuse``: an operator no longer needed."""
        return KernelOperator(kernel, X, deviation, self.compute, reuse)

    def solve(
        self,
        H: Operator,
        system: System,
        generator: torch.Generator,
        x0: Tensor | None = None,
        callback: Callback | None = None,
        rule: str = "every",
        allowed: AllowedResidual | None = None,
        time_limit: float | None = None,
    ) -> Solution:
        """All columns of a system at once; an error where the numbers leave their range."""
        if self.compute.group is not None:
            message = "right-hand sides differ between ranks: give every rank the same y, noise, mean and generator"
            self.compute.group.check([system.targets, system.noise_draws], message)
        solution = self.solver.solve(
            H,
            system.right_hand_sides(),
            x0=x0,
            delta=system.delta(),
            tol=self.tol,
            max_epochs=self.max_epochs,
            generator=generator,
            callback=callback,
            rule=rule,
            allowed=allowed,
            time_limit=time_limit,
        )
        if not bool(torch.isfinite(solution.x).all()):
            raise NumericalFailure("the solve left the range of numbers: rescale X and y, or check the kernel")
        if H.precision == self.compute.precision:
            return solution
        reason = f"{self.compute.precision} was asked for, which only fused products have"
        return replace(solution, precision_note="; ".join(filter(None, [solution.precision_note, reason])))


@dataclass(frozen=True)
class SolveRequest:
    """One solve for a posterior, and what its report records.

    seed: repeats the draws.  no_paths: why there are no paths.  x0: an initial guess.  began: when the caller started,
    so that the report's seconds include its preparations.  deadline: when to end, by the same clock.  goal: where the
    predictions must be accurate, in place of the rule for residuals.
    """

    settings: Settings
    generator: torch.Generator
    seed: int | None = None
    no_paths: str = ""
    x0: Tensor | None = None
    callback: Callback | None = None
    began: float = field(default_factory=time.perf_counter)
    deadline: float | None = None
    goal: PredictionGoal | None = None

    @property
    def seconds_left(self) -> float | None:
        """Seconds until the deadline; None without one."""
        return None if self.deadline is None else self.deadline - time.perf_counter()


def solve_system(
    H: Operator,
    largest: float,
    columns: int,
    system: System,
    scaling: Standardisation,
    request: SolveRequest,
    rule: PredictionRule | None = None,
) -> tuple[Tensor, ConditionReport]:
    """Solutions (n, 1 + s + p), p basis functions of a trend last, and the report in the units of y.

    ``largest``: the largest prior variance at the data.  ``columns``: number of columns of the inputs.  ``rule``: when
    to stop, in place of the tolerance of the settings and of the error at the data.
    """
    settings, n = request.settings, H.shape[0]
    size = float(column_norms(system.targets[:, 0]))
    if not size <= torch.finfo(H.dtype).max:
        raise ValueError(f"the norm of y is beyond the range of {H.dtype}: rescale y")

    def allowed(x: Tensor | None) -> float:
        return ACCURACY * system.error_scale(x, largest)

    limits: dict[str, Any] = {"allowed": rule or allowed, "time_limit": request.seconds_left}
    used = settings if rule is None else replace(settings, tol=_LOOSEST)
    solution = used.solve(H, system, request.generator, request.x0, request.callback, **limits)
    weights, least_squares = system.split(solution.x)
    residual = solution.residual.cpu() * system.sizes().cpu()
    rounding = _ROUNDING * torch.finfo(H.dtype).eps * largest * column_norms(weights).cpu()
    leverage = 0.0
    if least_squares is not None:
        residual, leverage = least_squares.residuals(weights, residual), least_squares.leverage
    # The residual has been computed with rounded entries of K, too.
    bounds = (0.5 * math.sqrt(largest) + leverage) * (residual + rounding) / float(system.deviation.min()) + rounding
    bounds = scaling.restore_deviation(bounds) + scaling.rounding(system.targets[:, 0])
    resolution = float(residual.max()) / math.sqrt(n)
    report = ConditionReport(
        rows=n,
        columns=columns,
        samples=system.noise_draws.shape[1],
        features=0,
        backend=_describe_backend(H),
        precision=str(H.dtype).removeprefix("torch."),
        device=str(H.device),
        tol=settings.tol,
        solution=replace(solution, x=solution.x[:0]),
        error_bound=float(bounds[0]),
        sample_error_bound=float(bounds.max()),
        resolution=scaling.restore_deviation(resolution),
        relative_resolution=resolution / system.error_scale(solution.x, largest),
        seconds=time.perf_counter() - request.began,
        seed=request.seed,
        no_paths=request.no_paths,
        basis=system.num_basis,
    )
    if rule is not None:
        report = replace(
            report,
            prediction_inputs=len(rule.goal.at),
            prediction_tol=rule.goal.tol,
            prediction_error=rule.error,
            prediction_note=f"{rule.checks} checks, by the {rule.source}" if rule.checks else "no check",
        )
    return solution.x, report


def least_noise(dtype: torch.dtype, rows: int, largest: float) -> float:
    """The smallest standard deviation of the noise that products in a dtype resolve. ``largest``: max k(x, x).

    Rounding disturbs the entries of K, and so residuals, by about eps sqrt(n) max k(x, x) times the weights, whose size
    is up to 1 / noise: that is to be less than a part of the noise.
    """
    return math.sqrt(RESOLVED[dtype] * torch.finfo(dtype).eps * math.sqrt(rows) * largest)


def solve_promoting(
    solve: Callable[[torch.dtype], Any], dtype: torch.dtype, is_resolved: bool, may_promote: bool
) -> Any:
    """The posterior solve(dtype), or solve(float64) if rounding in float32 would hide what the data say.

    Warns if the solver did not converge. ``is_resolved``: whether no noise is smaller than `least_noise`.
    ``may_promote``: whether float64 is allowed (`Compute.allows_float64`).
    """
    may_promote = may_promote and dtype == torch.float32
    reason = "the noise is too small beside the signal"
    if not may_promote or is_resolved:
        posterior = solve(dtype)
        status = posterior.report.status
        if not may_promote or status not in (Status.STALLED, Status.DIVERGED):
            posterior.report.warn_unless_converged()
            return posterior
        reason = f"in float32 the solver ended {status.name}"
    posterior = solve(torch.float64)
    posterior.report = posterior.report.with_note(f"float64, for {reason}")
    posterior.report.warn_unless_converged()
    return posterior


def _describe_backend(H: Operator) -> str:
    """The backend, the number of devices that share it, and why a slower one was chosen."""
    shared = f", shared out among {H.world_size}" if H.world_size > 1 else ""
    return f"{H.backend}{shared}" + (f": {H.fallback_reason}" if H.fallback_reason else "")
