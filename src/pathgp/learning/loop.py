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
from functools import cached_property
from typing import Any

import torch
from tqdm.auto import tqdm

from pathgp.compute.random import permutation
from pathgp.kernels.parameters import positive, short
from pathgp.learning.bounds import set_default_bounds
from pathgp.learning.checkpoint import Checkpoint, at_sigterm, exit_on_signal, mean_values, pack, unpack
from pathgp.learning.estimators import Exact, GradientEstimate, Iterative, State
from pathgp.learning.guard import Guard
from pathgp.learning.hyperparameters import Coordinates, description, log_prior, values
from pathgp.learning.model import Data, Learnable
from pathgp.learning.optimisers import LBFGS, make
from pathgp.learning.policy import FitOptions, make_stages
from pathgp.learning.report import Step
from pathgp.solvers import Status
from pathgp.solvers.solution import NumericalFailure

# The least noise that is learned unless bounds say otherwise, as a share of the standard deviation of y. Held-out log
# likelihoods of 20 sets do not tell 1e-5 to 1e-3 apart if there is noise; without any, 1e-4 costs 0.3 nats a row on
# average compared with 1e-5 (1.3 at most). It is more than most measurements resolve, and its systems can be solved.
LEAST_NOISE = 1e-4
# Times that a refused step is shortened before the fit ends at the step before.
_RETREATS = 8
# Steps whose gain decides whether a fit ends early, and the gain in nats a row below which an opening on few rows is
# over: its optimum is not that of all rows.
WINDOW = 10
_OPENING_GAIN = 0.01
# Attributes that a step binds anew.
_STATE: tuple[str, ...] = ("evaluated_at", "state", "data", "order", "stage", "stage_began")
_STATE += ("previous", "best", "history", "stopped", "seed")


class StalledSolve(NumericalFailure):
    """Rounding errors kept a solver from its goal."""


class Fit:
    """A fit in progress: ``model`` changes in place, ``history`` grows by one `Step` per step.

    Everything that a step changes is in the attributes that `snapshot` collects. Updates bind new objects to them and
    change none in place, except for the parameters of the model, of which a snapshot keeps copies.
    """

    def __init__(
        self, model: Learnable, data: Data, options: FitOptions, generator: torch.Generator, seed: int | None = None
    ) -> None:
        assert options.learning_rate is not None
        self.model, self.data, self.options, self.generator, self.seed = model, data, options, generator, seed
        self.compute = options.settings.compute
        self.stages = make_stages(len(data.y), options)
        self.estimator: Exact | Iterative = Exact()
        if options.estimator != "exact":
            is_pathwise = options.estimator == "pathwise"
            self.estimator = Iterative(is_pathwise, options.samples, options.features, bool(options.warm_start))
        self._description, self._mean_values = description(model), mean_values(model, data)
        noise = positive(model, "noise")
        self._is_noise_free = noise.bounds is None and noise.raw.requires_grad
        self._spread = float(data.targets(data.y.mean()).to(torch.float64).std(correction=0)) or 1.0
        self._bounded = set_default_bounds(model, data, self._spread)
        # A mean is in the units of y: its steps are measured by the standard deviation of y.
        unit = max(float(data.y.std(correction=0)), torch.finfo(torch.float64).tiny)
        mean = model.mean.parameters() if isinstance(model.mean, torch.nn.Module) else ()
        self.coordinates = Coordinates(model, dict.fromkeys(mean, unit))
        if not self.coordinates.parameters:
            raise ValueError("nothing to learn: every hyperparameter is fixed; use condition()")
        self.optimiser = make(options.optimiser, self.coordinates, options.learning_rate)
        self.guard = None if options.estimator == "exact" else Guard.draw(data)
        self.state = State()
        self.history: list[Step] = []
        self.stopped = ""
        # Position, gradient of the loss and, if known, log likelihood a row of the previous step.
        self.previous: tuple[torch.Tensor, torch.Tensor, float | None] | None = None
        self.best: tuple[float, dict[str, torch.Tensor]] | None = None
        self.stage = self.stage_began = 0
        self.order: torch.Tensor | None = None
        self.evaluated_at = self._copy_parameters()
        # The state before the step in progress; None between steps.
        self._undo: dict[str, Any] | None = None

    def run(
        self,
        checkpoint: Checkpoint | None = None,
        progress: bool = False,
        callback: Callable[[Step], None] | None = None,
    ) -> None:
        """Take steps until all are done or the objective has settled, then choose the final hyperparameters."""
        total = sum(stage.steps for stage in self.stages)
        hidden = not (progress and self.compute.is_main_process)
        bar = tqdm(total=total, initial=len(self.history), disable=hidden, desc="fit", unit="step")
        with bar, nullcontext() if checkpoint is None else at_sigterm(exit_on_signal):
            try:
                while not self.stopped and len(self.history) < total:
                    if self.step():
                        self._save_if_due(checkpoint)
                        bar.set_postfix_str(_postfix(self.history[-1]))
                        bar.update()
                        if callback is not None:
                            callback(self.history[-1])
                self.stopped = self.stopped or "all steps done"
                if checkpoint is not None:
                    # All ranks wait for it, so that the file exists if one is lost later.
                    self.compute.on_main_process(lambda: self._save(checkpoint))
            except BaseException as error:
                # A second SIGTERM would interrupt the writing.
                with at_sigterm(signal.SIG_IGN):
                    self._rescue(checkpoint, error)
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
                estimate, value = self._opening_gradient() if self._is_opening else self._estimate_gradient()
                self.history = [*self.history, self._record(estimate, value, began)]
                if value is not None and self._rows == len(self.data.y) and (not self.best or value > self.best[0]):
                    self.best = (value, self.evaluated_at)
                self.optimiser.step()
                self._project()
                break
            except NumericalFailure as failure:
                problem = failure
                self._retry(failure, warm)
        else:
            self.evaluated_at = before["evaluated_at"]
            self.model.load_state_dict(self.evaluated_at)
            if self._is_opening:
                self._enter(self.stage + 1)
            else:
                self.stopped = f"{problem}; the step before was kept"
        is_accepted = self.history is not before["history"]
        if is_accepted and self.stage + 1 == len(self.stages):
            self.stopped = self._settled()
        self._undo = None
        return is_accepted

    @property
    def _rows(self) -> int:
        return self.stages[self.stage].rows

    @property
    def _is_opening(self) -> bool:
        return self.stages[self.stage].exact

    def _opening_gradient(self) -> tuple[None, float]:
        """The exact gradient of the guard's loss, into the parameters' ``grad``, and its log likelihood a row."""
        guard, parameters = self.guard, self.coordinates.parameters
        assert guard is not None
        value, gradients = self.compute.on_main_process(lambda: guard.gradient(self.model, self.data, parameters))
        guard.require_likely(value)
        guard.enter(value, self.evaluated_at)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = -gradient
        return None, value

    def _estimate_gradient(self) -> tuple[GradientEstimate, float | None]:
        """The estimator's gradient of the loss, into the parameters' ``grad``, and the objective a row, if known."""
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
            guard.enter(likelihood, self.evaluated_at)
        density = log_prior(model)
        for parameter in self.coordinates.parameters:
            parameter.grad = None
        # Per row, so that the stages have objectives of one size.
        objective = estimate.objective / self._rows + density.to(estimate.objective.device) / n
        (-objective).backward()
        return estimate, None if estimate.value is None else estimate.value / self._rows + float(density.detach()) / n

    def _record(self, estimate: GradientEstimate | None, value: float | None, began: float) -> Step:
        """The step as the history keeps it; NumericalFailure if the gradient is not finite."""
        here, gradient = self.coordinates.position(), self.coordinates.gradient()
        if not bool(torch.isfinite(gradient).all()):
            raise NumericalFailure(
                f"the gradient is not finite at step {len(self.history)}: give bounds to the hyperparameter that ran "
                f"away (gp.constrain), or use float64 inputs; {_values_in_words(self.model)}"
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
        return Step.of(
            None if estimate is None else estimate.solution,
            step=len(self.history),
            rows=self._rows,
            gain=gain,
            log_likelihood=estimate.value if estimate is not None and self._rows == len(self.data.y) else None,
            values={name: value.flatten().tolist() for name, value in values(self.model).items()},
            solver_seconds=0.0 if estimate is None else estimate.solver_seconds,
            seconds=time.perf_counter() - began,
        )

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

    def _project(self) -> None:
        """Move parameters back within their bounds; learned noise without bounds stays where systems can be solved.

        In float32 that may be well above what the data ask for: the fit then continues in float64.
        """
        for parameter in self.coordinates.positive:
            parameter.project()
        if self._is_noise_free:
            noise = positive(self.model, "noise")
            least = self._least_noise()
            if float(noise.value.detach()) < least and self._promote():
                least = self._least_noise()
            noise.bounds = (least, math.inf)
            noise.project()

    def _least_noise(self) -> float:
        return max(self.model.least_noise(self.data), LEAST_NOISE * self._spread)

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
        for parameter in self._bounded:
            parameter.bounds = None
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

    def _rescue(self, checkpoint: Checkpoint | None, error: BaseException) -> None:
        """After an exception: restore the end of the last whole step and write it, on every rank, for one is lost."""
        if self._undo is not None:
            self._restore(self._undo)
        try:
            if checkpoint is not None and (self.history or not isinstance(error, Exception)):
                self._save(checkpoint)
        except OSError as problem:
            error.add_note(f"the checkpoint could not be written: {problem}")

    def resume(self, checkpoint: Checkpoint) -> bool:
        """Continue from the file of a checkpoint, if there is one."""
        # The file may be out of reach of the other ranks.
        content = self.compute.on_main_process(lambda: checkpoint.read(self.facts, self._mean_values))
        if content is None:
            return False
        self._restore(unpack(content, self.model, self.data))
        # The options may have changed since: more steps, or another min_gain.
        self.stopped = self._settled() if self.stage + 1 == len(self.stages) else ""
        return True

    @cached_property
    def facts(self) -> dict[str, str]:
        """What a checkpoint must agree with."""
        settings, rate = self.options.settings, self.options.learning_rate
        return {
            "data": self.data.fingerprint(),
            "model": self._description,
            "estimator": repr(self.estimator),
            "optimiser": f"{self.options.optimiser} at rate {rate:g}",
            "rows of the stages": ", ".join(str(stage.rows) for stage in self.stages),
            "solver": f"{settings.solver!r} to {settings.tol:g} in {settings.max_epochs} epochs",
        }

    def _save_if_due(self, checkpoint: Checkpoint | None) -> None:
        if checkpoint is not None and self.compute.is_main_process and checkpoint.due(len(self.history)):
            self._save(checkpoint)

    def _save(self, checkpoint: Checkpoint) -> None:
        content = {"facts": self.facts, "mean": self._mean_values, **pack(self.snapshot())}
        checkpoint.write(content, len(self.history))

    def snapshot(self) -> dict[str, Any]:
        """The state between two steps: references, and copies of the parameters.

        The operator is left out, for its matrix would be kept.
        """
        return {name: getattr(self, name) for name in _STATE} | {
            "state": replace(self.state, operator=None),
            "model": self._copy_parameters(),
            "optimiser": self.optimiser.state_dict(),
            "generator": self.generator.get_state(),
            "guard": None if self.guard is None else self.guard.pack(),
        }

    def _restore(self, snapshot: dict[str, Any]) -> None:
        for name in _STATE:
            setattr(self, name, snapshot[name])
        self.model.load_state_dict(snapshot["model"])
        self.optimiser.load_state_dict(snapshot["optimiser"])
        self.generator.set_state(snapshot["generator"])
        if self.guard is not None:
            self.guard.unpack(snapshot["guard"])

    def _copy_parameters(self) -> dict[str, torch.Tensor]:
        return {name: value.detach().clone() for name, value in self.model.state_dict().items()}


def _values_in_words(model: Learnable) -> str:
    return ", ".join(f"{name} {short(value)}" for name, value in values(model).items())


def _postfix(step: Step) -> str:
    noise = step.values.get("noise", [math.nan])[0]
    solve = f"residual {step.probe_residual:.1e}, {step.epochs:.0f} epochs, " if step.solver else ""
    return f"{solve}noise {noise:.3g}, gain {step.gain:.4g}"
