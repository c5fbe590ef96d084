"""A fit from beginning to end: initial values, outer loop, last solve, report."""

from __future__ import annotations

import math
import os
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields, replace
from typing import Any

import torch

from pathgp.compute.hardware import rates
from pathgp.compute.random import repeating_seed
from pathgp.compute.stacklevel import levels_to_the_caller
from pathgp.data.grid import GridObservations
from pathgp.data.observations import Data
from pathgp.kernels.parameters import positive
from pathgp.learning.checkpoint import Checkpoint
from pathgp.learning.data_checks import describe_copies, describe_equal_targets, warn_of_distant_mean
from pathgp.learning.estimators import Exact, Iterative
from pathgp.learning.hyperparameters import values
from pathgp.learning.initialise import initialise, perturb
from pathgp.learning.last_solve import confirm_last, solve_last
from pathgp.learning.loop import Fit
from pathgp.learning.model import Learnable
from pathgp.learning.pace import Pace, rows_for_stages
from pathgp.learning.policy import SUBGRID_STEPS, VECCHIA_COLUMNS, FitOptions, make_stages
from pathgp.learning.progress import LongFitWarning, Progress
from pathgp.learning.report import FitReport, Step
from pathgp.learning.restart import RESTARTED, restart_if_worse_than_average
from pathgp.learning.subgrids import choose_subgrids, fit_subgrids
from pathgp.learning.timing import (
    MEASURE_FROM,
    FitCosts,
    ImaginedOperator,
    describe_seconds,
    describe_stages,
    estimate_costs,
    measured_rates,
)
from pathgp.learning.vecchia import VecchiaLikelihood, is_suitable
from pathgp.operators.structure_choice import predict_structured

# The note of the report on a fit that left float32.
IN_FLOAT64 = "float64, because float32 is not accurate enough for these hyperparameters"
# A fit that takes more than this factor times its time limit warns.
_EXCEEDED = 1.2


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
    warn_of_distant_mean(gp, data)
    is_main_process = options.settings.compute.is_main_process
    with Progress(progress and is_main_process, is_main_process) as shown, shown.acknowledge_interrupts():
        return _fit(gp, data, options, checkpoint, shown, callback, generator, began)


def _fit(
    gp: Learnable,
    data: Data,
    options: FitOptions,
    checkpoint: str | os.PathLike[str] | Checkpoint | None,
    shown: Progress,
    callback: Callable[[Step], None] | None,
    generator: torch.Generator | None,
    began: float,
) -> FitReport:
    """Fit with the bar ``shown`` from the start, for the choice of kernels may take longer than the steps."""
    chosen, options, note = _resolve(gp, data, options)
    if not (checkpoint is None or isinstance(checkpoint, Checkpoint)):
        checkpoint = Checkpoint(os.fspath(checkpoint))
    compute = options.settings.compute
    facts = {field.name: getattr(options, field.name) for field in fields(options) if field.name != "settings"}
    compute.require_equal(**facts, checkpoint=None if checkpoint is None else "a file")
    generator = compute.sync_generator(generator)
    seed = repeating_seed(generator)
    best: tuple[float, Fit, Any, int] | None = None
    warning = ""
    earlier, file = 0.0, checkpoint
    source = chosen.begin_fit(data, options, generator)
    costs = predict_costs(source, data, options)
    for start in range(options.starts):
        if checkpoint is not None and start:
            # A file of its own for every further start.
            file = replace(checkpoint, path=f"{os.fspath(checkpoint.path)}.{start}")
        pace = _share_time(options, costs, began, start, shown)
        running = _prepare(source, data, options, generator, seed, file, pace, is_first=start == 0)
        earlier += sum(step.seconds for step in running.history)
        begun = [running]

        def run_again(options: FitOptions, pace: Pace = pace, begun: list[Fit] = begun) -> Fit:
            begun.append(_prepare(source, data, options, generator, seed, None, pace, is_first=True))
            begun[-1].run(callback)
            return begun[-1]

        try:
            running.run(callback)
            running, start_warning = restart_if_worse_than_average(running, run_again)
            posterior = solve_last(running)
            value = posterior.log_marginal_likelihood(generator=generator).value if options.starts > 1 else 0.0
        except (KeyboardInterrupt, Exception) as error:
            # An earlier one of these was found worse than the average of y.
            latest = [fit for fit in begun if fit.history] or begun
            _adopt_interrupted(gp, chosen, latest[-1], None if best is None else best[1:], error)
            raise
        # Per row, for a time limit may leave the starts with different numbers of rows.
        value /= posterior.report.rows
        if best is None or value > best[0]:
            best, warning = (value, running, posterior, start), start_warning
    assert best is not None
    value, running, posterior, start = best
    if options.starts > 1:
        kept = f"start {start + 1} of {options.starts} kept, log likelihood {value * posterior.report.rows:.1f}"
        note = "; ".join(filter(None, [note, kept]))
    if running.options.initialise != options.initialise:
        note = "; ".join(filter(None, [note, RESTARTED]))
    if str(data.dtype) != f"torch.{posterior.report.precision}":
        note = "; ".join(filter(None, [note, IN_FLOAT64]))
    gp.adopt_kernels(chosen)
    gp.adopt(running.model.state_dict(), posterior)
    seconds = time.perf_counter() - began
    _warn_if_late(options.time_limit, seconds, gp.is_grid)
    warning = warning or describe_equal_targets(gp, data)
    if warning:
        warnings.warn(warning, stacklevel=levels_to_the_caller())
    return _report(running, posterior, note, warning, earlier + seconds)


def predict_costs(gp: Learnable, data: Data, options: FitOptions) -> FitCosts:
    """The predicted costs of a fit with resolved options; all ranks get those of the first one.

    The rates of this machine are measured, in half a second, if the table of rates predicts more than a few seconds.
    """
    compute, n, device = options.settings.compute, len(data.y), data.device
    sizes = [len(F) for F in data.factors]
    has_structure = gp.is_grid and n**2 >= math.prod(sizes) * sum(sizes)
    backend = "kronecker" if has_structure else compute.backend
    entries = math.prod(sizes) * sum(sizes) if has_structure else n**2
    world_size = 1 if compute.group is None else compute.group.size
    memory = compute.budget(device)
    structured = None
    if not gp.is_grid and world_size == 1 and not gp.num_inducing:
        structured = predict_structured(gp.sides[0], data.factors[0], backend, memory)
    operator = ImaginedOperator((n, n), data.dtype, device, backend, memory, entries, world_size, structured)
    learned = sum(parameter.numel() for parameter in gp.parameters() if parameter.requires_grad)
    costs = estimate_costs(data.columns, learned, options, operator, rates(device, data.dtype), gp.num_inducing)
    if costs.predict(make_stages(n, options), n) > MEASURE_FROM:
        return replace(costs, rates=compute.on_main_process(lambda: measured_rates(device, data.dtype)))
    return costs


def _share_time(options: FitOptions, costs: FitCosts, began: float, start: int, shown: Progress) -> Pace:
    """The clock of one start; each gets an equal part of the time that is left."""
    if options.time_limit is None:
        return Pace(costs, progress=shown)
    now = time.perf_counter()
    limit = max(began + options.time_limit - now, 0.0) / (options.starts - start)
    return Pace(costs, limit, now + limit, shown)


def _prepare(
    gp: Learnable,
    data: Data,
    options: FitOptions,
    generator: torch.Generator,
    seed: int | None,
    file: Checkpoint | None,
    pace: Pace,
    is_first: bool,
) -> Fit:
    """A fit at its initial values or at those of its checkpoint, announced; only the first start is not perturbed."""
    n, limited = len(data.y), pace.deadline is not None and not gp.is_grid
    planned = options.settings.compute.on_main_process(lambda: rows_for_stages(pace) if limited else n)
    running = Fit(gp.working_copy(data.device), data, options, generator, seed, file, planned)
    if not running.resume():
        initialise(options.initialise, running.model, data, options.settings, generator)
        if not is_first:
            perturb(running.model, generator)
        if options.begins_on_subgrids:
            assert isinstance(data, GridObservations)
            found = fit_subgrids(running.model, data, choose_subgrids(data), running.coordinates, SUBGRID_STEPS)
            running.optimiser.seed(found.curvature)
            # All cells may need more noise than sub-grids for systems that can be solved.
            running.project()
    pace = replace(pace, resumed_at=len(running.history))
    running.pace = pace = replace(pace, predicted_seconds=pace.predict_left(running))
    if pace.progress is not None:
        rows = f"{n:,} rows" if pace.deadline is None else f"{n:,} rows within {describe_seconds(pace.limit)}"
        last = "all rows" if running.planned_rows == n else f"about {running.planned_rows:,} rows"
        plan = f"{rows}: up to {describe_stages(running.stages)}, last solve on {last}"
        pace.progress.announce(plan, pace.predicted_seconds, can_warn=pace.deadline is None)
    return running


def _warn_if_late(limit: float | None, seconds: float, is_grid: bool) -> None:
    if limit is not None and seconds > _EXCEEDED * limit:
        remedy = "raise time_limit or tol, or lower samples"
        reason = "a grid is conditioned on all its cells" if is_grid else "the limit is too short for this machine"
        words = f"the fit took {seconds:.3g} s, more than its time limit of {limit:.3g} s: {reason}; {remedy}"
        warnings.warn(words, LongFitWarning, stacklevel=levels_to_the_caller())


def _resolve(gp: Learnable, data: Data, options: FitOptions) -> tuple[Learnable, FitOptions, str]:
    """The model and the options with every automatic choice made, and a note: chosen kernels, dtype, why there are no
    paths.
    """
    options = gp.adapt_options(options)
    gp, chosen = gp.choose_kernels(data)
    is_table = not (gp.is_grid or gp.num_inducing)
    is_field = is_table and is_suitable(gp.sides[0], data.columns, VECCHIA_COLUMNS)
    if options.estimator == "vecchia" and not (is_table and is_suitable(gp.sides[0], data.columns, data.columns)):
        raise ValueError("estimator='vecchia' is for tables and functions of differences of inputs, such as Matern")
    is_automatic, options = options.initialise == "auto", options.resolve(len(data.y), gp.is_grid, is_field)
    if chosen and is_automatic:
        # The choice ends at an optimum of sub-grids.
        options = replace(options, initialise="model", explores=False)
    if not positive(gp, "noise").raw.requires_grad:
        options = replace(options, explores=False)
    notes = [chosen, data.note, describe_copies(data)]
    gp.require_supported(data, options.settings, has_draws=options.estimator == "pathwise")
    if options.estimator == "pathwise":
        try:
            gp.draw_prior(data, 1, options.features, torch.Generator())
        except NotImplementedError as error:
            note = f"standard estimator, without paths: {error}"
            return gp, replace(options, estimator="standard"), "; ".join(filter(None, [*notes, note]))
    return gp, options, "; ".join(filter(None, notes))


def _adopt_interrupted(
    gp: Learnable, chosen: Learnable, running: Fit, best: tuple[Fit, Any, int] | None, error: BaseException
) -> None:
    """After an error or Ctrl-C: the best complete start, or the last whole step and its solutions as the posterior."""
    if best is not None or running.history:
        gp.adopt_kernels(chosen)
    if best is not None:
        gp.adopt(best[0].model.state_dict(), best[1])
        kept = f"start {best[2] + 1}"
    elif running.history:
        running.model.load_state_dict(running.evaluated_at)
        gp.adopt(running.model.state_dict(), None)
        # A second Ctrl-C leaves the hyperparameters without a posterior.
        with suppress(KeyboardInterrupt):
            is_interrupted = isinstance(error, KeyboardInterrupt)
            gp.adopt(running.model.state_dict(), confirm_last(running, can_announce=is_interrupted))
        kept = f"step {running.history[-1].step}"
    else:
        return
    if isinstance(error, Exception):
        error.add_note(f"the model has the hyperparameters of {kept} of this fit")


def _report(running: Fit, posterior: Any, note: str, warning: str, seconds: float) -> FitReport:
    data, options = running.data, running.options
    return FitReport(
        rows=len(data.y),
        columns=data.columns,
        estimator=_estimator_in_words(running.estimator, running.history),
        optimiser=f"{options.optimiser} at rate {options.learning_rate:g}",
        history=running.history,
        values={name: value.flatten().tolist() for name, value in values(running.model).items()},
        stopped=running.stop_reason,
        seconds=seconds,
        seed=running.seed,
        note=note,
        warning=warning,
        condition=posterior.report,
        time_limit=options.time_limit,
        predicted_seconds=running.pace.predicted_seconds,
        approximation=running.estimator.approximation,
    )


def _estimator_in_words(estimator: Exact | Iterative | VecchiaLikelihood, history: list[Step]) -> str:
    if isinstance(estimator, Exact):
        return estimator.description
    if isinstance(estimator, VecchiaLikelihood):
        words = estimator.description
    else:
        kind = "pathwise" if estimator.pathwise else "standard"
        words = f"{kind}, {estimator.samples} probes, {'warm' if estimator.warm_start else 'cold'} starts"
    opening = [step for step in history if not (step.solver or step.method)]
    return f"exact on {opening[0].rows} rows for {len(opening)} steps, then {words}" if opening else words
