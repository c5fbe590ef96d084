"""A fit from beginning to end: start, outer loop, last solve, report."""

from __future__ import annotations

import copy
import os
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from pathgp.compute.inputs import real_number, whole_number
from pathgp.compute.random import repeating_seed
from pathgp.data.observations import Observations
from pathgp.learning.checkpoint import Checkpoint, as_checkpoint
from pathgp.learning.estimators import Exact, Iterative, State
from pathgp.learning.hyperparameters import values
from pathgp.learning.initialise import from_data, from_subsets, perturb
from pathgp.learning.loop import Fit, Plan, stages
from pathgp.learning.model import Data, Learnable
from pathgp.learning.report import FitReport, Step
from pathgp.posterior.conditioning import Settings, SolveRequest
from pathgp.posterior.report import ConvergenceWarning

ESTIMATORS = ("pathwise", "standard", "exact")


def fit(
    gp: Learnable,
    data: Data,
    *,
    steps: int,
    learning_rate: float,
    estimator: str,
    warm_start: bool,
    samples: int,
    features: int,
    settings: Settings,
    optimiser: str,
    initialise: str | None,
    checkpoint: str | os.PathLike[str] | Checkpoint | None,
    progress: bool,
    generator: torch.Generator | None,
    starts: int,
    coarse: bool,
    min_gain: float,
    callback: Callable[[Step], None] | None,
) -> FitReport:
    """See `GP.fit`, which says what the arguments mean."""
    began = time.perf_counter()
    steps, starts = whole_number(steps, "steps", 0), whole_number(starts, "starts", 1)
    samples, features = whole_number(samples, "samples", 1), whole_number(features, "features", 1)
    learning_rate, min_gain = real_number(learning_rate, "learning_rate"), real_number(min_gain, "min_gain")
    if learning_rate <= 0:
        raise ValueError(f"learning_rate must be positive, got {learning_rate}")
    if estimator not in ESTIMATORS:
        raise ValueError(f"estimator must be one of {', '.join(map(repr, ESTIMATORS))}, got {estimator!r}")
    if initialise not in (None, "data", "subsets"):
        raise ValueError(f"initialise must be None, 'data' or 'subsets', got {initialise!r}")
    if optimiser == "lbfgs" and estimator != "exact" and not warm_start:
        raise ValueError("lbfgs needs gradients that are a function of the hyperparameters: use warm_start=True")
    saved = as_checkpoint(checkpoint)
    settings.compute.require_equal(
        steps=steps,
        learning_rate=learning_rate,
        estimator=estimator,
        warm_start=warm_start,
        samples=samples,
        features=features,
        optimiser=optimiser,
        initialise=initialise,
        checkpoint=None if saved is None else "a file",
        starts=starts,
        coarse=coarse,
        min_gain=min_gain,
    )
    generator = settings.compute.sync_generator(generator)
    seed = repeating_seed(generator)

    note, pathwise = "", estimator == "pathwise"
    if pathwise:
        try:
            gp.draw_prior(data, 1, features, torch.Generator())
        except NotImplementedError as error:
            pathwise, estimator = False, "standard"
            note = f"standard estimator, without paths: {error}"
    chosen = Exact() if estimator == "exact" else Iterative(pathwise, samples, features, bool(warm_start))
    opening = optimiser == "lbfgs" and isinstance(chosen, Iterative)
    plan = Plan(stages(len(data.y), steps, coarse, opening), learning_rate, optimiser, min_gain, chosen, settings)

    best: tuple[float, Fit, Any, int] | None = None
    earlier = 0.0
    for start in range(starts):
        model = gp.working_copy(data.device)
        running = Fit(model, data, plan, generator, seed)
        file = _numbered(saved, start)
        if file is None or not running.resume(file):
            _initialise(model, data, initialise, settings, generator)
            if start:
                perturb(model, generator)
        earlier += sum(step.seconds for step in running.history)
        try:
            running.run(file, progress, callback)
            posterior = _posterior(running, samples, features)
            value = posterior.log_marginal_likelihood(generator=generator).value if starts > 1 else 0.0
        except (KeyboardInterrupt, Exception) as error:
            if best is not None:
                gp.adopt(best[1].model.state_dict(), best[2])
            else:
                _leave_usable(gp, running)
            if isinstance(error, Exception) and (best is not None or running.history):
                kept = f"start {best[3] + 1}" if best is not None else f"step {running.history[-1].step}"
                error.add_note(f"the model has the hyperparameters of {kept} of this fit")
            raise
        if best is None or value > best[0]:
            best = (value, running, posterior, start)
    assert best is not None
    value, running, posterior, start = best
    if starts > 1:
        note = "; ".join(filter(None, [note, f"start {start + 1} of {starts} kept, log likelihood {value:.1f}"]))
    gp.adopt(running.model.state_dict(), posterior)
    return FitReport(
        rows=len(data.y),
        columns=data.columns,
        estimator=_described(chosen, running.history),
        optimiser=f"{optimiser} at rate {learning_rate:g}",
        history=running.history,
        values={name: value.flatten().tolist() for name, value in values(running.model).items()},
        stopped=running.stopped,
        seconds=earlier + time.perf_counter() - began,
        seed=running.seed,
        note=note,
        condition=posterior.report,
    )


def _initialise(model: Learnable, data: Data, how: str | None, settings: Settings, generator: torch.Generator) -> None:
    if how is not None:
        from_data(model, data, generator)
    if how == "subsets":
        assert isinstance(data, Observations)
        from_subsets(model, data, settings, generator)


def _posterior(running: Fit, samples: int, features: int) -> Any:
    """The solve at the final hyperparameters, from where the loop left off: its probes are the samples."""
    estimator, state = running.plan.estimator, running.state
    if isinstance(estimator, Iterative) and estimator.pathwise and state.solutions is not None:
        return _solved(running, state, running.plan.settings, state.solutions if estimator.warm_start else None)
    state = State()
    no_paths = _draw(running.model, running.data, state, samples, features, running.generator)
    return _solved(running, state, running.plan.settings, None, no_paths)


def _solved(running: Fit, state: State, settings: Settings, x0: Tensor | None, no_paths: str = "") -> Any:
    """A posterior with a model of its own; the copies of model and prior draws belong together."""
    prior = None if state.prior is None else state.prior.follow(running.generator)
    model, prior = copy.deepcopy((running.model, prior))
    model.requires_grad_(False)
    data = running.data
    empty = torch.empty(len(data.y), 0, dtype=data.dtype, device=data.device)
    draws = empty if state.draws is None else state.draws
    return model.solved(data, prior, draws, SolveRequest(settings, running.generator, running.seed, no_paths, x0))


def _draw(model: Learnable, data: Data, state: State, samples: int, features: int, generator: torch.Generator) -> str:
    """Draws for a posterior whose estimator has made none; the reason where there can be none."""
    try:
        Iterative(True, samples, features, True).draw(model, data, state, generator)
    except (NotImplementedError, ValueError) as error:
        # Learned values may be out of reach of the features; the fit is not lost for that.
        return str(error)
    return ""


def _leave_usable(gp: Learnable, running: Fit) -> None:
    """After an error or Ctrl-C: the hyperparameters of the last whole step, and its solutions as the posterior."""
    estimator, state = running.plan.estimator, running.state
    if not running.history:
        return
    running.model.load_state_dict(running.evaluated_at)
    state.restrict_rows(None, len(running.data.y))
    posterior = None
    # Ranks are interrupted at different places, and do not meet again for a product.
    if isinstance(estimator, Iterative) and estimator.pathwise and running.plan.settings.compute.group is None:
        # One product: the residuals are confirmed, nothing is solved.
        settings = replace(running.plan.settings, max_epochs=1.0)
        # What ended the fit may stand in the way of this product, too.
        with warnings.catch_warnings(), suppress(Exception):
            warnings.simplefilter("ignore", ConvergenceWarning)
            posterior = _solved(running, state, settings, state.solutions)
    gp.adopt(running.model.state_dict(), posterior)


def _numbered(checkpoint: Checkpoint | None, start: int) -> Checkpoint | None:
    """A file of its own for every further start."""
    if checkpoint is None or start == 0:
        return checkpoint
    return replace(checkpoint, path=f"{os.fspath(checkpoint.path)}.{start}")


def _described(estimator: Exact | Iterative, history: list[Step]) -> str:
    if isinstance(estimator, Exact):
        return "exact"
    kind = "pathwise" if estimator.pathwise else "standard"
    told = f"{kind}, {estimator.samples} probes, {'warm' if estimator.warm_start else 'cold'} starts"
    opening = [step for step in history if not step.solver]
    return f"exact on {opening[0].rows} rows for {len(opening)} steps, then {told}" if opening else told
