"""The outer loop: hyperparameters by gradient steps on the log marginal likelihood (thesis, chapter 5).

    for each step:
        right-hand sides from frozen draws at the current hyperparameters
        solve H [v, z_1, ..., z_s] = right-hand sides, from the previous solutions
        gradient = d/dtheta of 1/2 v^T H v - 1/2s sum_j l_j^T H r_j
        one step of the optimiser

and one last solve at the final hyperparameters, whose solutions are the posterior.
"""

from __future__ import annotations

import copy
import math
import signal
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from tqdm.auto import tqdm

from pathgp.compute.random import permutation
from pathgp.kernels.parameters import positive, short
from pathgp.learning.bounds import set_default_bounds
from pathgp.learning.checkpoint import Checkpoint, at_sigterm, leave
from pathgp.learning.estimators import Estimate, Exact, Iterative, State
from pathgp.learning.guard import ROWS, Guard
from pathgp.learning.hyperparameters import Coordinates, description, log_prior, values
from pathgp.learning.model import Data, Learnable
from pathgp.learning.optimisers import LBFGS, Optimiser, make
from pathgp.learning.report import NO_SOLVE, Step
from pathgp.posterior.conditioning import Settings
from pathgp.solvers import Status
from pathgp.solvers.base import NumericalFailure

# The fewest rows of a stage that does not look at all of them.
LEAST_ROWS = 2000
# The least noise that is learned unless bounds say otherwise, as a share of the standard deviation of y. Held-out log
# likelihoods of 20 sets do not tell 1e-5 to 1e-3 apart where there is noise; without any, 1e-4 costs 0.3 nats a row
# on average beside 1e-5 (1.3 at most). It is more than most measurements resolve, and its systems can be solved.
LEAST_NOISE = 1e-4
# Times that a refused step is shortened before the fit ends where it stands.
_RETREATS = 8
# Steps over which the gain is looked at before a fit is ended early, and the gain in nats a row below which an opening
# on few rows is over: its optimum is not that of all rows.
WINDOW = 10
_OPENING_GAIN = 0.01


class StalledSolve(NumericalFailure):
    """Rounding errors kept a solver from its goal."""


@dataclass(frozen=True)
class Stage:
    """A part of a fit that looks at some rows only; ``steps`` at most. ``exact``: by the gradients of the guard."""

    rows: int
    steps: int
    exact: bool = False


def stages(n: int, steps: int, coarse: bool, opening: bool) -> tuple[Stage, ...]:
    """Coarse to fine: first steps on random subsets that grow, the last quarter of the steps on all rows.

    An eighth of the rows costs a sixty-fourth per step. Subsets have a few thousand rows, smaller data is taken whole.
    With ``opening`` half of the steps, or fewer, are exact ones on the rows of the guard.
    """
    if opening and n > ROWS and steps > 1:
        first = Stage(ROWS, steps // 2, exact=True)
        return (first, *stages(n, steps - first.steps, coarse, opening=False))
    if not coarse:
        return (Stage(n, steps),)
    sizes = [max(LEAST_ROWS, n // 8), max(LEAST_ROWS, n // 3)]
    shares = [steps // 2, steps // 4]
    early = [Stage(rows, share) for rows, share in zip(sizes, shares, strict=True) if 2 * rows <= n and share]
    return (*early, Stage(n, steps - sum(stage.steps for stage in early)))


@dataclass(frozen=True)
class Plan:
    """How to learn: the three levels of the hierarchy, the stages, and when to stop."""

    stages: tuple[Stage, ...]
    learning_rate: float
    optimiser: str
    min_gain: float
    estimator: Exact | Iterative
    settings: Settings


@dataclass
class Fit:
    """A fit in progress; ``model`` is changed in place."""

    model: Learnable
    data: Data
    plan: Plan
    generator: torch.Generator
    seed: int | None = None
    state: State = field(default_factory=State)
    history: list[Step] = field(default_factory=list)
    stopped: str = ""

    def __post_init__(self) -> None:
        self._described = description(self.model)
        self._mean_values = _mean_values(self.model, self.data)
        noise = positive(self.model, "noise")
        self._free_noise = noise.bounds is None and noise.raw.requires_grad
        self._spread = float(self.data.targets(self.data.y.mean()).to(torch.float64).std(correction=0)) or 1.0
        self._bounded = set_default_bounds(self.model, self.data, self._spread)
        # A mean is in the units of y: its steps are measured by the standard deviation of y.
        unit = max(float(self.data.y.std(correction=0)), torch.finfo(torch.float64).tiny)
        mean = self.model.mean.parameters() if isinstance(self.model.mean, torch.nn.Module) else ()
        self.coordinates = Coordinates(self.model, dict.fromkeys(mean, unit))
        if not self.coordinates.parameters:
            raise ValueError("nothing to learn: every hyperparameter is fixed; use condition()")
        self.optimiser: Optimiser = make(self.plan.optimiser, self.coordinates, self.plan.learning_rate)
        # Where the step before stood, the gradient of its loss, and its log likelihood where known, per row.
        self._previous: tuple[torch.Tensor, torch.Tensor, float | None] | None = None
        self._guard = None if isinstance(self.plan.estimator, Exact) else Guard.draw(self.data)
        self._best: tuple[float, dict[str, torch.Tensor]] | None = None
        self._stage = self._stage_began = 0
        self._order: torch.Tensor | None = None
        self.evaluated_at = copy.deepcopy(self.model.state_dict())

    def run(
        self,
        checkpoint: Checkpoint | None = None,
        progress: bool = False,
        callback: Callable[[Step], None] | None = None,
    ) -> None:
        """All steps that are left, or as many as it takes until there is nothing more to gain."""
        steps = sum(stage.steps for stage in self.plan.stages)
        saved = self._pack()
        hidden = not (progress and self.plan.settings.compute.is_main_process)
        shown = tqdm(total=steps, initial=len(self.history), disable=hidden, desc="fit", unit="step")
        with shown as bar, nullcontext() if checkpoint is None else at_sigterm(leave):
            try:
                while not self.stopped:
                    if len(self.history) >= steps:
                        self.stopped = "all steps done"
                        break
                    taken = len(self.history)
                    self._advance()
                    saved = self._pack()
                    if len(self.history) == taken:
                        continue
                    if (
                        checkpoint is not None
                        and self.plan.settings.compute.is_main_process
                        and checkpoint.due(len(self.history))
                    ):
                        self._save(checkpoint, saved)
                    last = self.history[-1]
                    bar.set_postfix_str(_postfix(last))
                    bar.update()
                    if callback is not None:
                        callback(last)
                if checkpoint is not None:
                    # All wait for it, so that it is there whoever is lost in what follows.
                    self.plan.settings.compute.on_main_process(lambda: self._save(checkpoint, self._pack()))
            except BaseException as error:
                # Back to the end of the last whole step. Every rank writes: the first may be the one that is lost.
                # A SIGTERM that comes now would end the writing.
                with at_sigterm(signal.SIG_IGN):
                    self._unpack(saved)
                    try:
                        if checkpoint is not None and (self.history or not isinstance(error, Exception)):
                            self._save(checkpoint, saved)
                    except OSError as problem:
                        error.add_note(f"the checkpoint could not be written: {problem}")
                raise
        self._conclude()

    def resume(self, checkpoint: Checkpoint) -> bool:
        """Go on from the file, where there is one."""
        # The file may be out of reach of the other ranks.
        content = self.plan.settings.compute.on_main_process(lambda: checkpoint.read(self.facts, self._mean_values))
        if content is None:
            return False
        self._unpack(content)
        # The plan may have changed since: more steps, or another min_gain.
        self.stopped = self._settled() if self._stage + 1 == len(self.plan.stages) else ""
        return True

    def _advance(self) -> None:
        began = time.perf_counter()
        model, plan = self.model, self.plan
        if not self.history:
            plan.estimator.draw(model, self.data, self.state, self.generator)
            if len(plan.stages) > 1:
                self._order = permutation(len(self.data.y), self.generator, self.data.device)
            self._enter(0)
        elif self._stage + 1 < len(plan.stages) and (self._stage_is_over() or self._settled()):
            self._enter(self._stage + 1)
        rows = plan.stages[self._stage].rows
        before, solutions, prior = self.evaluated_at, self.state.solutions, self.state.prior
        problem = ""
        for _ in range(1 + _RETREATS):
            self.evaluated_at = copy.deepcopy(model.state_dict())
            try:
                self._move(rows, began)
                break
            except NumericalFailure as failure:
                problem = str(failure)
                self.state.prior = prior
                self.state.solutions = None if solutions is None else solutions.to(self.data.dtype)
                if isinstance(failure, StalledSolve) and self._promote():
                    continue
                if not self.history:
                    raise
                self._retreat()
        else:
            model.load_state_dict(before)
            self.evaluated_at = before
            if plan.stages[self._stage].exact:
                self._enter(self._stage + 1)
            else:
                self.stopped = f"{problem}; the step before was kept"
            return
        if self._stage + 1 == len(plan.stages):
            self.stopped = self._settled()

    def _retreat(self) -> None:
        """Shorten the step that led here to a quarter."""
        assert self._previous is not None
        start = self._previous[0]
        self.coordinates.move(start + 0.25 * (self.coordinates.position() - start))
        self._project()
        self.optimiser.retreat()

    def _move(self, rows: int, began: float) -> None:
        """Find the gradient, enter the step into the history, and let the optimiser move."""
        estimate, value = self._open() if self.plan.stages[self._stage].exact else self._estimate(rows)
        self.history.append(self._record(estimate, value, rows, began))
        if value is not None and rows == len(self.data.y) and (self._best is None or value > self._best[0]):
            self._best = (value, self.evaluated_at)
        self.optimiser.step()
        self._project()

    def _open(self) -> tuple[Estimate | None, float]:
        """The exact gradient of the loss of the guard's rows, into the parameters' ``grad``; its value a row."""
        guard, parameters = self._guard, self.coordinates.parameters
        assert guard is not None
        value, gradients = self.plan.settings.compute.on_main_process(
            lambda: guard.gradient(self.model, self.data, parameters)
        )
        self._require_likely(guard, value)
        guard.enter(value, self.evaluated_at)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = -gradient
        return None, value

    def _estimate(self, rows: int) -> tuple[Estimate, float | None]:
        """The estimator's gradient of the loss, into the parameters' ``grad``; the objective a row, where known."""
        model, plan, prior, guard, n = self.model, self.plan, self.state.prior, self._guard, len(self.data.y)
        if guard is not None:
            likelihood = plan.settings.compute.on_main_process(lambda: guard.value(model, self.data))
            self._require_likely(guard, likelihood)
        if prior is not None:
            self.state.prior = prior.follow(self.generator)
            if self.state.prior is not prior and isinstance(self.optimiser, LBFGS):
                # Other draws make another objective.
                self.optimiser.restart()
        estimate = plan.estimator.evaluate(model, self.data, self.state, plan.settings, self.generator)
        if estimate.solution is not None and estimate.solution.status in (Status.STALLED, Status.DIVERGED):
            raise StalledSolve(f"the solver ended {estimate.solution.status.name}")
        if guard is not None:
            guard.enter(likelihood, self.evaluated_at)
        density = log_prior(model)
        for parameter in self.coordinates.parameters:
            parameter.grad = None
        # Per row, so that the stages have objectives of one size.
        objective = estimate.objective / rows + density.to(estimate.objective.device) / n
        (-objective).backward()
        return estimate, None if estimate.value is None else estimate.value / rows + float(density.detach()) / n

    @staticmethod
    def _require_likely(guard: Guard, value: float) -> None:
        """Refuse hyperparameters at which the guard's rows are far less likely than before."""
        if not guard.accepts(value):
            fall = guard.best - value
            raise NumericalFailure(f"the log likelihood of {len(guard.rows)} rows fell by {fall:.2g} a row")

    def _conclude(self) -> None:
        """The hyperparameters to end with: after the last move, unless an evaluated point is the safer choice.

        Adam's moves are small. L-BFGS may just have leapt, so its last evaluated point is taken; where values of the
        objective are known, the best one.
        """
        self.state.restrict_rows(None, len(self.data.y))
        for parameter in self._bounded:
            parameter.bounds = None
        if self._best is not None:
            self.model.load_state_dict(self._best[1])
        elif isinstance(self.optimiser, LBFGS) and self.history:
            self.model.load_state_dict(self.evaluated_at)
        if self._guard is not None and self.history:
            self._conclude_safely(self._guard)

    def _conclude_safely(self, guard: Guard) -> None:
        """Take the best of the hyperparameters that were checked instead, if these are worse than the first."""
        value = self.plan.settings.compute.on_main_process(lambda: guard.value(self.model, self.data))
        if guard.state is not None and not guard.ends_well(value + self.plan.min_gain):
            self.model.load_state_dict(guard.state)
            self.stopped += f"; the step at which {len(guard.rows)} rows were likeliest was kept"

    def _enter(self, stage: int) -> None:
        rows = self.plan.stages[stage].rows
        # In ascending order: rows of the data are then read in order.
        chosen = None if self._order is None or rows == len(self.data.y) else self._order[:rows].sort().values
        self.state.restrict_rows(chosen, len(self.data.y))
        self._stage, self._stage_began = stage, len(self.history)
        if self._previous is not None:
            self._previous = (*self._previous[:2], None)
        if isinstance(self.optimiser, LBFGS):
            self.optimiser.restart()

    def _stage_is_over(self) -> bool:
        return len(self.history) - self._stage_began >= self.plan.stages[self._stage].steps

    def _record(self, estimate: Estimate | None, value: float | None, rows: int, began: float) -> Step:
        here, gradient = self.coordinates.position(), self.coordinates.gradient()
        if not bool(torch.isfinite(gradient).all()):
            raise NumericalFailure(
                f"the gradient is not finite at step {len(self.history)}: give bounds to the hyperparameter that ran "
                f"away (gp.constrain), or use float64 inputs; {_shown(self.model)}"
            )
        gain = self._gain(here, gradient, value)
        self._previous = (here, gradient, value)
        solve: dict[str, Any] = dict(NO_SOLVE)
        if estimate is not None and estimate.solution is not None:
            residual, solution = estimate.solution.residual, estimate.solution
            solve = {
                "residual": float(residual[0]),
                "probe_residual": float(residual[1:].mean()),
                "epochs": solution.epochs,
                "solver": solution.solver,
                "status": solution.status.name,
                "products": solution.products,
            }
        return Step(
            step=len(self.history),
            rows=rows,
            gain=gain,
            log_likelihood=estimate.value if estimate is not None and rows == len(self.data.y) else None,
            values={name: value.flatten().tolist() for name, value in values(self.model).items()},
            solver_seconds=0.0 if estimate is None else estimate.solver_seconds,
            seconds=time.perf_counter() - began,
            **solve,
        )

    def _gain(self, here: torch.Tensor, gradient: torch.Tensor, value: float | None) -> float:
        """The objective above that of the first step: from its values, or from gradients along the way."""
        if self._previous is None:
            return 0.0
        before, slope, known = self._previous
        rise = -0.5 * float((slope + gradient) @ (here - before))
        if value is not None and known is not None:
            rise = value - known
        return self.history[-1].gain + rise * len(self.data.y)

    def _settled(self) -> str:
        """Says so when the objective has stopped moving; an optimiser that overshot and comes back still moves."""
        gains = [step.gain for step in self.history[self._stage_began :][-1 - WINDOW :]]
        least = self.plan.min_gain
        if self.plan.stages[self._stage].exact:
            least = max(least, _OPENING_GAIN)
        if len(gains) <= WINDOW or max(gains) - min(gains) >= least * len(self.data.y):
            return ""
        return f"{WINDOW} steps changed the objective by less than {least:g} nats a row"

    @cached_property
    def facts(self) -> dict[str, str]:
        """What a checkpoint must agree with."""
        plan, settings = self.plan, self.plan.settings
        return {
            "data": self.data.fingerprint(),
            "model": self._described,
            "estimator": repr(plan.estimator),
            "optimiser": f"{plan.optimiser} at rate {plan.learning_rate:g}",
            "rows of the stages": ", ".join(str(stage.rows) for stage in plan.stages),
            "solver": f"{settings.solver!r} to {settings.tol:g} in {settings.max_epochs} epochs",
        }

    def _project(self) -> None:
        """Back within the bounds; a learned noise without bounds stays where its systems can be solved.

        In float32 that may be well above what the data ask for: the fit then goes on in float64.
        """
        noise = positive(self.model, "noise")
        for parameter in self.coordinates.positive:
            parameter.project()
        if self._free_noise:
            least = self._least_noise()
            if float(noise.value.detach()) < least and self._promote():
                least = self._least_noise()
            noise.bounds = (least, math.inf)
            noise.project()

    def _least_noise(self) -> float:
        return max(self.model.least_noise(self.data), LEAST_NOISE * self._spread)

    def _promote(self) -> bool:
        """Go on in float64, where that is allowed."""
        if self.data.dtype == torch.float64 or not self.plan.settings.compute.allows_float64(self.data.device):
            return False
        self.data = self.data.to(torch.float64)
        self.state.promote()
        return True

    def _save(self, checkpoint: Checkpoint, content: dict[str, Any]) -> None:
        checkpoint.write({"facts": self.facts, "mean": self._mean_values, **content}, content["step"])

    def _pack(self) -> dict[str, Any]:
        """Everything that the next step depends on, in tensors and plain types."""
        prior = self.state.prior
        return {
            "step": len(self.history),
            "stage": (self._stage, self._stage_began),
            "is_double": self.data.dtype == torch.float64,
            "order": self._order,
            "rows": self.state.rows,
            "model": copy.deepcopy(self.model.state_dict()),
            "evaluated_at": self.evaluated_at,
            "optimiser": copy.deepcopy(self.optimiser.state_dict()),
            "generator": self.generator.get_state(),
            "prior": None if prior is None else prior.state(),
            "draws": self.state.draws,
            "solutions": self.state.solutions,
            "previous": self._previous,
            "best": self._best,
            "guard": None if self._guard is None else self._guard.pack(),
            "history": [vars(step) for step in self.history],
            "stopped": self.stopped,
            "seed": self.seed,
        }

    def _unpack(self, content: dict[str, Any]) -> None:
        """The state after some step, from `_pack` or from a file."""
        device = self.data.device
        self.model.load_state_dict(content["model"])
        if content["is_double"]:
            self.data = self.data.to(torch.float64)
        self.evaluated_at = content["evaluated_at"]
        self.optimiser.load_state_dict(content["optimiser"])
        self.generator.set_state(content["generator"])
        prior = None if content["prior"] is None else self.model.restore_prior(content["prior"])
        found = {
            name: None if content[name] is None else content[name].to(device)
            for name in ("draws", "rows", "solutions", "order")
        }
        self._order = found.pop("order")
        self.state = State(prior, **found)
        self._stage, self._stage_began = content["stage"]
        self._previous, self._best = content["previous"], content["best"]
        if self._guard is not None:
            self._guard.unpack(content["guard"])
        self.history = [Step(**step) for step in content["history"]]
        self.stopped, self.seed = content["stopped"], content["seed"]


def _mean_values(model: Learnable, data: Data) -> torch.Tensor:
    """The mean function at the data, on the CPU; its learned parameters count up from 0.1 to 1."""
    mean = copy.deepcopy(model.mean)
    with torch.no_grad():
        if isinstance(mean, torch.nn.Module):
            for p in mean.parameters():
                if p.requires_grad:
                    p.copy_(torch.linspace(0.1, 1.0, p.numel(), dtype=p.dtype).view_as(p))
        values = mean(data.given) if callable(mean) else torch.tensor([mean], dtype=torch.float64)
    return values.detach().cpu()


def _shown(model: Learnable) -> str:
    return ", ".join(f"{name} {short(value)}" for name, value in values(model).items())


def _postfix(step: Step) -> str:
    noise = step.values.get("noise", [float("nan")])[0]
    solve = f"residual {step.probe_residual:.1e}, {step.epochs:.0f} epochs, " if step.solver else ""
    return f"{solve}noise {noise:.3g}, gain {step.gain:.4g}"
