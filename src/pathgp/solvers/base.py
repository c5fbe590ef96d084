"""The contract of all solvers: three nouns (operator, solver, solution) and one verb (solve)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace

import torch
from torch import Tensor

from pathgp.operators import Operator
from pathgp.solvers.refinement import solve_refined
from pathgp.solvers.run import Run
from pathgp.solvers.solution import AllowedResidual, Callback, Solution, Status

# The error of more accurate products, over the goal of the residuals.
_MARGIN = 0.3


class Solver(ABC):
    """A frozen record of settings with one verb."""

    def solve(
        self,
        H: Operator,
        B: Tensor,
        x0: Tensor | None = None,
        delta: Tensor | None = None,
        tol: float = 1e-2,
        max_epochs: float | None = None,
        generator: torch.Generator | None = None,
        callback: Callback | None = None,
        rule: str = "every",
        allowed: AllowedResidual | None = None,
        time_limit: float | None = None,
    ) -> Solution:
        """Solve H x = B + Sigma delta for all columns of B (n, s) at once.

        Args:
            H: the system matrix.
            B: right-hand sides (n, s).
            x0: initial guess (n, s), for instance the solution of a similar system.
            delta: noise in the regulariser's coordinates (n, s); SGD uses it for its low-variance objective.
            tol: relative residual |b - H x| / |b| to reach; 0 runs until the budget is spent.
            max_epochs: budget in products with H, checks included; 1000 by default.
            generator: source of the solver's random choices; None draws a fresh seed.
            callback: called with a `Record` whenever residuals are known.
            rule: "every" column below its goal, or "average": the first column and the mean of the others (the rule
                of chapter 5 of the thesis).
            allowed: the largest root mean square of b - H x in a column, as a function of the solution. A column's
                goal is the smaller of this and ``tol``.
            time_limit: seconds after which to end, checked between iterations.
        """
        with torch.no_grad():
            run = Run(H, B, x0, delta, tol, max_epochs, generator, callback, rule, allowed, time_limit)
            if run.begin():
                reason = "the start was good enough"
                run.precision_note = reason if H.precision != "high" else ""
                solution = run.finish(run.start, Status.CONVERGED, self, reason)
                return replace(solution, solver="none needed", method="none needed")
            solution = self._solve(run) if H.low_precision is H else solve_refined(self, run)
            is_limited_by_products = run.product_excess > 1.0 and solution.status in (Status.CONVERGED, Status.STALLED)
            return self._solve_tighter(run, solution) if is_limited_by_products else solution

    def _solve_tighter(self, run: Run, solution: Solution) -> Solution:
        """Continue with more accurate products: the error of those used exceeds the goal of the residuals."""
        H = run.H.tighten(_MARGIN / run.product_excess)
        if H is run.H:
            reason = f"products off by {solution.product_error:.1e}; more accurate ones would take far longer"
            return replace(solution, status=Status.STALLED, note=f"{solution.note}; {reason}")
        left, delta = run.max_epochs - run.epochs, None if run.delta is None else run.delta * run.scale
        rest = self.solve(
            H,
            run.targets * run.scale,
            solution.x,
            delta,
            run.tol,
            max(1.0, left),
            run.generator,
            run.callback,
            run.rule,
            run.allowed,
            run.seconds_left,
        )
        reason = f"products off by {solution.product_error:.1e} were replaced by {H.backend} products"
        return replace(
            rest,
            iterations=solution.iterations + rest.iterations,
            epochs=solution.epochs + rest.epochs,
            seconds=solution.seconds + rest.seconds,
            history=[*solution.history, *rest.history],
            note="; ".join([solution.note, f"{reason} of higher accuracy", rest.note]),
        )

    @abstractmethod
    def _solve(self, run: Run) -> Solution:
        """Iterate from ``run.start``, where the residual is ``run.initial_residual``; end with ``run.finish``."""
