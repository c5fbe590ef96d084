"""The outer loop: hyperparameters by gradient steps on the log marginal likelihood (thesis, chapter 5).

    for each step:
        right-hand sides from frozen draws at the current hyperparameters
        solve H [v, z_1, ..., z_s] = right-hand sides, from the previous solutions
        gradient = d/dtheta of 1/2 v^T H v - 1/2s sum_j l_j^T H r_j
        one step of the optimiser

A last solve at the final hyperparameters gives the posterior. Which steps use which rows: `policy`. Which steps are
refused: `guard`.
"""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace

import torch
from tqdm.auto import tqdm

from pathgp.compute.random import permutation
from pathgp.kernels.parameters import short
from pathgp.learning.checkpoint import Resumable, at_sigterm, exit_on_signal
from pathgp.learning.estimators import GradientEstimate, State
from pathgp.learning.hyperparameters import log_prior, values
from pathgp.learning.optimisers import LBFGS
from pathgp.learning.report import Step
from pathgp.solvers import Status
from pathgp.solvers.solution import NumericalFailure

# Times that a refused step is shortened before the fit ends at the step before.
_RETREATS = 8
# Steps whose gain decides whether a fit ends early, and the gain in nats a row below which an opening on few rows is
# over: its optimum is not that of all rows.
WINDOW = 10
_OPENING_GAIN = 0.01


class StalledSolve(NumericalFailure):
    """Rounding errors kept a solver from its goal."""


class Fit(Resumable):
    """A fit in progress: ``model`` changes in place, ``history`` grows by one `Step` per step."""

    def run(self, progress: bool = False, callback: Callable[[Step], None] | None = None) -> None:
        """Take steps until all are done or the objective has settled, then choose the final hyperparameters."""
        total = sum(stage.steps for stage in self.stages)
        hidden = not (progress and self.compute.is_main_process)
        # A continued fit may have other options: more steps, or another min_gain.
        self.stopped = self._settled() if self.stage + 1 == len(self.stages) else ""
        bar = tqdm(total=total, initial=len(self.history), disable=hidden, desc="fit", unit="step")
        with bar, nullcontext() if self.checkpoint is None else at_sigterm(exit_on_signal):
            try:
                while not self.stopped and len(self.history) < total:
                    if self.step():
                        if self.checkpoint and self.compute.is_main_process and self.checkpoint.due(len(self.history)):
                            self._save()
                        bar.set_postfix_str(_postfix(self.history[-1]))
                        bar.update()
                        if callback is not None:
                            callback(self.history[-1])
                self.stopped = self.stopped or "all steps done"
                # All ranks wait for the file, so that it exists if one is lost later.
                if self.checkpoint is not None:
                    self.compute.on_main_process(self._save)
            except BaseException as error:
                # A second SIGTERM would interrupt the writing.
                with at_sigterm(signal.SIG_IGN):
                    self._rescue(error)
                raise
        self._conclude()

    def step(self) -> bool:
        """One step of the outer loop; False if it was refused even at its shortest, which ends the stage or the fit."""
        self._undo = before = self.snapshot()
        began = time.perf_counter()
        self._enter_due_stage()
        self.evaluated_at, warm = before["model"], replace(self.state, operator=None)
        for _ in range(1 + _RETREATS):
            try:
                estimate, value = self._compute_gradient()
                break
            except NumericalFailure as failure:
                problem = failure
                self._retry(failure, warm)
        else:
            self._refuse(problem, before["evaluated_at"])
            return False
        self._record(estimate, value, began)
        self.optimiser.step()
        self._project()
        if self.stage + 1 == len(self.stages):
            self.stopped = self._settled()
        self._undo = None
        return True

    @property
    def _rows(self) -> int:
        return self.stages[self.stage].rows

    @property
    def _is_opening(self) -> bool:
        return self.stages[self.stage].exact

    def _compute_gradient(self) -> tuple[GradientEstimate | None, float | None]:
        """Set the parameters' ``grad`` to the gradient of the loss; the estimate and the objective a row, if known."""
        estimate, value = self._opening_gradient() if self._is_opening else self._estimate_gradient()
        if not bool(torch.isfinite(self.coordinates.gradient()).all()):
            reached = ", ".join(f"{name} {short(value)}" for name, value in values(self.model).items())
            raise NumericalFailure(
                f"the gradient is not finite at step {len(self.history)}: give bounds to the hyperparameter that ran "
                f"away (gp.constrain), or use float64 inputs; {reached}"
            )
        return estimate, value

    def _opening_gradient(self) -> tuple[None, float]:
        """The exact gradient of the guard's rows, and their log likelihood a row."""
        guard, parameters = self.guard, self.coordinates.parameters
        assert guard is not None
        value, gradients = self.compute.on_main_process(lambda: guard.gradient(self.model, self.data, parameters))
        guard.require_likely(value)
        self.guard = guard.enter(value, self.evaluated_at)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = -gradient
        return None, value

    def _estimate_gradient(self) -> tuple[GradientEstimate, float | None]:
        """The estimator's gradient of the loss, and the objective a row, if known."""
        model, guard, prior, n = self.model, self.guard, self.state.prior, len(self.data.y)
        if guard is not None:
            likelihood = self.compute.on_main_process(lambda: guard.value(model, self.data))
            guard.require_likely(likelihood)
        if prior is not None:
            self.state.prior = prior.follow(self.generator)
            if self.state.prior is not prior:
                # Other draws make another objective.
                self.optimiser.restart()
        estimate = self.estimator.evaluate(model, self.data, self.state, self.options.settings, self.generator)
        if estimate.solution is not None and estimate.solution.status in (Status.STALLED, Status.DIVERGED):
            raise StalledSolve(f"the solver ended {estimate.solution.status.name}")
        if guard is not None:
            self.guard = guard.enter(likelihood, self.evaluated_at)
        density = log_prior(model)
        self.model.zero_grad()
        # Per row, so that the stages have objectives of one size.
        objective = estimate.objective / self._rows + density.to(estimate.objective.device) / n
        (-objective).backward()
        return estimate, None if estimate.value is None else estimate.value / self._rows + float(density.detach()) / n

    def _record(self, estimate: GradientEstimate | None, value: float | None, began: float) -> None:
        """Append the step to the history, and remember it if it is the best so far."""
        here, gradient, covers_all = (
            self.coordinates.position(),
            self.coordinates.gradient(),
            self._rows == len(self.data.y),
        )
        gain = 0.0
        if self.previous is not None:
            # The rise of the objective: from its values, or from gradients by the trapezoidal rule.
            before, slope, value_before = self.previous
            rise = -0.5 * float((slope + gradient) @ (here - before))
            if value is not None and value_before is not None:
                rise = value - value_before
            gain = self.history[-1].gain + rise * len(self.data.y)
        self.previous = (here, gradient, value)
        step = Step.of(
            None if estimate is None else estimate.solution,
            step=len(self.history),
            rows=self._rows,
            gain=gain,
            log_likelihood=estimate.value if estimate is not None and covers_all else None,
            values={name: value.flatten().tolist() for name, value in values(self.model).items()},
            solver_seconds=0.0 if estimate is None else estimate.solver_seconds,
            seconds=time.perf_counter() - began,
        )
        self.history = [*self.history, step]
        if value is not None and covers_all and (not self.best or value > self.best[0]):
            self.best = (value, self.evaluated_at)

    def _retry(self, failure: NumericalFailure, before: State) -> None:
        """Prepare another attempt: in float64 after a stalled solve, otherwise with a quarter of the step."""
        self.state.prior = before.prior
        self.state.solutions = None if before.solutions is None else before.solutions.to(self.data.dtype)
        if not (isinstance(failure, StalledSolve) and self._promote()):
            if self.previous is None:
                raise failure
            start = self.previous[0]
            self.coordinates.move(start + 0.25 * (self.coordinates.position() - start))
            self._project()
            self.optimiser.retreat()
        self.evaluated_at = self._copy_parameters()

    def _refuse(self, problem: NumericalFailure, evaluated_at: dict[str, torch.Tensor]) -> None:
        """Return to the step before, and end the opening or the fit."""
        self.evaluated_at = evaluated_at
        self.model.load_state_dict(evaluated_at)
        if self._is_opening:
            self._enter(self.stage + 1)
        else:
            self.stopped = f"{problem}; the step before was kept"
        self._undo = None

    def _project(self) -> None:
        """Move parameters back within their bounds; learned noise without bounds stays where systems can be solved.

        In float32 that may be well above what the data ask for: the fit then continues in float64.
        """
        for parameter in self.coordinates.positive:
            parameter.project()
        if self.bounds.is_noise_below(self.data):
            self._promote()
        self.bounds.project_noise(self.data)

    def _promote(self) -> bool:
        """Continue in float64, if that is allowed."""
        if self.data.dtype == torch.float64 or not self.compute.allows_float64(self.data.device):
            return False
        self.data = self.data.to(torch.float64)
        self.state.promote()
        return True

    def _enter_due_stage(self) -> None:
        """Draw what is random before the first step, and enter the next stage if the present one is over."""
        if not self.history:
            self.estimator.draw(self.model, self.data, self.state, self.generator)
            if len(self.stages) > 1:
                self.order = permutation(len(self.data.y), self.generator, self.data.device)
            self._enter(0)
        elif self.stage + 1 < len(self.stages):
            all_taken = len(self.history) - self.stage_began >= self.stages[self.stage].steps
            if all_taken or self._settled():
                self._enter(self.stage + 1)

    def _enter(self, stage: int) -> None:
        rows = self.stages[stage].rows
        # In ascending order: rows of the data are then read in order.
        chosen = None if self.order is None or rows == len(self.data.y) else self.order[:rows].sort().values
        self.state.restrict_rows(chosen, len(self.data.y))
        self.stage, self.stage_began = stage, len(self.history)
        if self.previous is not None:
            self.previous = (*self.previous[:2], None)
        self.optimiser.restart()

    def _settled(self) -> str:
        """Why the stage can end: the objective has stopped moving. Empty while it moves, forwards or backwards."""
        gains = [step.gain for step in self.history[self.stage_began :][-1 - WINDOW :]]
        least = max(self.options.min_gain, _OPENING_GAIN) if self._is_opening else self.options.min_gain
        if len(gains) <= WINDOW or max(gains) - min(gains) >= least * len(self.data.y):
            return ""
        return f"{WINDOW} steps changed the objective by less than {least:g} nats a row"

    def _conclude(self) -> None:
        """Choose the final hyperparameters: those after the last move, unless an evaluated point is safer.

        Adam's moves are small. L-BFGS may just have made a long one, so its last evaluated point is used; if values of
        the objective are known, the best one. If the guard's rows are then less likely than at first, their best.
        """
        self.state.restrict_rows(None, len(self.data.y))
        self.bounds.release()
        if self.best is not None:
            self.model.load_state_dict(self.best[1])
        elif isinstance(self.optimiser, LBFGS) and self.history:
            self.model.load_state_dict(self.evaluated_at)
        guard = self.guard
        if guard is not None and guard.state is not None and self.history:
            value = self.compute.on_main_process(lambda: guard.value(self.model, self.data))
            if not guard.ends_well(value + self.options.min_gain):
                self.model.load_state_dict(guard.state)
                self.stopped += f"; the step at which {len(guard.rows)} rows were likeliest was kept"


def _postfix(step: Step) -> str:
    noise = step.values.get("noise", [math.nan])[0]
    solve = f"residual {step.probe_residual:.1e}, {step.epochs:.0f} epochs, " if step.solver else ""
    return f"{solve}noise {noise:.3g}, gain {step.gain:.4g}"
