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
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from tqdm.auto import tqdm

from pathgp.conditioning import Settings
from pathgp.features import FeatureMap
from pathgp.learning.checkpoint import Checkpoint
from pathgp.learning.estimators import Estimate, Exact, Iterative, State
from pathgp.learning.hyperparameters import Coordinates, log_prior, values
from pathgp.learning.optimisers import Optimiser, make
from pathgp.learning.report import NO_SOLVE, Step
from pathgp.models.observations import Observations
from pathgp.pathwise import PriorPaths

if TYPE_CHECKING:
    from pathgp.models.gp import GP

# Steps over which the gain is looked at before a fit is ended early.
WINDOW = 10


@dataclass(frozen=True)
class Plan:
    """How to learn: the three levels of the hierarchy and when to stop."""

    steps: int
    learning_rate: float
    optimiser: str
    min_gain: float
    estimator: Exact | Iterative
    settings: Settings


@dataclass
class Fit:
    """A fit in progress; ``model`` is changed in place."""

    model: GP
    data: Observations
    plan: Plan
    generator: torch.Generator
    seed: int | None = None
    state: State = field(default_factory=State)
    history: list[Step] = field(default_factory=list)
    stopped: str = ""

    def __post_init__(self) -> None:
        # A mean is in the units of y: its steps are measured by the standard deviation of y.
        unit = max(float(self.data.y.std(correction=0)), torch.finfo(torch.float64).tiny)
        mean = self.model.mean.parameters() if isinstance(self.model.mean, torch.nn.Module) else ()
        self.coordinates = Coordinates(self.model, dict.fromkeys(mean, unit))
        if not self.coordinates.parameters:
            raise ValueError("nothing to learn: every hyperparameter is fixed; use condition()")
        self.optimiser: Optimiser = make(self.plan.optimiser, self.coordinates, self.plan.learning_rate)
        self._previous: tuple[torch.Tensor, torch.Tensor] | None = None
        self._reference: float | None = None
        self.evaluated_at = copy.deepcopy(self.model.state_dict())

    def run(
        self,
        checkpoint: Checkpoint | None = None,
        progress: bool = False,
        callback: Callable[[Step], None] | None = None,
    ) -> None:
        """All steps that are left, or as many as it takes until there is nothing more to gain."""
        steps = self.plan.steps
        saved = self._pack()
        with tqdm(total=steps, initial=len(self.history), disable=not progress, desc="fit", unit="step") as bar:
            try:
                while not self.stopped:
                    if len(self.history) >= steps:
                        self.stopped = "all steps done"
                        break
                    self._advance()
                    saved = self._pack()
                    if checkpoint is not None and checkpoint.due(len(self.history)):
                        checkpoint.write(saved, len(self.history))
                    last = self.history[-1]
                    bar.set_postfix_str(_postfix(last))
                    bar.update()
                    if callback is not None:
                        callback(last)
            except KeyboardInterrupt:
                # Back to the end of the last whole step.
                self._unpack(saved)
                if checkpoint is not None:
                    checkpoint.write(saved, len(self.history))
                raise
        if checkpoint is not None:
            checkpoint.write(self._pack(), len(self.history))

    def resume(self, checkpoint: Checkpoint) -> bool:
        """Go on from the file, where there is one."""
        content = checkpoint.read(self.facts)
        if content is None:
            return False
        self._unpack(content)
        return True

    def _advance(self) -> None:
        began = time.perf_counter()
        model, plan = self.model, self.plan
        if not self.history:
            plan.estimator.draw(model, self.data, self.state, self.generator)
        self.evaluated_at = copy.deepcopy(model.state_dict())
        estimate = plan.estimator.evaluate(model, self.data, self.state, plan.settings, self.generator)
        prior = log_prior(model)
        for parameter in self.coordinates.parameters:
            parameter.grad = None
        (-(estimate.objective + prior.to(estimate.objective.device))).backward()
        step = self._record(estimate, float(prior.detach()), began)
        self.optimiser.step()
        for positive in self.coordinates.positive:
            positive.project()
        self.history.append(step)
        if self._settled():
            self.stopped = f"{WINDOW} steps changed the objective by less than {plan.min_gain:g} nats a row"

    def _record(self, estimate: Estimate, prior: float, began: float) -> Step:
        here, gradient = self.coordinates.position(), self.coordinates.gradient()
        if not bool(torch.isfinite(gradient).all()):
            raise ValueError(
                f"the gradient is not finite at step {len(self.history)}: {values(self.model)}. "
                "Give bounds to the hyperparameter that ran away (gp.constrain), or use a smaller learning_rate"
            )
        gain = self._gain(here, gradient, None if estimate.value is None else estimate.value + prior)
        self._previous = (here, gradient)
        solve: dict[str, Any] = dict(NO_SOLVE)
        if estimate.solution is not None:
            residual, solution = estimate.solution.residual, estimate.solution
            solve = {
                "residual": float(residual[0]),
                "probe_residual": float(residual[1:].mean()),
                "epochs": solution.epochs,
                "solver": solution.solver,
                "status": solution.status.name,
            }
        return Step(
            step=len(self.history),
            gain=gain,
            log_likelihood=estimate.value,
            values={name: value.flatten().tolist() for name, value in values(self.model).items()},
            solver_seconds=estimate.solver_seconds,
            seconds=time.perf_counter() - began,
            **solve,
        )

    def _gain(self, here: torch.Tensor, gradient: torch.Tensor, value: float | None) -> float:
        """The objective above that of the first step: its value, or the gradients integrated along the way."""
        if value is not None:
            self._reference = value if self._reference is None else self._reference
            return value - self._reference
        if self._previous is None:
            return 0.0
        before, slope = self._previous
        return self.history[-1].gain - 0.5 * float((slope + gradient) @ (here - before))

    def _settled(self) -> bool:
        """Whether the objective has stopped moving; an optimiser that overshot and comes back still moves."""
        if len(self.history) <= WINDOW:
            return False
        gains = [step.gain for step in self.history[-1 - WINDOW :]]
        return max(gains) - min(gains) < self.plan.min_gain * len(self.data.y)

    @cached_property
    def facts(self) -> dict[str, str]:
        """What a checkpoint must agree with."""
        plan, settings = self.plan, self.plan.settings
        shapes = {name: tuple(value.shape) for name, value in self.model.state_dict().items()}
        return {
            "data": self.data.fingerprint(),
            "model": f"{type(self.model.kernel).__name__} with parameters {shapes}",
            "estimator": repr(plan.estimator),
            "optimiser": f"{plan.optimiser} at rate {plan.learning_rate:g}",
            "solver": f"{settings.solver!r} to {settings.tol:g} in {settings.max_epochs} epochs",
        }

    def _pack(self) -> dict[str, Any]:
        """Everything that the next step depends on, in tensors and plain types."""
        prior = self.state.prior
        return {
            "facts": self.facts,
            "step": len(self.history),
            "model": copy.deepcopy(self.model.state_dict()),
            "evaluated_at": self.evaluated_at,
            "optimiser": copy.deepcopy(self.optimiser.state_dict()),
            "generator": self.generator.get_state(),
            "prior": None if prior is None else {"features": prior.features.state(), "weights": prior.weights},
            "draws": self.state.draws,
            "solutions": self.state.solutions,
            "previous": self._previous,
            "reference": self._reference,
            "history": [vars(step) for step in self.history],
            "stopped": self.stopped,
            "seed": self.seed,
        }

    def _unpack(self, content: dict[str, Any]) -> None:
        """The state after some step, from `_pack` or from a file."""
        device = self.data.X.device
        self.model.load_state_dict(content["model"])
        self.evaluated_at = content["evaluated_at"]
        self.optimiser.load_state_dict(content["optimiser"])
        self.generator.set_state(content["generator"])
        prior = None
        if content["prior"] is not None:
            phi = FeatureMap.from_state(self.model.kernel, content["prior"]["features"])
            prior = PriorPaths(phi, content["prior"]["weights"])
        draws, solutions = content["draws"], content["solutions"]
        self.state = State(
            prior,
            None if draws is None else draws.to(device),
            None if solutions is None else solutions.to(device),
        )
        self._previous, self._reference = content["previous"], content["reference"]
        self.history = [Step(**step) for step in content["history"]]
        self.stopped, self.seed = content["stopped"], content["seed"]


def _postfix(step: Step) -> str:
    noise = step.values.get("noise", [float("nan")])[0]
    solve = f"residual {step.probe_residual:.1e}, {step.epochs:.0f} epochs, " if step.solver else ""
    return f"{solve}noise {noise:.3g}, gain {step.gain:.4g}"
