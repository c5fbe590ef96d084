"""The outer loop: learn hyperparameters theta by gradient steps on the log marginal likelihood (thesis, chapter 5).

    make s random draws, and keep them fixed (warm_start=True)
    for each step:
        make the right-hand sides b_j from the draws at the current theta
        solve H [v, x_1, ..., x_s] = [y - mu, b_1, ..., b_s], starting from the previous solutions
        gradient = d/dtheta of 1/2 v^T H v - 1/(2 s) sum_j l_j^T H r_j, where v, l_j and r_j are constants
        theta = one step of the optimiser

`estimators` defines b_j, l_j and r_j (pathwise: l_j = r_j = x_j). `policy` chooses the rows of every step, and `guard`
rejects bad steps. After the loop, `fitting` solves once more at the final theta for the posterior.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace

import torch

from pathgp.kernels.parameters import short
from pathgp.learning.checkpoint import Resumable, at_sigterm, exit_on_signal
from pathgp.learning.estimators import Exact, GradientEstimate, State, StepRequest
from pathgp.learning.exact_stages import (
    increase_noise,
    restart_from_initial,
    restore_best_validated,
    validation_likelihood,
)
from pathgp.learning.hyperparameters import log_prior, values
from pathgp.learning.optimisers import LBFGS
from pathgp.learning.pace import TIME_LIMIT, Pace
from pathgp.learning.policy import VALIDATE_EVERY
from pathgp.learning.report import VECCHIA, Step
from pathgp.learning.row_order import draw_order
from pathgp.learning.step_checks import accepts_final, check_step
from pathgp.learning.stopping import stopping_reason
from pathgp.learning.vecchia import VecchiaLikelihood
from pathgp.solvers import Status
from pathgp.solvers.solution import NumericalFailure

# Number of times that a failed step is shortened before the fit ends at the previous step.
_MAX_RETRIES = 8
# Why a fit ended that took all its steps.
ALL_STEPS = "all steps done"


class StalledSolve(NumericalFailure):
    """A solver stalled or diverged before it reached its tolerance, usually because of rounding errors."""


class OutOfTime(Exception):
    """The solve of a step did not end before the time limit."""


class Fit(Resumable):
    """A fit in progress. Every step changes ``model`` in place and adds a `Step` to ``history``.

    Its attributes are set by `Resumable.__init__`:

    coordinates: the learned parameters.
    optimiser: `Adam` or `LBFGS`, which moves them.
    bounds: default bounds, in force during the fit.
    guard: rows whose exact likelihood rejects bad steps, or None.
    validation: rows whose exact likelihood decides how a fit continues after its exact stages, or None.
    state: draws, solutions and rows that steps hand to the next ones.
    stage, stage_began: number of the current stage, and of the steps before it.
    order: the random order of the rows of all subsets; None before it is needed.
    evaluated_at: the parameters at which the last gradient was computed.
    previous: position, gradient of the loss and, if known, objective per row of the previous step.
    first_value: the objective per row of the first step, if known.
    best: the largest known objective on all rows, and its parameters.
    initial: the parameters before the first step.
    stop_reason: why the fit ended, in words; empty while it goes on.
    """

    # Time limit and progress display, set by `fitting`.
    pace = Pace()

    def run(self, callback: Callable[[Step], None] | None = None) -> None:
        """Take steps until all are done, the objective no longer changes or the time ends, then choose the final
        hyperparameters.
        """
        total = sum(stage.steps for stage in self.stages)
        # A resumed fit may have new options, such as more steps or another min_gain: decide again whether to stop.
        self.stop_reason = stopping_reason(self) if self.stage + 1 == len(self.stages) else ""
        with nullcontext() if self.checkpoint is None else at_sigterm(exit_on_signal):
            try:
                while not self.stop_reason and len(self.history) < total and self._check_time():
                    if self.step():
                        if self.checkpoint and self.compute.is_main_process and self.checkpoint.due(len(self.history)):
                            self._save()
                        self.pace.show(self)
                        if callback is not None:
                            callback(self.history[-1])
                self.stop_reason = self.stop_reason or (ALL_STEPS if total else self._describe_initial_values())
                # All ranks wait until the file is written: it must exist if a rank fails later.
                if self.checkpoint is not None:
                    self.compute.on_main_process(self._save)
            except BaseException as error:
                # Ignore a second SIGTERM, which would interrupt the writing of the checkpoint.
                with at_sigterm(signal.SIG_IGN):
                    self._rescue(error)
                raise
        self._choose_final()

    def _describe_initial_values(self) -> str:
        """Where the hyperparameters of a fit without steps come from."""
        if self.options.begins_on_subgrids:
            return "hyperparameters of sub-grids"
        choice = self.options.initialise
        return "hyperparameters as given" if choice == "model" else f"hyperparameters by initialise={choice!r}"

    def step(self) -> bool:
        """Take one step of the outer loop; return False if it failed or ran out of time.

        A failure ends the stage or the fit.
        """
        self._before_step = before = self.snapshot()
        start_time = time.perf_counter()
        self._update_stage()
        try:
            estimate, value = self._compute_with_retries()
        except OutOfTime:
            self._restore(before)
            self._before_step = None
            self.stop_reason = TIME_LIMIT
            return False
        except NumericalFailure as failure:
            if not self.history:
                raise
            self._reject_step(failure, before["evaluated_at"])
            return False
        self._record(estimate, value, start_time)
        self.optimiser.step()
        self.project()
        if self.stage + 1 == len(self.stages):
            self.stop_reason = stopping_reason(self)
        self._before_step = None
        return True

    def _compute_with_retries(self) -> tuple[GradientEstimate | None, float | None]:
        """Compute the gradient at the current hyperparameters; after a failure, in float64 or after a shorter step.

        Raise the last failure if all retries fail, or the first one if there is no earlier step to return to.
        """
        self.evaluated_at = self.copy_parameters()
        state_before = replace(self.state, operator=None)
        # Raised if every attempt increases the noise once more.
        last_failure = NumericalFailure("the noise is too small for the rows of this stage")
        for _ in range(1 + _MAX_RETRIES):
            try:
                estimate, value = self._compute_gradient()
                if estimate is None or not increase_noise(self, estimate.misfit):
                    return estimate, value
            except NumericalFailure as failure:
                last_failure = failure
                self._prepare_retry(failure, state_before)
        raise last_failure

    def _prepare_retry(self, failure: NumericalFailure, before: State) -> None:
        """Switch to float64 after a stalled solve if possible; otherwise shorten the step to a quarter."""
        self.state.prior = before.prior
        self.state.solutions = None if before.solutions is None else before.solutions.to(self.data.dtype)
        if not (isinstance(failure, StalledSolve) and self._switch_to_float64()):
            if self.previous is None:
                raise failure
            start = self.previous[0]
            self.coordinates.move(start + 0.25 * (self.coordinates.position() - start))
            self.project()
            self.optimiser.shorten_step()
        self.evaluated_at = self.copy_parameters()

    def _reject_step(self, failure: NumericalFailure, evaluated_at: dict[str, torch.Tensor]) -> None:
        """Return to the previous step, and end the exact stage or the fit."""
        self.evaluated_at = evaluated_at
        self.model.load_state_dict(evaluated_at)
        if self._is_exact_stage:
            self._enter_stage(self.stage + 1)
        else:
            self.stop_reason = f"{failure}; the previous step was kept"
        self._before_step = None

    @property
    def _num_rows(self) -> int:
        """The number of rows of the current stage."""
        return self.stages[self.stage].rows

    @property
    def max_solved_rows(self) -> int:
        """The largest number of rows of a solve so far; 0 before the first one."""
        return max((step.rows for step in self.history if step.solver), default=0)

    @property
    def _is_exact_stage(self) -> bool:
        """Whether the current stage uses exact gradients on the rows of the guard."""
        return self.stages[self.stage].exact

    def _compute_gradient(self) -> tuple[GradientEstimate | None, float | None]:
        """Set ``grad`` of all parameters to the gradient of the loss; return the estimate and the objective per row.

        The estimate is None in an exact stage. The objective is None if its value is not known.
        """
        estimate, value = self._compute_exact() if self._is_exact_stage else self._compute_estimate()
        if not bool(torch.isfinite(self.coordinates.gradient()).all()):
            hyperparameters = ", ".join(f"{name} {short(value)}" for name, value in values(self.model).items())
            advice = ", or use float64 inputs" if self.data.dtype == torch.float32 else ""
            raise NumericalFailure(
                f"the gradient is not finite at step {len(self.history)}: set bounds for the hyperparameter that "
                f"diverged (gp.constrain){advice}; {hyperparameters}"
            )
        return estimate, value

    def _compute_exact(self) -> tuple[None, float]:
        """Set ``grad`` to the exact gradient on the guard's rows; return their objective per row."""
        guard, parameters = self.guard, self.coordinates.parameters
        assert guard is not None
        value, gradients = self.compute.on_main_process(lambda: guard.gradient(self.model, self.data, parameters))
        guard.check(value)
        self.guard = guard.update(value, self.evaluated_at)
        if (len(self.history) - self.stage_began) % VALIDATE_EVERY == 0:
            assert self.validation is not None
            self.validation = self.validation.update(validation_likelihood(self), self.evaluated_at)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = -gradient
        return None, value

    def _compute_estimate(self) -> tuple[GradientEstimate, float | None]:
        """Set ``grad`` to the gradient of the estimator; return the estimate and, if known, the objective per row."""
        model, prior = self.model, self.state.prior
        n = len(self.data.y)
        likelihood = check_step(self)
        if prior is not None:
            self.state.prior = prior.follow(self.generator)
            if self.state.prior is not prior:
                # A periodic kernel needed draws for more harmonics, which change the objective.
                self.optimiser.forget_last_step()
        request = StepRequest(self.options.step_settings, self.generator, self.pace.seconds_for_step(self))
        estimate = self.estimator.evaluate(model, self.data, self.state, request)
        if estimate.solution is not None and estimate.solution.status is Status.OUT_OF_TIME:
            raise OutOfTime
        if estimate.solution is not None and estimate.solution.status in (Status.STALLED, Status.DIVERGED):
            raise StalledSolve(f"the solver ended {estimate.solution.status.name}")
        if self.guard is not None:
            self.guard = self.guard.update(likelihood, self.evaluated_at)
        log_prior_value = log_prior(model)
        self.model.zero_grad()
        # Per row, so that the objectives of all stages are comparable.
        objective = estimate.objective / self._num_rows + log_prior_value.to(estimate.objective.device) / n
        (-objective).backward()
        if estimate.value is None:
            return estimate, None
        return estimate, estimate.value / self._num_rows + float(log_prior_value.detach()) / n

    def _record(self, estimate: GradientEstimate | None, value: float | None, start_time: float) -> None:
        """Append the step to the history, and remember it if it is the best so far."""
        position, gradient = self.coordinates.position(), self.coordinates.gradient()
        uses_all_rows = self._num_rows == len(self.data.y)
        uses_vecchia = isinstance(self.estimator, VecchiaLikelihood) and not self._is_exact_stage
        total_gain = 0.0
        if self.previous is not None:
            previous_position, previous_gradient, previous_value = self.previous
            if value is not None and previous_value is not None:
                gain_per_row = value - previous_value
            else:
                # The trapezoidal rule. Gradients are those of the loss, hence the sign.
                gain_per_row = -0.5 * float((previous_gradient + gradient) @ (position - previous_position))
            total_gain = self.history[-1].gain + gain_per_row * len(self.data.y)
        elif not self.history:
            self.first_value = value
        elif value is not None and self.first_value is not None:
            # A stage that starts again: exact stages have the same rows.
            total_gain = (value - self.first_value) * len(self.data.y)
        self.previous = (position, gradient, value)
        step = Step.of(
            None if estimate is None else estimate.solution,
            step=len(self.history),
            rows=self._num_rows,
            gain=total_gain,
            log_likelihood=estimate.value if estimate is not None and uses_all_rows else None,
            values={name: value.flatten().tolist() for name, value in values(self.model).items()},
            solver_seconds=0.0 if estimate is None else estimate.solver_seconds,
            seconds=time.perf_counter() - start_time,
            **({"method": VECCHIA} if uses_vecchia else {}),
        )
        self.history = [*self.history, step]
        if value is not None and uses_all_rows and (not self.best or value > self.best[0]):
            self.best = (value, self.evaluated_at)

    def project(self) -> None:
        """Move parameters back within their bounds; learned noise has a lower bound if the user has set none.

        Below that bound systems cannot be solved reliably. If the noise falls below the bound of float32, the fit
        continues in float64, whose bound is lower.
        """
        for parameter in self.coordinates.positive:
            parameter.project()
        if self.bounds.is_noise_below(self.data):
            self._switch_to_float64()
        self.bounds.project_noise(self.data)

    def _switch_to_float64(self) -> bool:
        """Continue in float64 if that is allowed; return whether the dtype changed."""
        if self.data.dtype == torch.float64 or not self.compute.allows_float64(self.data.device):
            return False
        self.data = self.data.to(torch.float64)
        self.state.promote()
        return True

    def _update_stage(self) -> None:
        """Before the first step, make all random draws; later, enter the next stage once the current one is over."""
        if not self.history:
            self.initial = self.copy_parameters()
            self.estimator.draw(self.model, self.data, self.state, self.generator)
            if self.stages[0].rows < len(self.data.y):
                self.order = draw_order(self.model, self.data, self.options.settings, self.generator)
            self._enter_stage(0)
        elif self.next_stage != self.stage:
            self._enter_stage(self.next_stage)

    @property
    def next_stage(self) -> int:
        """The stage of the next step."""
        if not self.history or self.stage + 1 == len(self.stages):
            return self.stage
        is_done = len(self.history) - self.stage_began >= self.stages[self.stage].steps
        return self.stage + 1 if is_done or stopping_reason(self) else self.stage

    def _check_time(self) -> bool:
        """Return whether the time limit allows another step; if not, record the time limit as reason to stop."""
        if self.pace.deadline is None or self.compute.on_main_process(lambda: self.pace.has_time_for_step(self)):
            return True
        self.stop_reason = TIME_LIMIT
        return False

    def _enter_stage(self, stage: int) -> None:
        """Begin a stage.

        After an exact stage, choose the hyperparameters to continue from. Select the rows of the new stage, and let the
        optimiser forget its last step.
        """
        if self._is_exact_stage and stage > self.stage:
            factor = self.stages[stage].noise_factor
            if factor is None:
                restore_best_validated(self)
            else:
                restart_from_initial(self, factor)
        self.state.restrict_rows(self.first_rows(self.stages[stage].rows), len(self.data.y))
        self.stage, self.stage_began = stage, len(self.history)
        if isinstance(self.estimator, Exact) and not self._is_exact_stage:
            # The objective of all rows is known at every step.
            self.guard = None
        if self.previous is not None:
            # Values of the objective on other rows cannot be compared.
            self.previous = (*self.previous[:2], None)
        self.optimiser.forget_last_step()

    def first_rows(self, count: int) -> torch.Tensor | None:
        """The first ``count`` rows of the random order that all subsets share, as sorted indices; None for all rows."""
        if count >= len(self.data.y):
            return None
        if self.order is None:
            self.order = draw_order(self.model, self.data, self.options.settings, self.generator)
        # Sorted, so that rows of the data are read in order of memory.
        return self.order[:count].sort().values

    def _choose_final(self) -> None:
        """Choose the final hyperparameters.

        - If values of the objective on all rows are known: the best evaluated hyperparameters.
        - Otherwise, with L-BFGS: the last evaluated ones, because its last step may be long.
        - Otherwise, with Adam: those after the last step, because its steps are small.

        If the guard rejects this choice, and so do more rows, take the hyperparameters with the largest likelihood of
        the guard's rows.
        """
        self.state.restrict_rows(None, len(self.data.y))
        # Default bounds of length scales and signals hold during the fit only.
        self.bounds.release()
        if self.best is not None:
            self.model.load_state_dict(self.best[1])
        elif isinstance(self.optimiser, LBFGS) and self.history:
            self.model.load_state_dict(self.evaluated_at)
        guard = self.guard
        if guard is not None and guard.state is not None and self.history and not accepts_final(self, guard):
            self.model.load_state_dict(guard.state)
            self.stop_reason += f"; the step with the largest likelihood of {len(guard.rows)} rows was kept"
