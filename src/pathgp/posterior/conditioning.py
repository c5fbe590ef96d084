"""Solve the systems of a posterior: settings, one request, weights and report."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TypeVar

import torch
from torch import Tensor

from pathgp.compute.inputs import real_number
from pathgp.compute.memory import given_bytes, memory_budget
from pathgp.compute.random import as_generator
from pathgp.data.standardise import Standardisation
from pathgp.kernels import Kernel
from pathgp.operators import Group, KernelOperator, Operator, ShardedOperator
from pathgp.posterior.report import ConditionReport
from pathgp.posterior.system import System
from pathgp.solvers import Solution, Solver, as_solver
from pathgp.solvers.base import AllowedResidual, Callback, NumericalFailure, column_norms
from pathgp.solvers.cg import full_rate_float64

T = TypeVar("T")

# Largest error of the solver at the data, in posterior standard deviations. At a tenth the standard deviations of paths
# were within 3 % of those of exact solves, and means within 0.21 standard deviations.
ACCURACY = 0.1
# Rounding errors of sums K(x, X) v are at most this factor times eps |v| max k(x, x).
_ROUNDING = 4.0


@dataclass(frozen=True)
class Settings:
    """How to solve: kept with the posterior, so that an update repeats it."""

    solver: Solver
    tol: float
    max_epochs: float | None
    backend: str
    memory: int | None
    group: Group | None = None
    precision: str = "high"

    @classmethod
    def read(
        cls,
        solver: str | Solver,
        tol: float,
        max_epochs: float | None,
        backend: str,
        memory: float | None,
        group: Group | None = None,
        precision: str = "high",
    ) -> Settings:
        """Check what a user gave."""
        max_epochs = None if max_epochs is None else real_number(max_epochs, "max_epochs")
        memory = given_bytes(memory)
        if not (group is None or isinstance(group, Group)):
            raise TypeError(f"group must be None, Ranks() or Devices([...]), got {type(group).__name__}")
        found = cls(as_solver(solver), real_number(tol, "tol"), max_epochs, backend, memory, group, precision)
        how = {"solver": solver, "tol": tol, "max_epochs": max_epochs, "backend": backend, "memory": memory}
        found.require_equal(**how, precision=precision)
        return found

    def require_equal(self, **arguments: object) -> None:
        """An error where the ranks were given different arguments: they would wait for each other in vain."""
        if self.group is not None:
            self.group.require_equal(**arguments)

    @property
    def is_main_process(self) -> bool:
        """Whether this process writes files and shows progress."""
        return self.group is None or self.group.leader

    def operator(self, kernel: Kernel, X: Tensor, deviation: Tensor, instead: Operator | None = None) -> Operator:
        """H for a kernel, inputs and the standard deviation of the noise; ``instead`` of one that is done with."""
        if self.group is None:
            return KernelOperator(kernel, X, deviation, self.backend, self.memory, self.precision, instead)
        how = (self.backend, self.memory, self.precision)
        return ShardedOperator(kernel, X, deviation, *how, group=self.group)

    def generator(self, generator: torch.Generator | None) -> torch.Generator:
        """The given generator or a fresh one, in the same state for all that share the work."""
        generator = as_generator(generator)
        return generator if self.group is None else self.group.sync_generator(generator)

    def budget(self, device: torch.device) -> int:
        """The memory budget in bytes, the same for all that share the work."""
        return memory_budget(self.memory, device) if self.group is None else self.group.budget(self.memory, device)

    def allows_float64(self, device: torch.device) -> bool:
        """Whether work may move to float64: not where fused products were asked for, or where float64 is very slow."""
        return self.backend != "fused" and full_rate_float64(device)

    def on_main_process(self, compute: Callable[[], T]) -> T:
        """What the first rank finds, given to all."""
        return compute() if self.group is None else self.group.on_main_process(compute)

    def map_rows(self, function: Callable[[Tensor], Tensor], Xs: Tensor) -> Tensor:
        """function(Xs) (count, m), a column for each row of Xs; the rows are shared out."""
        return function(Xs) if self.group is None else self.group.rows(function, Xs)

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
        if self.group is not None:
            advice = "give every rank the same y, noise, mean and generator"
            self.group.check([system.targets, system.noise_draws], f"right-hand sides differ between ranks: {advice}")
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
        if H.precision == self.precision:
            return solution
        excuse = f"{self.precision} was asked for, which only fused products have"
        return replace(solution, products=f"{solution.products}: {excuse}")


@dataclass(frozen=True)
class SolveRequest:
    """One solve for a posterior, and what its report records.

    seed: repeats the draws.  no_paths: why there are no paths.  x0: an initial guess.  began: when the caller started,
    so that the report's seconds include its preparations.
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
    H: Operator, largest: float, columns: int, system: System, scaling: Standardisation, request: SolveRequest
) -> tuple[Tensor, ConditionReport]:
    """Representer weights (n, 1 + s), and the report in the units of y.

    ``largest``: the largest prior variance at the data.  ``columns``: number of columns of the inputs.
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
        backend=_describe_backend(H),
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
    return solution.x, report.in_units(scaling, system.targets[:, 0])


def _describe_backend(H: Operator) -> str:
    """The backend, the number of devices that share it, and why a slower one was chosen."""
    shared = f", shared out among {H.members}" if H.members > 1 else ""
    return f"{H.backend}{shared}" + (f": {H.fallback_reason}" if H.fallback_reason else "")
