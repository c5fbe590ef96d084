"""One batch of linear systems for the posterior mean and all posterior samples.

    H [v, alpha_1, ..., alpha_s] = [y, f_1(X) + eps_1, ..., f_s(X) + eps_s],   H = K + Sigma,  eps_j = Sigma^1/2 w_j

The noise is handed to the solver as delta = Sigma^-1/2 w, so that eps = Sigma delta: primal SGD moves it into its
regulariser (thesis, section 3.2.2), every other solver adds it to the right-hand side.
"""

from __future__ import annotations

import math
import time
import warnings
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from pathgp.compute.inputs import real_number
from pathgp.compute.memory import given_bytes, spans
from pathgp.compute.settings import Compute
from pathgp.compute.warnings import levels_to_the_caller
from pathgp.kernels import Kernel
from pathgp.operators import KernelOperator, Operator, ShardedOperator
from pathgp.pathwise import PriorPaths
from pathgp.posterior.report import ConditionReport, ConvergenceWarning
from pathgp.solvers import Solution, Solver, as_solver
from pathgp.solvers.base import AllowedResidual, Callback, NumericalFailure, column_norms

# What the solver's error at the data may be, as a share of the posterior standard deviation there. At a tenth the
# standard deviations of paths were within 3 % of those of exact solves, and means within 0.21 standard deviations.
ACCURACY = 0.1
# Weight of the average over all rows in the estimate of each row's posterior variance, in samples.
_SHRINKAGE = 4
# Columns of the solution that are worked on at once in float64.
_COLUMNS_AT_ONCE = 8
# Sums K(x, X) v of n rounded numbers are off by eps |v| max k(x, x), give or take this factor.
_ROUNDING = 4.0


@dataclass(frozen=True)
class System:
    """The right-hand sides in the model's units.

    X: (n, d), for a grid the numbers of the cells (n, 1).  targets: (n, 1 + s), y and the prior draws f_j(X).
    noise_draws: (n, s) standard normal, or (n, 0) where the targets are all there is.  deviation: standard deviation
    of the noise, a scalar or (n,), float64.
    """

    X: Tensor
    targets: Tensor
    noise_draws: Tensor
    deviation: Tensor

    @property
    def is_complete(self) -> bool:
        """Whether the right-hand sides are there; a posterior saved without data keeps X and deviation only."""
        return self.targets.shape[1] > 0

    def require_targets(self, what: str) -> System:
        """This system, or an error where it is not complete; ``what`` is it that needs the right-hand sides."""
        if not self.is_complete:
            raise ValueError(f"{what} needs the observations, without which this posterior was saved: save(data=True)")
        return self

    def delta(self) -> Tensor | None:
        """The noise as solvers take it: eps = Sigma delta, zero for y."""
        if not self.noise_draws.shape[1]:
            return None
        scale = self.deviation.unsqueeze(1) if self.deviation.ndim else self.deviation
        scaled = self.noise_draws / scale.to(self.noise_draws.dtype)
        return torch.cat([torch.zeros_like(scaled[:, :1]), scaled], 1)

    def posterior_variances(self, x: Tensor) -> Tensor:
        """Estimated posterior variances of f at the data (n,), float64, from a solution x (n, 1 + s).

        The zero-mean part of path j at the data is f_j(X) - K alpha_j = Sigma alpha_j - eps_j + r_j, so that no product
        is needed. Few samples say little about a single row: its estimate is drawn towards the average over all rows.
        """
        noise = self.deviation.to(torch.float64).square().expand(len(self.X))
        count = self.noise_draws.shape[1]
        if not count:
            return noise
        total = torch.zeros_like(noise)
        deviation = noise.sqrt().unsqueeze(1)
        for part in spans(count, _COLUMNS_AT_ONCE):
            alpha = x[:, 1 + part.start : 1 + part.stop].to(torch.float64)
            total += (deviation.square() * alpha - deviation * self.noise_draws[:, part]).square().sum(1)
        share = float((total / noise).mean()) / count
        return (total + _SHRINKAGE * share * noise) / (count + _SHRINKAGE)

    def error_scale(self, x: Tensor | None, largest: float) -> float:
        """The root mean square of a residual whose effect is one posterior standard deviation at the data.

        The error that a residual r leaves in the mean or in a path is, at the data, K H^-1 r: at most r, and at most
        n k / sigma^2 r, with k the ``largest`` prior variance. The posterior variance of a row is at most sigma^2, and
        at least that of n observations of it alone. Before there is a solution the noise stands for it.
        """
        noise, n = self.deviation.to(torch.float64).square(), len(self.X)
        variances = noise
        if x is not None:
            variances = self.posterior_variances(x).maximum(largest * noise / (noise + n * largest))
        return (1.0 + float(noise.min()) / (n * largest)) * harmonic_mean(variances) ** 0.5

    def sizes(self) -> Tensor:
        """Euclidean norms of all right-hand sides (1 + s,), float64."""
        scale = self.deviation.unsqueeze(1) if self.deviation.ndim else self.deviation
        norms = [torch.linalg.vector_norm(self.targets[:, :1], dim=0, dtype=torch.float64)]
        for part in spans(self.noise_draws.shape[1], _COLUMNS_AT_ONCE):
            drawn = self.targets[:, 1 + part.start : 1 + part.stop] + scale * self.noise_draws[:, part]
            norms.append(torch.linalg.vector_norm(drawn, dim=0, dtype=torch.float64))
        return torch.cat(norms)

    def extended(self, other: System) -> System:
        """The rows of both systems."""
        deviations = (self.deviation.expand(len(self.X)), other.deviation.expand(len(other.X)))
        one_number = self.deviation.ndim == 0 and other.deviation.ndim == 0
        return System(
            torch.cat([self.X, other.X]),
            torch.cat([self.targets, other.targets]),
            torch.cat([self.noise_draws, other.noise_draws]),
            self.deviation if one_number else torch.cat(deviations),
        )


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
        if self.compute.group is None:
            return KernelOperator(kernel, X, deviation, self.compute, reuse)
        return ShardedOperator(kernel, X, deviation, self.compute)

    def with_backend(self, backend: str) -> Settings:
        """The same settings with another backend."""
        return replace(self, compute=replace(self.compute, backend=backend))

    def solve(
        self,
        H: Operator,
        system: System,
        generator: torch.Generator,
        x0: Tensor | None = None,
        callback: Callback | None = None,
        rule: str = "every",
        allowed: AllowedResidual | None = None,
    ) -> Solution:
        """All columns of a system at once; an error where the numbers leave their range."""
        if self.compute.group is not None:
            advice = "give every rank the same y, noise, mean and generator"
            message = f"right-hand sides differ between ranks: {advice}"
            self.compute.group.check([system.targets, system.noise_draws], message)
        solution = self.solver.solve(
            H,
            system.targets,
            x0=x0,
            delta=system.delta(),
            tol=self.tol,
            max_epochs=self.max_epochs,
            generator=generator,
            callback=callback,
            rule=rule,
            allowed=allowed,
        )
        if not bool(torch.isfinite(solution.x).all()):
            raise NumericalFailure("the solve left the range of numbers: rescale X and y, or check the kernel")
        if H.precision == self.compute.precision:
            return solution
        excuse = f"{self.compute.precision} was asked for, which only fused products have"
        return replace(solution, products=f"{solution.products}: {excuse}")


@dataclass(frozen=True)
class SolveRequest:
    """One solve on the way to a posterior: how, from where, and what its report is to say.

    seed: what repeats the draws.  no_paths: why there are none.  x0: an initial guess.  began: when the caller's clock
    started, so that the report's seconds include its preparations.
    """

    settings: Settings
    generator: torch.Generator
    seed: int | None = None
    no_paths: str = ""
    x0: Tensor | None = None
    callback: Callback | None = None
    began: float = field(default_factory=time.perf_counter)

    def in_float64(self) -> SolveRequest:
        """The same in float64."""
        return replace(self, x0=None if self.x0 is None else self.x0.to(torch.float64))


def solve_system(
    H: Operator, largest: float, columns: int, system: System, request: SolveRequest
) -> tuple[Tensor, ConditionReport]:
    """The representer weights (n, 1 + s) and the report.

    ``largest``: the largest prior variance at the data.  ``columns``: of the inputs.
    """
    settings, n = request.settings, H.shape[0]
    size = float(column_norms(system.targets[:, 0]))
    if not size <= torch.finfo(H.dtype).max:
        raise ValueError(f"the norm of y is beyond the range of {H.dtype}: rescale y")

    def allowed(x: Tensor | None) -> float:
        return ACCURACY * system.error_scale(x, largest)

    solution = settings.solve(H, system, request.generator, request.x0, request.callback, allowed=allowed)
    residual = solution.residual.cpu() * system.sizes().cpu()
    rounding = _ROUNDING * torch.finfo(H.dtype).eps * largest * column_norms(solution.x).cpu()
    bounds = math.sqrt(largest) * residual / (2.0 * float(system.deviation.min())) + rounding
    report = ConditionReport(
        rows=n,
        columns=columns,
        samples=system.noise_draws.shape[1],
        features=0,
        backend=_described(H),
        precision=str(H.dtype).removeprefix("torch."),
        device=str(H.device),
        tol=settings.tol,
        solution=replace(solution, x=solution.x[:0]),
        error_bound=float(bounds[0]),
        sample_error_bound=float(bounds.max()),
        resolution=float(residual.max()) / math.sqrt(n),
        relative_resolution=float(residual.max()) / math.sqrt(n) / system.error_scale(solution.x, largest),
        seconds=time.perf_counter() - request.began,
        seed=request.seed,
        no_paths=request.no_paths,
    )
    return solution.x, report


def warn_unless_converged(report: ConditionReport) -> None:
    """A warning at the user's line where a solver stopped short: which numbers to distrust, and what to do."""
    if not report.solution.converged:
        solution = report.solution
        warnings.warn(
            f"{solution.solver} ended {solution.status.name} with a worst residual of {report.worst_residual:.1e}: "
            f"{solution.status.value}. {report.distrusted}",
            ConvergenceWarning,
            stacklevel=levels_to_the_caller(),
        )


def harmonic_mean(values: Tensor) -> float:
    return 1.0 / float((1.0 / values).mean())


def _described(H: Operator) -> str:
    """The backend, by how many it is shared, and why nothing faster was taken."""
    shared = f", shared out among {H.members}" if H.members > 1 else ""
    return f"{H.backend}{shared}" + (f": {H.fallback_reason}" if H.fallback_reason else "")


def extend_prior(prior: PriorPaths | None, X: Tensor, y: Tensor) -> Tensor:
    """The targets (n, 1 + s): y and the prior draws at X."""
    if prior is None:
        return y.unsqueeze(1)
    with torch.no_grad():
        return torch.cat([y.unsqueeze(1), prior(X).T], 1)
