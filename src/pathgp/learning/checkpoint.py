"""The state of a fit between two steps, and the file that an interrupted fit continues from (see `compute.files`)."""

from __future__ import annotations

import copy
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pathgp.compute import files
from pathgp.data.observations import Data
from pathgp.learning.bounds import DefaultBounds
from pathgp.learning.estimators import Exact, Iterative, State
from pathgp.learning.guard import Guard
from pathgp.learning.hyperparameters import Coordinates, description
from pathgp.learning.model import Learnable
from pathgp.learning.optimisers import LBFGS, Adam
from pathgp.learning.policy import VALIDATION_ROWS, VECCHIA_NEIGHBOURS, FitOptions, make_stages
from pathgp.learning.report import Step
from pathgp.learning.vecchia import VecchiaLikelihood

# Increase this number if earlier files cannot be continued bit for bit.
FORMAT = 8

# Values of y whose standard deviation is at most this part of the largest one are equal.
_EQUAL = 1e-12
_ADVICE = "remove the file to start anew, or use another path"
# Attributes that a step binds anew, and the seed.
_STATE: tuple[str, ...] = ("seed", "evaluated_at", "state", "data", "order", "stage", "stage_began", "planned_rows")
_GUARDS = ("guard", "validation")
_STATE += ("previous", "first_value", "best", "history", "initial", *_GUARDS)


@dataclass
class Checkpoint:
    """Where and how often a fit saves itself.

    Args:
        path: the file. A fit that finds it continues from there; it must belong to the same data and settings.
        steps: write after this number of steps ...
        seconds: ... or after this number of seconds, whichever comes first.
    """

    path: str | os.PathLike[str]
    steps: int = 10
    seconds: float = 60.0
    _last_step: int = field(default=0, repr=False)
    _last_time: float = field(default_factory=time.monotonic, repr=False)

    def due(self, step: int) -> bool:
        """Whether it is time to write again."""
        return step - self._last_step >= self.steps or time.monotonic() - self._last_time >= self.seconds

    def write(self, content: dict[str, Any], step: int) -> None:
        """Replace the file: it is the old one or the new one, whatever happens."""
        files.write(self.path, {"pathgp checkpoint": FORMAT, "step": step, **content})
        self._last_step, self._last_time = step, time.monotonic()

    def read(self, expected: dict[str, str], mean: Tensor) -> dict[str, Any] | None:
        """The content, or None if there is no file yet; ValueError if it belongs to another fit.

        ``expected``: facts of the fit by name, which those in the file must equal.  ``mean``: values of the mean
        function at the data, which those in the file must equal up to rounding.
        """
        path = Path(self.path)
        self._last_step, self._last_time = 0, time.monotonic()
        if not path.exists():
            return None
        content = files.read(path, "pathgp checkpoint")
        if (number := content["pathgp checkpoint"]) != FORMAT:
            raise ValueError(f"{path} has checkpoint format {number}, this version writes {FORMAT}: {_ADVICE}")
        for name, value in expected.items():
            found = content.get("facts", {}).get(name)
            if found != value:
                raise ValueError(f"{path} belongs to another fit: its {name} is {found}, here it is {value}; {_ADVICE}")
        gap = float((content["mean"] - mean).abs().max())
        size = max(float(content["mean"].abs().max()), float(mean.abs().max()))
        # Devices round differently.
        if not gap <= 0.1 * math.sqrt(torch.finfo(mean.dtype).eps) * size:
            raise ValueError(
                f"{path} belongs to another fit: its mean function has other values at the data, up to {gap:.3g} apart "
                f"from those here; {_ADVICE}"
            )
        self._last_step = content["step"]
        return content


class Resumable:
    """A fit that can be interrupted: everything that a step changes is in the attributes that `snapshot` collects.

    Updates bind new objects to these and change none in place, except for the parameters of the model, of which a
    snapshot keeps copies.
    """

    def __init__(
        self,
        model: Learnable,
        data: Data,
        options: FitOptions,
        generator: torch.Generator,
        seed: int | None = None,
        checkpoint: Checkpoint | None = None,
        planned_rows: int | None = None,
    ) -> None:
        assert options.learning_rate is not None
        assert options.probes is not None
        self.model, self.data, self.options, self.generator, self.seed = model, data, options, generator, seed
        self.compute, self.checkpoint = options.settings.compute, checkpoint
        # The rows for which the stages are made: fewer than all if a time limit leaves no time for steps on all.
        self.planned_rows = planned_rows or len(data.y)
        self.stages = make_stages(self.planned_rows, options)
        self.estimator: Exact | Iterative | VecchiaLikelihood = model.own_estimator() or Exact()
        if options.estimator == "vecchia":
            self.estimator = VecchiaLikelihood(min(VECCHIA_NEIGHBOURS, len(data.y) - 1))
        elif options.estimator != "exact":
            is_pathwise = options.estimator == "pathwise"
            self.estimator = Iterative(is_pathwise, options.probes, options.features, bool(options.warm_start))
        if checkpoint is not None:
            self._facts, self._mean_values = self._describe(), mean_values(model, data)
        self.bounds = DefaultBounds(model, data)
        # A mean is in the units of y: its steps are measured by the standard deviation of y.
        unit, level = float(data.y.std(correction=0)), float(data.y.abs().max())
        # Values that are equal up to rounding have no spread to measure steps by.
        unit = unit if unit > _EQUAL * level else max(level, 1.0)
        mean = model.mean.parameters() if isinstance(model.mean, torch.nn.Module) else ()
        self.coordinates = Coordinates(model, dict.fromkeys(mean, unit))
        if not self.coordinates.parameters:
            raise ValueError("nothing to learn: every hyperparameter is fixed; use condition()")
        optimiser = Adam if options.optimiser == "adam" else LBFGS
        self.optimiser = optimiser(self.coordinates, options.learning_rate)
        has_exact_stage = any(stage.exact for stage in self.stages)
        is_estimated = options.estimator in ("pathwise", "standard")
        self.guard = Guard.draw(data) if is_estimated or has_exact_stage else None
        self.validation = Guard.draw(data, VALIDATION_ROWS, seed=1) if has_exact_stage else None
        self.state = State()
        self.history: list[Step] = []
        self.stop_reason = ""
        # Position, gradient of the loss and, if known, log likelihood a row of the previous step.
        self.previous: tuple[Tensor, Tensor, float | None] | None = None
        # If known, log likelihood a row of the first step.
        self.first_value: float | None = None
        self.best: tuple[float, dict[str, Tensor]] | None = None
        self.stage = self.stage_began = 0
        self.order: Tensor | None = None
        self.evaluated_at = self.initial = self.copy_parameters()
        # The state before the step in progress; None between steps.
        self._before_step: dict[str, Any] | None = None

    def _describe(self) -> dict[str, str]:
        """What a checkpoint must agree with."""
        settings, rate = self.options.settings, self.options.learning_rate
        return {
            "data": self.data.fingerprint(),
            "model": description(self.model),
            "estimator": repr(self.estimator),
            "optimiser": f"{self.options.optimiser} at rate {rate:g}",
            "rows of the stages": ", ".join(str(s.rows) for s in make_stages(len(self.data.y), self.options)),
            "solver": f"{settings.solver!r} to {settings.tol:g} in {settings.max_epochs} epochs",
            **self.model.fit_facts(),
        }

    def resume(self) -> bool:
        """Continue from the file of the checkpoint, if there is one."""
        if (checkpoint := self.checkpoint) is None:
            return False
        # The file may be out of reach of the other ranks.
        content = self.compute.on_main_process(lambda: checkpoint.read(self._facts, self._mean_values))
        if content is None:
            return False

        def place(parts: dict[str, Any]) -> dict[str, Any]:
            return {name: part.to(device) if isinstance(part, Tensor) else part for name, part in parts.items()}

        device, state = self.data.device, content["state"]
        prior = None if state["prior"] is None else self.model.restore_prior(state["prior"])
        content |= {
            "order": place(content)["order"],
            "state": State(**place(state) | {"prior": prior}),
            **{name: None if content[name] is None else Guard(**place(content[name])) for name in _GUARDS},
            "data": self.data.to(torch.float64) if content["is_float64"] else self.data,
            "history": [Step(**step) for step in content["history"]],
        }
        self._restore(content)
        return True

    def _save(self) -> None:
        """Write the snapshot in tensors and plain types, without the data."""
        if self.checkpoint is None:
            return
        snapshot, prior = self.snapshot(), self.state.prior
        snapshot |= {
            "facts": self._facts,
            "mean": self._mean_values,
            "state": vars(snapshot["state"]) | {"prior": None if prior is None else prior.state()},
            **{name: None if snapshot[name] is None else vars(snapshot[name]) for name in _GUARDS},
            "is_float64": snapshot.pop("data").dtype == torch.float64,
            "history": [vars(step) for step in self.history],
        }
        self.checkpoint.write(snapshot, len(self.history))

    def _rescue(self, error: BaseException) -> None:
        """After an exception: restore the end of the last whole step and write it, on every rank, for one is lost."""
        if self._before_step is not None:
            self._restore(self._before_step)
        try:
            if self.history or not isinstance(error, Exception):
                self._save()
        except OSError as problem:
            error.add_note(f"the checkpoint could not be written: {problem}")

    def snapshot(self) -> dict[str, Any]:
        """The state between two steps: references, and copies of the parameters.

        The operator is left out, for its matrix would be kept.
        """
        return {name: getattr(self, name) for name in _STATE} | {
            "state": replace(self.state, operator=None),
            "model": self.copy_parameters(),
            "optimiser": self.optimiser.state_dict(),
            "generator": self.generator.get_state(),
        }

    def _restore(self, snapshot: dict[str, Any]) -> None:
        for name in _STATE:
            setattr(self, name, snapshot[name])
        self.stages = make_stages(self.planned_rows, self.options)
        self.model.load_state_dict(snapshot["model"])
        self.optimiser.load_state_dict(snapshot["optimiser"])
        self.generator.set_state(snapshot["generator"])

    def copy_parameters(self) -> dict[str, Tensor]:
        return {name: value.detach().clone() for name, value in self.model.state_dict().items()}


def mean_values(model: Learnable, data: Data) -> Tensor:
    """The mean function at the data, on the CPU, with its learned parameters set to 0.1 up to 1."""
    mean = copy.deepcopy(model.mean)
    with torch.no_grad():
        if isinstance(mean, torch.nn.Module):
            for p in mean.parameters():
                if p.requires_grad:
                    p.copy_(torch.linspace(0.1, 1.0, p.numel(), dtype=p.dtype).view_as(p))
        values = mean(data.X_raw) if callable(mean) else torch.tensor([mean], dtype=torch.float64)
    return values.detach().cpu()


def exit_on_signal(number: int, frame: object) -> None:
    """Turn a signal into SystemExit, so that there is time to save, and ignore further ones."""
    signal.signal(number, signal.SIG_IGN)
    sys.exit(128 + number)


@contextmanager
def at_sigterm(handler: Callable[[int, Any], object] | signal.Handlers) -> Iterator[None]:
    """Handle SIGTERM this way, unless the program has its own handler or this is not its main thread.

    Batch systems end programs by SIGTERM, and torchrun all ranks once one has ended, often before the others notice.
    """
    before = signal.getsignal(signal.SIGTERM)
    ours = before in (signal.SIG_DFL, exit_on_signal) and threading.current_thread() is threading.main_thread()
    if ours:
        signal.signal(signal.SIGTERM, handler)
    try:
        yield
    finally:
        if ours:
            signal.signal(signal.SIGTERM, before)
