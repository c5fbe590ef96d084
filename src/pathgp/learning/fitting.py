"""A fit from beginning to end: initial values, outer loop, last solve, report."""

from __future__ import annotations

import copy
import os
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor

from pathgp.compute.random import repeating_seed
from pathgp.data.observations import Data
from pathgp.learning.checkpoint import Checkpoint
from pathgp.learning.estimators import Exact, Iterative, State
from pathgp.learning.hyperparameters import values
from pathgp.learning.initialise import initialise, perturb
from pathgp.learning.loop import Fit
from pathgp.learning.model import Learnable
from pathgp.learning.policy import FitOptions
from pathgp.learning.report import FitReport, Step
from pathgp.posterior.conditioning import Settings, SolveRequest
from pathgp.posterior.convergence import ConvergenceWarning


def fit(
    gp: Learnable,
    data: Data,
    options: FitOptions,
    checkpoint: str | os.PathLike[str] | Checkpoint | None,
    progress: bool,
    callback: Callable[[Step], None] | None,
    generator: torch.Generator | None,
) -> FitReport:
    """Fit from every start and keep the best; `GP.fit` explains the arguments."""
    began = time.perf_counter()
    options, note = _resolve(gp, data, options)
    if not (checkpoint is None or isinstance(checkpoint, Checkpoint)):
        checkpoint = Checkpoint(os.fspath(checkpoint))
    compute = options.settings.compute
    facts = {field.name: getattr(options, field.name) for field in fields(options) if field.name != "settings"}
    compute.require_equal(**facts, checkpoint=None if checkpoint is None else "a file")
    generator = compute.sync_generator(generator)
    seed = repeating_seed(generator)
    best: tuple[float, Fit, Any, int] | None = None
    earlier, file = 0.0, checkpoint
    for start in range(options.starts):
        if checkpoint is not None and start:
            # A file of its own for every further start.
            file = replace(checkpoint, path=f"{os.fspath(checkpoint.path)}.{start}")
        running = Fit(gp.working_copy(data.device), data, options, generator, seed, file)
        if not running.resume():
            initialise(options.initialise, running.model, data, options.settings, generator)
            if start:
                perturb(running.model, generator)
        earlier += sum(step.seconds for step in running.history)
        try:
            running.run(progress, callback)
            posterior = _solve_last(running)
            value = posterior.log_marginal_likelihood(generator=generator).value if options.starts > 1 else 0.0
        except (KeyboardInterrupt, Exception) as error:
            _adopt_interrupted(gp, running, None if best is None else best[1:], error)
            raise
        if best is None or value > best[0]:
            best = (value, running, posterior, start)
    assert best is not None
    value, running, posterior, start = best
    if options.starts > 1:
        kept = f"start {start + 1} of {options.starts} kept, log likelihood {value:.1f}"
        note = "; ".join(filter(None, [note, kept]))
    gp.adopt(running.model.state_dict(), posterior)
    return _report(running, posterior, note, earlier + time.perf_counter() - began)


def _resolve(gp: Learnable, data: Data, options: FitOptions) -> tuple[FitOptions, str]:
    """The options with every automatic choice made, and a note if the kernel cannot have the pathwise estimator."""
    options = options.resolve(len(data.y), gp.is_grid)
    gp.require_supported(data, options.settings, has_draws=options.estimator == "pathwise")
    if options.estimator == "pathwise":
        try:
            gp.draw_prior(data, 1, options.features, torch.Generator())
        except NotImplementedError as error:
            return replace(options, estimator="standard"), f"standard estimator, without paths: {error}"
    return options, ""


def _solve_last(running: Fit) -> Any:
    """The solve at the final hyperparameters, from the last solutions of the loop: its probes are the samples."""
    estimator, state, options = running.estimator, running.state, running.options
    if isinstance(estimator, Iterative) and estimator.pathwise and state.solutions is not None:
        return _solve(running, state, options.settings, state.solutions if estimator.warm_start else None)
    state, no_paths = State(), ""
    try:
        draws = Iterative(True, options.samples, options.features, True)
        draws.draw(running.model, running.data, state, running.generator)
    except (NotImplementedError, ValueError) as error:
        # Learned values may be out of reach of the features; the fit is not lost for that.
        no_paths = str(error)
    return _solve(running, state, options.settings, None, no_paths)


def _solve(running: Fit, state: State, settings: Settings, x0: Tensor | None, no_paths: str = "") -> Any:
    """A posterior with a model of its own; the copies of model and prior draws belong together."""
    prior = None if state.prior is None else state.prior.follow(running.generator)
    model, prior = copy.deepcopy((running.model, prior))
    model.requires_grad_(False)
    data = running.data
    draws = data.y.new_empty(len(data.y), 0, dtype=data.dtype) if state.draws is None else state.draws
    request = SolveRequest(settings, running.generator, running.seed, no_paths, x0)
    return model.make_posterior(data, prior, draws, request)


def _adopt_interrupted(gp: Learnable, running: Fit, best: tuple[Fit, Any, int] | None, error: BaseException) -> None:
    """After an error or Ctrl-C: the best complete start, or the last whole step and its solutions as the posterior."""
    if best is not None:
        gp.adopt(best[0].model.state_dict(), best[1])
        kept = f"start {best[2] + 1}"
    elif running.history:
        running.model.load_state_dict(running.evaluated_at)
        gp.adopt(running.model.state_dict(), _confirm_last(running))
        kept = f"step {running.history[-1].step}"
    else:
        return
    if isinstance(error, Exception):
        error.add_note(f"the model has the hyperparameters of {kept} of this fit")


def _confirm_last(running: Fit) -> Any:
    """The posterior of the last whole step, by one product that confirms its residuals; None without solutions."""
    running.state.restrict_rows(None, len(running.data.y))
    # Ranks are interrupted at different places, and do not meet again for a product.
    is_alone = running.compute.group is None
    if not (isinstance(running.estimator, Iterative) and running.estimator.pathwise and is_alone):
        return None
    # What ended the fit may also prevent this product.
    with warnings.catch_warnings(), suppress(Exception):
        warnings.simplefilter("ignore", ConvergenceWarning)
        settings = replace(running.options.settings, max_epochs=1.0)
        return _solve(running, running.state, settings, running.state.solutions)
    return None


def _report(running: Fit, posterior: Any, note: str, seconds: float) -> FitReport:
    data, options = running.data, running.options
    return FitReport(
        rows=len(data.y),
        columns=data.columns,
        estimator=_estimator_in_words(running.estimator, running.history),
        optimiser=f"{options.optimiser} at rate {options.learning_rate:g}",
        history=running.history,
        values={name: value.flatten().tolist() for name, value in values(running.model).items()},
        stopped=running.stopped,
        seconds=seconds,
        seed=running.seed,
        note=note,
        condition=posterior.report,
    )


def _estimator_in_words(estimator: Exact | Iterative, history: list[Step]) -> str:
    if isinstance(estimator, Exact):
        return "exact"
    kind = "pathwise" if estimator.pathwise else "standard"
    words = f"{kind}, {estimator.samples} probes, {'warm' if estimator.warm_start else 'cold'} starts"
    opening = [step for step in history if not step.solver]
    return f"exact on {opening[0].rows} rows for {len(opening)} steps, then {words}" if opening else words
